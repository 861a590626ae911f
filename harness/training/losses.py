"""Loss terms per token. No masks, no averaging: callers pass the response tokens only, [tokens], and weigh them.

Notation: l = log pi_theta(token), l_old and l_ref under the rollout and the reference policy, A = advantage,
rho = exp(l - l_old).
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.config import TrainingConfig

MAX_LOG_RATIO = 20.0  # exp(20) is about 5e8: beyond it a ratio says "far away" and float32 sums break
MAX_K3 = 10.0  # per token, as in verl's low_var_kl


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate per token, and where clipping took the gradient away (bool).

        L = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high))       PPO, arXiv:1707.06347, equation 7
        L = min(L, -c A)   where A < 0                                   dual clip, arXiv:1912.09729, equation 5

    With A < 0 and rho large the first line is unbounded; dual_clip c > 1 bounds it by c |A|. None: no such bound.
    """
    ratio = (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, clipped)
    flat = clipped > plain
    if dual_clip is not None:
        if dual_clip <= 1:
            raise ValueError(
                f"training.dual_clip={dual_clip} must exceed 1 (or be null): it bounds the ratio from above"
            )
        bound = -dual_clip * advantages
        over = (advantages < 0) & (loss > bound)
        loss = torch.where(over, bound, loss)
        flat = flat | over
    return loss, flat


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate of KL(pi_theta || pi_ref) per token: r - log r - 1 with r = pi_ref / pi_theta.

    Non-negative, and unbiased for samples of pi_theta (Schulman, "Approximating KL divergence", 2020, estimator k3).
    Clamped to at most MAX_K3.
    """
    difference = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (difference.exp() - difference - 1).clamp(max=MAX_K3)


def entropy(log_distribution: Tensor) -> Tensor:
    """Shannon entropy in nats, [tokens], of log-probabilities [tokens, vocabulary]."""
    return -(log_distribution.exp() * log_distribution).sum(-1)


def token_losses(
    config: TrainingConfig,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    entropy: Tensor,
    reference: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What every engine minimises, without a method's own term: policy loss, KL to the reference, entropy bonus.

    All [tokens]; entropy: of the policy's distribution, nats; reference: log-probs under the initial policy, or None
    without a KL term. Returns losses, where clipping took the gradient away (bool), and the divergence (None without).
    """
    losses, flat = policy_loss(logprobs, old_logprobs, advantages, config.clip_low, config.clip_high, config.dual_clip)
    divergence = None
    if reference is not None:
        divergence = k3(logprobs, reference)
        losses = losses + config.kl_coef * divergence
    if config.entropy_coef:
        losses = losses - config.entropy_coef * entropy
    return losses, flat, divergence
