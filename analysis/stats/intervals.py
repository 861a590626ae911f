"""Intervals of means over seeds, and of shares of independent draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from analysis.stats.basics import (
    EVALUATION_EQUAL_SEEDS,
    EVALUATION_ONE_SEED,
    LEVEL,
    MIN_SPREAD,
    NO_INTERVAL,
    RANGE,
    T_OVER_SEEDS,
    Interval,
    finite,
)


@lru_cache(maxsize=1024)
def t_quantile(df: int, level: float = LEVEL) -> float:
    """Two-sided quantile of Student's t, e.g. 4.303 for df=2 at 95 %."""
    return float(special.stdtrit(df, 0.5 + level / 2))


def t_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """Mean of seed-level values [n] with the t interval over seeds; with one seed there is no interval."""
    array = finite(values, "t_interval")
    mean = float(array.mean())
    if array.size == 1:
        return Interval(mean, math.nan, math.nan, NO_INTERVAL, 1)
    half = t_quantile(array.size - 1, level) * float(array.std(ddof=1)) / math.sqrt(array.size)
    return Interval(mean, mean - half, mean + half, T_OVER_SEEDS, array.size)


def bounded_t_interval(values: ArrayLike) -> Interval:
    """`t_interval` of values in [0, 1], clipped to that; no bounds where seeds do not vary, which is no certainty."""
    found = t_interval(values)
    if math.isnan(found.lo) or found.hi - found.lo < MIN_SPREAD:
        return Interval(found.value, math.nan, math.nan, NO_INTERVAL, found.n)
    return Interval(found.value, max(0.0, found.lo), min(1.0, found.hi), found.kind, found.n)


def t_test_p(values: ArrayLike) -> float:
    """Two-sided p of mean(values) = 0 by Student's t; NaN with one value, 1 or 0 when the values do not vary."""
    array = finite(values, "t_test_p")
    if array.size == 1:
        return math.nan
    mean, sd = float(array.mean()), float(array.std(ddof=1))
    if sd < MIN_SPREAD:
        return 1.0 if abs(mean) < MIN_SPREAD else 0.0
    return float(2 * special.stdtr(array.size - 1, -abs(mean) / (sd / math.sqrt(array.size))))


def wilson(p: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson bounds of a share p out of n independent draws (n may be an effective, fractional number)."""
    if not (0 <= p <= 1 and n > 0):
        raise ValueError(f"wilson: needs 0 <= p <= 1 and n > 0, got p={p}, n={n}")
    z = float(special.ndtri(0.5 + level / 2))
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # The bounds reach 0 and 1 exactly there; rounding must not leave the value outside its own interval.
    return min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half))


def effective_n(counts: Sequence[int]) -> float:
    """Number of draws that a macro mean over strata of these sizes is worth: K^2 / sum(1 / n_k)."""
    if not counts or min(counts) < 1:
        raise ValueError(f"effective_n: every stratum needs at least one task, got {list(counts)}")
    return len(counts) ** 2 / sum(1 / n for n in counts)


def rate_interval(seed_values: ArrayLike, n_tasks: float, level: float = LEVEL) -> Interval:
    """Mean success over seeds with the interval that the data allow.

    seed_values [n]: one share per seed; n_tasks: (effective) number of tasks behind each.
    Two seeds or more that vary: t over seeds, clipped to [0, 1]. One seed, or seeds that are all equal (where the
    t interval would have width zero and claim certainty): Wilson over the tasks, labelled evaluation-only.
    """
    array = finite(seed_values, "rate_interval")
    interval = t_interval(array, level)
    if array.size > 1 and np.ptp(array) > MIN_SPREAD:
        return Interval(interval.value, max(0.0, interval.lo), min(1.0, interval.hi), interval.kind, interval.n)
    lo, hi = wilson(min(1.0, max(0.0, interval.value)), n_tasks, level)
    kind = EVALUATION_ONE_SEED if array.size == 1 else EVALUATION_EQUAL_SEEDS
    return Interval(interval.value, lo, hi, kind, array.size)


def range_interval(values: ArrayLike) -> Interval:
    """Mean with smallest and largest value: for costs, where an interval of the mean would say little."""
    array = finite(values, "range_interval")
    return Interval(float(array.mean()), float(array.min()), float(array.max()), RANGE, array.size)
