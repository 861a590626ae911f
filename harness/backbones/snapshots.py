"""Models of the hub on this machine: found without the network, and without importing transformers.

A job of a cluster often has no network, and a hundred jobs that download one model at once are nobody's friends: what
runs start from must lie there before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from harness.config import BackboneConfig

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")


class SnapshotError(RuntimeError):
    """There is no such snapshot here. fix: how to get it."""

    failure_class = "config"

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def hub_cache() -> Path:
    """Where the hub's client keeps its downloads: its own variables, in its own order."""
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if given := os.environ.get(name):
            return Path(given).expanduser() / below
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "huggingface" / "hub"


def snapshot(backbone: BackboneConfig) -> Path:
    """The folder of a hub backbone: `backbone.path` itself, or the downloaded snapshot of a hub id.

    Raises SnapshotError.
    """
    named = backbone.path or ""
    path = Path(named).expanduser()
    if named and path.is_dir():
        return path
    if not named or path.is_absolute() or named.startswith((".", "~")):
        raise SnapshotError(f"{named or 'backbone.path'} is no folder", "set backbone.path to a snapshot's folder")
    folder = hub_cache() / f"models--{named.replace('/', '--')}"
    revision = backbone.revision or "main"
    reference = folder / "refs" / revision
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    found = folder / "snapshots" / commit
    if not found.is_dir():
        pinned = f" --revision {backbone.revision}" if backbone.revision else ""
        raise SnapshotError(
            f"{named} (revision {revision}) is not in the hub's cache of this machine ({hub_cache()})",
            f"download it where the jobs can read it: hf download {named}{pinned} --local-dir DIR, then "
            "backbone.path=DIR",
        )
    return found


def snapshot_problems(folder: Path) -> list[str]:
    """What is missing of a snapshot, in words; empty if it is whole."""
    lacks: list[str] = []
    if not (folder / "config.json").is_file():
        lacks.append("config.json is missing")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        lacks.append(f"there is no tokenizer ({', '.join(_TOKENIZERS)})")
    index = next((folder / name for name in _INDEXES if (folder / name).is_file()), None)
    if index is not None:
        named = sorted(set((_json(index).get("weight_map") or {}).values()))
        absent = [name for name in named if not (folder / name).is_file() or not (folder / name).stat().st_size]
        if absent or not named:
            lacks.append(f"{index.name} names weights that are missing or empty: {', '.join(absent) or 'none at all'}")
    elif not any((folder / name).is_file() and (folder / name).stat().st_size for name in _SINGLE):
        lacks.append(f"there are no weights ({', '.join(_SINGLE)})")
    return lacks


def token_limit(folder: Path) -> int | None:
    """Longest sequence that the model's configuration allows; None if it does not say."""
    found = _json(folder / "config.json").get("max_position_embeddings")
    return found if isinstance(found, int) else None


def parameters(folder: Path) -> int | None:
    """Number of parameters, from the size of the weights and the type that config.json names; None if unknown."""
    width = {"float32": 4, "bfloat16": 2, "float16": 2}
    config = _json(folder / "config.json")
    kind = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    size = sum(path.stat().st_size for path in files)
    return size // width[kind] if kind in width and size else None


def _json(path: Path) -> dict[str, Any]:
    """The object in a file, empty where there is none or it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
