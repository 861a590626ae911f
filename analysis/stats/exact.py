"""Exact tests over seeds, the smallest p that they can give at all, and Holm's adjustment for families of tests."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats.basics import Array, finite

EXACT_LIMIT = 1 << 18  # largest number of arrangements that an exact test enumerates


@dataclass(frozen=True, slots=True)
class ExactTest:
    """p: two-sided p value; smallest: the smallest p that this many seeds can give at all."""

    p: float
    smallest: float


def smallest_sign_flip_p(n: int) -> float:
    """Smallest two-sided p of a sign-flip (paired permutation) test over n seeds: 2 / 2^n, and 1 for one seed."""
    return min(1.0, 2.0 / 2.0**n)


def smallest_permutation_p(n: int, m: int) -> float:
    """Smallest two-sided p of a permutation test of n against m seeds: 2 / C(n+m, n) when n = m, else 1 / C(n+m, n)."""
    return min(1.0, (2 if n == m else 1) / math.comb(n + m, n))


def sign_flip_test(differences: ArrayLike) -> ExactTest:
    """Exact paired permutation test of seed-level differences [n]: all 2^n sign assignments, statistic |mean|."""
    array = finite(differences, "sign_flip_test")
    if 1 << array.size > EXACT_LIMIT:
        raise ValueError(f"sign_flip_test: {array.size} seeds are too many to enumerate (limit {EXACT_LIMIT} signs)")
    signs = 1.0 - 2.0 * ((np.arange(1 << array.size)[:, None] >> np.arange(array.size)) & 1)
    statistic = np.abs(signs @ array)
    # Rounding must not make an arrangement that equals the observed one look smaller.
    reached = statistic >= abs(array.sum()) - 1e-12 * max(1.0, float(np.abs(array).sum()))
    return ExactTest(float(reached.mean()), smallest_sign_flip_p(array.size))


def permutation_test(first: ArrayLike, second: ArrayLike) -> ExactTest:
    """Exact two-sample permutation test of seed-level values [n], [m]: all splits, statistic |difference of means|."""
    a, b = finite(first, "permutation_test"), finite(second, "permutation_test")
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
