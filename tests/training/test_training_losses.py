"""Loss terms against their formulas in float64 numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from harness.training.losses import MAX_K3, entropy, k3, policy_loss


def formula(new, old, advantage, low, high, dual):
    """PPO's clipped objective and the dual clip, as printed, one token at a time."""
    ratio = math.exp(new - old)
    objective = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if dual is not None and advantage < 0:
        objective = max(objective, dual * advantage)
    return -objective


@pytest.mark.parametrize("dual", [None, 3.0])
def test_policy_loss_equals_the_formula(dual):
    rng = np.random.default_rng(0)
    old, shift, advantage = -rng.random(500), rng.normal(0, 1.5, 500), rng.normal(0, 1, 500)
    loss, _ = policy_loss(*map(torch.tensor, (old + shift, old, advantage)), 0.2, 0.3, dual)
    expected = [formula(n, o, a, 0.2, 0.3, dual) for n, o, a in zip(old + shift, old, advantage, strict=True)]
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [
        (1.0, 1.0, True),
        (1.1, 1.0, True),
        (1.3, 1.0, False),  # clipped above
        (0.5, 1.0, True),  # the worse of the two: no clipping
        (0.7, -1.0, False),  # clipped below
        (2.9, -1.0, True),
        (3.1, -1.0, False),  # dual clip
        (1.5, 0.0, False),
    ],
)
def test_where_the_gradient_vanishes(ratio, advantage, gradient):
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    loss, flat = policy_loss(
        logprob, torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64), 0.2, 0.2, 3.0
    )
    loss.sum().backward()
    assert bool(logprob.grad != 0) == gradient
    if advantage:
        assert bool(flat) == (not gradient)


def test_without_dual_clip_the_loss_of_a_bad_token_is_unbounded():
    new, old, advantage = torch.tensor([3.0]), torch.zeros(1), torch.tensor([-1.0])
    assert policy_loss(new, old, advantage, 0.2, 0.2, None)[0].item() == pytest.approx(math.exp(3.0))
    assert policy_loss(new, old, advantage, 0.2, 0.2, 3.0)[0].item() == 3.0


def test_extreme_ratios_stay_finite():
    loss, _ = policy_loss(torch.tensor([0.0]), torch.tensor([-1e4]), torch.tensor([-1.0]), 0.2, 0.2, None)
    assert bool(torch.isfinite(loss).all())


def test_a_dual_clip_below_one_is_refused():
    with pytest.raises(ValueError, match=r"training\.dual_clip=0\.5"):
        policy_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), 0.2, 0.2, 0.5)


def test_k3_estimates_the_divergence():
    rng = torch.Generator().manual_seed(0)
    policy = torch.log_softmax(torch.randn(6, generator=rng, dtype=torch.float64), -1)
    reference = torch.log_softmax(torch.randn(6, generator=rng, dtype=torch.float64), -1)
    exact = (policy.exp() * (policy - reference)).sum()
    expectation = (policy.exp() * k3(policy, reference)).sum()  # over samples of the policy
    torch.testing.assert_close(expectation, exact)


def test_k3_is_not_negative_zero_at_equality_and_bounded():
    values = k3(torch.tensor([-1.0, -1.0, -30.0]), torch.tensor([-1.0, -2.0, 0.0]))
    assert values[0] == 0 and values[1] == pytest.approx(math.exp(-1.0), rel=1e-6) and values[2] == MAX_K3


def test_entropy():
    uniform = torch.log_softmax(torch.zeros(2, 8), -1)
    torch.testing.assert_close(entropy(uniform), torch.full((2,), math.log(8)))
    certain = torch.log_softmax(torch.tensor([[0.0, -1e4]]), -1)
    assert entropy(certain).item() == 0
