"""How large a difference must be to be found: power of t tests over seeds, with t and not with z."""

from __future__ import annotations

import math

from scipy import integrate, optimize, special, stats

ALPHA, POWER = 0.05, 0.8


def power_of_t(effect: float, sd: float, n: int, paired: bool, alpha: float = ALPHA) -> float:
    """Probability that a two-sided t test over seeds finds a true difference `effect`.

    sd: of the seeds of either group (paired: of the difference per seed), in the unit of effect; n: seeds per group
    """
    if sd <= 0 or n < 2:
        raise ValueError(f"power_of_t: needs sd > 0 and at least two seeds, got sd={sd}, n={n}")
    freedom = n - 1 if paired else 2 * (n - 1)
    shift = effect / (sd * math.sqrt((1 if paired else 2) / n))
    limit = float(special.stdtrit(freedom, 1 - alpha / 2))

    def beyond(spread: float) -> float:
        """Density of the estimated sd (over the true one), times P(|t| > limit) if it is estimated so."""
        found = special.ndtr(shift - limit * spread) + special.ndtr(-shift - limit * spread)
        return float(found * stats.chi.pdf(spread * math.sqrt(freedom), freedom) * math.sqrt(freedom))

    # scipy's noncentral t is NaN for some arguments of this size; the integral over the estimated sd never is.
    return float(integrate.quad(beyond, 0.0, 1.0)[0] + integrate.quad(beyond, 1.0, math.inf)[0])


def minimum_detectable_effect(
    sd: float, n: int, paired: bool = False, power: float = POWER, alpha: float = ALPHA
) -> float:
    """Smallest true difference that a two-sided t test over n seeds (per group) finds with this power.

    sd: as in power_of_t. Same unit as sd. Raises ValueError for fewer than two seeds or a power that is no share.
    """
    if not alpha < power < 1:
        raise ValueError(f"minimum_detectable_effect: power must lie between alpha={alpha} and 1, got {power}")
    if sd == 0:
        return 0.0
    unit = sd * math.sqrt((1 if paired else 2) / max(n, 1))
    end = unit
    while power_of_t(end, sd, n, paired, alpha) < power:
        end *= 1.5
    found = optimize.brentq(lambda e: power_of_t(e, sd, n, paired, alpha) - power, 0.0, end, xtol=1e-9 * unit)
    return float(found)
