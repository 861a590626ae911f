"""RLSD and Skill-GRPO: formula in float64 numpy, bounds, and where they are GRPO."""

from __future__ import annotations

import json
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
    row,
    to_batch,
    trajectories,
)
from record_batches import load
from test_methods_grpo import SEED, padded, with_junk

from methods import registry
from methods.interface import AdvantageConfig, Batch, MethodConfig, MethodContext, ScheduleConfig, SignalConfig
from methods.rlsd import Rlsd

FAST = settings(max_examples=40, deadline=None, derandomize=True)


def rlsd(coef: float = 0.5, eps: float = 0.2, **changes: object) -> MethodConfig:
    return replace(row("rlsd"), coef=coef, knobs={"eps": eps}, schedule=ScheduleConfig(), **changes)  # type: ignore[arg-type]


def advantages(config: MethodConfig, batch: Batch, step: int = 1) -> torch.Tensor:
    return registry.build(config, context()).advantages(step, batch)


def numpy_rlsd(arrays: Arrays, std: bool, over: str, lam: float, eps: float) -> F64:
    """A_t [R, T], by loops: arXiv:2604.03128, eqs. (13) to (15) and the text after (15)."""
    base = numpy_episode_advantage(arrays, std, over)
    out = np.zeros(np.asarray(arrays["token_step"]).shape)
    for r, c in np.argwhere(arrays["response_mask"]):
        a = base[arrays["token_step"][r, c]]
        out[r, c] = a
        if arrays["teacher_mask/episode"][r, c]:
            shift = np.float64(arrays["teacher/episode"][r, c]) - np.float64(arrays["old_logprobs"][r, c])
            weight = min(max(np.exp(np.sign(a) * shift), 1 - eps), 1 + eps)
            out[r, c] = a * ((1 - lam) + lam * weight)
    return out


@pytest.mark.parametrize("source", ["recorded", "made up"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("std", "over"), [(True, "trajectories"), (False, "steps")])
@pytest.mark.parametrize(("lam", "eps"), [(0.5, 0.2), (0.35, 0.9), (1.0, 0.05)])
def test_formula_recomputed_in_numpy(source: str, layout: str, std: bool, over: str, lam: float, eps: float) -> None:
    arrays = load(layout, "additive") if source == "recorded" else make_arrays(SEED, layout)
    expected = numpy_rlsd(arrays, std, over, lam, eps)
    plain = numpy_rlsd(arrays, std, over, 0.0, eps)
    assert np.abs(expected - plain).max() > 1e-3
    config = rlsd(lam, eps, advantage=AdvantageConfig(std=std, stats_over=over))
    np.testing.assert_allclose(advantages(config, to_batch(arrays)).numpy(), expected, rtol=0, atol=1e-6)


@FAST
@given(seed=st.integers(0, 10_000), coef=st.floats(0, 1), eps=st.floats(0.01, 0.99), layout=st.sampled_from(LAYOUTS))
def test_sign_and_size_stay_within_the_bounds(seed: int, coef: float, eps: float, layout: str) -> None:
    batch = make_batch(seed, layout)
    base, found = advantages(grpo_config(), batch), advantages(rlsd(coef, eps), batch)
    assert torch.equal(found.sign(), base.sign())
    ratio = (found / base)[base != 0]
    assert bool((ratio >= 1 - coef * eps - 1e-5).all() and (ratio <= 1 + coef * eps + 1e-5).all())


@FAST
@given(seed=st.integers(0, 10_000), coef=st.floats(0, 1))
def test_without_shift_or_scores_it_is_its_base_bit_for_bit(seed: int, coef: float) -> None:
    batch = make_batch(seed)
    base = advantages(grpo_config(), batch)
    same = replace(batch, teacher={c: batch.old_logprobs.clone() for c in batch.teacher})
    assert torch.equal(advantages(rlsd(coef), same), base)
    assert torch.equal(advantages(rlsd(coef), replace(batch, teacher={}, teacher_mask={})), base)
    assert torch.equal(advantages(rlsd(0.0), batch), base)


def test_an_enormous_shift_stays_finite() -> None:
    batch = make_batch(3)
    far = {c: torch.where(m, batch.old_logprobs + 500.0, 0.0) for c, m in batch.teacher_mask.items()}
    found, base = advantages(rlsd(), replace(batch, teacher=far)), advantages(grpo_config(), batch)
    up = (base > 0) & batch.teacher_mask["episode"]
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found[up], 1.1 * base[up])


def test_lambda_falls_and_the_teacher_is_skipped_at_zero() -> None:
    config = replace(row("rlsd"), schedule=ScheduleConfig("linear", length=4))
    method = registry.build(config, context())
    assert isinstance(method, Rlsd)
    assert [method.coefficient(k) for k in range(1, 7)] == [0.5, 0.375, 0.25, 0.125, 0.0, 0.0]
    played = trajectories()
    requests = method.teacher_requests(4, played)
    assert [(r.channel, r.trajectory, r.steps, r.episode_skill) for r in requests] == [
        ("episode", t.index, (0, 1, 2), "library skill of put") for t in played
    ]
    assert method.teacher_requests(5, played) == []
    batch = make_batch(1)
    assert torch.equal(method.advantages(5, batch), advantages(grpo_config(), batch))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_and_junk_do_not_matter(layout: str) -> None:
    batch = make_batch(10, layout)
    plain = advantages(rlsd(), batch)
    assert not plain.requires_grad and not plain[~batch.response_mask].any()
    assert torch.equal(advantages(rlsd(), with_junk(batch)), plain)
    assert torch.equal(advantages(rlsd(), padded(batch, 5))[:, :-5], plain)


def test_the_signal_can_be_clipped() -> None:
    batch = make_batch(2)
    assert torch.equal(advantages(rlsd(signal=SignalConfig(clip=9.0)), batch), advantages(rlsd(), batch))
    assert not torch.equal(advantages(rlsd(signal=SignalConfig(clip=0.01)), batch), advantages(rlsd(), batch))


def test_it_needs_a_library() -> None:
    with pytest.raises(ValueError, match="needs a skill library"):
        registry.build(rlsd(), MethodContext(total_steps=1, seed=0))
    registry.build(rlsd(0.0), MethodContext(total_steps=1, seed=0))


def test_metrics() -> None:
    batch = make_batch(16, "growing")
    found = registry.build(rlsd(), context()).metrics(1, batch)
    ratio = advantages(rlsd(), batch) / advantages(grpo_config(), batch)
    known = ratio[batch.response_mask & ratio.isfinite()]
    assert found["coef"] == 0.5 and 0 < found["clipped"] < 1 and 0 < found["skill_tokens"] < 1
    assert known.min() - 1e-5 <= found["scale"] <= known.max() + 1e-5
    json.dumps(found)


def test_clipped_tokens_are_counted_at_either_bound() -> None:
    """A token is clipped where exp(sign(A) * Delta) is beyond 1 +- eps: beyond log(1 - eps) below, not -eps."""
    batch = make_batch(16, "growing")
    base = advantages(grpo_config(), batch)
    scored = batch.teacher_mask["episode"] & (base != 0)
    assert scored.any()
    for exponent, expected in ((-0.21, 0), (-0.224, 1), (-0.222, 0), (0.18, 0), (0.183, 1)):  # eps = 0.2
        moved = torch.where(scored, batch.old_logprobs + base.sign() * exponent, batch.old_logprobs)
        found = registry.build(rlsd(), context()).metrics(1, replace(batch, teacher={"episode": moved}))["clipped"]
        assert found == pytest.approx(expected * float(scored.sum() / batch.response_mask.sum()))


# --------------------------------------------------------------------------------------------------------- Skill-GRPO
def test_skill_grpo_has_the_maths_of_grpo_and_two_evaluations() -> None:
    config, batch = row("skill_grpo"), make_batch(2)
    method = registry.build(config, context())
    assert torch.equal(method.advantages(1, batch), advantages(grpo_config(), batch))
    assert method.teacher_requests(1, trajectories()) == []
    assert config.rollout_skills_train and config.rollout_skills_eval == ["off", "on"]
    assert registry.requirements(config, "rules") == {"env:library"}
