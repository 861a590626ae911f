"""A sample of the trajectories, one JSON object a line, in an append-only zstd file.

Every append is a whole zstd frame, so what was written before a crash stays readable, and a run that resumes cuts the
file back to the size that its checkpoint recorded.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import zstandard

from harness.files import writing
from methods.interface import Trajectory, Turn


def append(path: Path, trajectories: Sequence[Trajectory], decode: Any, **about: Any) -> None:
    """Add trajectories, durably. decode: response ids -> text; about: what every line says, e.g. phase and step."""
    if not trajectories:
        return
    lines = "".join(
        json.dumps({**about, **_content(trajectory, decode)}, ensure_ascii=False) + "\n" for trajectory in trajectories
    )
    frame = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(lines.encode())
    with writing(path), path.open("ab") as file:
        file.write(frame)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All lines in order."""
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        for line in io.TextIOWrapper(reader, encoding="utf-8"):
            yield json.loads(line)


def size(path: Path) -> int:
    """Bytes; 0 if there is no file."""
    return path.stat().st_size if path.exists() else 0


def cut(path: Path, length: int) -> None:
    """Forget everything after the first `length` bytes, which must end a frame."""
    if size(path) > length:
        with writing(path):
            os.truncate(path, length)


def spread(total: int, count: int) -> list[int]:
    """`count` indices (all, if there are fewer) spread evenly over range(total), so that every group is seen."""
    count = min(total, count)
    return [i * total // count for i in range(count)]


def _content(trajectory: Trajectory, decode: Any) -> dict[str, Any]:
    return {
        "task_id": trajectory.task_id,
        "task_type": trajectory.task_type,
        "task": trajectory.task_text,
        "group": trajectory.group,
        "sample": trajectory.sample,
        "success": trajectory.success,
        "score": trajectory.score,
        "termination": trajectory.termination,
        "failure": trajectory.failure,
        "skill": trajectory.skill,
        "turns": [
            {
                "observation": turn.observation,
                "response": decode(turn.response_ids),
                "action": turn.action,
                "valid": turn.valid,
                "invalid_reason": turn.invalid_reason,
                "admissible": turn.admissible,
                "reward": turn.reward,
                "prompt_ids": turn.prompt_ids,
                "response_ids": turn.response_ids,
                "logprobs": [round(value, 6) for value in turn.old_logprobs],
                **_teacher(turn, decode),
            }
            for turn in trajectory.turns
        ],
    }


def _teacher(turn: Turn, decode: Any) -> dict[str, Any]:
    """What a teacher read and said of the response; nothing where none scored it."""
    if turn.skill is None and not turn.skill_advantage:
        return {}
    tokens = [decode([token]) for token in turn.response_ids]
    return {"skill": turn.skill, "tokens": tokens, "skill_advantage": turn.skill_advantage}
