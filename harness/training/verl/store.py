"""Checkpoints of engine=verl, and the exported weights.

checkpoints/step_000010/
    actor/         shards of weights, optimiser and random generators of every rank, as verl writes them
    teacher/       the same of a teacher that changes in training; only in runs that have one
    state.json     step, run seed, data cursor, method state, sizes of append-only files, number of ranks
    MANIFEST.json  size of each file above, sha256 of state.json; written last
export/            the final weights as a plain transformers folder; MANIFEST.json as above, with sha256 of the weights

A shard is gigabytes, so that its size alone is checked: what a crash leaves behind is a file that is too short.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from harness.errors import ConfigError, Problem
from harness.files import json_bytes, sync_folder, write_new, writing
from harness.training.checkpoint import MANIFEST, STATE, CheckpointError, Rejected, step_path, steps

WORLD = "world"  # in state.json: ranks that the shards are of
ACTOR, TEACHER, EXPORT = "actor", "teacher", "export"
VERSION = "verl-1"
_HASHED = (".safetensors",)


def save(folder: Path, step: int, state: Mapping[str, Any], shards: Callable[[Path], None], keep: int) -> Path:
    """Write the checkpoint of `step` in one step, and remove all but the `keep` newest. shards: writes them below a
    folder. Raises DiskFullError or RecordError if it cannot be written; older checkpoints are intact then."""
    target = step_path(folder, step)
    scratch = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
    with writing(target):
        scratch.mkdir(parents=True)
        try:
            shards(scratch)
            write_new(scratch / STATE, json_bytes({**state, "version": VERSION, "step": step}))
            write_new(scratch / MANIFEST, json_bytes(_manifest(scratch, (STATE,))))
            sync_folder(scratch)
            shutil.rmtree(target, ignore_errors=True)  # an earlier attempt got here too, or this one was damaged
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        sync_folder(folder)
    for old in steps(folder)[: -max(1, keep)]:
        shutil.rmtree(step_path(folder, old), ignore_errors=True)
    return target


def newest(folder: Path) -> tuple[Path | None, dict[str, Any], list[Rejected]]:
    """The newest sound checkpoint and its state (None and {} if there is none), and newer ones that are not sound."""
    rejected: list[Rejected] = []
    for step in reversed(steps(folder)):
        path = step_path(folder, step)
        try:
            _verify(path)
            state: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))
            if state.get("version") != VERSION:
                raise CheckpointError(f"{path} has format version {state.get('version')}, engine=verl reads {VERSION}")
        except CheckpointError as error:
            rejected.append(Rejected(path, str(error)))
            continue
        return path, state, rejected
    return None, {}, rejected


def refuse_other_world(path: Path, state: Mapping[str, Any], ranks: int) -> None:
    """A shard is one rank's, and verl reads no other number of them. Raises ConfigError. ranks: of this attempt."""
    written = state.get(WORLD, ranks)
    if written != ranks:
        fix = (
            f"{path.name} was written by {written} GPUs and this attempt has {ranks}: shards of verl's checkpoints are "
            f"read by as many GPUs only. Give the run {written} again (backbone.resources.nodes x gpus_per_node, or "
            f"launcher.resources), or move {path.parent} away to train from the beginning"
        )
        raise ConfigError(Problem("backbone.resources.gpus_per_node", str(ranks), "", fix))


def seal_export(folder: Path) -> None:
    """Say what an exported folder holds, so that it can be told from half of one."""
    write_new(folder / MANIFEST, json_bytes(_manifest(folder, _HASHED)))
    sync_folder(folder)


@dataclass(frozen=True)
class Exported:
    """path: a transformers folder; digest: sha256 over the digests of its weights."""

    path: Path
    digest: str


def exported(run: Path) -> Exported | None:
    """The final weights of a finished run's folder; None if it has none. Raises CheckpointError if they are damaged."""
    folder = run / EXPORT
    if not (folder / MANIFEST).is_file():
        return None
    manifest = _verify(folder)
    weights = sorted((name, entry["sha256"]) for name, entry in manifest.items() if name.endswith(_HASHED))
    return Exported(folder, hashlib.sha256(json.dumps(weights).encode()).hexdigest())


def _manifest(folder: Path, hashed: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            entry: dict[str, Any] = {"size": path.stat().st_size}
            if path.name.endswith(hashed):
                entry["sha256"] = _sha256(path)
            found[path.relative_to(folder).as_posix()] = entry
    return found


def _verify(folder: Path) -> dict[str, dict[str, Any]]:
    """Compare every file with the manifest. Raises CheckpointError saying what is wrong."""
    try:
        manifest: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, entry in manifest.items():
            size = (folder / name).stat().st_size
            if size != entry["size"]:
                raise CheckpointError(f"{folder / name} has {size} bytes, its manifest says {entry['size']}")
            if "sha256" in entry and _sha256(folder / name) != entry["sha256"]:
                raise CheckpointError(f"{folder / name} has another sha256 than its manifest says")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder} is incomplete or unreadable ({error})") from error
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
