"""RetireOPD: its formulas, when its teacher retires, and that it stays away."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from methods_helpers import Arrays, context, make_arrays, make_batch, row, to_batch, trajectories
from retire_helpers import FALLING, GOOD, POOR, STEPS, STUCK, TEACHER, Gap, batch_of, build, by_window, ends, play, run

from methods import registry
from methods.interface import Validation
from methods.retire_opd import Knobs, Retirement

FAST = settings(max_examples=60, deadline=None, derandomize=True)


# -------------------------------------------------------------------------------------------------------------- formula
def numpy_gap(form: str, arrays: Arrays) -> float:
    """K_n as -(mean of Delta), arXiv:2609.20784v2: over all scored tokens (released code), or per trajectory and then
    over trajectories, eq. (6)."""
    teacher, old = (np.asarray(arrays[k], np.float64) for k in ("teacher/episode", "old_logprobs"))
    found: dict[int, list[float]] = {}
    for r, c in np.argwhere(np.asarray(arrays["teacher_mask/episode"])):
        owner = int(np.asarray(arrays["step_trajectory"])[np.asarray(arrays["token_step"])[r, c]])
        found.setdefault(owner, []).append(teacher[r, c] - old[r, c])
    if form == "code":
        return -float(np.mean([shift for shifts in found.values() for shift in shifts]))
    return -float(np.mean([np.mean(shifts) for shifts in found.values()]))


@pytest.mark.parametrize("layout", ["growing", "per_step"])
@pytest.mark.parametrize(("name", "form"), [("retire_opd", "paper"), ("retire_opd_released", "code")])
def test_formulas_recomputed_in_numpy(name: str, form: str, layout: str) -> None:
    """arXiv:2609.20784v2, eqs. (6) and (7), and the released code's."""
    method = build(row(name, "method.knobs.competence_threshold=9.0"))
    gaps: list[float] = []
    rates = [0.3, 0.55, 0.6]
    for step in range(1, 16):
        arrays = make_arrays(step, layout)
        batch = to_batch(arrays)
        method.advantages(step, batch)
        gaps.append(numpy_gap(form, arrays))
        assert method.metrics(step, batch)["gap"] == pytest.approx(gaps[-1], abs=1e-6)
        assert abs(numpy_gap("code", arrays) - numpy_gap("paper", arrays)) > 1e-3  # so that the forms are told apart
        if step % 5:
            continue
        window = step // 5
        found = method.after_validation(step, Validation(rates[window - 1], 20))
        now = np.mean(gaps[-5:])
        assert found["window_gap"] == pytest.approx(now, abs=1e-6)
        assert (found["window"], found["validation_success"]) == (window, rates[window - 1])
        if window == 1:
            assert not {"progress", "competence", "progress_invalid", "competence_undefined"} & set(found)
            continue
        before = np.mean(gaps[-10:-5])
        expected = (before - now) / before if form == "code" else (now - before) / now
        assert found["progress"] == pytest.approx(expected, abs=1e-5)
        assert found["competence"] == pytest.approx((rates[window - 1] + rates[window - 2]) / (2 * TEACHER), abs=1e-6)
        assert (found["progress_invalid"], found["competence_undefined"], found["retired"]) == (0, 0, 0)


# ------------------------------------------------------------------------------------------------------------- the rule
def test_it_cannot_fire_in_the_first_window() -> None:
    lax = ("method.knobs.progress_threshold=-1000000.0", "method.knobs.competence_threshold=0.0")
    assert run("retire_opd", FALLING, POOR, *lax).last_taught == 10
    weekly = run("retire_opd", FALLING, dict.fromkeys(range(1, STEPS + 1), 0.1), *lax, "method.knobs.window=1")
    assert weekly.last_taught == 2


@pytest.mark.parametrize(
    ("gap", "success", "last"),
    [
        (STUCK, GOOD, 10),
        (FALLING, GOOD, STEPS),  # still learning
        (STUCK, POOR, STEPS),  # exhausted but poor
        (by_window(1.0, 0.8, 0.9), GOOD, 15),  # exhausted later
        (STUCK, ends(0.1, 0.2, 0.8, 0.8), 20),  # both windows of the mean have to be good
        (STUCK, ends(0.72), 10),  # 0.72 / 0.8 = 0.9 exactly
        (STUCK, ends(0.71), STEPS),
        (by_window(1.0, 1.01, 0.5, 0.4, 0.3, 0.2), ends(0.1, 0.1, 0.8), STEPS),  # exhausted and good, but never at once
    ],
)
def test_it_fires_exactly_when_both_criteria_hold(gap: Gap, success: Mapping[int, float], last: int) -> None:
    found = run("retire_opd", gap, success)
    assert found.last_taught == last
    assert found.requests == [6] * last + [0] * (STEPS - last)
    assert found.validated == list(range(5, last + 1, 5))
    taught = [m["coef"] for m in found.metrics]
    assert taught == [0.25] * last + [0.0] * (STEPS - last)
    retired = [m["retired"] for m in found.metrics]
    start = last - 1 if last < STEPS else STEPS  # the validation of the last taught step says so first
    assert retired == [0.0] * start + [1.0] * (STEPS - start)


def test_progress_of_exactly_nothing_is_exhausted() -> None:
    assert decision("code", 0.5, 0.5) and decision("paper", 0.5, 0.5)


def test_after_retirement_it_is_grpo_for_good() -> None:
    method = build(row("retire_opd"))
    play(method, STUCK, GOOD, range(1, 11))
    for step in (11, 12, 25, 1000):
        scored = batch_of(step, 0.1)  # scores that nobody asked for change nothing either
        live = scored.old_logprobs.clone().requires_grad_()
        assert method.teacher_requests(step, trajectories()) == []
        assert method.aux_loss(step, scored, live, torch.zeros_like(live)) is None
        base = registry.build(row("grpo"), context()).advantages(step, scored)
        assert torch.equal(method.advantages(step, scored), base)
        assert not method.wants_validation(step)
        assert method.metrics(step, scored)["retired"] == 1.0
    assert method.state_dict()["pending"] == [] and method.state_dict()["retired_at"] == 10


def test_until_retirement_it_is_grpo_opd() -> None:
    with_retirement, without = run("retire_opd", FALLING, GOOD), run("grpo_opd", FALLING, {})
    assert with_retirement.losses == without.losses and without.validated == []
    assert without.requests == with_retirement.requests == [6] * STEPS


@FAST
@given(
    gaps=st.lists(st.floats(-2, 2), min_size=2, max_size=6),
    rates=st.lists(st.floats(0, 1), min_size=6, max_size=6),
    teacher=st.floats(0, 1),
    form=st.sampled_from(["code", "paper"]),
    use=st.sampled_from([(True, True), (True, False), (False, True)]),
    threshold=st.floats(-0.2, 0.2),
)
def test_the_rule_against_a_plain_one(
    gaps: list[float],
    rates: list[float],
    teacher: float,
    form: str,
    use: tuple[bool, bool],
    threshold: float,
) -> None:
    knobs = Knobs(1, form, threshold, 0.9, use_progress=use[0], use_competence=use[1])
    rule = Retirement(knobs)
    rule.teacher_success = teacher
    expected = None
    for m, now in enumerate(gaps, start=1):
        rule.observe(m, now)
        rule.close(m, rates[m - 1])
        if m >= 2 and expected is None:
            before = gaps[m - 2]
            if form == "code":
                exhausted = abs(before) > 1e-8 and (before - now) / before <= threshold
            else:
                exhausted = abs(now) > 1e-8 and (now - before) / now >= threshold
            good = teacher > 0 and (rates[m - 1] + rates[m - 2]) / (2 * teacher) >= 0.9
            if (exhausted or not use[0]) and (good or not use[1]):
                expected = m
        if expected is not None:
            break
    assert rule.retired_at == expected
    assert [rule.retired(m) for m in range(1, 9)] == [expected is not None and m > expected for m in range(1, 9)]


@FAST
@given(before=st.floats(1e-3, 5), now=st.floats(1e-3, 5), sign=st.sampled_from([-1, 1]))
def test_paper_and_code_agree_at_threshold_zero_while_the_gap_keeps_its_sign(
    before: float, now: float, sign: int
) -> None:
    assert len({decision(form, sign * before, sign * now) for form in ("code", "paper")}) == 1


def decision(form: str, before: float, now: float) -> bool:
    rule = Retirement(Knobs(window=1, progress_form=form, use_competence=False))
    rule.teacher_success = TEACHER
    for step, gap in enumerate((before, now), start=1):
        rule.observe(step, gap)
        rule.close(step, 0.0)
    return rule.retired_at is not None


def test_paper_and_code_differ_where_the_gap_changes_its_sign() -> None:
    assert (decision("code", 0.5, -0.5), decision("paper", 0.5, -0.5)) == (False, True)


# ---------------------------------------------------------------------------------------------------------------- edges
def test_a_teacher_that_never_succeeds_is_not_matched_and_says_so() -> None:
    found = run("retire_opd", STUCK, GOOD, teacher=0.0)
    assert found.last_taught == STEPS
    assert all("competence" not in m for m in found.metrics)
    assert [m["competence_undefined"] for m in found.metrics if "competence_undefined" in m] == [1.0] * 5
    assert run("retire_opd_no_competence", STUCK, GOOD, teacher=0.0).last_taught == 10


@pytest.mark.parametrize(("form", "first", "second"), [("code", 1e-9, -1.0), ("paper", -1.0, 1e-9)])
def test_a_gap_of_nothing_makes_progress_invalid(form: str, first: float, second: float) -> None:
    rule = Retirement(Knobs(window=1, progress_form=form))
    rule.teacher_success = TEACHER
    rule.observe(1, first)
    rule.close(1, 1.0)
    rule.observe(2, second)
    found = rule.close(2, 1.0)
    assert found["progress_invalid"] == 1.0 and "progress" not in found and rule.retired_at is None


def test_windows_without_scores_make_progress_invalid() -> None:
    rule = Retirement(Knobs(window=1))
    rule.teacher_success = TEACHER
    rule.observe(1, 1.0)
    rule.close(1, 1.0)
    empty = rule.close(2, 1.0)
    assert "window_gap" not in empty and empty["progress_invalid"] == 1.0
    rule.observe(3, 1.0)
    assert rule.close(3, 1.0)["progress_invalid"] == 1.0
    rule.observe(4, 1.0)
    assert rule.close(4, 1.0)["retired"] == 1.0


def test_a_step_without_scores_does_not_count() -> None:
    method = build(row("retire_opd"))
    method.advantages(1, batch_of(1, 0.5))
    method.advantages(2, batch_of(2, None))
    assert "gap" in method.metrics(1, batch_of(1, 0.5)) and "gap" not in method.metrics(2, batch_of(2, None))
    assert method.after_validation(5, Validation(0.5, 4))["window_gap"] == pytest.approx(0.5, abs=1e-6)


def test_validations_come_at_the_ends_of_windows() -> None:
    method = build(row("retire_opd"))
    with pytest.raises(RuntimeError, match="validation after step 4, but window 1 of 5 steps ends after step 5"):
        method.after_validation(4, Validation(0.5, 20))
    method.after_validation(5, Validation(0.5, 20))
    with pytest.raises(RuntimeError, match="window 2 of 5 steps ends after step 10"):
        method.after_validation(5, Validation(0.5, 20))


def test_an_unmeasured_teacher_is_an_error() -> None:
    method = registry.build(row("retire_opd"), context())
    assert method.measures_teacher
    with pytest.raises(RuntimeError, match="the teacher was not measured"):
        method.after_validation(5, Validation(0.5, 20))
    assert "teacher_success" not in method.metrics(1, batch_of(1, 0.1))
    method.teacher_measured(Validation(0.75, 20))
    assert method.metrics(1, batch_of(1, 0.1))["teacher_success"] == 0.75


@pytest.mark.parametrize(
    "result", [Validation(1.5, 20), Validation(-0.1, 20), Validation(float("nan"), 20), Validation(0.5, 0)]
)
def test_a_validation_is_a_share_of_graded_episodes(result: Validation) -> None:
    method = build(row("retire_opd"))
    with pytest.raises(ValueError, match="must be a share of at least one graded episode"):
        method.after_validation(5, result)
    with pytest.raises(ValueError, match="must be a share of at least one graded episode"):
        method.teacher_measured(result)


def test_a_teacher_that_cannot_leave_in_time_is_said_and_counted() -> None:
    """Two windows of 5 end at step 10, so a run of 10 steps trains as grpo_opd."""
    warn = registry.get("retire_opd").warn
    assert warn is not None
    late, said = row("retire_opd"), "first chance is after training step 10 (method.knobs.window=5, two of them)"
    assert f"{said}, and 10" in warn(late, 10) and "method=grpo_opd" in warn(late, 10) and warn(late, 11) == ""
    fixed = row("retire_opd_fixed")
    assert "step 15 (method.knobs.stop_step=15), and 14 are planned" in warn(fixed, 14) and warn(fixed, 16) == ""
    assert warn(row("retire_opd", "method.knobs.window=1"), 3) == ""
    batch = make_batch(3)
    for steps, possible in ((10, 0.0), (11, 1.0)):
        method = registry.build(late, context(total_steps=steps))
        assert method.metrics(1, batch)["can_retire"] == possible
