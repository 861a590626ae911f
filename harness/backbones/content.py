"""What is in a model's folder: sha256 of its files, looked up cheaply enough for planning.

A hub model has gigabytes, so hashes are kept in the cache folder and a file is read again only if its size or its times
changed. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from envs.cache import write_atomically

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
# Whatever else transformers reads of a model: configuration, tokenizer, chat template, code of its own.
_READ = (*WEIGHTS, ".json", ".jinja", ".model", ".txt", ".py")


def file_sha256(path: Path) -> str:
    """Hex digest of one file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes(folder: Path, kept: Path) -> dict[str, str]:
    """Name -> sha256 of each file of `folder` that a model is loaded from, sorted.

    kept: folder for what was computed before; if it cannot be written, everything is read again next time. Raises
    OSError if a file cannot be read.
    """
    key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    note = kept / f"{key}.json"
    known = _known(note)
    found: dict[str, list[object]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in _READ or not path.is_file():
            continue
        about = path.stat()
        stamp = [about.st_size, about.st_mtime_ns, about.st_ctime_ns]
        before = known.get(path.name)
        same = isinstance(before, list) and before[:3] == stamp and len(before) == 4
        found[path.name] = before if same and isinstance(before, list) else [*stamp, file_sha256(path)]
    if found != known:
        with contextlib.suppress(OSError):
            write_atomically(note, json.dumps(found).encode())
    return {name: str(entry[-1]) for name, entry in found.items()}


def _known(note: Path) -> dict[str, object]:
    try:
        content = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def combined(of: dict[str, str]) -> str:
    """One digest of several files. That of a single file is its own, so that `sha256sum` can be compared with it."""
    if len(of) == 1:
        return next(iter(of.values()))
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()
