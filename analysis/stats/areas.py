"""Areas under learning curves, over equal steps and over equal cost."""

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

    curve [N]; spent [N]: cumulative cost (CPU seconds) at the end of each step, not decreasing; budget <= spent[-1].
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
