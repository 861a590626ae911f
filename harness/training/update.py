"""The optimiser's side of a training step: mini-batches, micro-batches, AdamW."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from harness.config import TrainingConfig
from harness.training.batch import Row, micro_batches, select_rows
from harness.training.forward import MarkedLogprobs, marked_logprobs
from harness.training.losses import k3, token_losses
from harness.training.network import Network
from harness.training.streams import stream
from methods.interface import Batch, Method


class NonFiniteUpdateError(FloatingPointError):
    """The loss or its gradient is NaN or infinite. Weights are as they were before the optimiser step."""


@dataclass
class UpdateStats:
    """Means over the response tokens of a training step; grad_norm: mean over optimiser steps, before clipping.

    kl: k3 estimate of KL(rollout policy || policy at each optimiser step, before it); kl_reference: of
    KL(that policy || reference). So with a single mini-batch kl is 0.
    """

    loss: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    kl_reference: float = 0.0
    clip_fraction: float = 0.0
    grad_norm: float = 0.0
    tokens: int = 0  # forwarded, without padding


@dataclass(frozen=True, slots=True)
class StepData:
    """What one training step learns from. advantages [R, T]: detached; reference [R, T]: log-probs under the frozen
    initial policy, or None without a KL term."""

    step: int
    rows: Sequence[Row]
    batch: Batch
    advantages: Tensor
    method: Method
    reference: Tensor | None = None

    @property
    def marked(self) -> int:
        """Response tokens of the whole step."""
        return sum(len(row.positions) for row in self.rows)


class Updates(Protocol):
    """Whatever learns from a step's data: the Updater here, or another engine's."""

    def update(self, data: StepData) -> UpdateStats:
        """As Updater.update."""
        ...


class Updater:
    """AdamW on one network. Everything random is a function of (seed, step)."""

    def __init__(self, network: Network, config: TrainingConfig, pad_id: int, seed: int) -> None:
        self.network, self.config, self.pad_id, self.seed = network, config, pad_id, seed
        self.parameters = [p for p in network.model.parameters() if p.requires_grad]
        beta1, beta2 = config.betas
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=config.lr, betas=(beta1, beta2), weight_decay=config.weight_decay, fused=True
        )

    def update(self, data: StepData) -> UpdateStats:
        """One pass over the rows in `mini_batches` optimiser steps. Raises NonFiniteUpdateError."""
        lr = learning_rate(self.config, data.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        stats = UpdateStats()
        parts = mini_batches(len(data.rows), self.config.mini_batches, self.seed, data.step)
        for part in parts:
            self.optimizer.zero_grad(set_to_none=True)
            self.accumulate(data, part, stats)
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip))
            if not math.isfinite(norm):
                raise NonFiniteUpdateError(
                    f"gradient norm {norm} at step {data.step} (lr {lr:g}): lower training.lr, or look for infinite "
                    "advantages of the method"
                )
            self.optimizer.step()
            stats.grad_norm += norm / len(parts)
        self.optimizer.zero_grad(set_to_none=True)
        return stats

    def accumulate(self, data: StepData, part: Sequence[int], stats: UpdateStats) -> None:
        """Add the gradient of one mini-batch: the sum of its token losses divided by its number of response tokens.

        Every token weighs the same whatever row and micro-batch it is in, so splitting and padding change nothing.
        """
        rows = data.rows
        total = sum(len(rows[i].positions) for i in part)
        for chosen in micro_batches([len(rows[i].ids) for i in part], self.config.micro_batch_tokens):
            index = [part[i] for i in chosen]
            forward = marked_logprobs(
                self.network,
                [rows[i].ids for i in index],
                [rows[i].positions for i in index],
                self.pad_id,
                self.config.temperature,
            )
            losses = self._token_losses(data, index, forward, stats)
            (losses.sum() / total).backward()  # type: ignore[no-untyped-call]
            stats.loss += float(losses.detach().sum()) / data.marked
            stats.tokens += sum(len(rows[i].ids) for i in index)

    def _token_losses(self, data: StepData, index: list[int], forward: MarkedLogprobs, stats: UpdateStats) -> Tensor:
        """[tokens], in the order of `forward`, for the micro-batch of rows `index`."""
        config = self.config
        part = torch.tensor(index)
        source, columns = part[forward.row.cpu()], forward.position.cpu()

        def tokens(dense: Tensor) -> Tensor:
            return dense[source, columns].to(self.network.device)

        old = tokens(data.batch.old_logprobs)
        reference = tokens(data.reference) if data.reference is not None else None
        losses, flat, divergence = token_losses(
            config, forward.logprobs, old, tokens(data.advantages), forward.entropy, reference
        )
        with torch.no_grad():
            stats.entropy += float(forward.entropy.sum()) / data.marked
            stats.kl += float(k3(old, forward.logprobs).sum()) / data.marked
            stats.clip_fraction += float(flat.sum()) / data.marked
        if divergence is not None:
            stats.kl_reference += float(divergence.detach().sum()) / data.marked
        if type(data.method).aux_loss is not Method.aux_loss:
            view = select_rows(data.batch, part, max(len(data.rows[i].ids) for i in index), self.network.device)
            auxiliary = data.method.aux_loss(
                data.step, view, _dense(forward.logprobs, forward, view), _dense(forward.entropy, forward, view)
            )
            if auxiliary is not None:
                losses = losses + auxiliary[forward.row, forward.position]
        return losses


def _dense(values: Tensor, forward: MarkedLogprobs, view: Batch) -> Tensor:
    """[r, width] with `values` at the marked tokens and 0 elsewhere; differentiable."""
    empty = torch.zeros(view.response_mask.shape, dtype=values.dtype, device=values.device)
    return empty.index_put((forward.row, forward.position), values)


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Linear warm-up over the first `warmup_steps` training steps (numbered from 1), then constant."""
    return config.lr * min(1.0, step / config.warmup_steps) if config.warmup_steps else config.lr


def mini_batches(rows: int, parts: int, seed: int, step: int) -> list[list[int]]:
    """A permutation of the rows, drawn from (seed, step), in `parts` sets of nearly equal size; none is empty."""
    order = stream(seed, "mini-batches", step).permutation(rows).tolist()
    parts = min(parts, rows)
    bounds = [rows * k // parts for k in range(parts + 1)]
    return [order[a:b] for a, b in itertools.pairwise(bounds)]
