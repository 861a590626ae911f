"""OPID: faithful to its formula, equal to GRPO where it must be, and loud when its analyzer fails."""

from __future__ import annotations

from concurrent.futures import Future
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
    numpy_opid_advantage,
    opid_config,
    policy_gradient,
    to_batch,
    trajectories,
)
from record_batches import CHANNELS, load
from test_methods_grpo import SEED, padded, with_junk

from methods import registry
from methods.interface import (
    AdvantageConfig,
    Analysis,
    Batch,
    MethodConfig,
    MethodContext,
    ScheduleConfig,
    SignalConfig,
)
from methods.opid import Opid
from methods.signal import shaped_shift, skill_shift
from methods.skills.analyzer import AnalyzerFailure, finished

FAST = settings(max_examples=25, deadline=None, derandomize=True)


def advantages(config: MethodConfig, batch: Batch, step: int = 1) -> torch.Tensor:
    return registry.build(config, context()).advantages(step, batch)


# ------------------------------------------------------------------------------------------------ the paper's formula
@pytest.mark.parametrize("source", ["recorded", "made up"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize(("clip", "normalize"), [(None, False), (2.0, False), (0.1, False), (None, True), (1.0, True)])
@pytest.mark.parametrize(("std", "over"), [(True, "trajectories"), (False, "steps")])
def test_formula_recomputed_in_numpy(
    source: str, layout: str, channels: str, clip: float | None, normalize: bool, std: bool, over: str
) -> None:
    arrays = load(layout, channels) if source == "recorded" else make_arrays(SEED, layout, channels=channels)
    config = opid_config(
        router="additive" if channels == "additive" else "critical_first",
        coef=0.25,
        weight_step=2.0,
        clip=clip,
        normalize=normalize,
        advantage=AdvantageConfig(std=std, stats_over=over),
    )
    expected = numpy_opid_advantage(arrays, std, over, {"episode": 0.25, "step": 0.5}, clip, normalize)
    np.testing.assert_allclose(advantages(config, to_batch(arrays)).numpy(), expected, rtol=0, atol=1e-6)


def test_equal_weights_are_the_papers_single_lambda() -> None:
    """A_ep + lambda * A_skill, with A_skill of whichever skill was routed to the token."""
    batch = make_batch(11, "growing")
    routed = skill_shift(batch, "episode")[0] + skill_shift(batch, "step")[0]
    expected = advantages(grpo_config(), batch) + 0.001 * routed
    torch.testing.assert_close(advantages(opid_config(coef=0.001), batch), expected)


def test_additive_adds_both_shifts_on_critical_steps() -> None:
    batch = make_batch(4, "per_step", channels="additive")
    both = batch.teacher_mask["episode"] & batch.teacher_mask["step"]
    assert both.any()
    term = advantages(opid_config("additive", 1.0), batch) - advantages(grpo_config(), batch)
    expected = batch.teacher["episode"] + batch.teacher["step"] - 2 * batch.old_logprobs
    torch.testing.assert_close(term[both], expected[both], rtol=1e-4, atol=1e-5)
    routed = make_batch(4, "per_step")
    assert not (routed.teacher_mask["episode"] & routed.teacher_mask["step"]).any()


# ------------------------------------------------------------------------------------------------- equal to GRPO
@FAST
@given(seed=st.integers(0, 10_000), layout=st.sampled_from(LAYOUTS), over=st.sampled_from(["trajectories", "steps"]))
def test_coefficient_zero_is_grpo_bit_for_bit(seed: int, layout: str, over: str) -> None:
    batch = make_batch(seed, layout)
    base = advantages(grpo_config(stats_over=over), batch)
    zero = opid_config(coef=0.0, advantage=AdvantageConfig(stats_over=over))
    assert torch.equal(advantages(zero, batch), base)
    assert torch.equal(policy_gradient(batch, advantages(zero, batch)), policy_gradient(batch, base))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_shift_and_no_scores_are_grpo(layout: str) -> None:
    batch = make_batch(6, layout)
    base = advantages(grpo_config(), batch)
    same = replace(batch, teacher={c: batch.old_logprobs.clone() for c in batch.teacher})
    assert torch.equal(advantages(opid_config(), same), base)
    assert torch.equal(advantages(opid_config(normalize=True), same), base)
    assert torch.equal(advantages(opid_config(), replace(batch, teacher={}, teacher_mask={})), base)
    empty = replace(batch, teacher_mask={c: torch.zeros_like(m) for c, m in batch.teacher_mask.items()})
    assert torch.equal(advantages(opid_config(normalize=True), empty), base)


def test_after_the_schedule_it_is_grpo_and_scores_nothing() -> None:
    batch, played = make_batch(7), trajectories()
    calls = []

    def analyze(given: object) -> Future[list[Analysis | None]]:
        calls.append(given)
        return finished([Analysis("skill", {}) for _ in played])

    config = opid_config(schedule=ScheduleConfig("linear", length=4))
    method = registry.build(config, MethodContext(total_steps=10, seed=0, analyze=analyze))
    active = []
    for step in range(1, 8):
        method.after_rollout(step, played)
        active.append(bool(method.teacher_requests(step, played)))
    assert active == [True] * 4 + [False] * 3 and len(calls) == 4
    assert torch.equal(method.advantages(5, batch), advantages(grpo_config(), batch))
    first, second = (method.advantages(k, batch) - advantages(grpo_config(), batch) for k in (1, 3))
    torch.testing.assert_close(second, first / 2, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------------------------- the teacher matters
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("router", ["critical_first", "episode_only", "step_only", "additive", "random"])
@pytest.mark.parametrize("channel", ["episode", "step"])
def test_perturbing_the_teacher_changes_the_gradient(layout: str, router: str, channel: str) -> None:
    batch = make_batch(8, layout)
    moved = dict(batch.teacher)
    moved[channel] = torch.where(batch.teacher_mask[channel], moved[channel] + 0.3, 0.0)
    config = opid_config(router)
    before = policy_gradient(batch, advantages(config, batch))
    after = policy_gradient(batch, advantages(config, replace(batch, teacher=moved)))
    assert not torch.equal(before, after) and bool(after.isfinite().all())
    # and the base method is deaf to it
    unmoved = policy_gradient(batch, advantages(grpo_config(), batch))
    assert torch.equal(unmoved, policy_gradient(batch, advantages(grpo_config(), replace(batch, teacher=moved))))


def test_a_token_that_the_skill_makes_likelier_gains() -> None:
    batch = make_batch(9)
    scored = batch.teacher_mask["episode"]
    up = replace(batch, teacher={"episode": batch.old_logprobs + 1.0, "step": batch.old_logprobs})
    term = advantages(opid_config(coef=0.25), up) - advantages(grpo_config(), batch)
    torch.testing.assert_close(term[scored], torch.full_like(term[scored], 0.25))
    assert not term[~scored].any()


# --------------------------------------------------------------------------------------------- what must not matter
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("normalize", [False, True])
def test_padding_and_junk_do_not_matter(layout: str, normalize: bool) -> None:
    batch, config = make_batch(10, layout), opid_config(clip=2.0, normalize=normalize)
    plain = advantages(config, batch)
    assert not plain.requires_grad and not plain[~batch.response_mask].any()
    assert torch.equal(advantages(config, with_junk(batch)), plain)
    assert torch.equal(advantages(config, padded(batch, 5))[:, :-5], plain)


def test_scores_outside_the_response_mask_are_ignored() -> None:
    batch = make_batch(12)
    outside = ~batch.response_mask
    wide = {c: m | outside for c, m in batch.teacher_mask.items()}
    loud = {c: torch.where(outside, 3.0, v) for c, v in batch.teacher.items()}
    for normalize in (False, True):
        config = opid_config(normalize=normalize)
        result = advantages(config, replace(batch, teacher=loud, teacher_mask=wide))
        assert torch.equal(result, advantages(config, batch))


# ------------------------------------------------------------------------------------------- clipping, normalising
def test_clip_is_per_token_and_in_nats() -> None:
    batch = make_batch(13)
    raw, _ = skill_shift(batch, "episode")
    assert raw.abs().max() > 0.5
    clipped = shaped_shift(batch, "episode", SignalConfig(clip=0.5))
    torch.testing.assert_close(clipped, raw.clamp(-0.5, 0.5))


def test_normalised_signal_has_mean_zero_and_deviation_one() -> None:
    batch = make_batch(14)
    values = shaped_shift(batch, "episode", SignalConfig(normalize=True))[batch.teacher_mask["episode"]]
    assert abs(values.mean().item()) < 1e-5 and values.std(unbiased=False).item() == pytest.approx(1, abs=1e-4)


def test_a_nearly_constant_shift_is_only_centred() -> None:
    """Dividing by a deviation below 1e-6 would blow rounding up into a signal."""
    batch = make_batch(14)
    mask = batch.teacher_mask["episode"]
    tiny = torch.where(mask, 2e-7 * torch.randn(mask.shape, generator=torch.Generator().manual_seed(0)), 0.0)
    quiet = replace(batch, old_logprobs=torch.zeros_like(batch.old_logprobs), teacher={"episode": tiny})
    assert 0 < shaped_shift(quiet, "episode", SignalConfig(normalize=True)).abs().max() < 1e-6


def test_scores_that_are_not_finite_are_refused() -> None:
    batch = make_batch(15)
    bad = {**batch.teacher, "step": torch.full_like(batch.old_logprobs, float("-inf"))}
    with pytest.raises(ValueError, match="channel 'step' hold a log-prob that is not finite"):
        advantages(opid_config(), replace(batch, teacher=bad))


# -------------------------------------------------------------------------------------------------- hooks of the loop
def test_requests_follow_the_analysis() -> None:
    played = trajectories(groups=2, size=1, steps=3)
    method = registry.build(
        opid_config(max_failure_rate=0.5), context([Analysis("go", {1: "now"}), None], total_steps=5)
    )
    assert method.after_rollout(1, played) == {}
    found = [
        (r.channel, r.trajectory, r.steps, r.episode_skill, r.step_skill) for r in method.teacher_requests(1, played)
    ]
    metrics = method.metrics(1, make_batch(1))
    assert metrics["analysis_failures"] == 1 and metrics["analysis_failure_rate"] == 0.5
    assert metrics["critical_steps"] == 1
    assert found == [("episode", 0, (0, 2), "go", None), ("step", 0, (1,), None, "now")]


def test_a_skill_without_weight_is_not_scored() -> None:
    """As in the released code, critical_first without a step weight uses the episode skill everywhere."""
    played = trajectories(groups=2, size=1, steps=3)
    for episode, step, expected in ((1.0, 0.0, {("episode", (0, 1, 2))}), (0.0, 1.0, {("step", (1,))})):
        method = registry.build(opid_config(coef=0.1, weight_episode=episode, weight_step=step), context())
        method.after_rollout(1, played)
        assert {(r.channel, r.steps) for r in method.teacher_requests(1, played)} == expected


def test_broken_and_empty_trajectories_are_not_analysed() -> None:
    played = trajectories(groups=2, size=1)
    played[0].failure = "engine crashed"
    played[1].turns = []
    method = registry.build(opid_config(), context([]))
    assert method.after_rollout(1, played) == {} and method.teacher_requests(1, played) == []


@pytest.mark.parametrize(("failed", "stops"), [(0, False), (1, False), (2, True), (8, True)])
def test_too_many_failed_analyses_stop_the_run(failed: int, stops: bool) -> None:
    answers: list[Analysis | None] = [None] * failed + [Analysis("skill", {})] * (8 - failed)
    method = registry.build(opid_config(max_failure_rate=0.2), context(answers))
    played = trajectories(4, 2)
    method.after_rollout(3, played)
    if not stops:
        method.teacher_requests(3, played)
        assert method.metrics(3, make_batch(1))["analysis_failures"] == failed
        return
    with pytest.raises(AnalyzerFailure, match=rf"step 3: {failed} of 8 analyses failed.*max_failure_rate=0.2"):
        method.teacher_requests(3, played)


def test_the_analyzer_may_take_its_time() -> None:
    """after_rollout starts it and does not wait; an error of the analyzer comes out where its answer is needed."""
    played = trajectories(groups=2, size=1)
    running: Future[list[Analysis | None]] = Future()
    method = registry.build(opid_config(), MethodContext(total_steps=1, seed=0, analyze=lambda given: running))
    assert method.after_rollout(1, played) == {} and not running.done()
    running.set_exception(AnalyzerFailure("no answer"))
    with pytest.raises(AnalyzerFailure, match="no answer"):
        method.teacher_requests(1, played)


def test_wrong_use_is_refused() -> None:
    played = trajectories()
    method = registry.build(opid_config(), context([]))
    method.after_rollout(1, played)
    with pytest.raises(ValueError, match="0 answers for 6 trajectories"):
        method.teacher_requests(1, played)
    with pytest.raises(RuntimeError, match="step 2 came before after_rollout"):
        method.teacher_requests(2, played)
    with pytest.raises(ValueError, match="needs an analyzer"):
        registry.build(opid_config(), MethodContext(total_steps=1, seed=0))
    registry.build(opid_config(coef=0.0), MethodContext(total_steps=1, seed=0))


def test_random_router_uses_other_skills_and_counts_missing_donors() -> None:
    played = trajectories(groups=2, size=2)
    method = registry.build(opid_config("random"), context())
    method.after_rollout(1, played)
    requests = method.teacher_requests(1, played)
    assert method.metrics(1, make_batch(1))["without_donor"] == 0
    drawn = {tuple(r.episode_skill for r in requests)}
    for step in range(2, 6):
        method.after_rollout(step, played)
        drawn.add(tuple(r.episode_skill for r in method.teacher_requests(step, played)))
    assert len(drawn) > 1  # another step, other donors
    plain = registry.build(opid_config(), context())
    plain.after_rollout(1, played)
    same = plain.teacher_requests(1, played)
    assert [(r.channel, r.trajectory, r.steps) for r in requests] == [(r.channel, r.trajectory, r.steps) for r in same]
    for request in requests:
        donor = int((request.episode_skill or request.step_skill or "").split()[-1])
        assert played[donor].group != played[request.trajectory].group


@pytest.mark.parametrize("broken", [False, True])
def test_a_step_about_one_task_has_no_donor_and_goes_on(broken: bool) -> None:
    """An epoch that ends may give a task twice; the other tasks' episodes may all be lost."""
    played = trajectories(groups=2, size=2)
    for trajectory in played[2:]:
        if broken:
            trajectory.failure = "broke"
        else:
            trajectory.task_id = played[0].task_id
    method = registry.build(opid_config("random"), context())
    method.after_rollout(1, played)
    assert method.teacher_requests(1, played) == []
    assert method.metrics(1, make_batch(1))["without_donor"] == (2 if broken else 4)


def test_metrics() -> None:
    batch = make_batch(16, "growing")
    method = registry.build(opid_config(coef=0.5, clip=1.0), context())
    assert isinstance(method, Opid)
    mask = batch.response_mask
    base = advantages(grpo_config(), batch)
    found = method.metrics(1, batch)
    scored = batch.teacher_mask["episode"] | batch.teacher_mask["step"]
    raw = sum(skill_shift(batch, c)[0] for c in ("episode", "step"))
    assert isinstance(raw, torch.Tensor)
    term = 0.5 * raw.clamp(-1, 1)
    assert found["advantage_abs"] == pytest.approx(base[mask].abs().mean().item(), rel=1e-5)
    assert found["skill_abs"] == pytest.approx(term[mask].abs().mean().item(), rel=1e-4)
    assert found["shift"] == pytest.approx(raw[scored].mean().item(), rel=1e-4)
    assert found["skill_tokens"] == pytest.approx((scored.sum() / mask.sum()).item(), rel=1e-5)
    assert found["coef_scale"] == 1.0
    nothing = replace(batch, teacher={}, teacher_mask={})
    assert method.metrics(1, nothing)["skill_tokens"] == 0.0 == method.metrics(1, nothing)["shift"]


def test_state_is_empty_because_every_step_starts_anew() -> None:
    method = registry.build(opid_config("random"), context())
    method.after_rollout(1, trajectories())
    assert method.state_dict() == {}
