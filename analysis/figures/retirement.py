"""When teachers were retired: the gap K by window, success on the validation panel, and the weight lambda, by seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.curves import PLACE
from analysis.figures.sources import GAP, VALIDATION, WEIGHT, WINDOW_GAP, Run, Sources
from analysis.figures.style import INK, SMALL, SOFT, Drawn, Look, finish, grid, looks, per_cent, sheet, slug
from analysis.retirement import Retirement
from analysis.text import listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOGETHER = 3  # rows of the table in one figure, a column each


def draw(sources: Sources) -> Iterator[Drawn]:
    """One figure per setting and group of rows with a teacher of other weights."""
    for first, lines in sources.settings:
        name = slug("retirement", *sources.about(first))
        taught = [i for i in lines if sources.tables.retired.get(i)]
        if not taught:
            yield Drawn(name, None, "no run of this setting has a teacher of other weights or says that it retired one")
            continue
        groups = [taught[i : i + TOGETHER] for i in range(0, len(taught), TOGETHER)]
        for number, group in enumerate(groups, 1):
            part = f" ({number} of {len(groups)})" if len(groups) > 1 else ""
            title = sources.title(f"retirement of the teacher{part}", " · ".join(sources.about(first)))
            yield _figure(sources, slug(name, number if part else ""), title, group)


def _figure(sources: Sources, name: str, title: str, lines: Sequence[int]) -> Drawn:
    figure = sheet(4.8, width=7.0 if len(lines) > 1 else 4.6)
    frames = figure.subplots(3, len(lines), squeeze=False, sharex=True, sharey="row")
    seeds = sorted({run.seed for line in lines for run in sources.tables.retired[line]})
    look = {seed: looks()[1:][i % (len(looks()) - 1)] for i, seed in enumerate(seeds)}
    for column, line in enumerate(lines):
        runs = {run.cell: run for run in sources.runs_of(line)}
        retired = sources.tables.retired[line]
        _windows(list(frames[:, column]), list(runs.values()))
        for row in retired:
            if row.cell in runs:
                _run(list(frames[:, column]), runs[row.cell], row, look[row.seed])
        _when(frames[0, column], retired, look)
        frames[0, column].set_title(sources.label(line))
        frames[-1, column].set_xlabel("training steps")
        frames[-1, column].set_xlim(left=0)
    for axes, label in zip(frames[:, 0], ("gap K, nats", "validation success, %", "weight λ"), strict=True):
        axes.set_ylabel(label)
    for axes in frames.flat:
        grid(axes)
    for axes in frames[1]:
        per_cent(axes)
    frames[1, 0].set_ylim(0, 1)
    frames[2, 0].set_ylim(bottom=0)
    notes = [
        "One colour, line style and marker per seed; nothing is averaged. K: mean gap between the policy and its "
        "teacher over the scored tokens; faint: of every step, bars: mean of a window, where the run records windows "
        "(shaded in turn). Success: of the policy on the validation panel; horizontal: its teacher's, with skills. "
        "Vertical, with ▼: the last step with the teacher.",
        _missing(sources, lines),
        *sources.troubles(lines, [PLACE]),
    ]
    return finish(figure, title, notes, name, _handles(look), columns=5 if len(lines) > 1 else 3)


def _windows(column: Sequence[Axes], runs: Sequence[Run]) -> None:
    """Every other window in grey: windows end where a window's mean, or else a validation, was recorded."""
    ends: set[int] = set()
    for run in runs:
        metric = WINDOW_GAP if run.has(WINDOW_GAP) else VALIDATION
        ends.update(run.steps[np.isfinite(run.series(metric))].tolist())
    bounds = [0, *sorted(ends)]
    for low, high in list(itertools.pairwise(bounds))[::2]:
        for axes in column:
            axes.axvspan(low + 0.5, high + 0.5, color="#f0f0f0", linewidth=0, zorder=0)


def _run(column: Sequence[Axes], run: Run, row: Retirement, look: Look) -> None:
    gap, success, weight = column
    steps = run.steps
    style = {**look.line, "markeredgewidth": 0}
    gap.plot(steps, run.series(GAP), color=look.color, linewidth=0.8, alpha=0.45, zorder=2)
    ended = np.flatnonzero(np.isfinite(run.series(WINDOW_GAP)))
    start = 0
    for index in ended:
        value = run.series(WINDOW_GAP)[index]
        gap.plot([start + 0.5, steps[index] + 0.5], [value] * 2, zorder=3, **{**style, "marker": ""})
        gap.plot((start + steps[index] + 1) / 2, value, zorder=3, **style)
        start = int(steps[index])
    known = np.isfinite(run.series(VALIDATION))
    success.plot(steps[known], run.series(VALIDATION)[known], zorder=3, **style)
    if math.isfinite(row.teacher):
        success.axhline(row.teacher, color=look.color, linewidth=0.8, linestyle=style["linestyle"], zorder=1)
    weight.plot(steps, run.series(WEIGHT), drawstyle="steps-mid", zorder=3, **{**style, "marker": ""})
    if row.step is not None:
        for axes in column:
            axes.axvline(row.step + 0.5, color=look.color, linewidth=1, linestyle=style["linestyle"], zorder=2)
    if run.why_not:
        weight.plot(steps[-1], 0, marker="x", markersize=6, color=look.color, zorder=5, clip_on=False)


def _when(axes: Axes, retired: Sequence[Retirement], look: dict[int, Look]) -> None:
    """Marks at the upper edge; those of equal steps beside each other."""
    beside: dict[int, int] = {}
    for row in retired:
        if row.step is None:
            continue
        shift = beside[row.step] = beside.get(row.step, -1) + 1
        axes.annotate(
            "▼", (row.step + 0.5, 1), (5.5 * shift, 1), xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="center", va="bottom", fontsize=SMALL, color=look[row.seed].color, annotation_clip=False,
        )  # fmt: skip


def _missing(sources: Sources, lines: Sequence[int]) -> str:
    """Who never retired, and what was not recorded."""
    parts = []
    for line in lines:
        label = sources.label(line)
        retired = sources.tables.retired[line]
        never = [str(row.seed) for row in retired if row.step is None]
        if never:
            parts.append(f"{label}: not retired by the last recorded step in seed {listed(never)}")
        runs = {run.cell: run for run in sources.runs_of(line)}
        silent: dict[str, list[str]] = {}  # seeds -> what they do not record
        for metric, what in ((WINDOW_GAP, "windows"), (VALIDATION, "validation"), (WEIGHT, "weight")):
            seeds = [str(row.seed) for row in retired if row.cell in runs and not runs[row.cell].has(metric)]
            if seeds:
                silent.setdefault(listed(seeds), []).append(what)
        parts += [f"{label}: no {' and no '.join(what)} recorded in seed {seeds}" for seeds, what in silent.items()]
    return f"{'; '.join(parts)}." if parts else ""


def _handles(look: dict[int, Look]) -> list[Any]:
    from matplotlib.lines import Line2D

    found = [Line2D([], [], label=f"seed {seed}", markeredgewidth=0, **each.line) for seed, each in look.items()]
    cross = Line2D([], [], color=SOFT, linestyle="", marker="x", markersize=6, label="run is not complete")
    retired = Line2D([], [], color=INK, linestyle="-", linewidth=1, label="teacher retired")
    return [*found, retired, cross]
