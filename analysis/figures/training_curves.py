"""Success, episode length and invalid actions of training rollouts, by training steps and by seconds of one clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.clocks import clash, shared
from analysis.curves import PLACE
from analysis.figures import bands
from analysis.figures.sources import INVALID, LENGTH, SPENT, SUCCESS, Run, Sources, interval_note
from analysis.figures.style import Drawn, Look, finish, grid, looks, per_cent, sheet, slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = ((SUCCESS, "success, %", True), (LENGTH, "steps per episode", False), (INVALID, "invalid actions, %", True))

TOGETHER = 4  # rows in one figure: more bands than that hide each other


def draw(sources: Sources) -> Iterator[Drawn]:
    """One figure per setting and group of rows, the reference row in each."""
    for first, lines in sources.settings:
        name = slug("training_curves", *sources.about(first))
        curved = [i for i in lines if any(run.has(SUCCESS) for run in sources.runs_of(i))]
        if not curved:
            yield Drawn(name, None, "no run of this setting recorded a training step")
            continue
        silent = [i for i in lines if i not in curved and sources.records.lines[i].trains]
        groups = bands.chunks(sources, curved, TOGETHER)
        for number, group in enumerate(groups, 1):
            part = f" ({number} of {len(groups)})" if len(groups) > 1 else ""
            title = sources.title(f"training{part}", " · ".join(sources.about(first)))
            yield _figure(sources, slug(name, number if part else ""), title, group, silent)


def _figure(sources: Sources, name: str, title: str, lines: Sequence[int], silent: Sequence[int]) -> Drawn:
    figure = sheet(5.6)
    frames = figure.subplots(len(ROWS), 2, sharex="col", sharey="row")
    runs = {line: sources.runs_of(line) for line in lines}
    size = bands.block_size(run for of_line in runs.values() for run in of_line)
    handles, counts = [], []
    clocks = sources.clocks_of(lines)
    clock, apart = shared(clocks), clash(clocks)
    for line, look in zip(lines, _looks(sources, lines), strict=True):
        used = sum(not run.why_not for run in runs[line])
        counts.append(used)
        handles.append(bands.handle(look, bands.seeds_label(sources, line, used)))
        for row, (metric, _, share) in enumerate(ROWS):
            _steps(frames[row, 0], runs[line], metric, size, share, look)
            if not apart:
                _time(frames[row, 1], runs[line], metric, share, look)
    for row, (_, label, share) in enumerate(ROWS):
        frames[row, 0].set_ylabel(label)
        for axes in frames[row]:
            if axes is frames[row, 1] and apart:
                bands.say(axes, "not measured with one clock")
            else:
                bands.say_if_empty(axes, ROWS[row][0])
            grid(axes)
            if share:
                per_cent(axes)
        frames[row, 0].set_ylim(bottom=0)
    frames[0, 0].set_ylim(0, 1)
    frames[-1, 0].set_xlabel("training steps")
    frames[-1, 1].set_xlabel(f"{clock.name} seconds of training" if clock else "time of training")
    for axes in frames[-1]:
        axes.set_xlim(left=0)
    every = [run for line in lines for run in runs[line]]
    if any(run.why_not for run in every):
        handles.append(bands.left_out_handle())
    blocks = f"{size} training steps" if size > 1 else "one training step"
    notes = [
        f"Rollouts on training tasks at the training temperature, no evaluation. Each point: a run's mean over "
        f"{blocks} (left) or over a slice of time in which each step weighs what it cost (right, up to what every "
        f"run of the row paid), then the mean over seeds. {interval_note(counts, 'Bands')}",
        f"Right: nothing is drawn, because {apart}." if apart else "",
        bands.left_out_note(sources, every),
        f"Nothing recorded of training yet: {', '.join(sources.label(i) for i in silent)}." if silent else "",
        *sources.troubles([*lines, *silent], [PLACE]),
    ]
    return finish(figure, title, notes, name, handles, columns=3)


def _looks(sources: Sources, lines: Sequence[int]) -> list[Look]:
    """The first look is kept for the reference row."""
    found = looks()
    if sources.reference_of(lines) is None:
        found = (*found[1:], found[0])
    return list(found[: len(lines)])


def _steps(axes: Axes, runs: Sequence[Run], metric: str, size: int, share: bool, look: Look) -> None:
    made = bands.of_line(runs, metric, lambda run, name: bands.by_steps(run, name, size), share)
    if made is not None:
        bands.plot(axes, made, look)
    for run in (run for run in runs if run.why_not):
        bands.plot_left_out(axes, *bands.by_steps(run, metric, size), look)


def _time(axes: Axes, runs: Sequence[Run], metric: str, share: bool, look: Look) -> None:
    edges = bands.edges_of(runs)
    if edges is not None:
        made = bands.of_line(runs, metric, lambda run, name: bands.by_time(run, name, edges), share)
        if made is not None:
            bands.plot(axes, made, look)
    for run in (run for run in runs if run.why_not):
        paid = run.series(SPENT)
        if np.isfinite(paid).all():
            bands.plot_left_out(axes, paid, run.series(metric), look)
