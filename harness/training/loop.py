"""The training loop. It knows no method: rollouts, hooks, scores, advantages, update, validation, metrics.

Order within a step: rollouts; after_rollout (an analysis may begin in the background); rows and batch; scores of the
reference policy; teacher_requests (which waits for the analysis); scores of the teacher; advantages; update; validation
where the method wants one. So an analysis overlaps with whatever does not need it. Metrics: harness.training.metrics.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from envs.interface import Prompter, Task
from harness.config import RunConfig
from harness.record import planned_steps
from harness.training.batch import Row, build_batch, build_rows
from harness.training.broken import unbroken
from harness.training.chat import ChatFormat
from harness.training.clocks import Clock, now_on
from harness.training.generation import PolicyWriter
from harness.training.metrics import cost_metrics, outcome_metrics, update_metrics, validation_metrics
from harness.training.network import Network
from harness.training.notes import note_skills
from harness.training.rollout import EpisodeRequest, Player, Pool, RolloutSettings, Sampler, SkillOf
from harness.training.scoring import Scorer, TeacherStats
from harness.training.streams import derived_seed, stream
from harness.training.teachers import Teacher, make_teacher
from harness.training.update import StepData, Updater, Updates, UpdateStats
from methods.interface import Batch, Method, Trajectory, Validation
from methods.skills.analyzer import Usage


def rollout_settings(config: RunConfig) -> RolloutSettings:
    return RolloutSettings(
        context=config.training.context,
        max_prompt_tokens=config.training.max_prompt_tokens,
        max_response_tokens=config.training.max_response_tokens,
        max_steps=config.env.max_steps,
        history=config.env.history,
        skill_style=skill_style(config),
        placement=config.method.skill.placement,
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


@dataclass(frozen=True)
class Extras:
    """What only some runs need.

    skill_of: skills for the policy's own prompt; for method.rollout_skills_train
    reference: the frozen initial policy; needed iff training.kl_coef > 0
    load_teacher: makes the network of a frozen teacher; needed iff method.teacher.weights=frozen
    usage: what the analyzer spent since last asked;  writer: the policy as a writer, if the analyzer uses it
    validate: plays the validation panel with the policy; needed by methods that want validations, and where
        evaluation.validate_every asks for them
    """

    skill_of: SkillOf | None = None
    reference: Network | None = None
    load_teacher: Callable[[], Network] | None = None
    usage: Callable[[], Usage] = Usage
    writer: PolicyWriter | None = None
    validate: Callable[[], Validation] | None = None


class Trainer:
    """One run's training: the order of things, for every engine. What computes is made by `_parts`.

    tasks: what is trained on (the fraction is applied already). The pool needs tasks_per_step x group_size slots.
    cpu_seconds: of all steps so far, earlier attempts included. clock: what `time/*` is measured with
        (harness.training.clocks).
    """

    clock: Callable[[], float] = staticmethod(time.process_time)
    sampler: Player
    teacher: Teacher
    reference_scorer: Scorer | None
    updater: Updates
    optimizer: torch.optim.Optimizer  # of engines that have it in this process

    def __init__(
        self,
        config: RunConfig,
        network: Network,
        chat: ChatFormat,
        pool: Pool,
        prompter: Prompter,
        tasks: Sequence[Task],
        method: Method,
        extras: Extras | None = None,
    ) -> None:
        training, self.extras = config.training, extras or Extras()
        reference = self.extras.reference
        if not tasks:
            raise ValueError("there is no task to train on; see fraction and env.train_per_type")
        if (reference is not None) != (training.kl_coef > 0):
            raise ValueError(f"training.kl_coef={training.kl_coef} and the presence of a reference policy disagree")
        if config.method.rollout_skills_train and self.extras.skill_of is None:
            raise ValueError(
                f"method.rollout_skills_train=true needs a skill library, but env.name={config.env.name} has none"
            )
        self.config, self.tasks, self.method = config, tasks, method
        self.planned = planned_steps(config)
        self.network, self.chat = network, chat
        self._parts(pool, prompter)
        self.cpu_seconds = 0.0
        self._before = (0.0, 0)  # seconds and tokens of what was played before the first step
        self._usage: Usage | None = None

    def _parts(self, pool: Pool, prompter: Prompter) -> None:
        """Make sampler, teacher, reference scorer and updater. Another engine has others."""
        config, network = self.config, self.network
        self.sampler = Sampler(network, self.chat, pool, prompter, rollout_settings(config))
        self.teacher = make_teacher(config.method.teacher, network, self.extras.load_teacher)
        self.clock = now_on(network.device.type)
        reference = self.extras.reference
        self.reference_scorer = self.scorer(reference) if reference is not None else None
        updater = Updater(network, config.training, self.chat.pad_id, config.seed)
        self.updater, self.optimizer = updater, updater.optimizer

    def _settle(self, kept: Sequence[Trajectory]) -> None:
        """Called when an analysis may have begun, before rows are made: an engine whose trainer finds other log-probs
        than its sampler puts its own into the turns here."""

    def scorer(self, network: Network, own_weights: bool = True) -> Scorer:
        training = self.config.training
        return Scorer(
            network,
            self.chat,
            training.context,
            training.temperature,
            training.micro_batch_tokens,
            skill_style(self.config),
            self.config.method.skill.placement,
            own_weights,
        )

    # ---------------------------------------------------------------------------------------------------- one step
    def step(self, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        """Training step `step` (from 1): its metrics, and all trajectories, excluded ones included.

        Raises EnvironmentFailure if too few episodes could be played (training.max_failed_episodes),
        NonFiniteUpdateError, and whatever the method raises.
        """
        training, clock = self.config.training, Clock(self.clock)
        self._usage = None
        seed_everything(self.config.seed, step)
        if self.extras.writer is not None:
            self.extras.writer.begin(step)
        played, rollout = self.sampler.play(self.requests(step), training.temperature)
        kept = unbroken(played, training.max_failed_episodes, f"training step {step}")
        for index, trajectory in enumerate(kept):
            trajectory.index = index
        times = {"rollout": clock.lap() - rollout.env_seconds, "env": rollout.env_seconds}
        waited = -time.monotonic()
        method_metrics = dict(self.method.after_rollout(step, kept))
        waited += time.monotonic()
        times["analyzer"] = clock.lap()
        self._settle(kept)
        rows = build_rows(kept, training.context)
        batch = build_batch(kept, rows, training.success_reward, training.invalid_penalty, training.penalise)
        reference, reference_tokens = self._reference(rows, batch)
        times["reference"] = clock.lap()
        waited -= time.monotonic()
        wanted = self.method.teacher_requests(step, kept)
        waited += time.monotonic()
        times["analyzer"] += clock.lap()
        teacher = TeacherStats()
        if wanted:
            scorer = self.scorer(self.teacher.network(), self.teacher.own_weights)
            teacher = scorer.teacher(kept, rows, wanted, batch)
            note_skills(kept, rows, wanted, batch)
        times["teacher"] = clock.lap()
        update = UpdateStats()
        if rows:
            advantages = self.method.advantages(step, batch).detach()
            check_advantages(advantages, batch, step)
            method_metrics.update(self.method.metrics(step, batch))
            update = self.updater.update(StepData(step, rows, batch, advantages, self.method, reference))
        self.teacher.after_update()
        times["update"] = clock.lap()
        validation, validation_tokens = self._validation(step, method_metrics)
        before, self._before = self._before, (0.0, 0)
        times["validation"] = clock.lap() + before[0]
        if method_metrics.get("retired"):
            self.teacher.release()
        self.cpu_seconds += sum(times.values())
        usage = self.usage()
        metrics = {
            **outcome_metrics(played, kept, batch),
            **update_metrics(update, batch, self.reference_scorer is not None),
            **{f"time/{name}_s": seconds for name, seconds in times.items()},
            **cost_metrics(rollout, teacher, update, reference_tokens, validation_tokens + before[1], usage),
            "time/analyzer_wait_s": waited,
            "time/analyzer_wall_s": max(usage.seconds, waited),  # not every analyzer keeps the time
            "time/cpu_total_s": self.cpu_seconds,
            "memory/rss_mb": psutil.Process().memory_info().rss / 2**20,
            **validation,
            **{f"method/{name}": value for name, value in method_metrics.items()},
        }
        return metrics, played

    def _reference(self, rows: Sequence[Row], batch: Batch) -> tuple[Tensor | None, int]:
        """Log-probs under the initial policy [R, T], if the loss wants them, and the tokens that they took."""
        if self.reference_scorer is None or not rows:
            return None, 0
        return self.reference_scorer.batch_logprobs(rows, batch), sum(len(row.ids) for row in rows)

    def _validation(self, step: int, method_metrics: dict[str, float]) -> tuple[dict[str, float], int]:
        """Play the validation panel if the method wants it after this step (its answer goes into its metrics), or if
        it is looked at regularly; not after the last step for that alone: an evaluation follows. (metrics, tokens)"""
        wanted, every = self.method.wants_validation(step), self.config.evaluation.validate_every
        if not wanted and (not every or step % every or step >= self.planned):
            return {}, 0
        if self.extras.validate is None:
            raise ValueError(
                f"method {self.config.method.name!r} wants a validation after step {step}, but its spec does not "
                "declare `validates`, so the run has no validation panel"
            )
        result = self.extras.validate()
        if wanted:
            method_metrics.update(self.method.after_validation(step, result))
        return validation_metrics(result), result.tokens

    def usage(self) -> Usage:
        """Of the analyzer in the newest step, whether it was done or failed; tokens that the policy itself read and
        wrote for it are counted here."""
        if self._usage is None:
            usage = self.extras.usage()
            read, written = self.extras.writer.take_tokens() if self.extras.writer is not None else (0, 0)
            prompt, completion = usage.prompt_tokens + read, usage.completion_tokens + written
            self._usage = replace(usage, prompt_tokens=prompt, completion_tokens=completion)
        return self._usage

    def measure_teacher(self, play: Callable[[], Validation]) -> Validation:
        """Tell the method how its teacher does on the validation panel, which `play` plays. Before the first step,
        which bears the cost."""
        clock = Clock(self.clock)
        result = play()
        self.method.teacher_measured(result)
        self._before = (clock.lap(), result.tokens)
        return result

    def requests(self, step: int) -> list[EpisodeRequest]:
        """Episodes of a step: group_size samples of each task, each with its own random stream."""
        training, seed = self.config.training, self.config.seed
        seen: Counter[str] = Counter()
        requests: list[EpisodeRequest] = []
        for group, task in enumerate(tasks_of_step(self.tasks, training.tasks_per_step, seed, step)):
            skill = self.extras.skill_of if self.config.method.rollout_skills_train else None
            for sample in range(training.group_size):
                # A task drawn twice in one step (small panels) must not give the same episodes twice.
                key = (seed, "train", step, task.id, seen[task.id], sample)
                requests.append(EpisodeRequest(task, group, sample, key, skill))
            seen[task.id] += 1
        return requests

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


def check_advantages(advantages: Tensor, batch: Batch, step: int) -> None:
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
