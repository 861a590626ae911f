"""Aggregates over settings, and power: against scipy, against the known figures, by simulation, and against rliable."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from analysis import stats

SCORES = np.random.default_rng(3).random((5, 8))


# ---------------------------------------------------------------------------------------------- IQM
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_interquartile_mean_agrees_with_scipys_trimmed_mean(runs: int, settings: int, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(runs, settings))
    assert stats.interquartile_mean(scores) == pytest.approx(scipy.stats.trim_mean(scores, 0.25, axis=None))


def test_an_outlier_moves_the_mean_but_not_the_interquartile_mean() -> None:
    scores = SCORES.copy()
    scores.flat[int(scores.argmax())] = 100.0
    assert stats.interquartile_mean(scores) == pytest.approx(stats.interquartile_mean(SCORES))


def test_intervals_of_aggregates_hold_their_value_and_repeat_exactly() -> None:
    first = stats.iqm_interval(SCORES)
    assert first == stats.iqm_interval(SCORES)
    assert first.lo < first.value < first.hi and first.kind == stats.BOOTSTRAP_RUNS and first.n == 5


def test_runs_are_drawn_within_their_setting() -> None:
    """Settings that differ, with runs that do not: nothing is uncertain."""
    scores = np.repeat(np.linspace(0, 1, 8)[None, :], 4, axis=0)
    interval = stats.stratified_bootstrap(scores, lambda s: float(s.mean()), resamples=50)
    assert (interval.lo, interval.hi) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize("n", [5, 10])
def test_the_interval_of_the_iqm_covers_its_true_value(n: int) -> None:
    """Over 20 settings; percentiles are a little narrow with few runs, which is what the paper shows as well."""
    rng = np.random.default_rng(5)
    levels = rng.uniform(0.3, 0.7, 20)
    true = stats.interquartile_mean(levels + rng.normal(0, 0.05, (20_000, 20)))
    covered = [
        (i := stats.iqm_interval(levels + rng.normal(0, 0.05, (n, 20)), resamples=200)).lo <= true <= i.hi
        for _ in range(200)
    ]
    assert 0.85 <= np.mean(covered) <= 0.99


def test_two_runs_are_too_few_for_an_interval() -> None:
    interval = stats.iqm_interval(SCORES[:2])
    assert math.isnan(interval.lo) and interval.kind == stats.NO_INTERVAL
    assert math.isnan(stats.improvement_interval(SCORES[:2], SCORES).lo)
    with pytest.raises(ValueError, match="at least 3"):
        stats.stratified_bootstrap(SCORES[:2], lambda s: float(s.mean()))
    with pytest.raises(ValueError, match="at least 3"):
        stats.profile_band(SCORES[:2], [0.5])


@pytest.mark.parametrize("bad", [[0.1, 0.2], [[0.1, math.nan]], [[]]])
def test_scores_that_are_no_table_of_numbers_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="interquartile_mean"):
        stats.interquartile_mean(bad)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- profiles
def test_a_profile_is_the_share_of_runs_above_each_threshold() -> None:
    thresholds = np.linspace(0, 1, 11)
    profile = stats.performance_profile(SCORES, thresholds)
    assert profile == pytest.approx(1 - scipy.stats.ecdf(SCORES.ravel()).cdf.evaluate(thresholds))
    assert (np.diff(profile) <= 0).all()
    lo, hi = stats.profile_band(SCORES, thresholds)
    assert (lo <= profile + 1e-12).all() and (profile <= hi + 1e-12).all() and (lo < hi).any()


# ---------------------------------------------------------------------------------------------- improvement
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_probability_of_improvement_is_mann_whitneys_u(n: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, (n, 3)).astype(float), rng.integers(0, 5, (m, 3)).astype(float)
    by_setting = [scipy.stats.mannwhitneyu(a[:, i], b[:, i]).statistic / (n * m) for i in range(3)]
    assert stats.probability_of_improvement(a, b) == pytest.approx(np.mean(by_setting))
    assert stats.probability_of_improvement(a, b) + stats.probability_of_improvement(b, a) == pytest.approx(1.0)


def test_its_interval_reaches_the_ends_where_everything_wins_and_contains_a_half_where_nothing_differs() -> None:
    sure = stats.improvement_interval(SCORES + 2, SCORES)
    assert (sure.value, sure.lo, sure.hi) == pytest.approx((1.0, 1.0, 1.0))
    rng = np.random.default_rng(0)
    none = stats.improvement_interval(rng.random((5, 8)), rng.random((5, 8)))
    assert none.lo < 0.5 < none.hi
    with pytest.raises(ValueError, match="8 settings against 7"):
        stats.probability_of_improvement(SCORES, SCORES[:, :7])


# ---------------------------------------------------------------------------------------------- power
@pytest.mark.parametrize(
    ("n", "paired", "expected"),
    [(3, False, 9.3), (5, False, 6.2), (10, False, 4.1), (3, True, 9.9), (5, True, 5.1), (10, True, 3.0)],
)
def test_the_smallest_difference_that_can_be_found_is_the_known_one(n: int, paired: bool, expected: float) -> None:
    """Simulated figures for an sd of 3 points and 80 % power; the z shortcut would say 6.9, 5.3 and 3.8."""
    assert stats.minimum_detectable_effect(3.0, n, paired) == pytest.approx(expected, rel=0.035)


def test_power_agrees_with_the_noncentral_t_where_scipy_has_it() -> None:
    """n = 10 per group: d = 1.325 in every textbook."""
    assert stats.minimum_detectable_effect(1.0, 10) == pytest.approx(1.3249, abs=2e-4)
    for n, effect in ((3, 2.0), (6, 1.0), (10, 0.5)):
        limit = scipy.stats.t.ppf(0.975, n - 1)
        theirs = scipy.stats.nct.sf(limit, n - 1, effect * n**0.5) + scipy.stats.nct.cdf(-limit, n - 1, effect * n**0.5)
        assert stats.power_of_t(effect, 1.0, n, paired=True) == pytest.approx(theirs, abs=1e-7)


def test_power_agrees_with_a_simulated_t_test() -> None:
    rng = np.random.default_rng(1)
    effect = stats.minimum_detectable_effect(1.0, 5)
    p = scipy.stats.ttest_ind(rng.normal(effect, 1, (4000, 5)), rng.normal(0, 1, (4000, 5)), axis=1).pvalue
    assert np.mean(p < 0.05) == pytest.approx(0.8, abs=0.02)
    assert stats.power_of_t(0.0, 1.0, 5, paired=True) == pytest.approx(0.05)


def test_power_refuses_what_has_no_test() -> None:
    assert stats.minimum_detectable_effect(0.0, 3) == 0.0
    with pytest.raises(ValueError, match="two seeds"):
        stats.minimum_detectable_effect(3.0, 1)
    with pytest.raises(ValueError, match="power must lie"):
        stats.minimum_detectable_effect(3.0, 3, power=0.01)
    with pytest.raises(ValueError, match="sd > 0"):
        stats.power_of_t(1.0, 0.0, 3, paired=False)


# ---------------------------------------------------------------------------------------------- rliable, if there
@pytest.mark.skipif(importlib.util.find_spec("rliable") is None, reason="rliable is not installed (it is optional)")
def test_aggregates_agree_with_rliable() -> None:
    from rliable import metrics  # type: ignore[import-not-found,unused-ignore]

    other = np.random.default_rng(4).random((5, 8))
    assert stats.interquartile_mean(SCORES) == pytest.approx(metrics.aggregate_iqm(SCORES))
    theirs = metrics.probability_of_improvement(SCORES, other)
    assert stats.probability_of_improvement(SCORES, other) == pytest.approx(theirs)
