"""Auxiliary losses that pull the student towards a teacher, per sampled token, and the frame that they share.

With l = log pi_theta(y_t) - log pi_T(y_t), Delta = -l and rho = exp(log pi_theta(y_t) - log pi_old(y_t)), in nats, one
value per policy token that the teacher scored, [R, T]; log pi_T is a constant everywhere:

    k3_is        rho * (exp(-l) - 1 + l)     gradient rho * l * grad log pi_theta
    reverse_kl   sg(l) * log pi_theta        gradient       l * grad log pi_theta
    gated_gap    sg(g) * Delta               gradient      -g * grad log pi_theta,   g in (0, 1)

The first is an importance-weighted reverse KL (Schulman's k3, arXiv:2604.10674 uses it so); the second its gradient on
the policy's own samples, where rho = 1. The third pulls every sampled token up, whatever its teacher says, by a weight
that its gate decides (arXiv:2605.15155): its value is no KL, and is negative where the teacher likes a token less.

The engine sums what `aux_loss` gives over the response mask of a mini-batch and divides by its number of policy tokens
(Agg in the methods' docstrings); coefficients are inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from methods.grpo import base_advantage
from methods.interface import Batch, MethodConfig
from methods.signal import EPISODE, masked_mean
from methods.teacher import LibraryTeacher, check_library_teacher

if TYPE_CHECKING:
    from torch import Tensor

MAX_EXPONENT = 20.0  # of exp(-l) in k3 (released code of arXiv:2605.15155)
MAX_RATIO = 10.0  # of rho (same code)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a loss is computed from, each [R, T] and 0 where the teacher scored nothing.

    logprobs: log pi_theta, differentiable;  old, teacher: log pi_old and log pi_T, constants (nats)
    entropy: of the student's next-token distribution, nats, constant
    """

    logprobs: Tensor
    old: Tensor
    teacher: Tensor
    entropy: Tensor

    @property
    def shift(self) -> Tensor:
        """Delta = log pi_T - log pi_theta, [R, T], differentiable."""
        return self.teacher - self.logprobs


def k3_is(tokens: Tokens) -> Tensor:
    """rho * k3(l), [R, T], at least 0. The exponent of k3 is cut at 20 and rho at 10; no gradient beyond either cut."""
    ratio = (tokens.logprobs - tokens.old).clamp(max=math.log(MAX_RATIO)).exp()  # exp first would overflow
    shift = tokens.shift
    return ratio * (shift.clamp(max=MAX_EXPONENT).exp() - 1 - shift)


def reverse_kl(tokens: Tokens) -> Tensor:
    """sg(l) * log pi_theta, [R, T]; only its gradient has a meaning."""
    return -tokens.shift.detach() * tokens.logprobs


def gated_gap(tokens: Tokens, gate: Tensor | float) -> Tensor:
    """g * Delta, [R, T]; the gate is detached here."""
    import torch

    return (gate.detach() if isinstance(gate, torch.Tensor) else gate) * tokens.shift


def sigmoid_gate(read: Tensor, beta: float) -> Tensor:
    """sg(sigmoid(beta * x)), [R, T], in (0, 1); a half where x = 0 (for a gap: where teacher and student agree)."""
    return (beta * read.detach()).sigmoid()


class AuxiliaryTeacher(LibraryTeacher):
    """Base advantage as configured, plus lambda * `token_loss`. With lambda = 0 it is the base method bit for bit."""

    def advantages(self, step: int, batch: Batch) -> Tensor:
        return base_advantage(self.config.advantage, batch)

    def token_loss(self, tokens: Tokens) -> Tensor:
        """The method's loss per token, [R, T], without lambda."""
        raise NotImplementedError

    def aux_loss(self, step: int, batch: Batch, logprobs: Tensor, entropy: Tensor) -> Tensor | None:
        """lambda * token_loss, [R, T]; 0 without a gradient where the teacher scored nothing. None if lambda is 0."""
        import torch

        coefficient = self.coefficient(step)
        if not coefficient or EPISODE not in batch.teacher:
            return None
        scored = batch.teacher_mask[EPISODE].bool() & batch.response_mask.bool()

        def only(values: Tensor) -> Tensor:  # whatever stands elsewhere (NaN too) must not reach a gradient
            return torch.where(scored, values.to(logprobs.dtype), 0.0)

        tokens = Tokens(
            only(logprobs),
            only(batch.old_logprobs.detach()),
            only(batch.teacher[EPISODE].detach()),
            only(entropy.detach()),
        )
        return coefficient * torch.where(scored, self.token_loss(tokens), 0.0)

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """Those of LibraryTeacher, and advantage_abs: mean |A| over policy tokens."""
        base = self.advantages(step, batch)
        return {**super().metrics(step, batch), "advantage_abs": masked_mean(base.abs(), batch.response_mask)}


def check_auxiliary(config: MethodConfig, weights: tuple[str, ...], policy_gradient: bool) -> None:
    """Raise ValueError unless the row has a library teacher of one of `weights`, and an outcome reward (or none).

    A key that an auxiliary loss would silently ignore is refused as well.
    """
    check_library_teacher(config, weights)
    row = f"row {config.id!r} (method.name={config.name})"
    estimator, pg_coef = config.advantage.estimator, config.advantage.pg_coef
    if policy_gradient and (estimator == "none" or not pg_coef):
        raise ValueError(
            f"{row} sets method.advantage.estimator={estimator} and method.advantage.pg_coef={pg_coef}, but it learns "
            "from outcome rewards too; set grpo or gigpo and a positive weight, or use the method without rewards"
        )
    if not policy_gradient and estimator != "none":
        raise ValueError(
            f"{row} sets method.advantage.estimator={estimator!r}, but it learns from its teacher alone; set none"
        )
    if config.signal.clip is not None or config.signal.normalize:
        raise ValueError(
            f"{row} sets method.signal.clip={config.signal.clip}, method.signal.normalize={config.signal.normalize}, "
            "which shape a teacher's advantage; its auxiliary loss has none: set null and false"
        )
