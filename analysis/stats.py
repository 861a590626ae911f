"""Statistics of the tables: small functions over plain arrays, each proved in tests/analysis.

Conventions: values are shares in [0, 1] or any other real unit, never percentages by themselves; the replication unit
is the training seed; a task is the same task in every seed (crossed, not nested). Nothing here drops a NaN in silence:
a NaN where none is allowed is a ValueError, and where it means "not graded" the argument says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]

LEVEL = 0.95
RESAMPLES = 2000
MIN_SPREAD = 1e-12  # values closer than this are equal: what is left between them is rounding
EXACT_LIMIT = 1 << 18  # largest number of arrangements that an exact test enumerates

T_OVER_SEEDS = "t over seeds"
EVALUATION_ONE_SEED = "evaluation only: one seed"
EVALUATION_EQUAL_SEEDS = "evaluation only: all seeds equal"
BOOTSTRAP = "bootstrap over seeds and tasks"
RANGE = "range over seeds"
NO_INTERVAL = "none"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its bounds. lo and hi are NaN when kind is `none`. n: seeds behind it."""

    value: float
    lo: float
    hi: float
    kind: str
    n: int

    @property
    def excludes_zero(self) -> bool:
        """True if zero lies outside a proper interval (NaN bounds exclude nothing)."""
        return self.lo > 0 or self.hi < 0

    @property
    def half_width(self) -> float:
        """Distance from the value to the farther bound."""
        return max(self.hi - self.value, self.value - self.lo)


@dataclass(frozen=True, slots=True)
class ExactTest:
    """p: two-sided p value; smallest: the smallest p that this many seeds can give at all."""

    p: float
    smallest: float


def _finite(values: ArrayLike, what: str) -> Array:
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise ValueError(f"{what}: no values")
    if not np.isfinite(array).all():
        raise ValueError(f"{what}: {np.count_nonzero(~np.isfinite(array))} of {array.size} values are NaN or infinite")
    return array


@lru_cache(maxsize=1024)
def t_quantile(df: int, level: float = LEVEL) -> float:
    """Two-sided quantile of Student's t, e.g. 4.303 for df=2 at 95 %."""
    return float(special.stdtrit(df, 0.5 + level / 2))


def t_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """Mean of seed-level values [n] with the t interval over seeds; with one seed there is no interval."""
    array = _finite(values, "t_interval")
    mean = float(array.mean())
    if array.size == 1:
        return Interval(mean, math.nan, math.nan, NO_INTERVAL, 1)
    half = t_quantile(array.size - 1, level) * float(array.std(ddof=1)) / math.sqrt(array.size)
    return Interval(mean, mean - half, mean + half, T_OVER_SEEDS, array.size)


def t_test_p(values: ArrayLike) -> float:
    """Two-sided p of mean(values) = 0 by Student's t; NaN with one value, 1 or 0 when the values do not vary."""
    array = _finite(values, "t_test_p")
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
    array = _finite(seed_values, "rate_interval")
    interval = t_interval(array, level)
    if array.size > 1 and np.ptp(array) > MIN_SPREAD:
        return Interval(interval.value, max(0.0, interval.lo), min(1.0, interval.hi), interval.kind, interval.n)
    lo, hi = wilson(min(1.0, max(0.0, interval.value)), n_tasks, level)
    kind = EVALUATION_ONE_SEED if array.size == 1 else EVALUATION_EQUAL_SEEDS
    return Interval(interval.value, lo, hi, kind, array.size)


def range_interval(values: ArrayLike) -> Interval:
    """Mean with smallest and largest value: for costs, where an interval of the mean would say little."""
    array = _finite(values, "range_interval")
    return Interval(float(array.mean()), float(array.min()), float(array.max()), RANGE, array.size)


# ------------------------------------------------------------------------------------------- micro and macro
def average_by_seed(table: ArrayLike, strata: ArrayLike, macro: bool) -> Array:
    """Seed-level averages [S] of a table [S, T] (NaN: that task was not graded in that seed).

    micro: mean over graded tasks; macro: unweighted mean over strata [T] of the mean within each. A seed without a
    graded task (macro: in some stratum) gives NaN.
    """
    data, groups = np.asarray(table, dtype=np.float64), np.asarray(strata)
    kinds = np.unique(groups) if macro else [None]
    means = []
    for kind in kinds:
        part = data if kind is None else data[:, groups == kind]
        graded = ~np.isnan(part)
        count = graded.sum(axis=1)
        with np.errstate(invalid="ignore"):
            means.append(np.where(graded, part, 0.0).sum(axis=1) / np.where(count > 0, count, np.nan))
    return np.mean(means, axis=0)  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _resampled_counts(n: int, resamples: int, seed: int) -> Array:
    """[resamples, n]: how often each of n things is drawn in n draws with replacement."""
    rng = np.random.default_rng([seed, resamples, n])
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)


@lru_cache(maxsize=64)
def _resampled_tasks(strata: tuple[int, ...], resamples: int, seed: int) -> Array:
    """[resamples, T]: how often each task is drawn when tasks are drawn within their stratum (a number per task).

    Cached: every comparison on the same panel uses the same resamples, which keeps tables deterministic whatever
    their rows, and fast.
    """
    groups = np.asarray(strata)
    counts = np.empty((resamples, groups.size))
    for kind in range(groups.max() + 1):
        columns = np.flatnonzero(groups == kind)
        counts[:, columns] = _resampled_counts(columns.size, resamples, seed + 1 + kind)
    return counts


def paired_bootstrap(
    differences: ArrayLike,
    strata: ArrayLike,
    macro: bool,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Percentile interval of the mean paired difference, resampling seeds, then tasks.

    differences [S, T]: treatment minus reference for the same seed and task, NaN where not both were graded.
    strata [T]: task types; tasks are resampled within their type, because the panel was built by type.
    One draw of tasks serves all drawn seeds: the tasks are the same in every seed, so their difficulty is shared
    (drawing tasks anew per seed would average that away and give intervals that are too narrow).
    With few seeds the percentile interval is too narrow on its own; the tables use it only beside the t interval.
    The bounds are NaN where resampling cannot show any uncertainty: a type with one task, or no variation at all.
    """
    data = np.asarray(differences, dtype=np.float64)
    _, kinds = np.unique(np.asarray(strata), return_inverse=True)
    value = float(np.mean(_finite(average_by_seed(data, kinds, macro), "paired_bootstrap")))
    seeds = _resampled_counts(data.shape[0], resamples, seed)
    tasks = _resampled_tasks(tuple(kinds.tolist()), resamples, seed)
    graded = ~np.isnan(data)
    if graded.all():  # the usual case: weights are known beforehand
        sizes = np.bincount(kinds)
        weights = 1 / (sizes[kinds] * sizes.size) if macro else np.full(kinds.size, 1 / kinds.size)
        means = np.einsum("bs,bs->b", seeds, tasks @ (data * weights).T) / data.shape[0]
    else:
        means = _means_of_graded(data, graded, kinds, seeds, tasks, macro)
    lo, hi = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    if hi - lo <= MIN_SPREAD or np.bincount(kinds).min() < 2:
        return Interval(value, math.nan, math.nan, NO_INTERVAL, data.shape[0])
    return Interval(value, float(lo), float(hi), BOOTSTRAP, data.shape[0])


def _means_of_graded(
    data: Array, graded: NDArray[np.bool_], kinds: NDArray[np.intp], seeds: Array, tasks: Array, macro: bool
) -> Array:
    """Resampled means where some pairs were not graded: each stratum's mean over the graded pairs that were drawn."""
    filled = np.where(graded, data, 0.0)
    sums, counts = [], []
    for columns in (np.flatnonzero(kinds == kind) for kind in range(kinds.max() + 1)):
        sums.append(np.einsum("bs,bs->b", seeds, tasks[:, columns] @ filled[:, columns].T))
        counts.append(np.einsum("bs,bs->b", seeds, tasks[:, columns] @ graded[:, columns].T.astype(np.float64)))
    with np.errstate(invalid="ignore", divide="ignore"):
        by_kind = np.divide(sums, counts)
        means: Array = by_kind.mean(axis=0) if macro else np.sum(sums, axis=0) / np.sum(counts, axis=0)
    # A draw can miss every graded pair of a small stratum (0/0); such a draw says nothing about the mean.
    kept: Array = means[~np.isnan(means)]
    return kept


# ------------------------------------------------------------------------------------------- exact tests over seeds
def smallest_sign_flip_p(n: int) -> float:
    """Smallest two-sided p of a sign-flip (paired permutation) test over n seeds: 2 / 2^n, and 1 for one seed."""
    return min(1.0, 2.0 / 2.0**n)


def smallest_permutation_p(n: int, m: int) -> float:
    """Smallest two-sided p of a permutation test of n against m seeds: 2 / C(n+m, n) when n = m, else 1 / C(n+m, n)."""
    return min(1.0, (2 if n == m else 1) / math.comb(n + m, n))


def sign_flip_test(differences: ArrayLike) -> ExactTest:
    """Exact paired permutation test of seed-level differences [n]: all 2^n sign assignments, statistic |mean|."""
    array = _finite(differences, "sign_flip_test")
    if 1 << array.size > EXACT_LIMIT:
        raise ValueError(f"sign_flip_test: {array.size} seeds are too many to enumerate (limit {EXACT_LIMIT} signs)")
    signs = 1.0 - 2.0 * ((np.arange(1 << array.size)[:, None] >> np.arange(array.size)) & 1)
    statistic = np.abs(signs @ array)
    # Rounding must not make an arrangement that equals the observed one look smaller.
    reached = statistic >= abs(array.sum()) - 1e-12 * max(1.0, float(np.abs(array).sum()))
    return ExactTest(float(reached.mean()), smallest_sign_flip_p(array.size))


def permutation_test(first: ArrayLike, second: ArrayLike) -> ExactTest:
    """Exact two-sample permutation test of seed-level values [n], [m]: all splits, statistic |difference of means|."""
    a, b = _finite(first, "permutation_test"), _finite(second, "permutation_test")
    if math.comb(a.size + b.size, a.size) > EXACT_LIMIT:
        raise ValueError(f"permutation_test: {a.size} against {b.size} seeds are too many to enumerate")
    pooled = np.concatenate([a, b])
    chosen = np.array(list(itertools.combinations(range(pooled.size), a.size)))
    sums = pooled[chosen].sum(axis=1)
    statistic = np.abs(sums / a.size - (pooled.sum() - sums) / b.size)
    reached = statistic >= abs(a.mean() - b.mean()) - 1e-12 * max(1.0, float(np.abs(pooled).sum()))
    return ExactTest(float(reached.mean()), smallest_permutation_p(a.size, b.size))


def holm(p_values: ArrayLike) -> Array:
    """Holm's step-down adjusted p values [m], in the order given. NaN (no test) stays NaN and is outside the family."""
    p = np.asarray(p_values, dtype=np.float64).ravel()
    adjusted = np.full(p.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    scaled = p[order] * np.arange(order.size, 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled)) if order.size else scaled
    return adjusted


# ------------------------------------------------------------------------------------------- learning curves
def area_by_steps(curve: ArrayLike, steps: int) -> float:
    """Mean of the first `steps` values of a curve: the area under it over equal steps, in the curve's own unit."""
    array = _finite(curve, "area_by_steps")
    if not 1 <= steps <= array.size:
        raise ValueError(f"area_by_steps: {steps} steps asked of a curve with {array.size}")
    return float(array[:steps].mean())


def area_by_cost(curve: ArrayLike, spent: ArrayLike, budget: float) -> float:
    """Cost-weighted mean of a curve up to a budget: the area under it over equal cost, in the curve's own unit.

    curve [N]; spent [N]: cumulative cost (CPU seconds) at the end of each step, not decreasing; budget <= spent[-1].
    The value of a step holds while that step is paid for; nothing is interpolated and nothing extrapolated.
    """
    values, ends = _finite(curve, "area_by_cost"), _finite(spent, "area_by_cost")
    if values.size != ends.size:
        raise ValueError(f"area_by_cost: {values.size} values but {ends.size} costs")
    if (np.diff(ends, prepend=0.0) < 0).any():
        raise ValueError("area_by_cost: the cumulative cost decreases")
    if not 0 < budget <= ends[-1]:
        raise ValueError(f"area_by_cost: budget {budget} is not within (0, {ends[-1]}]")
    weights = np.diff(np.minimum(ends, budget), prepend=0.0)
    return float(values @ weights / budget)
