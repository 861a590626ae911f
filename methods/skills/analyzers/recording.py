"""Answers in a JSONL file: written by `analyzer.record`, read by analyzer=replay.

One line per trajectory, an object with
    trajectory   digest of its content (prompt.trajectory_digest); or, in files made by hand,
    task, sample the task's id and the number of the rollout within its group
    answer       episode_summary, episode_skill, step_skills; or null for an analysis that failed, with
    error        why
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from methods.interface import Trajectory
from methods.skills.analyzers.prompt import trajectory_digest

MAX_LINE_CHARS = 1_000_000
Key = str | tuple[str, int]
Recorded = Mapping[str, Any] | str  # the answer, or why there is none

_log = logging.getLogger(__name__)


class RecordingError(ValueError):
    """The file of recorded answers cannot be used."""

    failure_class = "analyzer"


class Recorder:
    """Adds this run's answers to a file, each trajectory once; an answer also after a failure was recorded.

    Several processes may write to one file. OSError of a disk that is full reaches the caller: whoever asks for a
    record wants a complete one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = read_recording(path) if path.exists() else {}

    def add(self, trajectory: Trajectory, recorded: Recorded) -> None:
        key = trajectory_digest(trajectory)
        if isinstance(self._known.get(key), Mapping) or (isinstance(recorded, str) and key in self._known):
            return
        line: dict[str, Any] = {"trajectory": key, "task": trajectory.task_id, "sample": trajectory.sample}
        line |= {"answer": None, "error": recorded} if isinstance(recorded, str) else {"answer": dict(recorded)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # freed by closing
            file.write(self._new_line() + json.dumps(line, ensure_ascii=True).encode() + b"\n")
        self._known[key] = recorded

    def _new_line(self) -> bytes:
        """What ends a line that a killed process left half written."""
        with self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return b""
            file.seek(-1, os.SEEK_END)
            return b"" if file.read(1) == b"\n" else b"\n"


def read_recording(path: Path) -> dict[Key, Recorded]:
    """Answers by digest, or by (task, sample) for lines without one. An answer counts before a failure, and the first
    answer before later ones.

    Lines that are no JSON (left by a killed process) are passed over with a warning. Raises RecordingError for a file
    that cannot be read and for lines with another content.
    """
    found: dict[Key, Recorded] = {}
    try:
        for number, line in _lines(path):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                _log.warning("%s:%d is no JSON and is passed over", path, number)
                continue
            key, recorded = _entry(entry, f"{path}:{number}")
            if key not in found or (isinstance(found[key], str) and not isinstance(recorded, str)):
                found[key] = recorded
    except OSError as error:
        raise RecordingError(f"cannot read the recorded answers {path}: {error.strerror or error}") from error
    return found


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_CHARS):
            number += 1
            if len(line) == MAX_LINE_CHARS:
                raise RecordingError(f"{path}:{number} is longer than {MAX_LINE_CHARS} bytes: this is no recording")
            if line.strip():
                yield number, line


def _entry(entry: Any, where: str) -> tuple[Key, Recorded]:
    wanted = 'an object with "trajectory" (or "task" and "sample") and "answer"'
    if not isinstance(entry, dict) or "answer" not in entry:
        raise RecordingError(f"{where} is no recorded answer: it must be {wanted}")
    digest, task, sample, answer = (entry.get(name) for name in ("trajectory", "task", "sample", "answer"))
    key: Key
    if isinstance(digest, str):
        key = digest
    elif digest is None and isinstance(task, str) and isinstance(sample, int) and not isinstance(sample, bool):
        key = (task, sample)
    else:
        raise RecordingError(f"{where} does not say which trajectory it is about: it must be {wanted}")
    if answer is None:
        return key, f"the recorded analysis had failed ({str(entry.get('error', 'no reason'))[:300]})"
    if not isinstance(answer, dict):
        raise RecordingError(f"{where} has an answer that is neither an object nor null")
    return key, answer
