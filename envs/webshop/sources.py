"""Which files a configuration's catalogue comes from, and the name of the result. Light: planning asks this."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envs.cache import cache_root, kept_sha256
from envs.interface import EnvConfig
from envs.panels import digest
from envs.search import INDEX_VERSION
from envs.webshop.knobs import knobs_of
from envs.webshop.versions import CATALOGUE_VERSION, GENERATOR_VERSION, STORE_VERSION

OFFICIAL_SEED = 0  # of drawn prices and bounds of official data: the same for everybody
NOUN_FILE = "nouns.json"
PANEL_FILE = "panels.json"  # asin -> panel; only beside generated files, whose families must not be torn apart


def data_version(config: EnvConfig) -> str:
    """Names the catalogue and its goals by everything that determines them. FileNotFoundError for a missing file."""
    knobs = knobs_of(config)
    parts: dict[str, Any] = {
        "catalogue": CATALOGUE_VERSION,
        "store": STORE_VERSION,
        "index": INDEX_VERSION,
        "products": knobs.products,
        "goals": knobs.goals,
    }
    if config.data is None:
        parts |= {"generator": GENERATOR_VERSION, "world_seed": config.world_seed}
        return f"generated-{digest(json.dumps(parts, sort_keys=True))[:16]}"
    notes = cache_root(config) / "webshop" / "digests"
    files = {name: kept_sha256(path, notes) for name, path in official_files(config).items()}
    parts |= {"files": files, "nouns": knobs.nouns, "seed": OFFICIAL_SEED}
    return f"official-{digest(json.dumps(parts, sort_keys=True))[:16]}"


def store_folder(config: EnvConfig) -> Path:
    """Where the catalogue is kept, ready to be played; it need not exist."""
    return cache_root(config) / "webshop" / data_version(config)


def official_files(config: EnvConfig) -> dict[str, Path]:
    """Knob -> file below env.data that the configuration needs. FileNotFoundError names each that is missing."""
    knobs = knobs_of(config)
    root = Path(config.data or ".").expanduser()
    names = {"product_file": knobs.product_file, "attribute_file": knobs.attribute_file}
    if knobs.goals == "human":
        names["human_file"] = knobs.human_file
    if knobs.review_file:
        names["review_file"] = knobs.review_file
    if knobs.nouns == "stored":
        names["nouns"] = NOUN_FILE
    if (root / PANEL_FILE).is_file():
        names["panels"] = PANEL_FILE
    missing = [f"{root / name} (env.knobs.{key})" for key, name in names.items() if not (root / name).is_file()]
    if missing:
        noun_advice = (
            f" {NOUN_FILE} is made with `python -m envs.webshop nouns --data {root}`, which needs spaCy and a model; "
            "or set env.knobs.nouns=words to compare all words of titles instead."
            if knobs.nouns == "stored" and not (root / NOUN_FILE).is_file()
            else ""
        )
        raise FileNotFoundError(
            f"WebShop's files are incomplete: {', '.join(missing)} missing. `python -m envs.webshop fetch --list` says "
            f"where they come from.{noun_advice} Without env.data a catalogue is generated"
        )
    return {key: root / name for key, name in names.items()}
