"""Statistics of the tables: small functions over plain arrays, each proved in tests/analysis.

Conventions: values are shares in [0, 1] or any other real unit, never percentages by themselves; the replication unit
is the training seed; a task is the same task in every seed (crossed, not nested). Nothing here drops a NaN in silence:
a NaN where none is allowed is a ValueError, and where it means "not graded" the argument says so.
"""

from __future__ import annotations

from analysis.stats.areas import (
    area_by_cost,
    area_by_fraction,
    area_by_steps,
)
from analysis.stats.basics import (
    BOOTSTRAP,
    BOOTSTRAP_RUNS,
    EVALUATION_EQUAL_SEEDS,
    EVALUATION_ONE_SEED,
    LEVEL,
    MIN_SPREAD,
    NO_INTERVAL,
    RANGE,
    RESAMPLES,
    T_OVER_SEEDS,
    Array,
    Interval,
)
from analysis.stats.bootstrap import (
    average_by_seed,
    hierarchical_bootstrap,
)
from analysis.stats.exact import (
    EXACT_LIMIT,
    ExactTest,
    holm,
    permutation_test,
    sign_flip_test,
    smallest_permutation_p,
    smallest_sign_flip_p,
)
from analysis.stats.intervals import (
    bounded_t_interval,
    effective_n,
    range_interval,
    rate_interval,
    t_interval,
    t_quantile,
    t_test_p,
    wilson,
)
from analysis.stats.power import (
    minimum_detectable_effect,
    power_of_t,
)
from analysis.stats.robust import (
    MIN_RUNS,
    improvement_interval,
    improvement_of_runs,
    interquartile_mean,
    iqm_interval,
    iqm_of_runs,
    performance_profile,
    probability_of_improvement,
    profile_band,
    stratified_bootstrap,
)

__all__ = [
    "BOOTSTRAP",
    "BOOTSTRAP_RUNS",
    "EVALUATION_EQUAL_SEEDS",
    "EVALUATION_ONE_SEED",
    "EXACT_LIMIT",
    "LEVEL",
    "MIN_RUNS",
    "MIN_SPREAD",
    "NO_INTERVAL",
    "RANGE",
    "RESAMPLES",
    "T_OVER_SEEDS",
    "Array",
    "ExactTest",
    "Interval",
    "area_by_cost",
    "area_by_fraction",
    "area_by_steps",
    "average_by_seed",
    "bounded_t_interval",
    "effective_n",
    "hierarchical_bootstrap",
    "holm",
    "improvement_interval",
    "improvement_of_runs",
    "interquartile_mean",
    "iqm_interval",
    "iqm_of_runs",
    "minimum_detectable_effect",
    "performance_profile",
    "permutation_test",
    "power_of_t",
    "probability_of_improvement",
    "profile_band",
    "range_interval",
    "rate_interval",
    "sign_flip_test",
    "smallest_permutation_p",
    "smallest_sign_flip_p",
    "stratified_bootstrap",
    "t_interval",
    "t_quantile",
    "t_test_p",
    "wilson",
]
