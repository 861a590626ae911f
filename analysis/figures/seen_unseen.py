"""The same checkpoints on seen and on other tasks, unseen ones and held-out types: every seed on both, and the gap."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import stats
from analysis.evaluations import refused
from analysis.figures.overall import whisker, word
from analysis.figures.sources import Array, Sources, interval_note
from analysis.figures.style import (
    INK,
    SMALL,
    SMALL_DOTS,
    SOFT,
    Drawn,
    finish,
    grid,
    looks,
    per_cent,
    sheet,
    slug,
    spread,
)
from analysis.text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEEN, UNSEEN, HELD_OUT = "seen", "unseen", "held_out"


@dataclass(frozen=True)
class Gap:
    """One row. seen, other [S]: micro success of the seeds that have both; why_not: why there is no number."""

    line: int
    skills: str
    seen: Array
    other: Array
    why_not: str = ""

    @property
    def interval(self) -> stats.Interval:
        """Seen minus the other, mean over seeds with the t interval."""
        return stats.t_interval(self.seen - self.other)


def draw(sources: Sources) -> Iterator[Drawn]:
    """One figure per setting and pair of panels; of held-out types only where a row is evaluated on them."""
    for first, lines in sources.settings:
        for other in (UNSEEN, HELD_OUT):
            name = slug(f"{SEEN}_{other}", *sources.about(first))
            rows = [gap for line in lines for gap in gaps(sources, line, other)]
            if any(row.seen.size for row in rows):
                yield _figure(sources, name, " · ".join(sources.about(first)), lines, rows, other)
            elif rows:
                yield Drawn(name, None, f"no seed has usable evaluations on both {SEEN} and {other} tasks")
            elif other == UNSEEN:
                yield Drawn(name, None, f"no row of this setting is evaluated on both {SEEN} and {other} tasks")


def gaps(sources: Sources, line: int, other: str = UNSEEN) -> Iterator[Gap]:
    """Rows of a line: without and with skills in the prompt, as far as both panels are planned."""
    places = set(sources.measurements.places[line])
    nothing = np.empty(0)
    for skills in sorted({place.rpartition("/")[2] for place in places}):
        pair = [f"{panel}/{skills}" for panel in (SEEN, other)]
        if not places.issuperset(pair):
            continue
        found = [sources.measurements.found.get((line, place)) for place in pair]
        states = [refused(sources.measurements.refusals, line, place) for place in pair]
        if found[0] is None or found[1] is None:
            why = next((state.value for state in states if state), "missing")
            yield Gap(line, skills, nothing, nothing, why)
            continue
        values = [
            dict(zip(e.seeds.tolist(), stats.average_by_seed(e.success, e.types, macro=False), strict=True))
            for e in found
            if e is not None
        ]
        seeds = [s for s in sorted(values[0]) if s in values[1] and np.isfinite([values[0][s], values[1][s]]).all()]
        why = "" if seeds else "no seed with both"
        ours, others = (np.array([by_seed[s] for s in seeds]) for by_seed in values)
        yield Gap(line, skills, ours, others, why)


def _figure(sources: Sources, name: str, setting: str, lines: Sequence[int], rows: Sequence[Gap], other: str) -> Drawn:
    figure = sheet(0.75 + 0.36 * len(rows))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.35, 1))
    labels = [sources.label(row.line, f"{SEEN}/{row.skills}") for row in rows]
    ends = [abs(x) for row in rows if row.seen.size for x in _ends(row)]
    reach = min(1.0, 1.1 * max([0.02, *ends]))
    for height, row in enumerate(rows):
        planned = sources.measurements.planned[row.line]
        if not row.seen.size:
            word(left, height, f"{row.why_not} (0/{planned} seeds)")
            word(right, height, row.why_not, middle=True)
            continue
        _pairs(left, height, row, other)
        _gap(right, height, row, planned, reach)
    left.set(xlim=(0, 1), ylim=(len(rows) - 0.4, -0.6), xlabel="success, micro, %")
    left.set_yticks(range(len(rows)), labels)
    right.set_xlabel(f"{SEEN} − {other}, points")
    right.axvline(0, color=SOFT, linewidth=0.8)
    right.set_xlim(-reach, reach)
    for axes in (left, right):
        grid(axes, "x")
        per_cent(axes, "x")
        axes.tick_params(axis="y", length=0)
    counts = [row.seen.size for row in rows]
    beyond = " Arrows: the interval goes on, beyond what a gap can be." if max([0.0, *ends]) > 1 else ""
    notes = [
        f"Left: each line is one seed's checkpoint on {SEEN} (filled) and {other} (open) tasks. Right: the gap, "
        "paired by seed: mean, interval, seeds as circles; after it the mean and seeds used/planned. The two panels "
        f"hold different tasks, so nothing is paired by task.{beyond} {interval_note(counts, 'Whiskers')}",
        *sources.legend_notes(labels),
        *sources.troubles(lines, [f"{p}/{row.skills}" for p in (SEEN, other) for row in rows]),
    ]
    return finish(figure, sources.title(f"{SEEN} and {other} tasks", setting), notes, name, _handles(other))


def _ends(row: Gap) -> list[float]:
    interval = row.interval
    points = (row.seen - row.other).tolist()
    return [x for x in (interval.value, interval.lo, interval.hi, *points) if math.isfinite(x)]


def _style(panel: str) -> dict[str, Any]:
    look = looks()[1 if panel == SEEN else 2]
    fill = look.color if panel == SEEN else "white"
    return {
        "linestyle": "",
        "marker": look.marker,
        "clip_on": False,
        "color": look.color,
        "markerfacecolor": fill,
        "markersize": 4,
    }


def _pairs(axes: Axes, height: float, row: Gap, name: str) -> None:
    for offset, seen, other in zip(spread(row.seen.size, 0.22), row.seen, row.other, strict=True):
        axes.plot([seen, other], [height + offset] * 2, color=SOFT, linewidth=0.8, zorder=2)
        for panel, value in ((SEEN, seen), (name, other)):
            axes.plot(value, height + offset, zorder=3, **_style(panel))


def _gap(axes: Axes, height: float, row: Gap, planned: int, reach: float) -> None:
    interval = row.interval
    whisker(axes, height, interval, reach)
    axes.plot(interval.value, height, marker="D", markersize=4.5, color=INK, zorder=4)
    points = row.seen - row.other
    axes.plot(points, [height + 0.25] * points.size, zorder=3, **SMALL_DOTS)
    text = f"{number(interval.value, 'points', signed=True)}  {points.size}/{planned}"
    axes.text(1.04, height, text, transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL)


def _handles(other: str) -> list[Any]:
    from matplotlib.lines import Line2D

    found = [Line2D([], [], label=f"{panel} tasks", **_style(panel)) for panel in (SEEN, other)]
    gap = Line2D([], [], color=INK, marker="D", markersize=4.5, label="mean gap with 95 % interval")
    return [*found, gap]
