"""Statistics proved by simulation, by scipy and by hand-computed cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from analysis import stats

FINITE = st.floats(-10, 10, allow_nan=False)


# ---------------------------------------------------------------------------------------------- intervals
@pytest.mark.parametrize("n", [3, 5, 10])
def test_t_interval_covers_the_true_mean_in_93_to_97_percent(n: int) -> None:
    samples = np.random.default_rng(7).normal(0.4, 0.1, size=(4000, n))
    covered = [(i := stats.t_interval(row)).lo <= 0.4 <= i.hi for row in samples]
    assert 0.93 <= np.mean(covered) <= 0.97


@given(st.lists(FINITE, min_size=2, max_size=12))
def test_t_interval_agrees_with_scipy(values: list[float]) -> None:
    ours = stats.t_interval(values)
    if np.ptp(values) > 1e-6:
        theirs = scipy.stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=scipy.stats.sem(values))
        assert (ours.lo, ours.hi) == pytest.approx(theirs, abs=1e-9)
    assert ours.value == pytest.approx(np.mean(values))


def test_t_interval_of_one_seed_has_no_bounds_and_excludes_nothing() -> None:
    interval = stats.t_interval([0.7])
    assert math.isnan(interval.lo) and math.isnan(interval.hi) and interval.kind == stats.NO_INTERVAL
    assert not interval.excludes_zero


@given(st.integers(0, 60), st.integers(1, 60))
def test_wilson_agrees_with_scipy(k: int, n: int) -> None:
    k = min(k, n)
    theirs = scipy.stats.binomtest(k, n).proportion_ci(0.95, "wilson")
    assert stats.wilson(k / n, n) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilson_half_width_matches_the_known_figures_for_128_and_500_episodes() -> None:
    for p, n, half in [(0.5, 128, 0.087), (0.8, 128, 0.069), (0.9, 128, 0.052), (0.8, 500, 0.035)]:
        lo, hi = stats.wilson(p, n)
        assert (hi - lo) / 2 == pytest.approx(half, abs=0.003)


def test_rate_interval_says_which_kind_it_is() -> None:
    assert stats.rate_interval([0.4, 0.5, 0.6], 60).kind == stats.T_OVER_SEEDS
    assert stats.rate_interval([0.4], 60).kind == stats.EVALUATION_ONE_SEED


def test_equal_seeds_do_not_claim_certainty() -> None:
    interval = stats.rate_interval([0.0, 0.0, 0.0], 60)
    assert interval.kind == stats.EVALUATION_EQUAL_SEEDS
    assert interval.lo == 0 and interval.hi > 0.05


def test_rate_interval_is_clipped_to_shares() -> None:
    interval = stats.rate_interval([0.9, 1.0, 1.0], 60)
    assert interval.hi == 1.0 and interval.lo > 0.8 - 0.1


def test_effective_number_of_tasks_is_the_total_for_equal_types_and_less_otherwise() -> None:
    assert stats.effective_n([10] * 6) == pytest.approx(60)
    assert stats.effective_n([1, 19]) < 20
    with pytest.raises(ValueError, match="at least one task"):
        stats.effective_n([3, 0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "call",
    [stats.t_interval, stats.t_test_p, stats.range_interval, stats.sign_flip_test, lambda v: stats.rate_interval(v, 9)],
)
def test_nan_and_inf_are_refused(call: object, bad: float) -> None:
    with pytest.raises(ValueError, match="1 of 3 values are NaN or infinite"):
        call([0.1, bad, 0.2])  # type: ignore[operator]


def test_nothing_to_average_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        stats.t_interval([])
    with pytest.raises(ValueError, match="wilson"):
        stats.wilson(1.2, 10)


# ---------------------------------------------------------------------------------------------- micro and macro
def test_micro_weighs_tasks_and_macro_weighs_types() -> None:
    table = [[1.0, 1.0, 1.0, 0.0], [0.0, math.nan, 1.0, 1.0]]
    strata = [0, 0, 0, 1]
    assert stats.average_by_seed(table, strata, macro=False) == pytest.approx([0.75, 2 / 3])
    assert stats.average_by_seed(table, strata, macro=True) == pytest.approx([0.5, 0.75])


def test_a_seed_without_a_graded_task_of_some_type_has_no_macro() -> None:
    assert math.isnan(stats.average_by_seed([[1.0, math.nan]], [0, 1], macro=True)[0])


# ---------------------------------------------------------------------------------------------- tests over seeds
@given(st.lists(FINITE, min_size=2, max_size=9))
def test_paired_t_agrees_with_scipy(values: list[float]) -> None:
    if np.ptp(values) > 1e-6:
        theirs = scipy.stats.ttest_1samp(values, 0).pvalue
        assert stats.t_test_p(values) == pytest.approx(theirs, abs=1e-9)


def test_paired_t_of_one_seed_and_of_constant_differences() -> None:
    assert math.isnan(stats.t_test_p([0.2]))
    assert stats.t_test_p([0.0, 0.0]) == 1.0
    assert stats.t_test_p([0.1, 0.1, 0.1]) < 1e-12


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
def test_sign_flip_agrees_with_scipy(values: list[int]) -> None:
    ours = stats.sign_flip_test(values)
    by_hand = np.mean(
        [abs(np.dot(s, values)) >= abs(sum(values)) for s in itertools.product([1, -1], repeat=len(values))]
    )
    assert ours.p == pytest.approx(by_hand)
    if len(values) > 1:
        theirs = scipy.stats.permutation_test(
            (np.asarray(values, dtype=float),), np.mean, permutation_type="samples", n_resamples=np.inf
        )
        assert ours.p == pytest.approx(theirs.pvalue, abs=1e-9)
    assert ours.p >= ours.smallest


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=5), st.lists(st.integers(-5, 5), min_size=2, max_size=5))
def test_permutation_test_counts_every_split(first: list[int], second: list[int]) -> None:
    ours = stats.permutation_test(first, second)
    pooled, n = first + second, len(first)
    observed = abs(np.mean(first) - np.mean(second))
    splits = [
        abs(np.mean([pooled[i] for i in c]) - np.mean([pooled[i] for i in range(len(pooled)) if i not in c]))
        for c in itertools.combinations(range(len(pooled)), n)
    ]
    assert ours.p == pytest.approx(np.mean(np.array(splits) >= observed - 1e-9))
    assert ours.p >= ours.smallest - 1e-12


def test_smallest_attainable_p_is_what_the_most_extreme_data_give() -> None:
    assert stats.smallest_sign_flip_p(5) == 0.0625
    assert stats.smallest_sign_flip_p(3) == 0.25
    assert [round(stats.smallest_permutation_p(n, n), 3) for n in (3, 4, 5)] == [0.1, 0.029, 0.008]
    assert stats.permutation_test([1, 2, 3], [10, 11, 12]).p == pytest.approx(0.1)
    assert stats.permutation_test([1, 2], [10, 11, 12]).p == pytest.approx(stats.smallest_permutation_p(2, 3))
    assert stats.sign_flip_test([0.1, 0.2, 0.3]).p == pytest.approx(0.25)


def test_too_many_seeds_for_an_exact_test_is_an_error_not_an_approximation() -> None:
    with pytest.raises(ValueError, match="too many to enumerate"):
        stats.sign_flip_test(np.ones(40))
    with pytest.raises(ValueError, match="too many to enumerate"):
        stats.permutation_test(np.ones(40), np.ones(40))


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_agrees_with_its_definition_and_never_lowers_a_p(values: list[float]) -> None:
    adjusted = stats.holm(values)
    order = np.argsort(values, kind="stable")
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(values) - rank) * values[index]))
        assert adjusted[index] == pytest.approx(running)
    assert all(a >= p - 1e-15 for a, p in zip(adjusted, values, strict=True))


def test_holm_keeps_missing_tests_out_of_the_family() -> None:
    adjusted = stats.holm([0.02, math.nan, 0.03])
    assert adjusted[[0, 2]] == pytest.approx([0.04, 0.04]) and math.isnan(adjusted[1])


# ---------------------------------------------------------------------------------------------- learning curves
def test_area_by_steps_is_the_mean_of_the_first_steps() -> None:
    assert stats.area_by_steps([0.0, 0.5, 1.0, 1.0], 3) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="5 steps asked of a curve with 4"):
        stats.area_by_steps([0.0, 0.5, 1.0, 1.0], 5)


def test_area_by_cost_equals_area_by_steps_when_steps_cost_the_same() -> None:
    curve = np.random.default_rng(1).random(8)
    assert stats.area_by_cost(curve, np.arange(1, 9) * 2.0, 12.0) == pytest.approx(stats.area_by_steps(curve, 6))


def test_a_method_that_pays_twice_per_step_gets_half_of_its_curve() -> None:
    curve = np.linspace(0, 1, 8)
    cheap = stats.area_by_cost(curve, np.arange(1, 9) * 1.0, 8.0)
    dear = stats.area_by_cost(curve, np.arange(1, 9) * 2.0, 8.0)
    assert dear == pytest.approx(curve[:4].mean()) and dear < cheap


def test_area_by_cost_splits_the_step_that_crosses_the_budget() -> None:
    assert stats.area_by_cost([0.0, 1.0], [1.0, 2.0], 1.5) == pytest.approx(0.5 / 1.5)


@pytest.mark.parametrize(
    ("spent", "budget", "message"),
    [([1.0, 0.5], 0.5, "decreases"), ([1.0, 2.0], 3.0, "not within"), ([1.0], 1.0, "2 values but 1 costs")],
)
def test_area_by_cost_refuses_what_it_cannot_compare(spent: list[float], budget: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stats.area_by_cost([0.0, 1.0], spent, budget)


def test_area_of_a_curve_with_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        stats.area_by_steps([0.0, math.nan], 2)
