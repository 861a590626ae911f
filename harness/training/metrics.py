"""Metrics of a training step. Its seconds are CPU seconds of this process, environments in worker processes left out;
on a GPU and with engine=verl they are wall seconds (event `clock`: unit cpu_s | wall_s, gpus).

train/success, return, length    means over trajectories; return is R(tau) before penalties
train/invalid                    share of environment steps that count as invalid (training.penalise)
train/zero_groups                share of task groups whose trajectories all have the same return
train/context_full, excluded     share of episodes cut by the context, and left out for broken environments
train/entropy, kl, clip_fraction, loss, grad_norm     see harness.training.update.UpdateStats
train/kl_reference               only with training.kl_coef > 0
train/response_tokens, rows      per step
train/sampler_gap, sampler_gap_max  engine=verl: |log-prob of training workers - that of samplers|, mean, largest
tokens/rollout, teacher, update, reference   tokens forwarded, without padding
tokens/validation                of episodes played on the panel `validation`; the first step bears a teacher that is
                                 measured there before it, here and in time/validation_s
tokens/teacher_unscored          response tokens beyond the last position of the teacher's backbone
rollout/retried                  episodes played again
rollout/dropped_history          (observation, action) pairs left out of prompts that were too long
rollout/truncated_prompts, teacher/truncated_prompts  prompts that lost words of their observation all the same
cost/teacher_rows                sequences scored under a teacher
cost/teacher_tokens_rescored     response tokens that got a score from them
cost/analyzer_*                  calls, cached, retries, repairs, prompt_tokens, completion_tokens, money, unmetered,
                                 corrupt: see methods.skills.analyzer.Usage; money in the currency of the configured
                                 prices, too low by the answers that are unmetered. All that was spent, in undone and
                                 failed steps too, is the sum of the events `analyzer_usage`
time/rollout_s, env_s, teacher_s, analyzer_s, update_s, reference_s, validation_s, cpu_total_s    of `clock`; the
                                 total is of the steps that stand: an undone step counts when it is done again
time/analyzer_wall_s             wall seconds during which analyses were in progress; overlaps with other work
time/analyzer_wait_s             wall seconds for which the loop waited for them
validation/success, episodes     only after steps for which the method wanted a validation
memory/rss_mb, method/*
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.training.rollout import RolloutStats
from harness.training.scoring import TeacherStats
from harness.training.update import UpdateStats
from methods.interface import Batch, Trajectory, Validation
from methods.skills.analyzer import Usage


def outcome_metrics(played: Sequence[Trajectory], kept: Sequence[Trajectory], batch: Batch) -> dict[str, float]:
    """played: all trajectories; kept: those of the batch."""
    returns: dict[int, set[float]] = {}
    for trajectory, value in zip(kept, batch.returns.tolist(), strict=True):
        returns.setdefault(trajectory.group, set()).add(value)
    steps = len(batch.step_invalid)
    return {
        "train/success": _mean([trajectory.success for trajectory in kept]),
        "train/return": _mean(batch.returns.tolist()),
        "train/length": steps / len(kept),
        "train/invalid": float(batch.step_invalid.sum()) / max(steps, 1),
        "train/zero_groups": _mean([len(values) == 1 for values in returns.values()]),
        "train/context_full": _mean([trajectory.termination == "context_full" for trajectory in kept]),
        "train/excluded": 1 - len(kept) / len(played),
    }


def update_metrics(update: UpdateStats, batch: Batch, with_reference: bool) -> dict[str, float]:
    metrics = {
        "train/entropy": update.entropy,
        "train/kl": update.kl,
        "train/loss": update.loss,
        "train/clip_fraction": update.clip_fraction,
        "train/grad_norm": update.grad_norm,
        "train/response_tokens": float(batch.response_mask.sum()),
        "train/rows": float(len(batch.response_mask)),
    }
    if with_reference:
        metrics["train/kl_reference"] = update.kl_reference
    return metrics


def cost_metrics(
    rollout: RolloutStats,
    teacher: TeacherStats,
    update: UpdateStats,
    reference_tokens: int,
    validation_tokens: int,
    usage: Usage,
) -> dict[str, float]:
    return {
        "tokens/rollout": float(rollout.tokens),
        "tokens/teacher": float(teacher.tokens),
        "tokens/teacher_unscored": float(teacher.unscored),
        "tokens/update": float(update.tokens),
        "tokens/reference": float(reference_tokens),
        "tokens/validation": float(validation_tokens),
        "rollout/retried": float(rollout.retried),
        "rollout/dropped_history": float(rollout.dropped_history),
        "rollout/truncated_prompts": float(rollout.truncated_prompts),
        "teacher/truncated_prompts": float(teacher.truncated),
        "cost/teacher_rows": float(teacher.rows),
        "cost/teacher_tokens_rescored": float(teacher.rescored),
        "cost/analyzer_calls": float(usage.calls),
        "cost/analyzer_cached": float(usage.cached),
        "cost/analyzer_retries": float(usage.retries),
        "cost/analyzer_repairs": float(usage.repairs),
        "cost/analyzer_prompt_tokens": float(usage.prompt_tokens),
        "cost/analyzer_completion_tokens": float(usage.completion_tokens),
        "cost/analyzer_money": float(usage.cost),
        "cost/analyzer_unmetered": float(usage.unmetered),
        "cost/analyzer_corrupt": float(usage.corrupt),
        "time/analyzer_wall_s": float(usage.seconds),
    }


def validation_metrics(result: Validation) -> dict[str, float]:
    return {"validation/success": result.success, "validation/episodes": float(result.episodes)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
