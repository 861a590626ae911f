"""The hierarchical bootstrap: its coverage by simulation, and what it may not claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import stats

STRATA = np.repeat(np.arange(4), 10)
# Standard deviations of seeds, of tasks, and of single values.
REGIMES = {"seeds": (0.10, 0.01, 0.01), "both": (0.10, 0.30, 0.30), "tasks": (0.01, 0.30, 0.30)}


def sample(rng: np.random.Generator, seeds: int, regime: str, effect: float = 0.2, tasks: int = 40) -> np.ndarray:
    of_seeds, of_tasks, rest = REGIMES[regime]
    shape = (seeds, tasks)
    return (
        effect + rng.normal(0, of_seeds, (seeds, 1)) + rng.normal(0, of_tasks, (1, tasks)) + rng.normal(0, rest, shape)
    )


def coverage(n: int, regime: str, calibrated: bool, macro: bool = False, runs: int = 1500) -> float:
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(runs):
        interval = stats.hierarchical_bootstrap(
            sample(rng, n, regime), STRATA, macro, resamples=300, calibrated=calibrated
        )
        covered += interval.lo <= 0.2 <= interval.hi
    return covered / runs


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("regime", sorted(REGIMES))
def test_calibrated_it_covers_the_mean_over_new_seeds_and_tasks_in_93_to_97_percent(n: int, regime: str) -> None:
    assert 0.93 <= coverage(n, regime, calibrated=True) <= 0.97


def test_percentiles_alone_are_too_narrow_with_three_seeds() -> None:
    assert coverage(3, "seeds", calibrated=False, runs=400) < 0.85


def test_shares_of_0_and_1_are_covered_too() -> None:
    """Successes themselves: each seed and each task has its own odds."""
    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(800):
        odds = rng.normal(0, 0.4, (5, 1)) + rng.normal(0, 1.0, (1, 40))
        won = (rng.random((5, 40)) < 1 / (1 + np.exp(-odds))).astype(float)
        interval = stats.hierarchical_bootstrap(won, STRATA, False, resamples=300)
        covered += interval.lo <= 0.5 <= interval.hi
    assert 0.93 <= covered / 800 <= 0.975


def test_it_agrees_with_the_t_interval_where_only_seeds_vary() -> None:
    values = np.random.default_rng(2).normal(0.3, 0.2, (10, 1)) + np.zeros((10, 40))
    ours, theirs = stats.hierarchical_bootstrap(values, STRATA, False), stats.t_interval(values[:, 0])
    assert ours.hi - ours.lo == pytest.approx(theirs.hi - theirs.lo, rel=0.06)


def test_micro_and_macro_agree_where_types_are_of_equal_size() -> None:
    data = sample(np.random.default_rng(1), 3, "both")
    micro, macro = (stats.hierarchical_bootstrap(data, STRATA, kind) for kind in (False, True))
    assert (micro.value, micro.lo, micro.hi) == pytest.approx((macro.value, macro.lo, macro.hi))


def test_value_is_the_mean_of_seed_level_averages_and_repeats_exactly() -> None:
    data = np.random.default_rng(0).normal(size=(3, 12))
    data[1, 4] = math.nan
    strata = np.repeat([0, 1, 2], 4)
    for macro in (False, True):
        first = stats.hierarchical_bootstrap(data, strata, macro)
        assert first == stats.hierarchical_bootstrap(data, strata, macro)
        assert first.value == pytest.approx(stats.average_by_seed(data, strata, macro).mean())
        assert first.lo < first.value < first.hi


def test_one_seed_gives_percentiles_over_its_tasks() -> None:
    data = np.random.default_rng(0).normal(size=(1, 40))
    both = [stats.hierarchical_bootstrap(data, STRATA, False, calibrated=c) for c in (True, False)]
    assert both[0] == both[1] and both[0].lo < both[0].value < both[0].hi


@pytest.mark.parametrize(
    ("data", "strata"),
    [(np.full((3, 6), 0.5), [0, 0, 0, 1, 1, 1]), (np.array([[0.0, 1.0, 0.5, 0.5]]), [0, 1, 2, 2])],
)
def test_what_cannot_show_uncertainty_has_no_bounds(data: np.ndarray, strata: list[int]) -> None:
    interval = stats.hierarchical_bootstrap(data, strata, macro=True)
    assert interval.value == pytest.approx(0.5)
    assert math.isnan(interval.lo) and interval.kind == stats.NO_INTERVAL and not interval.excludes_zero


@given(st.integers(2, 6), st.floats(-3, 3), st.floats(0.1, 5))
def test_it_moves_and_scales_with_the_data(seeds: int, shift: float, scale: float) -> None:
    data = sample(np.random.default_rng(seeds), seeds, "both")
    first = stats.hierarchical_bootstrap(data, STRATA, True, resamples=200)
    second = stats.hierarchical_bootstrap(shift + scale * data, STRATA, True, resamples=200)
    expected = [shift + scale * x for x in (first.value, first.lo, first.hi)]
    assert (second.value, second.lo, second.hi) == pytest.approx(expected, abs=1e-9)
