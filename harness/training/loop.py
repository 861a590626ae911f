"""The training loop. It knows no method: rollouts, hooks, teacher scores, advantages, update, metrics.

Metrics of a step (CPU seconds are of this process; environments in worker processes do not count):
    train/success, return, length    means over trajectories; return is R(tau) before penalties
    train/invalid                    share of environment steps that count as invalid (training.penalise)
    train/zero_groups                share of task groups whose trajectories all have the same return
    train/context_full, excluded     share of episodes cut by the context, and left out for broken environments
    train/entropy, kl, clip_fraction, loss, grad_norm     see harness.training.update.UpdateStats
    train/kl_reference               only with training.kl_coef > 0
    train/response_tokens, rows      per step
    time/*_s, tokens/*, memory/rss_mb, method/*
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import torch

from envs.interface import EnvironmentFailure, Prompter, Task
from harness.config import RunConfig
from harness.training.batch import build_batch, build_rows
from harness.training.chat import ChatFormat
from harness.training.network import Network
from harness.training.rollout import EpisodeRequest, Pool, RolloutSettings, RolloutStats, Sampler
from harness.training.scoring import Scorer, TeacherStats
from harness.training.streams import derived_seed, stream
from harness.training.update import StepData, Updater, UpdateStats
from methods.interface import Batch, Method, Trajectory

Library = Callable[[Task], str]


def rollout_settings(config: RunConfig) -> RolloutSettings:
    return RolloutSettings(
        context=config.training.context,
        max_prompt_tokens=config.training.max_prompt_tokens,
        max_response_tokens=config.training.max_response_tokens,
        max_steps=config.env.max_steps,
        history=config.env.history,
        skill_style=skill_style(config),
    )


def skill_style(config: RunConfig) -> str:
    """How skills are written into prompts: one short line for compact prompts, headed sections otherwise."""
    return "compact" if config.env.prompt == "compact" else "sections"


def tasks_of_step(tasks: Sequence[Task], count: int, seed: int, step: int) -> list[Task]:
    """The data cursor: step k (from 1) takes `count` tasks from an endless row of permutations of `tasks`.

    The permutation of each epoch is drawn from (seed, epoch), so the cursor is the step's number and nothing else.
    """
    chosen: list[Task] = []
    orders: dict[int, list[int]] = {}
    for position in range((step - 1) * count, step * count):
        epoch, offset = divmod(position, len(tasks))
        if epoch not in orders:
            orders[epoch] = stream(seed, "epoch", epoch).permutation(len(tasks)).tolist()
        chosen.append(tasks[orders[epoch][offset]])
    return chosen


def seed_everything(seed: int, step: int) -> None:
    """Global generators, for code that does not use streams of its own. A function of the step: resuming is exact."""
    value = derived_seed(seed, "global", step)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


@dataclass
class _Clock:
    """CPU seconds of this process between marks."""

    started: float = field(default_factory=time.process_time)

    def lap(self) -> float:
        before, self.started = self.started, time.process_time()
        return self.started - before


class Trainer:
    """One run's training.

    tasks: what is trained on (the fraction is applied already). library: task -> skill, for methods that roll out with
    skills. reference: the frozen initial policy; needed iff training.kl_coef > 0. The pool needs
    tasks_per_step x group_size slots. cpu_seconds: of all steps so far, earlier attempts included.
    """

    def __init__(
        self,
        config: RunConfig,
        network: Network,
        chat: ChatFormat,
        pool: Pool,
        prompter: Prompter,
        tasks: Sequence[Task],
        method: Method,
        library: Library | None = None,
        reference: Network | None = None,
    ) -> None:
        training = config.training
        if not tasks:
            raise ValueError("there is no task to train on; see fraction and env.train_per_type")
        if (reference is not None) != (training.kl_coef > 0):
            raise ValueError(f"training.kl_coef={training.kl_coef} and the presence of a reference policy disagree")
        if config.method.rollout_skills_train and library is None:
            raise ValueError(
                f"method.rollout_skills_train=true needs a skill library, but env.name={config.env.name} has none"
            )
        self.config, self.tasks, self.method, self.library = config, tasks, method, library
        self.network, self.chat = network, chat
        self.sampler = Sampler(network, chat, pool, prompter, rollout_settings(config))
        self.scorer = self._scorer(network)
        self.reference_scorer = self._scorer(reference) if reference is not None else None
        self.updater = Updater(network, training, chat.pad_id, config.seed)
        self.cpu_seconds = 0.0

    def _scorer(self, network: Network) -> Scorer:
        training = self.config.training
        return Scorer(
            network,
            self.chat,
            training.context,
            training.temperature,
            training.micro_batch_tokens,
            skill_style(self.config),
        )

    # ---------------------------------------------------------------------------------------------------- one step
    def step(self, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        """Training step `step` (from 1): its metrics, and all trajectories, excluded ones included.

        Raises EnvironmentFailure if no episode could be played, NonFiniteUpdateError, and whatever the method raises.
        """
        training, clock = self.config.training, _Clock()
        seed_everything(self.config.seed, step)
        played, rollout = self.sampler.play(self.requests(step), training.temperature)
        kept = [trajectory for trajectory in played if trajectory.failure is None]
        if not kept:
            raise EnvironmentFailure(f"step {step}: no episode could be played; the first failure: {played[0].failure}")
        for index, trajectory in enumerate(kept):
            trajectory.index = index
        times = {"rollout": clock.lap() - rollout.env_seconds, "env": rollout.env_seconds}
        method_metrics = dict(self.method.after_rollout(step, kept))
        times["analyzer"] = clock.lap()
        rows = build_rows(kept, training.context)
        batch = build_batch(kept, rows, training.success_reward, training.invalid_penalty, training.penalise)
        teacher = TeacherStats()
        if wanted := self.method.teacher_requests(step, kept):
            teacher = self.scorer.teacher(kept, rows, wanted, batch)
        times["teacher"] = clock.lap()
        update = UpdateStats()
        if rows:
            reference = None
            if self.reference_scorer is not None:
                reference = self.reference_scorer.batch_logprobs(rows, batch)
            advantages = self.method.advantages(step, batch).detach()
            check_advantages(advantages, batch, step)
            method_metrics.update(self.method.metrics(step, batch))
            update = self.updater.update(StepData(step, rows, batch, advantages, self.method, reference))
        times["update"] = clock.lap()
        self.cpu_seconds += sum(times.values())
        metrics = {
            **outcome_metrics(played, kept, batch),
            **self._update_metrics(update, batch),
            **{f"time/{name}_s": seconds for name, seconds in times.items()},
            "time/cpu_total_s": self.cpu_seconds,
            **token_metrics(rollout, teacher, update),
            "memory/rss_mb": psutil.Process().memory_info().rss / 2**20,
            **{f"method/{name}": value for name, value in method_metrics.items()},
        }
        return metrics, played

    def requests(self, step: int) -> list[EpisodeRequest]:
        """Episodes of a step: group_size samples of each task, each with its own random stream."""
        training, seed = self.config.training, self.config.seed
        seen: Counter[str] = Counter()
        requests: list[EpisodeRequest] = []
        for group, task in enumerate(tasks_of_step(self.tasks, training.tasks_per_step, seed, step)):
            skill = self.library(task) if self.library and self.config.method.rollout_skills_train else None
            for sample in range(training.group_size):
                # A task drawn twice in one step (small panels) must not give the same episodes twice.
                key = (seed, "train", step, task.id, seen[task.id], sample)
                requests.append(EpisodeRequest(task, group, sample, key, skill))
            seen[task.id] += 1
        return requests

    def _update_metrics(self, update: UpdateStats, batch: Batch) -> dict[str, float]:
        metrics = {
            "train/entropy": update.entropy,
            "train/kl": update.kl,
            "train/loss": update.loss,
            "train/clip_fraction": update.clip_fraction,
            "train/grad_norm": update.grad_norm,
            "train/response_tokens": float(batch.response_mask.sum()),
            "train/rows": float(len(batch.response_mask)),
        }
        if self.reference_scorer is not None:
            metrics["train/kl_reference"] = update.kl_reference
        return metrics

    # ------------------------------------------------------------------------------------------------------- state
    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint after `step` keeps besides weights and optimiser; JSON."""
        return {
            "seed": self.config.seed,
            "cursor": step * self.config.training.tasks_per_step,
            "cpu_seconds": self.cpu_seconds,
            "method": self.method.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave. Raises ValueError if it is of a run with another seed or batch size."""
        cursor = int(state["step"]) * self.config.training.tasks_per_step
        if (state["seed"], state["cursor"]) != (self.config.seed, cursor):
            raise ValueError(
                f"the checkpoint is of seed {state['seed']} with data cursor {state['cursor']}; this run has seed "
                f"{self.config.seed} and cursor {cursor}: it does not belong to this run"
            )
        self.cpu_seconds = float(state["cpu_seconds"])
        self.method.load_state_dict(state["method"])


def check_advantages(advantages: torch.Tensor, batch: Batch, step: int) -> None:
    """Raises ValueError unless they are finite, [R, T], and 0 outside the response mask."""
    if advantages.shape != batch.response_mask.shape:
        raise ValueError(
            f"step {step}: the method's advantages have shape {tuple(advantages.shape)}, the batch has "
            f"{tuple(batch.response_mask.shape)}"
        )
    if not bool(torch.isfinite(advantages).all()):
        raise ValueError(f"step {step}: the method's advantages hold NaN or infinity")
    if bool((advantages[~batch.response_mask] != 0).any()):
        raise ValueError(f"step {step}: the method's advantages are not 0 outside the response mask")


def outcome_metrics(played: Sequence[Trajectory], kept: Sequence[Trajectory], batch: Batch) -> dict[str, float]:
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


def token_metrics(rollout: RolloutStats, teacher: TeacherStats, update: UpdateStats) -> dict[str, float]:
    """Tokens forwarded, without padding; retried: episodes played again; dropped_history: pairs cut from prompts."""
    return {
        "tokens/rollout": float(rollout.tokens),
        "tokens/teacher": float(teacher.tokens),
        "tokens/teacher_unscored": float(teacher.unscored),
        "tokens/update": float(update.tokens),
        "rollout/retried": float(rollout.retried),
        "rollout/dropped_history": float(rollout.dropped_history),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
