"""Attempts at a run: `attempts/001.json`, `002.json`, ..., one per time a worker set about it."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.files import atomic_write_json, read_json_object, writing
from harness.provenance import SLURM_IDS, this_code

FOLDER = "attempts"
_NAME = re.compile(r"(\d{3,})\.json")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. content holds: attempt (1-based), start, end (unix seconds; end None while it lasts), outcome
    (None | complete | failed | interrupted), error, failure_class, host, pid, from_step, to_step, git, slurm."""

    path: Path
    content: dict[str, Any]

    @property
    def number(self) -> int:
        return int(self.content["attempt"])

    def finish(self, outcome: str, to_step: int, error: str | None = None, failure_class: str | None = None) -> Attempt:
        """Write the outcome."""
        content = {
            **self.content,
            "end": time.time(),
            "outcome": outcome,
            "to_step": to_step,
            "error": error,
            "failure_class": failure_class,
        }
        atomic_write_json(self.path, content)
        return Attempt(self.path, content)


def all_attempts(run_dir: Path) -> list[Attempt]:
    """Every attempt, oldest first."""
    folder = run_dir / FOLDER
    if not folder.is_dir():
        return []
    found: list[Attempt] = []
    for path in sorted(folder.iterdir(), key=lambda item: (len(item.name), item.name)):
        if _NAME.fullmatch(path.name) and (content := read_json_object(path)) is not None:
            found.append(Attempt(path, {**content, "attempt": int(path.stem)}))
    return found


def count(run_dir: Path) -> int:
    """Number of the last attempt, 0 before the first. Reads names only."""
    folder = run_dir / FOLDER
    if not folder.is_dir():
        return 0
    return max((int(path.stem) for path in folder.iterdir() if _NAME.fullmatch(path.name)), default=0)


def begin(run_dir: Path, host: str, from_step: int) -> Attempt:
    """Open the next attempt; earlier ones that never ended are closed as interrupted. Call while holding the claim."""
    for earlier in all_attempts(run_dir):
        if earlier.content.get("outcome") is None:
            lost = {**earlier.content, "outcome": "interrupted", "error": "its process vanished without a word"}
            atomic_write_json(earlier.path, lost)
    number = count(run_dir) + 1
    folder = run_dir / FOLDER
    with writing(folder):
        folder.mkdir(exist_ok=True)
    content: dict[str, Any] = {
        "attempt": number,
        "start": time.time(),
        "end": None,
        "outcome": None,
        "error": None,
        "failure_class": None,
        "host": host,
        "pid": os.getpid(),
        "from_step": from_step,
        "to_step": None,
        "git": this_code(),
        "slurm": {name.lower(): os.environ[name] for name in SLURM_IDS if name in os.environ},
    }
    path = folder / f"{number:03d}.json"
    atomic_write_json(path, content)
    return Attempt(path, content)
