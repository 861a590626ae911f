"""Curves of several seeds: means over blocks of steps or of time, and their band over seeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.figures.sources import SPENT, Array, Run, Sources
from analysis.figures.style import SMALL, SOFT, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 15  # of a curve, at most: more are noise at this size


@dataclass(frozen=True)
class Band:
    """One line's mean over seeds. x, mean, lo, hi [B]; NaN where not every run has a value, lo and hi with one seed."""

    x: Array
    mean: Array
    lo: Array
    hi: Array
    n: int


def block_size(runs: Iterable[Run], points: int = POINTS) -> int:
    """Training steps of one point, so that the longest run has at most `points`."""
    longest = max((int(run.steps[-1]) for run in runs), default=1)
    return max(1, -(-longest // points))


def by_steps(run: Run, name: str, size: int) -> tuple[Array, Array]:
    """Means over blocks of `size` steps: middle of each block [B], and mean of what was recorded in it (NaN: nothing).

    The last block may be shorter.
    """
    values = run.series(name)
    block = (run.steps - 1) // size
    count = int(block[-1]) + 1
    known = np.isfinite(values)
    sums = np.bincount(block[known], values[known], minlength=count)
    numbers = np.bincount(block[known], minlength=count)
    with np.errstate(invalid="ignore"):
        means = np.where(numbers > 0, sums / np.where(numbers > 0, numbers, 1), np.nan)
    first = np.arange(count) * size + 1
    last = np.minimum(first + size - 1, int(run.steps[-1]))
    return (first + last) / 2, means


def by_time(run: Run, name: str, edges: Array) -> tuple[Array, Array]:
    """Means over slices of a run's time, edges [B + 1] in seconds, where a value holds while its step is paid for.

    Nothing is interpolated, and nothing extrapolated: a slice that is not wholly paid for, or touches a step without a
    value, is NaN.
    """
    ends, values = run.series(SPENT), run.series(name)
    starts = np.concatenate([[0.0], ends[:-1]])
    means = np.full(edges.size - 1, np.nan)
    for slot, (low, high) in enumerate(itertools.pairwise(edges.tolist())):
        share = np.clip(np.minimum(ends, high) - np.maximum(starts, low), 0.0, None)
        used = share > 0
        if high <= ends[-1] * (1 + 1e-12) and used.any():
            means[slot] = float(values[used] @ share[used] / share[used].sum())
    return (edges[:-1] + edges[1:]) / 2, means


def band(x: Sequence[Array], values: Sequence[Array], share: bool) -> Band | None:
    """Mean and 95 % t interval over seeds at each point [B] that all runs have. share: clip the band to [0, 1]."""
    if not values:
        return None
    length = min(each.size for each in values)
    table = np.array([each[:length] for each in values])
    mean = table.mean(axis=0)
    lo = hi = np.full(length, np.nan)
    if len(table) > 1:
        half = stats.t_quantile(len(table) - 1) * table.std(axis=0, ddof=1) / np.sqrt(len(table))
        lo, hi = mean - half, mean + half
        if share:
            lo, hi = np.clip(lo, 0, 1), np.clip(hi, 0, 1)
    return Band(min(x, key=lambda each: each.size)[:length], mean, lo, hi, len(table))


def of_line(
    runs: Sequence[Run], name: str, blocks: Callable[[Run, str], tuple[Array, Array]], share: bool
) -> Band | None:
    """Band of the runs that count and record `name`; None if there is none."""
    found = [blocks(run, name) for run in runs if not run.why_not and run.has(name)]
    made = band([x for x, _ in found], [y for _, y in found], share)
    return made if made is not None and np.isfinite(made.mean).any() else None


def plot(axes: Axes, made: Band, look: Look, **changes: Any) -> None:
    """Line with markers, and its band."""
    style = {**look.line, "markeredgewidth": 0, **changes}
    axes.plot(made.x, made.mean, zorder=3, **style)
    if np.isfinite(made.lo).any():
        axes.fill_between(made.x, made.lo, made.hi, color=style["color"], alpha=0.14, linewidth=0, zorder=2)
        for edge in (made.lo, made.hi):
            axes.plot(made.x, edge, color=style["color"], linewidth=0.45, linestyle=style["linestyle"], zorder=2)


def plot_left_out(axes: Axes, x: Array, y: Array, look: Look) -> None:
    """A run that is in no mean: thin, with a cross where its records end."""
    known = np.flatnonzero(np.isfinite(y))
    if known.size:
        axes.plot(x, y, color=look.color, linewidth=0.7, linestyle=(0, (1, 1)), zorder=1)
        axes.plot(
            x[known[-1]], y[known[-1]], color=look.color, marker="x", markersize=6.5, markeredgewidth=1.4, zorder=5
        )


def say_if_empty(axes: Axes, metric: str) -> None:
    """Words in a frame to which no run had anything to add."""
    if not axes.lines:
        say(axes, f"{metric} is not recorded")


def say(axes: Axes, text: str) -> None:
    """Words in the middle of an empty frame."""
    where: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, text, fontsize=SMALL, style="italic", **where)


def chunks(sources: Sources, lines: Sequence[int], size: int) -> list[list[int]]:
    """Groups of lines to be drawn into one figure; the reference row is the first of every group."""
    reference = sources.reference_of(lines)
    others = [line for line in lines if line != reference]
    room = size - (reference is not None)
    groups = [others[i : i + room] for i in range(0, len(others), room)] or [[]]
    return [[*([] if reference is None else [reference]), *group] for group in groups if group or reference is not None]


def seeds_label(sources: Sources, line: int, used: int) -> str:
    """`OPID (2/3 seeds)`"""
    planned = sources.measurements.planned[line]
    return f"{sources.label(line)} ({used}/{planned} {'seed' if planned == 1 else 'seeds'})"


def handle(look: Look, label: str) -> Any:
    """Entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, markeredgewidth=0, **look.line)


def left_out_handle() -> Any:
    """Entry of a legend for plot_left_out."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=SOFT, linewidth=0.7, linestyle=(0, (1, 1)), marker="x", label="run in no mean")


def left_out_note(sources: Sources, runs: Iterable[Run]) -> str:
    """`In no mean, dotted up to a cross: OPID seed 2: failed at step 7 of 12.`"""
    named = [
        f"{sources.records.lines[run.line].label} seed {run.seed}: {run.why_not.replace('_', ' ')}"
        for run in runs
        if run.why_not
    ]
    return f"In no mean, dotted up to a cross: {'; '.join(named)}." if named else ""


def edges_of(runs: Sequence[Run]) -> NDArray[np.float64] | None:
    """Slices of time from 0 to what every counted run of a line paid; None if that is not known."""
    paid = [float(run.series(SPENT)[-1]) for run in runs if not run.why_not]
    if not paid or not np.isfinite(paid).all() or min(paid) <= 0:
        return None
    count = min(POINTS, min(run.steps.size for run in runs if not run.why_not))
    return np.linspace(0.0, min(paid), count + 1)
