"""Every row minus the row that it is an ablation of, paired by seed and task, with what was changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import stats
from analysis.cells import ALL, Cell, Metric
from analysis.compare import reference_lines
from analysis.figures.overall import whisker, word
from analysis.figures.sources import Array, Sources, interval_note
from analysis.figures.style import INK, SMALL, SMALL_DOTS, SOFT, Drawn, finish, grid, per_cent, sheet, slug
from analysis.plan import Line
from analysis.text import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 2
LETTERS = 46  # of the text that says what a row changes


def draw(sources: Sources) -> Iterator[Drawn]:
    """One figure per setting that has rows with a base."""
    for first, lines in sources.settings:
        name = slug("ablation", *sources.about(first))
        based = [i for i in lines if sources.records.lines[i].base is not None]
        cells = sources.tables.versus_base
        if not based:
            yield Drawn(name, None, "no row of this setting names a base row in the plan")
            continue
        panels = sorted({place.rpartition("/")[0] for i in based for place in sources.measurements.places[i]})
        if not any(cells[key].interval is not None for key in cells if key[0].setting == first.setting):
            yield Drawn(name, None, "no row has a seed in common with its base row on any panel")
        else:
            yield _figure(sources, name, " · ".join(sources.about(first)), based, panels)


def _figure(sources: Sources, name: str, setting: str, lines: Sequence[int], panels: Sequence[str]) -> Drawn:
    places = sources.measurements.places
    rows = [(i, s) for i in lines for s in sorted({place.rpartition("/")[2] for place in places[i]})]
    across = min(COLUMNS, len(panels))
    down = math.ceil(len(panels) / across)
    figure = sheet(down * (0.6 + 0.4 * len(rows)) + 0.2)
    frames = figure.subplots(down, across, squeeze=False, sharex=True)
    labels = [_label(sources, i, f"{panels[0]}/{skills}") for i, skills in rows]
    counts: list[int] = []
    reach = 0.02
    for index, axes in enumerate(frames.flat):
        if index >= len(panels):
            axes.set_visible(False)
            continue
        for height, (line, skills) in enumerate(rows):
            cell = _cell(sources, line, f"{panels[index]}/{skills}")
            points = seed_differences(sources, line, f"{panels[index]}/{skills}")
            reach = max([reach, *_difference(axes, height, cell, points, sources.measurements.planned[line])])
            counts.append(cell.n_seeds if cell is not None else 0)
        axes.set_title(f"{panels[index]} tasks")
        axes.set_yticks(range(len(rows)), labels if index % across == 0 else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.axvline(0, color=SOFT, linewidth=0.8)
        axes.tick_params(axis="y", length=0)
        if index + across >= len(panels):
            axes.set_xlabel("difference to the base row, micro, points")
            axes.tick_params(labelbottom=True)
        grid(axes, "x")
        per_cent(axes, "x")
    frames[0, 0].set_xlim(-min(1.0, 1.08 * reach), min(1.0, 1.08 * reach))
    notes = [
        "Success minus the base row's on the same seeds and tasks: mean, interval, seeds as circles; beside it the "
        "mean and seeds used/planned. Filled: the t interval over seeds and the bootstrap over seeds and tasks both "
        f"exclude zero; open: not both do, or (‡) the prompt differs too. {interval_note(counts, 'Whiskers')} "
        "p values, adjusted by Holm, stand in the tables.",
        "Arrows: the interval goes on, beyond what a difference can be." if reach > 1 else "",
        "Dashed whiskers: bootstrap over tasks alone, because there is one seed or all seeds differ alike."
        if _dashed(sources, rows, panels)
        else "",
        *sources.legend_notes(labels),
        *sources.troubles(lines, [place for i in lines for place in places[i]]),
    ]
    return finish(figure, sources.title("differences to the base row", setting), notes, name, _handles())


def _cell(sources: Sources, line: int, place: str) -> Cell | None:
    return sources.tables.versus_base.get((sources.records.lines[line], place, Metric.DIFFERENCE_MICRO, ALL))


def _dashed(sources: Sources, rows: Sequence[tuple[int, str]], panels: Sequence[str]) -> bool:
    cells = [_cell(sources, line, f"{panel}/{skills}") for line, skills in rows for panel in panels]
    kinds = {cell.interval.kind for cell in cells if cell is not None and cell.interval is not None}
    return bool(kinds & {stats.EVALUATION_ONE_SEED, stats.EVALUATION_EQUAL_SEEDS})


def _label(sources: Sources, line: int, place: str) -> str:
    """Name, base, and what is changed, on two lines."""
    here = sources.records.lines[line]
    base = next((other.label for other in sources.records.lines if other.row == here.base), here.base)
    return f"{sources.label(line, place)} − {base}\n{changes(here)}".rstrip()


def changes(line: Line) -> str:
    """`weight_step: 1 → 0`, shortened; the key without what all keys share."""
    parts = [f"{key.rpartition('.')[2]}: {_value(a)} → {_value(b)}" for key, (a, b) in line.changed.items()]
    if not parts:
        return ""
    text = parts[0]
    for shown, part in enumerate(parts[1:], 1):
        if len(text) + len(part) + 2 > LETTERS:
            return f"{text}, {len(parts) - shown} more"
        text = f"{text}, {part}"
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def _value(value: Any) -> str:
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 14 else f"{text[:13]}…"


def seed_differences(sources: Sources, line: int, place: str) -> Array:
    """Micro difference to the base row of each common seed [S] over common tasks; empty if there is none."""
    here = sources.records.lines[line]
    other = reference_lines(sources.records.lines, here.base or "").get(here.setting)
    mine = sources.measurements.found.get((line, place))
    theirs = sources.measurements.found.get((other, place)) if other is not None else None
    if mine is None or theirs is None:
        return np.empty(0)
    _, a, b = np.intersect1d(mine.seeds, theirs.seeds, return_indices=True)
    _, i, j = np.intersect1d(mine.tasks, theirs.tasks, return_indices=True)
    if not (a.size and i.size):
        return np.empty(0)
    table = mine.success[np.ix_(a, i)] - theirs.success[np.ix_(b, j)]
    return stats.average_by_seed(table, mine.types[i], macro=False)


def _difference(axes: Axes, height: float, cell: Cell | None, points: Array, planned: int) -> list[float]:
    """Draws one row; returns how far it reaches from zero."""
    if cell is None:
        word(axes, height, "not evaluated here", middle=True)
        return []
    if cell.interval is None:
        word(axes, height, cell.note or cell.status.value, middle=True)
        return []
    interval = cell.interval
    whisker(axes, height, interval, 1.0)
    fill = INK if cell.significant else "white"
    axes.plot(interval.value, height, marker="D", markersize=5, color=INK, markerfacecolor=fill, zorder=4)
    known = points[np.isfinite(points)]
    axes.plot(known, [height + 0.25] * known.size, zorder=3, **SMALL_DOTS)
    text = f"{number(interval.value, 'points', signed=True)}  {interval.n}/{planned}{' ‡' if cell.note else ''}"
    axes.text(1.04, height, text, transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL)
    return [abs(x) for x in (interval.value, interval.lo, interval.hi, *known.tolist()) if math.isfinite(x)]


def _handles() -> list[Any]:
    from matplotlib.lines import Line2D

    shape: dict[str, Any] = {"color": INK, "marker": "D", "markersize": 5, "linewidth": 1.1}
    return [
        Line2D([], [], label="both intervals exclude zero", **shape),
        Line2D([], [], label="not both, or the prompt differs (‡)", markerfacecolor="white", **shape),
    ]
