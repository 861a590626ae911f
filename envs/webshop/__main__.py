"""Command line of WebShop's data: `python -m envs.webshop generate|verify|fetch|nouns --help`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.interface import EnvConfig
from envs.panels import PanelError, assert_disjoint
from envs.webshop.knobs import Knobs

OK, FAILED, USAGE = 0, 1, 2
RECORD = "sha256.json"  # beside the user's files: what they must be
# What the authors of WebShop count in their files (arXiv:2207.01206); a difference is said, not refused.
PUBLISHED = {"products of items_shuffle_1000.json": 1000, "sentences of items_human_ins.json": 12087}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m envs.webshop", description="Catalogues and goals of WebShop: make, check, download."
    )
    commands = top.add_subparsers(dest="command", required=True)
    defaults, knobs = EnvConfig(), Knobs()

    generate = commands.add_parser("generate", help="make a catalogue from a seed")
    _about_generated(generate, defaults, knobs)
    generate.add_argument(
        "--out", type=Path, help="new folder for files in WebShop's formats; without it the cache folder gets a shop"
    )

    verify = commands.add_parser("verify", help="read a catalogue and its goals, and compare with what they must be")
    verify.add_argument("--data", help="folder with WebShop's files; default: a generated catalogue")
    verify.add_argument(
        "--knob", action="append", default=[], metavar="NAME=VALUE", help="of env.knobs; may be repeated"
    )
    verify.add_argument(
        "--record", action="store_true", help=f"write the digests of the files in --data to {RECORD}, to compare later"
    )
    _about_generated(verify, defaults, knobs)

    fetch = commands.add_parser("fetch", help="download WebShop's own files (needs internet)")
    fetch.add_argument("--out", type=Path, help="folder to put them into; later env.data=FOLDER")
    fetch.add_argument("--full", action="store_true", help="also the catalogue of 1.18 million products (gigabytes)")
    fetch.add_argument("--list", action="store_true", help="print what would be downloaded, and stop")
    fetch.add_argument("--url", help="take this address instead; needs --name")
    fetch.add_argument("--name", help="file name for --url")

    nouns = commands.add_parser("nouns", help="tag the titles of a product file with spaCy, once, into nouns.json")
    nouns.add_argument("--data", type=Path, required=True, help="folder with WebShop's files")
    nouns.add_argument("--products", default=knobs.product_file, help="product file in it (default %(default)s)")
    nouns.add_argument("--model", default="en_core_web_lg", help="spaCy model (default %(default)s, WebShop's)")
    return top


def _about_generated(command: argparse.ArgumentParser, defaults: EnvConfig, knobs: Knobs) -> None:
    command.add_argument("--seed", type=int, default=defaults.world_seed, help="world seed (default %(default)s)")
    command.add_argument("--products", type=int, default=knobs.products, help="products (default %(default)s)")
    command.add_argument("--goals", default=knobs.goals, help="synthetic or human (default %(default)s)")
    command.add_argument("--cache", help="cache folder (default $HARNESS_CACHE or ~/.cache/agentic-rl-harness)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 all well, 1 the data are not what they must be, 2 wrong use or something in the way."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    run = {"generate": _generate, "verify": _verify, "fetch": _fetch, "nouns": _nouns}[options.command]
    try:
        return run(options)
    except PanelError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED if options.command == "verify" and isinstance(error, FileNotFoundError) else USAGE


def _config(options: argparse.Namespace) -> EnvConfig:
    knobs: dict[str, Any] = {"products": options.products, "goals": options.goals}
    for given in getattr(options, "knob", []):
        name, _, value = given.partition("=")
        knobs[name] = json.loads(value) if value in ("null", "true", "false") or value.isdigit() else value
    data = getattr(options, "data", None)
    return EnvConfig(
        name="webshop", engine="native", data=data, cache=options.cache, world_seed=options.seed, knobs=knobs
    )


def _generate(options: argparse.Namespace) -> int:
    from envs.webshop.data import store_of
    from envs.webshop.generator import files, generate

    if options.out is None:
        store = store_of(_config(options))
        print(f"{store.folder}: {len(store)} products, {store.manifest['goals']} goals")
        return OK
    if options.out.exists() and any(options.out.iterdir()):
        raise ValueError(f"--out {options.out} is not empty; give a new folder")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, content in files(generate(options.seed, options.products)).items():
        (options.out / name).write_bytes(content)
    print(
        f"{options.out}: {options.products} products in WebShop's formats; play them with env.data={options.out} "
        "env.knobs.product_file=items_shuffle.json env.knobs.attribute_file=items_ins_v2.json"
    )
    return OK


def _verify(options: argparse.Namespace) -> int:
    from envs.cache import file_sha256
    from envs.webshop import store as stores
    from envs.webshop.data import store_of
    from envs.webshop.jsonfiles import read_json
    from envs.webshop.sources import official_files
    from envs.webshop.spec import PANELS, load_panel

    config = _config(options)
    if config.data is None and options.record:
        raise ValueError("--record needs --data: generated catalogues have their digests already")
    wrong: list[str] = []
    if config.data is not None:
        record = Path(config.data) / RECORD
        found = {path.name: file_sha256(path) for path in official_files(config).values()}
        if options.record:
            record.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            print(f"wrote {record}")
        wanted = read_json(record) if record.is_file() else {}
        wrong += [
            f"{name} was changed: {RECORD} says otherwise"
            for name in sorted(found)
            if found[name] != wanted.get(name, found[name])
        ]
        wrong += [
            f"{name} is recorded in {RECORD} but missing"
            for name in sorted(wanted)
            if not (record.parent / name).is_file()
        ]
        _say_counts(config)
    store = store_of(config)
    wrong += stores.problems(store.folder)
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        print(f"error: {len(wrong)} files are not what they must be", file=sys.stderr)
        return FAILED
    left_out = store.manifest["left_out"]
    print(
        f"{store.folder}: {len(store)} products, {store.manifest['goals']} goals ({left_out} repeat another's content)"
    )
    panels = {name: load_panel(config, name) for name in PANELS}
    assert_disjoint(panels["train"], panels["validation"], panels["test"])
    assert_disjoint(panels["validation"], panels["test"])
    for name, panel in panels.items():
        types = Counter(task.type for task in panel.tasks)
        print(f"{name}: {len(panel.tasks)} goals, panel hash {panel.hash[:16]}")
        for kind in sorted(types):
            print(f"  {kind}: {types[kind]}")
    return OK


def _say_counts(config: EnvConfig) -> None:
    from envs.webshop.jsonfiles import read_array, read_json
    from envs.webshop.sources import official_files

    files = official_files(config)
    counts = {f"products of {files['product_file'].name}": sum(1 for _ in read_array(files["product_file"]))}
    if "human_file" in files:
        entries = read_json(files["human_file"])
        counts[f"sentences of {files['human_file'].name}"] = sum(len(found) for found in entries.values())
    for what, count in counts.items():
        published = PUBLISHED.get(what, count)
        print(f"{what}: {count}" + (f" (its authors count {published})" if published != count else ""))


def _fetch(options: argparse.Namespace) -> int:
    from envs.webshop import fetch

    sources = [source for source in fetch.SOURCES if options.full or not source.full]
    if options.url:
        if not options.name:
            raise ValueError("--url needs --name, the file name to keep it under")
        sources = [fetch.Source(options.name, options.url)]
    print(fetch.NOTICE, file=sys.stderr)
    if options.list:
        print("\n".join(f"{source.name}\t{source.url}" for source in sources))
        return OK
    if options.out is None:
        raise ValueError("fetch needs --out FOLDER (or --list)")
    for source in sources:
        size = fetch.download(source.url, options.out / source.name)
        print(f"{source.name}: {size} bytes")
    print(f"next: python -m envs.webshop nouns --data {options.out}; then verify --data {options.out} --record")
    return OK


def _nouns(options: argparse.Namespace) -> int:
    from envs.webshop.jsonfiles import read_array
    from envs.webshop.nouns import spacy_tagger, write_nouns
    from envs.webshop.sources import NOUN_FILE

    path = options.data / options.products
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; `python -m envs.webshop fetch` gets it")
    target = options.data / NOUN_FILE
    count = write_nouns(read_array(path), spacy_tagger(options.model), target)
    print(f"{target}: nouns of {count} titles")
    return OK


if __name__ == "__main__":
    sys.exit(main())
