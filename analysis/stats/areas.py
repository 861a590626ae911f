"""Areas under curves: over equal steps, over equal cost, and over fractions of the data."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats.basics import finite


def area_by_steps(curve: ArrayLike, steps: int) -> float:
    """Mean of the first `steps` values of a curve: the area under it over equal steps, in the curve's own unit."""
    array = finite(curve, "area_by_steps")
    if not 1 <= steps <= array.size:
        raise ValueError(f"area_by_steps: {steps} steps asked of a curve with {array.size}")
    return float(array[:steps].mean())


def area_by_cost(curve: ArrayLike, spent: ArrayLike, budget: float) -> float:
    """Cost-weighted mean of a curve up to a budget: the area under it over equal cost, in the curve's own unit.

    curve [N]; spent [N]: cumulative cost (seconds of one clock) at the end of each step, rising; budget <= spent[-1].
    The value of a step holds while that step is paid for; nothing is interpolated and nothing extrapolated.
    """
    values, ends = finite(curve, "area_by_cost"), finite(spent, "area_by_cost")
    if values.size != ends.size:
        raise ValueError(f"area_by_cost: {values.size} values but {ends.size} costs")
    if (np.diff(ends, prepend=0.0) < 0).any():
        raise ValueError("area_by_cost: the cumulative cost decreases")
    if not 0 < budget <= ends[-1]:
        raise ValueError(f"area_by_cost: budget {budget} is not within (0, {ends[-1]}]")
    weights = np.diff(np.minimum(ends, budget), prepend=0.0)
    return float(values @ weights / budget)


def area_by_fraction(values: ArrayLike, fractions: ArrayLike) -> float:
    """Area under scores [N] at rising fractions [N] of the data, over their range: in the scores' own unit.

    Trapezoids between the fractions that were run, on a linear axis; nothing is extrapolated to a fraction of zero.
    """
    scores, at = finite(values, "area_by_fraction"), finite(fractions, "area_by_fraction")
    if scores.size != at.size or scores.size < 2 or (np.diff(at) <= 0).any():
        raise ValueError(f"area_by_fraction: needs a score for each of two or more rising fractions, got {at.tolist()}")
    return float(np.trapezoid(scores, at) / (at[-1] - at[0]))
