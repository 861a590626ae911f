"""Evaluation: panels x one checkpoint -> episode records. Each task of a panel exactly `repeats` times.

What an episode samples depends on (run seed, panel, task, repeat) and not on batch size or worker count, up to the
rounding of batched matrix products. The same streams serve evaluation with and without skills, so the two are paired.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from envs.interface import Panel, Task
from envs.panels import assert_each_once
from harness.files import RecordError, atomic_write
from harness.states import Interrupted
from harness.training.rollout import EpisodeRequest, Player, RolloutStats, SkillOf
from methods.interface import Trajectory

# One row per evaluated episode. Units: length in environment steps, malformed and inadmissible in steps, tokens.
SCHEMA = pa.schema(
    [
        ("run", pa.string()),  # fingerprint
        ("panel", pa.string()),
        ("panel_hash", pa.string()),
        ("data_version", pa.string()),
        ("task_id", pa.string()),
        ("task_type", pa.string()),
        ("repeat", pa.int64()),
        ("seed", pa.int64()),  # of the run
        ("success", pa.bool_()),
        ("score", pa.float64()),  # in [0, 1]
        ("length", pa.int64()),
        ("malformed", pa.int64()),  # the response broke the format
        ("inadmissible", pa.int64()),  # the environment refused the action
        ("termination", pa.string()),
        ("failure", pa.string()),  # set: infrastructure failure, excluded from success rates
        ("prompt_tokens", pa.int64()),
        ("response_tokens", pa.int64()),
        ("skills", pa.string()),  # off | on: skills in the evaluation prompt
        ("prompt_protocol", pa.string()),
        ("context", pa.string()),  # growing | per_step
        ("checkpoint_step", pa.int64()),
        ("temperature", pa.float64()),
        ("selection", pa.string()),
    ]
)
_BYTES = b"trajectories_bytes"


@dataclass(frozen=True, slots=True)
class Played:
    """One evaluated episode."""

    task: Task
    repeat: int
    trajectory: Trajectory


def play_panel(
    player: Player,
    panel: Panel,
    *,
    seed: int,
    repeats: int,
    temperature: float,
    batch: int,
    skill_of: SkillOf | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    spent: RolloutStats | None = None,
) -> list[Played]:
    """Every task of the panel `repeats` times, in the panel's order within each repeat.

    skill_of: text for the policy's own prompt, or None for evaluation without skills. batch: episodes in lock-step.
    spent: the tokens are added there.
    Raises Interrupted between batches, and PanelError if the panel was not played as declared.
    """
    wanted = [(task, repeat) for repeat in range(repeats) for task in panel.tasks]
    requests = [
        EpisodeRequest(task, group, repeat, (seed, "evaluation", panel.name, task.id, repeat), skill_of)
        for group, (task, repeat) in enumerate(wanted)
    ]
    trajectories: list[Trajectory] = []
    for start in range(0, len(requests), batch):
        if should_stop():
            raise Interrupted(f"stopped after {start} of {len(requests)} episodes of panel {panel.name}")
        episodes, stats = player.play(requests[start : start + batch], temperature)
        trajectories += episodes
        if spent is not None:
            spent.tokens += stats.tokens
    played = [Played(task, repeat, t) for (task, repeat), t in zip(wanted, trajectories, strict=True)]
    assert_each_once(
        panel,
        [p.trajectory.task_id for p in played if p.trajectory.failure is None],
        [p.trajectory.task_id for p in played if p.trajectory.failure is not None],
        repeats,
    )
    return played


def records(played: Sequence[Played], panel: Panel, **common: Any) -> list[dict[str, Any]]:
    """Rows of SCHEMA. common: run, seed, skills, prompt_protocol, context, checkpoint_step, temperature, selection."""
    return [
        {
            **common,
            "panel": panel.name,
            "panel_hash": panel.hash,
            "data_version": panel.data_version,
            "task_id": p.task.id,
            "task_type": p.task.type,
            "repeat": p.repeat,
            "success": p.trajectory.success,
            "score": p.trajectory.score,
            "length": len(p.trajectory.turns),
            "malformed": sum(not turn.valid for turn in p.trajectory.turns),
            "inadmissible": sum(not turn.admissible for turn in p.trajectory.turns),
            "termination": p.trajectory.termination,
            "failure": p.trajectory.failure,
            "prompt_tokens": sum(len(turn.prompt_ids) for turn in p.trajectory.turns),
            "response_tokens": sum(len(turn.response_ids) for turn in p.trajectory.turns),
        }
        for p in played
    ]


def counts(played: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """requested, graded, excluded of one evaluation's records."""
    excluded = sum(row["failure"] is not None for row in played)
    return {"requested": len(played), "graded": len(played) - excluded, "excluded": excluded}


class EpisodeFile:
    """episodes.parquet: replaced in one step after each finished evaluation, so it never holds half of one.

    trajectories_bytes: size of the run's trajectory file when the newest evaluation was finished.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.trajectories_bytes = 0
        if path.exists():
            try:
                table = pq.read_table(path)
                self.trajectories_bytes = json.loads((table.schema.metadata or {}).get(_BYTES, b"0"))
            except (OSError, ValueError, pa.ArrowException) as error:
                raise RecordError(
                    f"{path} cannot be read ({error}); move it away to have the run evaluate again"
                ) from error
            self.rows = table.to_pylist()

    def of(self, panel: str, skills: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if (row["panel"], row["skills"]) == (panel, skills)]

    def has(self, panel: Panel, skills: str, repeats: int, checkpoint_step: int) -> bool:
        """Whether this evaluation is recorded in full, of this panel and of this checkpoint."""
        rows = self.of(panel.name, skills)
        played = Counter((row["task_id"], row["repeat"]) for row in rows)
        return played == Counter((task.id, repeat) for task in panel.tasks for repeat in range(repeats)) and all(
            row["panel_hash"] == panel.hash and row["checkpoint_step"] == checkpoint_step for row in rows
        )

    def add(self, rows: Sequence[Mapping[str, Any]], trajectories_bytes: int) -> None:
        """Record one evaluation in place of an earlier one of the same panel and skills. Raises RecordError."""
        replaced = {(row["panel"], row["skills"]) for row in rows}
        kept = [row for row in self.rows if (row["panel"], row["skills"]) not in replaced]
        self._write([*kept, *(dict(row) for row in rows)], trajectories_bytes)

    def forget(self) -> None:
        """Drop every evaluation. Raises RecordError."""
        self._write([], 0)

    def _write(self, rows: list[dict[str, Any]], trajectories_bytes: int) -> None:
        self.rows, self.trajectories_bytes = rows, trajectories_bytes
        metadata = {_BYTES: json.dumps(trajectories_bytes).encode()}
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(self.rows, schema=SCHEMA.with_metadata(metadata)), buffer)
        atomic_write(self.path, buffer.getvalue())
