"""Success of every row on every panel: bars with the intervals of the tables and one point per seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import stats
from analysis.cells import ALL, Metric
from analysis.figures.sources import Array, Sources, interval_note
from analysis.figures.style import INK, SMALL, SOFT, Drawn, finish, grid, looks, per_cent, sheet, slug, spread
from analysis.tableset import seeds_text
from analysis.text import EVALUATION_ONLY, half_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = tuple[int, str]  # line, and whether skills are in its evaluation prompt
COLUMNS = 2


def draw(sources: Sources) -> Iterator[Drawn]:
    """One figure per setting."""
    for first, lines in sources.settings:
        panels = sorted({place.rpartition("/")[0] for i in lines for place in sources.measurements.places[i]})
        name = slug("overall", *sources.about(first))
        if not panels:
            yield Drawn(name, None, "no evaluation is declared or recorded")
        else:
            yield _figure(sources, name, " · ".join(sources.about(first)), lines, panels)


def _figure(sources: Sources, name: str, setting: str, lines: Sequence[int], panels: Sequence[str]) -> Drawn:
    places = sources.measurements.places
    rows: list[Row] = [
        (i, skills) for i in lines for skills in sorted({place.rpartition("/")[2] for place in places[i]})
    ]
    across = min(COLUMNS, len(panels))
    down = math.ceil(len(panels) / across)
    figure = sheet(down * (0.55 + 0.27 * len(rows)) + 0.6)
    frames = figure.subplots(down, across, squeeze=False, sharex=True)
    labels = [sources.label(i, _star_place(places[i], skills)) for i, skills in rows]
    counts: list[int] = []
    for number, axes in enumerate(frames.flat):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        counts += _panel(sources, axes, panels[number], rows)
        axes.set_title(f"{panels[number]} tasks")
        axes.set_yticks(range(len(rows)), labels if number % across == 0 else [""] * len(rows))
        if number + across >= len(panels):
            axes.set_xlabel("success, mean over tasks (micro), %")
            axes.tick_params(labelbottom=True)
    kinds = {cell.interval.kind for cell in sources.tables.success.values() if cell.interval is not None}
    evaluation_only = (
        "Dashed whiskers and ᵉ: evaluation-only, Wilson over the tasks, because there is one seed or all seeds gave "
        "one value; they say nothing about another seed."
    )
    notes = [
        f"Bars: mean over seeds; circles: seeds; after the bars: mean ± distance to the farther end of the interval, "
        f"seeds complete/planned, ! for a warning. {interval_note(counts, 'Whiskers')}",
        "Score: mean grade of the results, from 0 to 100, with the distance to the farther end of its t interval."
        if sources.tables.scored(sources.records.lines[lines[0]].env)
        else "",
        evaluation_only if kinds & set(EVALUATION_ONLY) else "",
        *sources.legend_notes(labels),
        *sources.troubles(lines, [place for i in lines for place in places[i]]),
    ]
    title = sources.title("success on the evaluation panels", setting)
    return finish(figure, title, notes, name, _handles(sources, lines))


def _star_place(places: Sequence[str], skills: str) -> str:
    return next((place for place in places if place.rpartition("/")[2] == skills), f"/{skills}")


def _panel(sources: Sources, axes: Axes, panel: str, rows: Sequence[Row]) -> list[int]:
    """Returns the seeds behind each bar."""
    colors = _colors()
    counts = []
    reference = sources.reference_of([i for i, _ in rows])
    for height, (number, skills) in enumerate(rows):
        line = sources.records.lines[number]
        place = f"{panel}/{skills}"
        cell = sources.tables.success.get((line, place, Metric.MICRO, ALL))
        if cell is None:
            word(axes, height, "not evaluated here")
            continue
        told = seeds_text(sources.tables, cell)
        score = sources.tables.success.get((line, place, Metric.SCORE, ALL))
        if cell.interval is None:
            word(axes, height, f"{cell.status.value}, seeds: {told}")
            continue
        color, hatch = colors.get(line.kind, colors["method"])
        axes.barh(height, cell.interval.value, 0.68, color=color, hatch=hatch, edgecolor=INK, linewidth=0.5, zorder=2)
        whisker(axes, height, cell.interval)
        values = seed_values(sources, number, place)
        axes.plot(values, [height + d for d in spread(values.size, 0.22)], **_DOTS)
        axes.text(
            1.04,
            height,
            f"{half_width(cell)}  {told}{f'  score {half_width(score)}' if score else ''}",
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=SMALL,
        )
        counts.append(cell.interval.n)
        if number == reference and skills == "off":
            axes.axvline(cell.interval.value, color=SOFT, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    grid(axes, "x")
    per_cent(axes, "x")
    axes.set(xlim=(0, 1), ylim=(len(rows) - 0.4, -0.6))
    axes.tick_params(axis="y", length=0)
    return counts


_DOTS: dict[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "markersize": 3,
    "markerfacecolor": "white",
    "color": INK,
    "zorder": 4,
}


def word(axes: Axes, height: float, text: str, middle: bool = False) -> None:
    """Words where there is no number, at the left or in the middle of a row."""
    x = 0.5 if middle else 0.01
    align = "center" if middle else "left"
    place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "ha": align}
    axes.text(x, height, text, fontsize=SMALL, color=INK, style="italic", **place)


def whisker(axes: Axes, height: float, interval: stats.Interval, limit: float = math.inf) -> None:
    """Nothing where there are no bounds; dashed where they say nothing about another seed.

    limit: of the axis; an end beyond ±limit is an arrow there.
    """
    if math.isnan(interval.lo):
        return
    style = (0, (2, 1.5)) if interval.kind in EVALUATION_ONLY else "-"
    ends = [min(limit, max(-limit, end)) for end in (interval.lo, interval.hi)]
    axes.plot(ends, [height] * 2, color=INK, linewidth=1.1, linestyle=style, zorder=3)
    for end, true, arrow in zip(ends, (interval.lo, interval.hi), "<>", strict=True):
        if end != true:
            axes.plot(end, height, marker=arrow, markersize=5, color=INK, zorder=3, clip_on=False)
            continue
        axes.plot([end] * 2, [height - 0.16, height + 0.16], color=INK, linewidth=1.1, zorder=3)


def seed_values(sources: Sources, line: int, place: str) -> Array:
    """Micro success of each seed [S] of a usable evaluation; empty if there is none."""
    evaluation = sources.measurements.found.get((line, place))
    if evaluation is None:
        return np.empty(0)
    values = stats.average_by_seed(evaluation.success, evaluation.types, macro=False)
    return values[np.isfinite(values)]


def _colors() -> dict[str, tuple[str, str]]:
    """Kind of row -> colour and hatch."""
    found = looks()
    return {"baseline": ("#bdbdbd", ""), "control": (found[5].color, "////"), "method": (found[1].color, "")}


def _handles(sources: Sources, lines: Sequence[int]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colors = _colors()
    kinds = [kind for kind in colors if any(sources.records.lines[i].kind == kind for i in lines)]
    handles: list[Any] = [
        Patch(facecolor=colors[kind][0], hatch=colors[kind][1], edgecolor=INK, linewidth=0.5, label=kind)
        for kind in kinds
    ]
    reference = sources.reference_of(lines)
    if reference is not None:
        style = (0, (4, 2))
        handles.append(Line2D([], [], color=SOFT, linewidth=0.8, linestyle=style, label=sources.label(reference)))
    return handles
