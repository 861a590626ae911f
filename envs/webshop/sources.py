"""Which files a configuration's catalogue comes from, and the name of the result. Light: planning asks this."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.cache import cache_root, write_atomically
from envs.interface import EnvConfig
from envs.panels import digest
from envs.search import INDEX_VERSION
from envs.webshop.knobs import knobs_of
from envs.webshop.versions import CATALOGUE_VERSION, GENERATOR_VERSION, STORE_VERSION

OFFICIAL_SEED = 0  # of drawn prices and bounds of official data: the same for everybody
NOUN_FILE = "nouns.json"


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
    files = {name: _kept_sha256(path, cache_root(config)) for name, path in official_files(config).items()}
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


@lru_cache(maxsize=64)
def _kept_sha256(path: Path, cache: Path) -> str:
    """Digest of a file, remembered by its size and time of change: planning asks often, and files have gigabytes."""
    status = path.stat()
    kept = cache / "webshop" / "digests" / f"{digest(str(path.resolve()))[:16]}.json"
    key = [status.st_size, status.st_mtime_ns]
    if kept.is_file():
        found = json.loads(kept.read_text(encoding="utf-8"))
        if found["key"] == key:
            return str(found["sha256"])
    sha256 = file_sha256(path)
    write_atomically(kept, json.dumps({"key": key, "sha256": sha256}).encode())
    return sha256


def file_sha256(path: Path) -> str:
    """Hex digest of a file."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            total.update(chunk)
    return total.hexdigest()
