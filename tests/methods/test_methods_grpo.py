"""GRPO: the paper's formula, the declared edges, and what must not matter."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from methods_helpers import (
    LAYOUTS,
    context,
    grpo_config,
    make_arrays,
    make_batch,
    numpy_episode_advantage,
    one_token_batch,
    policy_gradient,
    to_batch,
)
from record_batches import load

from methods import registry
from methods.grpo import base_advantage, group_advantage, masked_mean, to_tokens
from methods.interface import AdvantageConfig, Batch

SEED = 20240607
SETTINGS = [(std, over) for std in (True, False) for over in ("trajectories", "steps")]
FAST = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize("source", ["recorded", "made up"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("std", "over"), SETTINGS)
def test_formula_recomputed_in_numpy(source: str, layout: str, std: bool, over: str) -> None:
    arrays = load(layout, "routed") if source == "recorded" else make_arrays(SEED, layout)
    batch = to_batch(arrays)
    expected = numpy_episode_advantage(arrays, std, over)
    assert np.abs(expected).max() > 0.1  # a batch without signal would prove nothing
    np.testing.assert_allclose(group_advantage(batch, std, over).numpy(), expected, atol=1e-12)
    tokens = registry.build(grpo_config(std=std, stats_over=over), context()).advantages(1, batch).numpy()
    steps = np.asarray(arrays["token_step"])
    for row, column in np.argwhere(arrays["response_mask"]):
        assert abs(tokens[row, column] - expected[steps[row, column]]) < 1e-6


@FAST
@given(returns=st.lists(st.floats(0, 1, width=32), min_size=2, max_size=8), seed=st.integers(0, 99))
def test_without_penalty_it_is_the_papers_formula_over_trajectories(returns: list[float], seed: int) -> None:
    """(R - mean) / population std over the trajectories' returns, whatever their lengths."""
    lengths = np.random.default_rng(seed).integers(1, 6, len(returns))
    batch = one_token_batch([(0, i, r, False) for i, r in enumerate(returns) for _ in range(lengths[i])])
    values = np.array(returns, dtype=np.float32).astype(np.float64)
    expected = (values - values.mean()) / (values.std() + 1e-6)
    if values.max() == values.min():
        expected = np.zeros(len(values))
    actual = group_advantage(batch, True, "trajectories").numpy()
    np.testing.assert_allclose(actual, np.repeat(expected, lengths), atol=1e-9)


def test_stats_over_differ_when_lengths_differ() -> None:
    batch = one_token_batch([(0, 0, 1.0, False)] * 1 + [(0, 1, 0.0, False)] * 9)
    by_trajectory = group_advantage(batch, False, "trajectories")
    by_step = group_advantage(batch, False, "steps")
    assert by_trajectory[0].item() == pytest.approx(0.5)
    assert by_step[0].item() == pytest.approx(0.9)


def test_steps_use_the_unbiased_deviation() -> None:
    batch = one_token_batch([(0, 0, 1.0, False), (0, 1, 0.0, False)])
    assert group_advantage(batch, True, "steps")[0].item() == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6))
    assert group_advantage(batch, True, "trajectories")[0].item() == pytest.approx(0.5 / (0.5 + 1e-6))


@pytest.mark.parametrize(("std", "over"), SETTINGS)
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1.0, 1e6])
def test_equal_scores_give_exactly_zero(std: bool, over: str, value: float) -> None:
    """0.1 summed three times and divided by three is not 0.1: rounding must not become a signal."""
    batch = one_token_batch([(0, t, value, False) for t in range(3) for _ in range(t + 1)])
    assert torch.equal(group_advantage(batch, std, over), torch.zeros(6, dtype=torch.float64))


@pytest.mark.parametrize(("std", "over"), SETTINGS)
def test_group_of_one_is_zero(std: bool, over: str) -> None:
    batch = one_token_batch([(0, 0, 1.0, False), (1, 1, 0.0, False), (1, 2, 1.0, False)])
    advantage = group_advantage(batch, std, over)
    assert advantage[0] == 0 and advantage[1] < 0 < advantage[2]


@pytest.mark.parametrize("over", ["trajectories", "steps"])
def test_penalty_in_a_group_of_equal_trajectories_stays_moderate(over: str) -> None:
    """Two failures with one invalid step each: trajectory means agree, but single steps differ."""
    batch = one_token_batch([(0, t, 0.0, k == 0) for t in range(2) for k in range(2)])
    advantage = group_advantage(batch, True, over)
    assert advantage.abs().max() < 2
    assert advantage[0] < 0 < advantage[1]


def test_invalid_steps_lose_exactly_the_penalty_without_std() -> None:
    batch = one_token_batch([(0, 0, 1.0, False), (0, 0, 1.0, True), (0, 1, 0.0, False)], penalty=0.1)
    advantage = group_advantage(batch, False, "trajectories")
    assert (advantage[0] - advantage[1]).item() == pytest.approx(0.1)


@pytest.mark.parametrize(("std", "over"), SETTINGS)
def test_a_trajectory_without_steps_changes_nothing(std: bool, over: str) -> None:
    """A context can be full before the first response: such a trajectory has a return but no step."""
    batch = one_token_batch([(0, 0, 1.0, False), (0, 1, 0.0, True), (0, 1, 0.0, False)])
    more = replace(batch, group=torch.tensor([0, 0, 0]), returns=torch.tensor([1.0, 0.0, 0.0]))
    assert torch.equal(group_advantage(more, std, over), group_advantage(batch, std, over))


@FAST
@given(seed=st.integers(0, 10_000), scale=st.floats(0.5, 20), over=st.sampled_from(["trajectories", "steps"]))
def test_properties_of_group_advantage(seed: int, scale: float, over: str) -> None:
    arrays = make_arrays(seed, "per_step", channels="none")
    batch = to_batch(arrays)
    plain = group_advantage(batch, False, over)
    divided = group_advantage(batch, True, over)
    assert bool(divided.isfinite().all())
    assert bool((divided.sign() == plain.sign()).all())
    # each group is centred in its own weighting
    counts = torch.bincount(batch.step_trajectory, minlength=len(batch.group)).double()
    weight = 1 / counts[batch.step_trajectory] if over == "trajectories" else torch.ones_like(plain)
    group = batch.group[batch.step_trajectory]
    for g in group.unique():
        assert abs((weight * plain)[group == g].sum().item()) < 1e-9
    # rewards in other units change nothing but for the 1e-6 in the denominator
    scaled = replace(batch, returns=batch.returns * scale, invalid_penalty=batch.invalid_penalty * scale)
    torch.testing.assert_close(group_advantage(scaled, True, over), divided, rtol=1e-3, atol=1e-4)


@FAST
@given(seed=st.integers(0, 10_000), over=st.sampled_from(["trajectories", "steps"]))
def test_order_of_steps_and_labels_of_groups_do_not_matter(seed: int, over: str) -> None:
    batch = make_batch(seed, channels="none")
    before = group_advantage(batch, True, over)
    order = torch.randperm(len(before), generator=torch.Generator().manual_seed(seed))
    shuffled = replace(
        batch,
        step_trajectory=batch.step_trajectory[order],
        step_invalid=batch.step_invalid[order],
        group=1000 - 7 * batch.group,
    )
    torch.testing.assert_close(group_advantage(shuffled, True, over), before[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zero_and_no_gradient_outside_the_mask(layout: str) -> None:
    batch = make_batch(3, layout)
    advantage = registry.build(grpo_config(), context()).advantages(1, batch)
    assert advantage.shape == batch.response_mask.shape and not advantage.requires_grad
    assert advantage.dtype == batch.old_logprobs.dtype
    assert not advantage[~batch.response_mask].any() and advantage[batch.response_mask].any()


def with_junk(batch: Batch) -> Batch:
    """The batch with nonsense wherever nothing may be read."""
    outside = ~batch.response_mask
    step = batch.token_step.clone()
    step[outside] = torch.arange(int(outside.sum())) - 5
    junk = torch.full_like(batch.old_logprobs, float("nan"))
    teacher = {c: torch.where(batch.teacher_mask[c], v, junk) for c, v in batch.teacher.items()}
    old = torch.where(batch.response_mask, batch.old_logprobs, junk)
    return replace(batch, token_step=step, old_logprobs=old, teacher=teacher)


def padded(batch: Batch, columns: int) -> Batch:
    """The batch with padding columns on the right."""

    def pad(values: torch.Tensor, value: float) -> torch.Tensor:
        return torch.nn.functional.pad(values, (0, columns), value=value)

    return replace(
        batch,
        response_mask=pad(batch.response_mask, False),
        old_logprobs=pad(batch.old_logprobs, 0.0),
        token_step=pad(batch.token_step, -1),
        teacher={c: pad(v, 0.0) for c, v in batch.teacher.items()},
        teacher_mask={c: pad(v, False) for c, v in batch.teacher_mask.items()},
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_and_junk_do_not_matter(layout: str) -> None:
    method = registry.build(grpo_config(), context())
    batch = make_batch(5, layout)
    plain = method.advantages(1, batch)
    assert torch.equal(method.advantages(1, with_junk(batch)), plain)
    wide = padded(batch, 7)
    assert torch.equal(method.advantages(1, wide)[:, :-7], plain)
    torch.testing.assert_close(policy_gradient(wide, method.advantages(1, wide)), policy_gradient(batch, plain))


def test_estimator_none_and_pg_coef() -> None:
    batch = make_batch(1)
    one = registry.build(grpo_config(), context()).advantages(1, batch)
    assert not base_advantage(AdvantageConfig("none"), batch).any()
    half = registry.build(grpo_config(pg_coef=0.5), context()).advantages(1, batch)
    torch.testing.assert_close(half, 0.5 * one)


def test_bad_batches_are_refused() -> None:
    batch = make_batch(2)
    with pytest.raises(ValueError, match="not finite"):
        group_advantage(replace(batch, returns=batch.returns * float("nan")), True, "steps")
    with pytest.raises(ValueError, match="must be one of trajectories, steps"):
        group_advantage(batch, True, "rows")
    lost = batch.token_step.clone()
    lost[0, 0] = -1
    with pytest.raises(ValueError, match="token_step holds -1"):
        to_tokens(torch.zeros(len(batch.step_trajectory)), replace(batch, token_step=lost))
    with pytest.raises(ValueError, match="has environment steps 0"):
        to_tokens(torch.zeros(1), batch)


def test_asks_for_no_teacher_and_keeps_no_state() -> None:
    method = registry.build(grpo_config(), context())
    assert method.after_rollout(1, []) == {} and method.teacher_requests(1, []) == []
    assert method.state_dict() == {}
    method.load_state_dict({})
    with pytest.raises(ValueError, match="keeps no state"):
        method.load_state_dict({"momentum": 1})


def test_metrics() -> None:
    batch = one_token_batch([(0, 0, 1.0, False), (0, 1, 0.0, False)])
    method = registry.build(grpo_config(), context())
    assert method.metrics(1, batch)["advantage_abs"] == pytest.approx(1.0, abs=1e-5)
    assert masked_mean(batch.old_logprobs, torch.zeros_like(batch.response_mask)) == 0.0
