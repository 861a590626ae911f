"""What computes in a run of engine=verl, in the shapes that the shared training loop expects.

`Services` is what verl's trainer offers (harness.training.verl.trainer); tests put something else in its place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from envs.interface import Prompter
from harness.config import RunConfig
from harness.training.batch import Row
from harness.training.episode import EpisodeRequest, RolloutStats
from harness.training.loop import Trainer
from harness.training.network import Network
from harness.training.rollout import Pool
from harness.training.scoring import Scorer
from harness.training.teachers import Teacher
from harness.training.update import NonFiniteUpdateError, StepData, UpdateStats, learning_rate, mini_batches
from harness.training.verl.loss import PREFIX, MethodLoss, StepLoss, frame_of
from harness.training.verl.outcome import VerlError
from harness.training.verl.requests import Wanted
from harness.training.verl.rows import (
    Sample,
    arranged,
    empty_fields,
    learning_fields,
    put_logprobs,
    sample_of,
    sample_of_row,
    unpacked,
)
from methods.interface import Trajectory

POLICY, REFERENCE, TEACHER = "policy", "reference", "teacher"
STEP, SCORING = "step", "teacher"  # partitions of the queue


class SamplerGapError(RuntimeError):
    """What sampled is not the policy that trains, or one of the two computes something else."""


class Services(Protocol):
    """See HarnessTrainer, method by method."""

    workers: int
    global_steps: int

    def play(self, wanted: Sequence[Wanted], loop: str, source: str = ..., training: bool = ...) -> list[Any]: ...
    def store(self, samples: Sequence[Sample], order: Sequence[int], partition: str, share: int = ...) -> Any: ...
    def clear(self, stored: Any) -> None: ...
    def score(self, stored: Any, source: str, entropy: bool = ...) -> list[Tensor]: ...
    def entropies(self, stored: Any) -> list[Tensor]: ...
    def score_samples(self, samples: Sequence[Sample], source: str, partition: str) -> list[Tensor]: ...
    def update(
        self,
        stored: Any,
        fields: Sequence[Mapping[str, Tensor]],
        padding: Mapping[str, Tensor],
        loss: StepLoss,
        lr: float,
    ) -> dict[str, list[float]]: ...
    def load_teacher(self, folder: Path | None) -> None: ...
    def release_teacher(self) -> None: ...
    def follow(self, decay: float) -> None: ...
    def save(self, folder: Path, with_teacher: bool) -> None: ...
    def restore(self, folder: Path, with_teacher: bool) -> None: ...
    def export(self, folder: Path, dtype: str) -> None: ...


class RemoteNetwork(Network):
    """Weights that live in verl's workers. Knows how long a sequence may be; computes nothing."""

    def __init__(self, max_positions: int) -> None:
        self.max_positions = max_positions
        self.device = torch.device("cpu")


class RemotePlayer:
    """Episodes played by verl's agent loops. Counts failures, which verl itself would pass over.

    config: says how episodes are played.
    """

    def __init__(self, services: Services, config: RunConfig, source: str = POLICY, training: bool = False) -> None:
        self.services, self.config = services, config
        self.source, self.training = source, training

    def play(self, requests: Sequence[EpisodeRequest], temperature: float) -> tuple[list[Trajectory], RolloutStats]:
        """As Sampler.play. Raises VerlError for an error that is not the environment's, and RuntimeError for an episode
        without an answer."""
        started = time.monotonic()
        context, skill = self.config.training.context, self.config.method.skill
        wanted = [Wanted.of(request, temperature, skill) for request in requests]
        answers = self.services.play(wanted, context, self.source, self.training)
        stats, trajectories = RolloutStats(), []
        for i, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            if answer is None:  # an environment that breaks is an answer, too
                raise RuntimeError(
                    f"the episode of task {request.task.id} was lost: its agent loop ended without an answer, which "
                    "verl logs and passes over; verl/log.txt in the run's folder says why"
                )
            self._check(request, answer.about)
            trajectory = unpacked(answer.samples, answer.text, context)
            trajectory.index = i
            _add(stats, answer.about)
            trajectories.append(trajectory)
        stats.seconds = time.monotonic() - started
        return trajectories, stats

    @staticmethod
    def _check(request: EpisodeRequest, about: Mapping[str, Any]) -> None:
        if about["fatal"]:
            text = f"an episode of task {request.task.id} cannot be played: {about['fatal']}"
            raise VerlError(text, about["failure_class"])


def _add(stats: RolloutStats, about: Mapping[str, Any]) -> None:
    """Sums over episodes; environments of one call work side by side, so their time is that of the slowest episode."""
    stats.tokens += about["tokens"]
    stats.dropped_history += about["dropped_history"]
    stats.truncated_prompts += about["truncated_prompts"]
    stats.retried += about["retried"]
    stats.env_seconds = max(stats.env_seconds, about["env_seconds"])


class RemoteScorer(Scorer):
    """Scores through verl's workers. Rows of step skills are not packed: verl reads whole sequences."""

    def __init__(self, services: Services, source: str, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.services, self.source = services, source

    def logprobs(self, ids: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> list[Tensor]:
        if not ids:
            return []
        samples = [sample_of(row, marked) for row, marked in zip(ids, positions, strict=True)]
        found = self.services.score_samples(samples, self.source, SCORING)
        kept = [torch.tensor(sample.mask, dtype=torch.bool) for sample in samples]
        return [scores[mask] for scores, mask in zip(found, kept, strict=True)]

    def _score(self, sequences: Any, branches: Any, scores: Any) -> tuple[int, int]:
        return super()._score(sequences, {}, scores)


class RemoteTeacher(Teacher):
    """Weights of their own in the workers. folder: of a frozen teacher; decay: of a moving average (folder is None)."""

    own_weights = False

    def __init__(self, services: Services, network: Network, folder: Path | None, decay: float | None) -> None:
        super().__init__(network)
        self.services, self.folder, self.decay = services, folder, decay
        self._loaded = False
        if decay is not None:
            self.network()

    def network(self) -> Network:
        if not self._loaded:
            self.services.load_teacher(self.folder)
            self._loaded = True
        return super().network()

    def after_update(self) -> None:
        if self.decay is not None:
            self.services.follow(self.decay)

    def release(self) -> None:
        if self.decay is None and self._loaded:
            self.services.release_teacher()
            self._loaded = False

    @property
    def moves(self) -> bool:
        """Whether a checkpoint must keep its weights."""
        return self.decay is not None


class RemoteTrainer(Trainer):
    """The shared training loop on verl's workers.

    Log-probs of the rollout are those of the workers that train, not those of the samplers: they score rows, references
    and teachers with the same numerics. `apart`: mean and largest difference between the two in the newest step.
    """

    clock = staticmethod(time.monotonic)

    def __init__(self, services: Services, teacher_folder: Path | None, *given: Any, **named: Any) -> None:
        self.services, self.teacher_folder = services, teacher_folder
        self._stored: Any = None
        self._entropy = 0.0
        self.apart = (0.0, 0.0)
        super().__init__(*given, **named)

    def _parts(self, pool: Pool, prompter: Prompter) -> None:
        config, services = self.config, self.services
        self.sampler = RemotePlayer(services, config, training=True)
        weights = config.method.teacher.weights
        if weights in ("frozen", "ema"):
            decay = config.method.teacher.decay if weights == "ema" else None
            self.teacher = RemoteTeacher(services, self.network, self.teacher_folder, decay)
        else:
            self.teacher = Teacher(self.network)
        self.reference_scorer = _StepScorer(self) if config.training.kl_coef > 0 else None
        self.updater = _Updater(self)

    def scorer(self, network: Network, own_weights: bool = True) -> Scorer:
        local = super().scorer(network, own_weights)
        return RemoteScorer(
            self.services,
            POLICY if own_weights else TEACHER,
            network,
            local.chat,
            self.config.training.context,
            local.temperature,
            local.micro_batch_tokens,
            local.skill_style,
            local.placement,
            own_weights,
        )

    def step(self, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        self.services.global_steps = step
        try:
            metrics, played = super().step(step)
        finally:
            self._forget()
        metrics["train/entropy"] = metrics["train/entropy"] or self._entropy
        metrics["train/sampler_gap"], metrics["train/sampler_gap_max"] = self.apart
        return metrics, played

    def _settle(self, kept: Sequence[Trajectory]) -> None:
        """Put the step's rows into the queue and take over the log-probs that the training workers give them."""
        from harness.training.batch import build_rows

        context, training = self.config.training.context, self.config.training
        rows = build_rows(kept, context)
        if not rows:
            return
        step = self.services.global_steps
        sets = mini_batches(len(rows), training.mini_batches, self.config.seed, step)
        samples = [sample_of_row(row) for row in rows]
        order, share = arranged(sets, [sample.length for sample in samples], self.services.workers)
        self._stored = self.services.store(samples, order, STEP, share)
        scores = self.services.score(self._stored, POLICY, entropy=True)
        masks = [torch.tensor(sample.mask, dtype=torch.bool) for sample in samples]
        entropies = self.services.entropies(self._stored)
        marked = torch.cat([values[mask] for values, mask in zip(entropies, masks, strict=True)])
        self._entropy = float(marked.double().mean())
        sampled = torch.tensor([value for row in rows for value in row.logprobs])
        found = torch.cat([values[mask] for values, mask in zip(scores, masks, strict=True)])
        gap = (found - sampled).abs()
        self.apart = (float(gap.mean()), float(gap.max()))
        self._refuse_gap(step)
        put_logprobs(kept, context, scores)

    def _refuse_gap(self, step: int) -> None:
        """Raises SamplerGapError. In bfloat16 the two differ by hundredths of a nat; samplers that still hold the
        weights that vLLM starts with (random ones), or attention over parts of rows, by several."""
        mean, limit = self.apart[0], self.config.verl.max_sampler_gap
        if not mean <= limit:
            raise SamplerGapError(
                f"step {step}: log-probs of samplers and training workers differ by {mean:.3g} nats per token on "
                f"average, verl.max_sampler_gap={limit:g} allows less: weights did not reach the samplers (see "
                "verl/log.txt in the run's folder), or the two compute different attention (verl.attn_implementation, "
                "verl.sequence_parallel)"
            )

    def _forget(self) -> None:
        if self._stored is not None:
            stored, self._stored = self._stored, None
            self.services.clear(stored)


class _StepScorer(RemoteScorer):
    """The reference policy on the rows that are in the queue already."""

    def __init__(self, trainer: RemoteTrainer) -> None:
        self.trainer = trainer

    def batch_logprobs(self, rows: Sequence[Row], batch: Any) -> Tensor:
        dense = torch.zeros_like(batch.old_logprobs)
        found = self.trainer.services.score(self.trainer._stored, REFERENCE)
        for r, (row, scores) in enumerate(zip(rows, found, strict=True)):
            first = row.positions[0]
            dense[r, row.positions] = scores[[position - first for position in row.positions]]
        return dense


class _Updater:
    """Optimiser steps in verl's workers."""

    def __init__(self, trainer: RemoteTrainer) -> None:
        self.trainer = trainer

    def update(self, data: StepData) -> UpdateStats:
        """As the local engine's. Raises NonFiniteUpdateError; verl leaves the weights alone then."""
        trainer = self.trainer
        training, channels = trainer.config.training, sorted(data.batch.teacher)
        loss = StepLoss(training, data.step, frame_of(data.batch), channels, MethodLoss.of(data.method))
        fields = learning_fields(data.rows, data.batch, data.advantages, data.reference)
        lr = learning_rate(training, data.step)
        told = trainer.services.update(trainer._stored, fields, empty_fields(fields[0]), loss, lr)
        norms = told["grad_norm"]
        if not all(norm == norm and abs(norm) != float("inf") for norm in norms):
            raise NonFiniteUpdateError(
                f"gradient norm {norms} at step {data.step} (lr {lr:g}): lower training.lr, or look for infinite "
                "advantages of the method"
            )
        marked = max(data.marked, 1)
        sums = {name.removeprefix(PREFIX): sum(values) for name, values in told.items() if name.startswith(PREFIX)}
        return UpdateStats(
            loss=sums["loss"] / marked,
            entropy=sums["entropy"] / marked,
            kl=sums["kl"] / marked,
            kl_reference=sums["kl_reference"] / marked,
            clip_fraction=sums["clip_fraction"] / marked,
            grad_norm=sum(norms) / len(norms),
            tokens=sum(len(row.ids) for row in data.rows),
        )
