"""For the records: what a teacher read and how much it raised or lowered each sampled token; in which unit time is
told. Decides no number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from harness.spool import Spool
from harness.training.batch import Row
from methods.interface import Batch, TeacherRequest, Trajectory
from methods.skills.analyzer import Usage


def clock(spool: Spool, unit: str, gpus: int) -> None:
    """Event `clock` of an attempt that trains: what `time/*` counts (cpu_s | wall_s) and how many GPUs it holds."""
    spool.event("clock", unit=unit, gpus=gpus)


def analyzer_usage(spool: Spool, step: int, usage: Usage) -> None:
    """Event `analyzer_usage`: what the analyzer spent in a training step, as methods.skills.analyzer.Usage has it; none
    if nothing was asked. Unlike the step's metrics it stays when the step is undone, for the money is spent."""
    if usage != Usage():
        spool.event("analyzer_usage", step=step, **asdict(usage))


def note_skills(
    trajectories: Sequence[Trajectory], rows: Sequence[Row], requests: Sequence[TeacherRequest], batch: Batch
) -> None:
    """Write `skill` and `skill_advantage` into the turns that `requests` covered, after they were scored.

    skill_advantage: per response token log p(teacher) - log p(rollout) in nats, summed over channels, before the
    method's weight, normalisation and clip; 0 for tokens that had no room in the teacher's prompt.
    rows, batch: of these trajectories, with the channels filled in.
    """
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    first, total = [], 0
    for trajectory in trajectories:
        first.append(total)
        total += len(trajectory.turns)
    texts: dict[int, list[str]] = {}
    for request in requests:
        for step in request.steps:
            read = texts.setdefault(first[request.trajectory] + step, [])
            read.extend(text for text in (request.episode_skill, request.step_skill) if text and text not in read)
    shift = sum(
        ((batch.teacher[name] - batch.old_logprobs) * batch.teacher_mask[name] for name in sorted(batch.teacher)),
        batch.old_logprobs.new_zeros(batch.old_logprobs.shape),
    )
    for row, values in zip(rows, shift.tolist(), strict=True):
        for position, step in zip(row.positions, row.steps, strict=True):
            if step in texts:
                turns[step].skill_advantage.append(round(values[position], 6))
    for step, read in texts.items():
        turns[step].skill = " | ".join(read) or None
