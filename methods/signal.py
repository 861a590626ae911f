"""The teacher's signal: how much more (or less) likely the sampled tokens are under the skill.

    Delta_c(tau, t, l) = log pi_T(y_l | H(h_t, skill_c), y_<l) - log pi_S(y_l | h_t, y_<l)     nats, per token, [R, T]

pi_S is the rollout policy pi_old here (the engine's `old_logprobs`); losses that differentiate through the student use
the live log-probs instead (`live_shift`). Always detached on the teacher's side, and 0 where channel c scored nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from methods.interface import Batch, SignalConfig

if TYPE_CHECKING:
    from torch import Tensor

EPISODE = "episode"  # channel of scores under an episode skill (of the library, or of the own trajectory)
STEP = "step"  # channel of scores under a step skill
EPS = 1e-6  # added to the deviation when the signal is normalised (released code of OPID)


def skill_shift(batch: Batch, channel: str) -> tuple[Tensor, Tensor]:
    """Delta_c in nats, [R, T] and 0 where not scored, and m_c, [R, T] bool. Both are 0 for a channel without scores.

    Raises ValueError if a scored token has no finite shift.
    """
    import torch

    if channel not in batch.teacher:
        return torch.zeros_like(batch.old_logprobs), torch.zeros_like(batch.response_mask, dtype=torch.bool)
    scored = batch.teacher_mask[channel].bool() & batch.response_mask.bool()
    # where, not a product: whatever stands outside the mask (NaN too) must not matter
    shift = torch.where(scored, batch.teacher[channel] - batch.old_logprobs, 0.0).detach()
    if not bool(shift.isfinite().all()):
        raise ValueError(f"the teacher scores of channel {channel!r} hold a log-prob that is not finite")
    return shift.to(batch.old_logprobs.dtype), scored


def live_shift(batch: Batch, channel: str, logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """log pi_T - log pi_theta with the live student, [R, T], differentiable in `logprobs`; and where it was scored."""
    import torch

    if channel not in batch.teacher:
        return torch.zeros_like(logprobs), torch.zeros_like(batch.response_mask, dtype=torch.bool)
    scored = batch.teacher_mask[channel].bool() & batch.response_mask.bool()
    return torch.where(scored, batch.teacher[channel].detach().to(logprobs.dtype) - logprobs, 0.0), scored


def shaped_shift(batch: Batch, channel: str, signal: SignalConfig) -> Tensor:
    """f(Delta_c) * m_c, [R, T]; nats, or dimensionless if normalised.

    f: normalisation with mean and population deviation over the scored tokens, (x - mean) / (std + 1e-6), and only
    x - mean if std <= 1e-6; then clipping to +-clip. The identity if neither is set.
    """
    shift, scored = skill_shift(batch, channel)
    if signal.normalize and bool(scored.any()):
        values = shift[scored]
        mean, deviation = values.mean(), values.std(unbiased=False)
        centred = values - mean
        shift = shift.masked_scatter(scored, centred / (deviation + EPS) if bool(deviation > EPS) else centred)
    return shift if signal.clip is None else shift.clamp(-signal.clip, signal.clip)


def masked_mean(values: Tensor, mask: Tensor) -> float:
    """Mean of `values` [R, T] over the true entries of `mask` [R, T]; 0.0 if there are none."""
    chosen = values[mask.bool()]
    return float(chosen.double().mean()) if chosen.numel() else 0.0
