"""Checkpoints that survive crashes: written beside, synced, renamed, verified on load.

checkpoints/step_000010/
    model.safetensors   parameters and persistent buffers, shared tensors once
    optimizer.pt        torch.save of the optimiser's state_dict, read with weights_only=True
    teacher.safetensors the same of a teacher that changes in training; only in runs that have one
    state.json          step, run seed, data cursor, method state, sizes of append-only files
    MANIFEST.json       sha256 and size of each file above; written last

Random numbers need no state of their own: every stream is a function of the run's seed and the step
(harness.training.streams).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as encode
from torch import Tensor

from harness.files import RecordError, json_bytes, scratch_name, sync_folder, write_new, writing

KEEP = 2  # the newest, and one to fall back to
MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.pt", "state.json", "MANIFEST.json"
TEACHER = "teacher.safetensors"
FILES = (MODEL, OPTIMIZER, STATE)
VERSION = 1


class CheckpointError(RecordError):
    """A checkpoint is damaged or does not fit the run."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that cannot be used, and why."""

    path: Path
    reason: str


def step_path(folder: Path, step: int) -> Path:
    return folder / f"step_{step:06d}"


def save(
    folder: Path,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    teacher: torch.nn.Module | None = None,
) -> Path:
    """Write the checkpoint of `step` and remove all but the KEEP newest. state: anything JSON can hold.

    Raises DiskFullError or RecordError if it cannot be written; older checkpoints are intact then.
    """
    target = step_path(folder, step)
    scratch = scratch_name(target)
    with writing(target):
        scratch.mkdir(parents=True)
        try:
            # Through memory: torch and safetensors report a full disk as errors of their own, write_new as OSError.
            write_new(scratch / MODEL, _model_bytes(model))
            write_new(scratch / OPTIMIZER, _optimizer_bytes(optimizer))
            write_new(scratch / STATE, json_bytes({**state, "version": VERSION, "step": step}))
            if teacher is not None:
                write_new(scratch / TEACHER, _model_bytes(teacher))
            names = (*FILES, TEACHER) if teacher is not None else FILES
            manifest = {name: {"sha256": _sha256(scratch / name), "size": _size(scratch / name)} for name in names}
            write_new(scratch / MANIFEST, json_bytes(manifest))
            sync_folder(scratch)
            if target.exists():  # an earlier attempt got here too, or this one was damaged
                shutil.rmtree(target)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        sync_folder(folder)
    for old in steps(folder)[:-KEEP]:
        shutil.rmtree(step_path(folder, old), ignore_errors=True)
    return target


def steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint folder, ascending, damaged ones included."""
    if not folder.is_dir():
        return []
    found = (re.fullmatch(r"step_(\d{6,})", path.name) for path in folder.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in found if match)


def newest(folder: Path) -> tuple[Path | None, list[Rejected]]:
    """The newest sound checkpoint (None if there is none), and the newer ones that had to be passed over."""
    rejected: list[Rejected] = []
    for step in reversed(steps(folder)):
        path = step_path(folder, step)
        try:
            verify(path)
        except CheckpointError as error:
            rejected.append(Rejected(path, str(error)))
            continue
        return path, rejected
    return None, rejected


def verify(path: Path) -> None:
    """Compare every file with the manifest. Raises CheckpointError saying what is wrong."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        names = (*FILES, TEACHER) if TEACHER in manifest else FILES
        recorded = {name: (manifest[name]["sha256"], manifest[name]["size"]) for name in names}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / MANIFEST} is missing or unreadable ({error})") from error
    for name in names:
        try:
            found = (_sha256(path / name), _size(path / name))
        except OSError as error:
            raise CheckpointError(f"{path / name} cannot be read ({error})") from error
        if found != recorded[name]:
            raise CheckpointError(f"{path / name} has sha256 {found[0]}, its manifest says {recorded[name][0]}")


def read_state(path: Path) -> dict[str, Any]:
    """state.json of a verified checkpoint. Raises CheckpointError for one of another format version."""
    state: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))
    if state.get("version") != VERSION:
        raise CheckpointError(f"{path} has format version {state.get('version')}, this harness reads {VERSION}")
    return state


def load_model(path: Path, model: torch.nn.Module, name: str = MODEL) -> None:
    """Load the weights (name: MODEL or TEACHER) of a verified checkpoint in place. Raises CheckpointError if they are
    missing or of another model."""
    try:
        stored = load_file(path / name)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} holds no {name}, which this run needs") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path / name} is not a safetensors file ({error})") from error
    own = _unique_tensors(model)
    if {key: tensor.shape for key, tensor in own.items()} != {key: t.shape for key, t in stored.items()}:
        odd = sorted(set(own) ^ set(stored)) or sorted(key for key in own if own[key].shape != stored[key].shape)
        raise CheckpointError(f"{path / name} is of another model: {', '.join(odd[:5])} differ")
    with torch.no_grad():
        for key, tensor in own.items():
            tensor.copy_(stored[key])


def load_optimizer(path: Path, optimizer: torch.optim.Optimizer) -> None:
    """Load the optimiser's state of a verified checkpoint."""
    optimizer.load_state_dict(torch.load(path / OPTIMIZER, map_location="cpu", weights_only=True))


def _unique_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """state_dict without the second name of shared tensors (tied embeddings)."""
    seen: set[tuple[int, int]] = set()
    unique: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.numel())
        if key not in seen:
            seen.add(key)
            unique[name] = tensor
    return unique


def _model_bytes(model: torch.nn.Module) -> bytes:
    return bytes(encode({name: t.detach().cpu().contiguous() for name, t in _unique_tensors(model).items()}))


def _optimizer_bytes(optimizer: torch.optim.Optimizer) -> bytes:
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    return buffer.getvalue()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size
