"""GiGPO: its formula in float64 numpy, anchor states, the edges, and that it is GRPO where it must be."""

from __future__ import annotations

import difflib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from methods_helpers import (
    F64,
    LAYOUTS,
    Arrays,
    context,
    grpo_config,
    make_arrays,
    make_batch,
    numpy_episode_advantage,
    one_token_batch,
    opid_config,
    policy_gradient,
    row,
    to_batch,
)
from record_batches import load
from test_methods_grpo import SEED, padded, with_junk

from methods import gigpo, registry
from methods.gigpo import anchor_states, step_advantage, step_returns, total_advantage
from methods.interface import AdvantageConfig, Batch

FAST = settings(max_examples=40, deadline=None, derandomize=True)
GIGPO = AdvantageConfig("gigpo")


def numpy_step_advantage(arrays: Arrays, config: AdvantageConfig) -> F64:
    """A_step by loops over trajectories, groups and states: arXiv:2505.10978v3, eqs. (5) to (7)."""
    trajectory_of = np.asarray(arrays["step_trajectory"])
    number = np.asarray(arrays["step_number"])
    reward = np.asarray(arrays["step_reward"], dtype=np.float64)
    invalid = np.asarray(arrays["step_invalid"], dtype=np.float64)
    returns = np.zeros(len(reward))
    for i in range(len(reward)):
        later = [k for k in range(len(reward)) if trajectory_of[k] == trajectory_of[i] and number[k] >= number[i]]
        returns[i] = sum(config.gamma ** (number[k] - number[i]) * reward[k] for k in later)
    returns -= float(arrays["invalid_penalty"]) * invalid
    state = [(int(arrays["group"][t]), str(o)) for t, o in zip(trajectory_of, arrays["observations"], strict=True)]
    out = np.zeros(len(reward))
    for key in set(state):
        inside = [i for i in range(len(state)) if state[i] == key]
        values = returns[inside]
        if values.max() == values.min():
            continue
        deviation = values.std(ddof=0 if config.stats_over == "trajectories" else 1)
        out[inside] = (values - values.mean()) / (deviation + 1e-6 if config.std else 1)
    return out


@pytest.mark.parametrize("source", ["recorded", "made up"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("std", [True, False])
@pytest.mark.parametrize("over", ["trajectories", "steps"])
def test_formula_recomputed_in_numpy(source: str, layout: str, std: bool, over: str) -> None:
    arrays = load(layout, "routed") if source == "recorded" else make_arrays(SEED, layout, size=8)
    config = AdvantageConfig("gigpo", std=std, stats_over=over, omega=0.7, gamma=0.9)
    batch, step = to_batch(arrays), numpy_step_advantage(arrays, config)
    assert np.abs(step).max() > 0.1  # a batch without signal would prove nothing
    np.testing.assert_allclose(step_advantage(config, batch).numpy(), step, rtol=0, atol=1e-9)
    expected = numpy_episode_advantage(arrays, std, over) + 0.7 * step
    tokens = registry.build(replace(row("gigpo"), advantage=config), context()).advantages(1, batch).numpy()
    for r, c in np.argwhere(arrays["response_mask"]):
        assert abs(tokens[r, c] - expected[arrays["token_step"][r, c]]) < 1e-6
    assert not tokens[~np.asarray(arrays["response_mask"])].any()


@FAST
@given(seed=st.integers(0, 10_000), layout=st.sampled_from(LAYOUTS), over=st.sampled_from(["trajectories", "steps"]))
def test_omega_zero_is_grpo_bit_for_bit(seed: int, layout: str, over: str) -> None:
    batch = make_batch(seed, layout)
    base = registry.build(grpo_config(stats_over=over), context()).advantages(1, batch)
    zero = replace(row("gigpo"), advantage=AdvantageConfig("gigpo", stats_over=over, omega=0.0))
    found = registry.build(zero, context()).advantages(1, batch)
    assert torch.equal(found, base) and torch.equal(policy_gradient(batch, found), policy_gradient(batch, base))


def places(*visits: tuple[int, int, str, float, bool]) -> Batch:
    """One token per step, given as (group, trajectory, observation, reward, invalid), in order."""
    batch = one_token_batch([(g, t, 0.0, bad) for g, t, _, _, bad in visits], penalty=0.1)
    reward = torch.tensor([r for *_, r, _ in visits])
    return replace(batch, observations=tuple(o for _, _, o, _, _ in visits), step_reward=reward)


def test_returns_are_discounted_and_the_penalty_is_not() -> None:
    batch = places((0, 0, "a", 0, False), (0, 1, "a", 0, True), (0, 0, "b", 0, True), (0, 0, "c", 4, False))
    assert step_returns(batch, 0.5).tolist() == pytest.approx([1.0, -0.1, 1.9, 4.0])
    assert step_returns(batch, 0.0).tolist() == pytest.approx([0.0, -0.1, -0.1, 4.0])


def test_what_comes_after_a_shared_state_is_compared() -> None:
    batch = places((0, 0, "a", 0, False), (0, 0, "x", 1, False), (0, 1, "a", 0, False), (0, 1, "y", 0, False))
    found = step_advantage(AdvantageConfig("gigpo", std=False, gamma=0.5), batch)
    assert found.tolist() == [0.25, 0.0, -0.25, 0.0]  # states visited once give nothing
    assert step_advantage(GIGPO, batch).tolist() == pytest.approx([1.0, 0.0, -1.0, 0.0], abs=1e-5)


@pytest.mark.parametrize("std", [True, False])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e6])
def test_ties_are_exactly_zero(std: bool, value: float) -> None:
    batch = places(*[(0, t, "a", value, False) for t in range(3)])
    assert not step_advantage(AdvantageConfig("gigpo", std=std), batch).any()


def test_other_tasks_are_other_states() -> None:
    assert anchor_states([0, 0, 1], ["a", "a", "a"], "exact", 0.9) == [0, 0, 1]
    assert anchor_states([0, 0, 1, 0], ["a cup", "a cap", "a cup", "a dog"], "similar", 0.8) == [0, 0, 1, 2]
    assert anchor_states([], [], "similar", 0.8) == []


@FAST
@given(texts=st.lists(st.text("ab ", max_size=6), max_size=12), similarity=st.floats(0, 1))
def test_similar_states_follow_the_definition(texts: list[str], similarity: float) -> None:
    firsts: list[str] = []
    expected = []
    for text in texts:
        fits = [k for k, f in enumerate(firsts) if difflib.SequenceMatcher(None, text, f).ratio() >= similarity]
        known = [k for k, f in enumerate(texts[: len(expected)]) if f == text]
        if not known and not fits:
            firsts.append(text)
        expected.append(expected[known[0]] if known else fits[0] if fits else len(firsts) - 1)
    assert anchor_states([0] * len(texts), texts, "similar", similarity) == expected


def test_exact_states_are_those_of_similarity_one() -> None:
    arrays = make_arrays(5, "per_step", size=8)
    batch = to_batch(arrays)
    similar = replace(GIGPO, anchor="similar", similarity=1.0)
    assert torch.equal(step_advantage(similar, batch), step_advantage(GIGPO, batch))


def test_many_steps_are_no_trouble() -> None:
    """Exact anchors compare no pairs: 40,000 steps in one group would be 800 million of them."""
    assert anchor_states([0] * 40_000, [f"place {k % 999}" for k in range(40_000)], "exact", 0.9)[-1] == 39_999 % 999


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_and_junk_do_not_matter(layout: str) -> None:
    method, batch = registry.build(row("gigpo"), context()), make_batch(5, layout)
    plain = method.advantages(1, batch)
    assert not plain.requires_grad and plain.dtype == batch.old_logprobs.dtype
    assert torch.equal(method.advantages(1, with_junk(batch)), plain)
    assert torch.equal(method.advantages(1, padded(batch, 7))[:, :-7], plain)


def test_any_method_can_stand_on_it() -> None:
    batch = make_batch(4)
    base = registry.build(row("gigpo"), context()).advantages(1, batch)
    zero = registry.build(opid_config(coef=0.0, advantage=GIGPO), context()).advantages(1, batch)
    assert torch.equal(zero, base)
    assert not torch.equal(registry.build(opid_config(advantage=GIGPO), context()).advantages(1, batch), base)
    assert not torch.equal(base, registry.build(grpo_config(), context()).advantages(1, batch))


def test_batches_without_what_it_needs_are_refused() -> None:
    batch = make_batch(1)
    with pytest.raises(ValueError, match=r"needs one reward per environment step .* has none for"):
        total_advantage(GIGPO, replace(batch, step_reward=None))
    with pytest.raises(ValueError, match="needs one reward per environment step"):
        total_advantage(GIGPO, replace(batch, step_reward=torch.zeros(1)))
    with pytest.raises(ValueError, match=r"needs one observation per environment step .* has 0 for"):
        total_advantage(GIGPO, replace(batch, observations=()))
    with pytest.raises(ValueError, match="step_reward holds a value that is not finite"):
        total_advantage(GIGPO, replace(batch, step_reward=torch.full((len(batch.step_invalid),), float("nan"))))
    with pytest.raises(ValueError, match="anchor='near' must be one of exact, similar"):
        total_advantage(replace(GIGPO, anchor="near"), batch)


def test_metrics() -> None:
    batch = places((0, 0, "a", 1, False), (0, 1, "a", 0, False), (0, 1, "b", 0, False))
    found = registry.build(row("gigpo"), context()).metrics(1, batch)
    assert found["anchored"] == pytest.approx(2 / 3) and found["state_visits"] == 1.5
    assert found["step_advantage_abs"] == pytest.approx(2 / 3, abs=1e-5)
    assert found["advantage_abs"] > 0


def test_states_are_found_once_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing long texts is what GiGPO costs: advantages and metrics of a step share it, other data do not."""
    calls: list[str] = []

    def counted(groups: list[int], observations: tuple[str, ...], anchor: str, similarity: float) -> list[int]:
        calls.append(anchor)
        return anchor_states(groups, observations, anchor, similarity)

    monkeypatch.setattr(gigpo, "anchor_states", counted)
    batch, method = make_batch(3), registry.build(row("gigpo"), context())
    expected = method.advantages(1, batch)
    method.metrics(1, batch)
    assert calls == ["exact"] and torch.equal(method.advantages(1, batch), expected)
    apart = tuple(f"place {n}" for n in range(len(batch.observations)))
    assert not torch.equal(method.advantages(1, replace(batch, observations=apart)), expected)
    batch.observations = apart
    assert not torch.equal(method.advantages(1, batch), expected)
    similar = registry.build(row("gigpo", "method.advantage.anchor=similar"), context())
    similar.advantages(1, batch)
    assert calls == ["exact", "exact", "exact", "similar"]
