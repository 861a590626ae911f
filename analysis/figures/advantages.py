"""Magnitude of the two parts of the advantage while training: what the outcome says, and what skills add."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.curves import PLACE
from analysis.figures import bands
from analysis.figures.sources import OUTCOME, SKILL, STEP_PART, Run, Sources, interval_note
from analysis.figures.style import Drawn, Look, finish, grid, looks, sheet, slug
from analysis.text import listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
PARTS = ((OUTCOME, "outcome", 1), (SKILL, "skill term, weighted", 2), (STEP_PART, "step term, weighted", 3))


def draw(sources: Sources) -> Iterator[Drawn]:
    """One figure per setting, a frame per row that has a second part."""
    for first, lines in sources.settings:
        name = slug("advantages", *sources.about(first))
        two = [i for i in lines if any(run.has(SKILL, STEP_PART) for run in sources.runs_of(i))]
        if two:
            one = [i for i in lines if i not in two and any(run.has(OUTCOME) for run in sources.runs_of(i))]
            yield _figure(sources, name, " · ".join(sources.about(first)), two, one)
        else:
            why = f"no run of this setting recorded {SKILL}: no method here adds a skill term to the advantage"
            yield Drawn(name, None, why)


def _figure(sources: Sources, name: str, setting: str, lines: Sequence[int], plain: Sequence[int]) -> Drawn:
    from matplotlib.ticker import FuncFormatter

    across = min(COLUMNS, len(lines))
    down = math.ceil(len(lines) / across)
    figure = sheet(0.3 + 2.1 * down)
    frames = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    runs = {line: sources.runs_of(line) for line in lines}
    size = bands.block_size(run for of_line in runs.values() for run in of_line)
    counts: list[int] = []
    zeros: list[str] = []
    seen: dict[str, Look] = {}
    for index, axes in enumerate(frames.flat):
        if index >= len(lines):
            axes.set_visible(False)
            continue
        line = lines[index]
        used = sum(not run.why_not for run in runs[line])
        counts.append(used)
        for metric, label, look in ((m, text, looks()[i]) for m, text, i in PARTS):
            if any(run.has(metric) for run in runs[line]):
                seen[label] = look
                zeros += _part(sources, axes, runs[line], metric, size, look)
        axes.set_title(bands.seeds_label(sources, line, used))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlim(left=0)
        grid(axes)
        if index % across == 0:
            axes.set_ylabel("mean |A| over response tokens")
        if index + across >= len(lines):
            axes.set_xlabel("training steps")
            axes.tick_params(labelbottom=True)
    handles: list[Any] = [bands.handle(look, label) for label, look in seen.items()]
    every = [run for line in lines for run in runs[line]]
    if any(run.why_not for run in every):
        handles.append(bands.left_out_handle())
    blocks = f"{size} training steps" if size > 1 else "one training step"
    notes = [
        f"Mean absolute value over all response tokens, as it enters the loss ({OUTCOME}, {SKILL}); each point: a "
        f"run's mean over {blocks}, then the mean over seeds; logarithmic scale, so a band that reaches zero is cut "
        f"off. {interval_note(counts, 'Bands')}",
        f"Zero, which this scale cannot show: {listed(dict.fromkeys(zeros))}." if zeros else "",
        f"Rows with the outcome's part alone have no frame: {listed([sources.label(i) for i in plain], 8)}."
        if plain
        else "",
        bands.left_out_note(sources, every),
        *sources.troubles(lines, [PLACE]),
    ]
    return finish(figure, sources.title("magnitude of the advantage's parts", setting), notes, name, handles)


def _part(sources: Sources, axes: Axes, runs: Sequence[Run], metric: str, size: int, look: Look) -> Iterator[str]:
    """Draws one part; yields where it is zero."""
    made = bands.of_line(runs, metric, lambda run, name: bands.by_steps(run, name, size), share=False)
    if made is not None:
        zero = made.mean <= 0
        lo = np.where(made.lo > 0, made.lo, np.where(np.isfinite(made.lo), made.mean / 30, np.nan))
        shown = bands.Band(made.x, np.where(zero, np.nan, made.mean), np.where(zero, np.nan, lo), made.hi, made.n)
        bands.plot(axes, shown, look)
        if zero.any():
            label = sources.label(runs[0].line)
            yield f"{label} from about step {made.x[zero][0]:.0f}" if zero[-1] else f"{label} at some steps"
    for run in (run for run in runs if run.why_not):
        x, y = bands.by_steps(run, metric, size)
        bands.plot_left_out(axes, x, np.where(y > 0, y, np.nan), look)
