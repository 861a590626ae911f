"""The catalogue that a configuration means: generated from a seed, or the user's copy of WebShop's files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from core.names import require_known
from envs.interface import EnvConfig, Task
from envs.panels import digest
from envs.webshop.catalogue import CatalogueError, Product, products
from envs.webshop.generator import generate
from envs.webshop.goals import PANELS, Goal, human, synthetic
from envs.webshop.jsonfiles import read_array, read_json
from envs.webshop.knobs import knobs_of
from envs.webshop.library import slots_of
from envs.webshop.sources import OFFICIAL_SEED, data_version, official_files, store_folder
from envs.webshop.store import Store, ensure, open_store, write
from envs.webshop.words import CATEGORIES


def store_of(config: EnvConfig) -> Store:
    """The configuration's catalogue, made on the first call. One open store per process, folder and ranker."""
    folder = ensure(store_folder(config), lambda folder: _fill(config, folder))
    return open_store(folder, knobs_of(config).ranker)


def tasks_of(config: EnvConfig, panel: str) -> tuple[str, list[Task]]:
    """(data version, tasks of the panel). Generated: so many per type as the configuration says; official: all.

    Raises ValueError if a generated catalogue has fewer goals of a type.
    """
    require_known("panel of webshop", panel, PANELS)
    store = store_of(config)
    goals = list(store.goals(panel))
    if config.data is None:
        per_type = {
            "train": config.train_per_type,
            "validation": config.validation_per_type,
            "test": config.eval_per_type,
        }[panel]
        key = {"train": "train_per_type", "validation": "validation_per_type", "test": "eval_per_type"}[panel]
        goals = _some(goals, per_type, f"env.{key}", panel)
    return store.manifest["version"], [_task(number, goal) for number, goal in goals]


def _task(number: int, goal: Goal) -> Task:
    return Task(goal.id, goal.category, goal.content_hash(), slots_of(goal), str(number))


def _some(goals: Sequence[tuple[int, Goal]], per_type: int, key: str, panel: str) -> list[tuple[int, Goal]]:
    """`per_type` goals of each type, about as many products as possible, by an order that only contents decide."""
    if per_type < 1:
        raise ValueError(f"{key}={per_type} makes an empty panel; give at least 1")
    by_type: dict[str, dict[str, list[tuple[str, int, Goal]]]] = defaultdict(lambda: defaultdict(list))
    for number, goal in goals:
        by_type[goal.category][goal.asin].append((digest("panel", goal.content_hash()), number, goal))
    chosen: list[tuple[int, Goal]] = []
    for kind in sorted(CATEGORIES):
        ranked = [
            (turn, order, number, goal)
            for found in by_type[kind].values()
            for turn, (order, number, goal) in enumerate(sorted(found, key=lambda entry: entry[0]))
        ]
        if len(ranked) < per_type:
            raise ValueError(
                f"{key}={per_type}, but panel {panel!r} of the generated catalogue has only {len(ranked)} goals of "
                f"type {kind!r}; raise env.knobs.products or lower {key}"
            )
        chosen += [(number, goal) for _, _, number, goal in sorted(ranked, key=lambda entry: entry[:2])[:per_type]]
    return chosen


def _fill(config: EnvConfig, folder: Path) -> None:
    knobs = knobs_of(config)
    version = data_version(config)
    if config.data is None:
        assert knobs.products is not None
        raw, seed = generate(config.world_seed, knobs.products), config.world_seed
        found = products(raw.products, raw.attributes, raw.nouns, seed)
        write(
            folder,
            version,
            found,
            lambda shelf: _goals(knobs.goals, shelf, raw.attributes, raw.human, seed),
            raw.panels,
        )
        return
    files = official_files(config)
    entries = islice(read_array(files["product_file"]), knobs.products)
    attributes = read_json(files["attribute_file"])
    people = read_json(files["human_file"]) if "human_file" in files else {}
    reviews = {r["asin"]: r for r in read_array(files["review_file"])} if "review_file" in files else None
    nouns = read_json(files["nouns"]) if "nouns" in files else None
    panels = _panels(files["panels"]) if "panels" in files else None
    found = products(entries, attributes, nouns, OFFICIAL_SEED, reviews, str(files["product_file"]))
    write(folder, version, found, lambda shelf: _goals(knobs.goals, shelf, attributes, people, OFFICIAL_SEED), panels)


def _panels(file: Path) -> dict[str, str]:
    """asin -> panel. CatalogueError naming the file and what in it is no panel."""
    found = read_json(file)
    strange = sorted({str(panel) for panel in found.values()} - set(PANELS))
    if strange:
        raise CatalogueError(
            f"{file} names panels that do not exist: {', '.join(strange)}; they are {', '.join(PANELS)}"
        )
    return dict(found)


def _goals(
    kind: str,
    shelf: Iterable[Product],
    attributes: Mapping[str, Mapping[str, Any]],
    people: Mapping[str, Sequence[Mapping[str, Any]]],
    seed: int,
) -> Iterator[Goal]:
    return human(shelf, people, seed) if kind == "human" else synthetic(shelf, attributes, seed)
