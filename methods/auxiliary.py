"""Auxiliary losses that pull the student towards a teacher, per sampled token, and the frame that they share.

With l = log pi_theta(y_t) - log pi_T(y_t), Delta = -l and rho = exp(log pi_theta(y_t) - log pi_old(y_t)), in nats, one
value per policy token that the teacher scored, [R, T]; log pi_T is a constant everywhere:

    k3_is        rho * (exp(-l) - 1 + l)     gradient rho * l * grad log pi_theta, within the cuts below
    reverse_kl   sg(l) * log pi_theta        gradient       l * grad log pi_theta
    gated_gap    sg(g) * Delta               gradient      -g * grad log pi_theta,   g in (0, 1)

The first is an importance-weighted reverse KL (Schulman's k3, eq. (4) of arXiv:2402.03300 against a reference policy;
arXiv:2604.10674 uses it so, eq. (12)); the second its gradient on the policy's own samples, where rho = 1
(arXiv:2601.18734v3, eq. (9)). The third pulls every sampled token up, whatever its teacher says, by a weight that its
gate decides (arXiv:2605.15155, section 2.3): its value is no KL, and is negative where the teacher likes a token less.

The engine sums what `aux_loss` gives over the response mask of a mini-batch and divides by its number of policy tokens
(Agg in the methods' docstrings); coefficients are inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from methods.grpo import base_advantage
from methods.interface import Batch, MethodConfig
from methods.signal import EPISODE, masked_mean, skill_shift
from methods.teacher import LibraryTeacher, check_library_teacher
from methods.validation import rewarded

if TYPE_CHECKING:
    from torch import Tensor

MAX_EXPONENT = 20.0  # of exp(-l) in k3 (released code of arXiv:2605.15155)
MAX_RATIO = 10.0  # of rho (same code)
CUTS = (  # deviation of every method with k3_is
    "the loss as the code; its gradient is that of the formula with ratio and -l held at these bounds beyond them, so "
    "that no token is pushed away from a teacher who likes it more"
)


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
    """rho * k3(l), [R, T], with the gradient of its closed form, rho * l * grad log pi_theta.

    Value: rho is cut at 10 and the exponent of k3 at 20, as released. Gradient: rho and -l stand at these bounds beyond
    them, so it is bounded upwards, continuous, and never pushes a token away from a teacher who likes it more. Autograd
    of the value would: beyond the exponent's cut what is left of it is rho * k3, +4.9e8 where -20 is meant, and from 17
    nats on it takes -l from a difference of numbers around exp(-l), of which float32 has no digits left for it.
    """
    ratio, shift = _cut_ratio(tokens), tokens.shift.detach()
    value = ratio * (shift.clamp(max=MAX_EXPONENT).expm1() - shift)
    slope = -ratio * shift.clamp(max=MAX_EXPONENT)
    pull = slope * tokens.logprobs
    return value + (pull - pull.detach())  # the bracket is exactly 0 and carries the gradient


def _cut_ratio(tokens: Tokens) -> Tensor:
    """min(rho, 10), [R, T], constant."""
    return (tokens.logprobs.detach() - tokens.old).clamp(max=math.log(MAX_RATIO)).exp()  # exp first would overflow


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


class K3Teacher(AuxiliaryTeacher):
    """rho * k3 as the auxiliary loss."""

    def token_loss(self, tokens: Tokens) -> Tensor:
        return k3_is(tokens)

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """Those of AuxiliaryTeacher, and exponent_cut: share of scored tokens whose -l is beyond the cut of k3, under
        the rollout policy (where rho = 1)."""
        shift, scored = skill_shift(batch, EPISODE)
        return {**super().metrics(step, batch), "exponent_cut": masked_mean((shift > MAX_EXPONENT).double(), scored)}


def check_auxiliary(config: MethodConfig, weights: tuple[str, ...], policy_gradient: bool) -> None:
    """Raise ValueError unless the row has a library teacher of one of `weights`, and an outcome reward (or none).

    A key that an auxiliary loss would silently ignore is refused as well.
    """
    check_library_teacher(config, weights)
    row = f"row {config.id!r} (method.name={config.name})"
    estimator, pg_coef = config.advantage.estimator, config.advantage.pg_coef
    if policy_gradient and not rewarded(config):
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
