"""Critical steps per analysed trajectory: those that the analyzer gave a skill of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.curves import PLACE
from analysis.figures import bands
from analysis.figures.sources import CRITICAL, LENGTH, Sources, interval_note
from analysis.figures.style import Drawn, finish, grid, looks, sheet, slug

TOGETHER = 4  # rows in one figure


def draw(sources: Sources) -> Iterator[Drawn]:
    """One figure per setting and group of rows."""
    for first, lines in sources.settings:
        name = slug("critical_steps", *sources.about(first))
        used = [i for i in lines if any(run.has(CRITICAL) for run in sources.runs_of(i))]
        if not used:
            yield Drawn(name, None, f"no run of this setting recorded {CRITICAL}: no method here has step skills")
            continue
        groups = [used[i : i + TOGETHER] for i in range(0, len(used), TOGETHER)]
        for number, group in enumerate(groups, 1):
            part = f" ({number} of {len(groups)})" if len(groups) > 1 else ""
            title = sources.title(f"critical steps{part}", " · ".join(sources.about(first)))
            yield _figure(sources, slug(name, number if part else ""), title, group)


def _figure(sources: Sources, name: str, title: str, lines: Sequence[int]) -> Drawn:
    figure = sheet(2.6)
    left, right = figure.subplots(1, 2)
    runs = {line: sources.runs_of(line) for line in lines}
    size = bands.block_size(run for of_line in runs.values() for run in of_line)
    handles, counts = [], []
    for line, look in zip(lines, looks()[1:], strict=False):
        used = sum(not run.why_not for run in runs[line])
        counts.append(used)
        handles.append(bands.handle(look, bands.seeds_label(sources, line, used)))
        for axes, metric in ((left, CRITICAL), (right, LENGTH)):
            made = bands.of_line(runs[line], metric, lambda run, name: bands.by_steps(run, name, size), share=False)
            if made is not None:
                bands.plot(axes, made, look)
            for run in (run for run in runs[line] if run.why_not):
                bands.plot_left_out(axes, *bands.by_steps(run, metric, size), look)
    left.set_ylabel("critical steps per trajectory")
    right.set_ylabel("steps per trajectory, for scale")
    for axes in (left, right):
        axes.set_xlabel("training steps")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        grid(axes)
    every = [run for line in lines for run in runs[line]]
    if any(run.why_not for run in every):
        handles.append(bands.left_out_handle())
    blocks = f"{size} training steps" if size > 1 else "one training step"
    notes = [
        f"Mean over the trajectories that were analysed ({CRITICAL}); each point: a run's mean over {blocks}, then the "
        f"mean over seeds. {interval_note(counts, 'Bands')}",
        bands.left_out_note(sources, every),
        *sources.troubles(lines, [PLACE]),
    ]
    return finish(figure, title, notes, name, handles, columns=3)
