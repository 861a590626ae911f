"""What all of the statistics share: intervals, their kinds, and arrays without NaN."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

LEVEL = 0.95
RESAMPLES = 2000
MIN_SPREAD = 1e-12  # values closer than this are equal: what is left between them is rounding

T_OVER_SEEDS = "t over seeds"
EVALUATION_ONE_SEED = "evaluation only: one seed"
EVALUATION_EQUAL_SEEDS = "evaluation only: all seeds equal"
BOOTSTRAP = "bootstrap over seeds and tasks"
BOOTSTRAP_RUNS = "bootstrap over seeds within settings"
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


def finite(values: ArrayLike, what: str) -> Array:
    """Values [n] as one flat array. Raises ValueError if there are none, or any is NaN or infinite."""
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise ValueError(f"{what}: no values")
    if not np.isfinite(array).all():
        raise ValueError(f"{what}: {np.count_nonzero(~np.isfinite(array))} of {array.size} values are NaN or infinite")
    return array
