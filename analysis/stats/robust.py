"""Aggregates over many settings (environments x task types), after Agarwal et al. 2021 (arXiv:2108.13264).

Scores are [R, M]: one row per run (a training seed), one column per setting. Runs of different settings are not paired:
resampling draws runs anew within each setting (stratified). Trim seed-level means, never single episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from analysis.stats.basics import BOOTSTRAP_RUNS, LEVEL, NO_INTERVAL, RESAMPLES, Array, Interval

MIN_RUNS = 3  # with fewer runs a setting has no distribution to speak of


def _scores(scores: ArrayLike, what: str) -> Array:
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"{what}: scores must be [runs, settings], got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{what}: {np.count_nonzero(~np.isfinite(array))} of {array.size} scores are NaN or infinite")
    return array


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of all scores [R, M] without their lowest and highest quarter (each rounded down to whole scores)."""
    flat = np.sort(_scores(scores, "interquartile_mean"), axis=None)
    cut = flat.size // 4
    return float(flat[cut : flat.size - cut].mean())


def stratified_bootstrap(
    scores: ArrayLike,
    statistic: Callable[[Array], float],
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Percentile interval of any statistic of scores [R, M], runs drawn anew within each setting.

    Raises ValueError for fewer than three runs: then nothing is known of how runs vary.
    """
    data = _scores(scores, "stratified_bootstrap")
    runs, settings = data.shape
    if runs < MIN_RUNS:
        raise ValueError(f"stratified_bootstrap: {runs} runs per setting; at least {MIN_RUNS} are needed")
    rng = np.random.default_rng([seed, resamples, runs, settings])
    drawn = rng.integers(0, runs, size=(resamples, runs, settings))
    columns = np.arange(settings)
    values = np.array([statistic(data[rows, columns]) for rows in drawn])
    lo, hi = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(statistic(data), float(lo), float(hi), BOOTSTRAP_RUNS, runs)


def iqm_interval(scores: ArrayLike, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Interquartile mean of scores [R, M] with its stratified bootstrap; no bounds with fewer than three runs."""
    data = _scores(scores, "iqm_interval")
    if data.shape[0] < MIN_RUNS:
        return Interval(interquartile_mean(data), float("nan"), float("nan"), NO_INTERVAL, data.shape[0])
    return stratified_bootstrap(data, interquartile_mean, level, resamples, seed)


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> Array:
    """Share of runs (of all settings) whose score is above each threshold [K]. Falls from left to right."""
    data = _scores(scores, "performance_profile").ravel()
    limits = np.asarray(thresholds, dtype=np.float64).ravel()
    above: Array = (data[None, :] > limits[:, None]).mean(axis=1)
    return above


def profile_band(
    scores: ArrayLike, thresholds: ArrayLike, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Array, Array]:
    """Lower and upper bound [K] of a performance profile at each threshold by itself (stratified bootstrap)."""
    data = _scores(scores, "profile_band")
    runs, settings = data.shape
    if runs < MIN_RUNS:
        raise ValueError(f"profile_band: {runs} runs per setting; at least {MIN_RUNS} are needed")
    above = data[:, :, None] > np.asarray(thresholds, dtype=np.float64).ravel()  # [R, M, K]
    rng = np.random.default_rng([seed, resamples, runs, settings])
    counts = rng.multinomial(runs, np.full(runs, 1 / runs), size=(resamples, settings)).astype(np.float64)  # [B, M, R]
    profiles = np.einsum("bmr,rmk->bk", counts, above.astype(np.float64)) / (runs * settings)
    lo, hi = np.quantile(profiles, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return lo, hi


def probability_of_improvement(first: ArrayLike, second: ArrayLike) -> float:
    """Mean over settings of P(a run of `first` beats a run of `second`), ties counted half.

    first [R1, M], second [R2, M]: the same settings in the same order.
    """
    a, b = _scores(first, "probability_of_improvement"), _scores(second, "probability_of_improvement")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"probability_of_improvement: {a.shape[1]} settings against {b.shape[1]}")
    signs = np.sign(a[:, None, :] - b[None, :, :])
    return float((0.5 + 0.5 * signs).mean())


def improvement_interval(
    first: ArrayLike, second: ArrayLike, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Probability of improvement with its stratified bootstrap; no bounds with fewer than three runs on either side."""
    a, b = _scores(first, "improvement_interval"), _scores(second, "improvement_interval")
    value, runs = probability_of_improvement(a, b), min(a.shape[0], b.shape[0])
    if runs < MIN_RUNS:
        return Interval(value, float("nan"), float("nan"), NO_INTERVAL, runs)
    wins = 0.5 + 0.5 * np.sign(a[:, None, :] - b[None, :, :])  # [R1, R2, M]
    rng = np.random.default_rng([seed, resamples, *a.shape, b.shape[0]])
    settings = a.shape[1]
    counts = [
        rng.multinomial(n, np.full(n, 1 / n), size=(resamples, settings)).astype(np.float64) / n
        for n in (a.shape[0], b.shape[0])
    ]
    values = np.einsum("bmi,bmj,ijm->b", counts[0], counts[1], wins, optimize=True) / settings
    values = np.clip(values, 0.0, 1.0)  # rounding
    lo, hi = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(lo), float(hi), BOOTSTRAP_RUNS, runs)


# ---------------------------------------------------------------------------------------------- runs drawn whole
def _drawn_runs(runs: int, rng: np.random.Generator, resamples: int) -> Array:
    """[resamples, runs]: how often each run is drawn."""
    drawn = rng.integers(0, runs, size=(resamples, runs)) + np.arange(resamples)[:, None] * runs
    return np.bincount(drawn.ravel(), minlength=resamples * runs).reshape(resamples, runs).astype(np.float64)


def iqm_of_runs(
    tables: Sequence[ArrayLike], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Interquartile mean over everything in tables [S_e, M_e] (one per environment: runs x task types).

    Unlike `iqm_interval`, a drawn run brings all its task types: those of one run are not independent of each other.
    No bounds with fewer than three runs anywhere.
    """
    data = [_scores(table, "iqm_of_runs") for table in tables]
    flat = np.concatenate([table.ravel() for table in data])
    value, runs = interquartile_mean(flat[None]), min(table.shape[0] for table in data)
    if runs < MIN_RUNS:
        return Interval(value, float("nan"), float("nan"), NO_INTERVAL, runs)
    rng = np.random.default_rng([seed, resamples])
    counts = np.concatenate(
        [np.repeat(_drawn_runs(table.shape[0], rng, resamples), table.shape[1], axis=1) for table in data], axis=1
    )
    order, cut = np.argsort(flat, kind="stable"), flat.size // 4
    values = np.empty(resamples)
    for rows in np.array_split(np.arange(resamples), max(1, counts.size // 2_000_000)):  # memory
        below = np.cumsum(counts[np.ix_(rows, order)], axis=1)  # as many scores of the sorted resample
        kept = np.diff(np.clip(below, cut, flat.size - cut), axis=1, prepend=cut)
        values[rows] = kept @ flat[order] / (flat.size - 2 * cut)
    lo, hi = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(lo), float(hi), BOOTSTRAP_RUNS, runs)


def improvement_of_runs(
    first: Sequence[ArrayLike],
    second: Sequence[ArrayLike],
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """`improvement_interval` with runs drawn whole; first, second: one table [runs, task types] per environment."""
    a = [_scores(table, "improvement_of_runs") for table in first]
    b = [_scores(table, "improvement_of_runs") for table in second]
    if [table.shape[1] for table in a] != [table.shape[1] for table in b]:
        raise ValueError("improvement_of_runs: the two sides differ in their task types")
    total = sum(table.shape[1] for table in a)
    runs = min(table.shape[0] for table in (*a, *b))
    rng = np.random.default_rng([seed, resamples])
    value, values = 0.0, np.zeros(resamples)
    for mine, theirs in zip(a, b, strict=True):
        share = mine.shape[1] / total
        wins = np.mean([0.5 + 0.5 * np.sign(x[:, None] - y[None, :]) for x, y in zip(mine.T, theirs.T, strict=True)], 0)
        value += share * float(wins.mean())
        if runs >= MIN_RUNS:
            mine_drawn, theirs_drawn = (_drawn_runs(table.shape[0], rng, resamples) for table in (mine, theirs))
            values += share * ((mine_drawn @ wins) * theirs_drawn).sum(axis=1) / wins.size
    if runs < MIN_RUNS:
        return Interval(value, float("nan"), float("nan"), NO_INTERVAL, runs)
    lo, hi = np.quantile(np.clip(values, 0.0, 1.0), [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(lo), float(hi), BOOTSTRAP_RUNS, runs)
