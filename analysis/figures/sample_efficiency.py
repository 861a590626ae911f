"""Success against the fraction of the training tasks, or steps, that a run trains on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.cells import ALL, Cell, Metric
from analysis.figures import bands
from analysis.figures.overall import seed_values
from analysis.figures.sources import Sources, interval_note
from analysis.figures.style import Drawn, Look, finish, grid, looks, per_cent, sheet, slug
from analysis.fractions import counted
from analysis.text import EVALUATION_ONLY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOGETHER = 5  # rows in one figure
COLUMNS = 2
Curve = dict[float, int]  # fraction -> line


def draw(sources: Sources) -> Iterator[Drawn]:
    """One figure per backbone, environment, scale and protocol, and group of rows, where fractions differ."""
    family = "sample_efficiency"
    found: dict[tuple[str, str, str, str], dict[str, Curve]] = {}
    for number, line in enumerate(sources.records.lines):
        if not line.stage and line.trains is not False:
            key = (line.env, line.backbone, line.scale, line.protocol)
            found.setdefault(key, {}).setdefault(line.row, {})[line.fraction] = number
    several = {key: {row: c for row, c in rows.items() if len(c) > 1} for key, rows in found.items()}
    several = {key: rows for key, rows in several.items() if rows}
    if not several:
        yield Drawn(family, None, "no row is planned on more than one fraction of the training tasks or steps")
    for key, rows in several.items():
        parts = [
            key[0],
            *(
                part
                for part, name in zip(key[1:], ("backbone", "scale", "protocol"), strict=True)
                if name in sources.records.varying
            ),
        ]
        name = slug(family, *parts)
        usable = {line for line, _ in sources.measurements.found}
        if not any(line in usable for curve in rows.values() for line in curve.values()):
            yield Drawn(name, None, "no run of any fraction has a usable evaluation yet")
            continue
        firsts = [next(iter(curve.values())) for curve in rows.values()]
        groups = bands.chunks(sources, firsts, TOGETHER)
        for index, group in enumerate(groups, 1):
            part = f" ({index} of {len(groups)})" if len(groups) > 1 else ""
            chosen = [rows[sources.records.lines[line].row] for line in group]
            what = counted(sources.records.lines[i] for curve in rows.values() for i in curve.values())
            title = sources.title(f"success by fraction of the training {what}{part}", " · ".join(parts))
            yield _figure(sources, slug(name, index if part else ""), title, chosen)


def _figure(sources: Sources, name: str, title: str, curves: Sequence[Curve]) -> Drawn:
    lines = [line for curve in curves for line in curve.values()]
    places = sorted({place for line in lines for place in sources.measurements.places[line] if place.endswith("/off")})
    places = places or sorted({place for line in lines for place in sources.measurements.places[line]})
    across = min(COLUMNS, len(places))
    down = math.ceil(len(places) / across)
    figure = sheet(0.2 + 2.5 * down)
    frames = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    fractions = sorted({fraction for curve in curves for fraction in curve})
    counts: list[int] = []
    for index, axes in enumerate(frames.flat):
        if index >= len(places):
            axes.set_visible(False)
            continue
        for position, (curve, look) in enumerate(zip(curves, looks(), strict=False)):
            shift = 1.0 + 0.035 * (position - (len(curves) - 1) / 2)
            counts += _curve(sources, axes, curve, places[index], look, shift)
        axes.set_title(f"{places[index].rpartition('/')[0]} tasks")
        axes.set_xscale("log", base=2)
        axes.set_xticks(fractions, [f"{fraction:.3g}" for fraction in fractions])
        axes.minorticks_off()
        axes.set_ylim(-0.04, 1)
        grid(axes)
        per_cent(axes)
        if index % across == 0:
            axes.set_ylabel("success, micro, %")
        if index + across >= len(places):
            axes.set_xlabel(f"fraction of the training {counted(sources.records.lines[i] for i in lines)}")
            axes.tick_params(labelbottom=True)
    labels = [sources.label(next(iter(curve.values()))) for curve in curves]
    handles = [bands.handle(look, label) for look, label in zip(looks(), labels, strict=False)]
    notes = [
        "Mean over seeds; small dots: seeds; rows stand a little beside each other. × at the bottom: planned, but no "
        f"number yet; lines are not drawn across it. {interval_note(counts, 'Whiskers')} Dotted whiskers: "
        "evaluation-only, they say nothing about another seed.",
        *sources.legend_notes(labels),
        *sources.troubles(lines, places),
    ]
    return finish(figure, title, notes, name, handles, columns=4)


def _curve(sources: Sources, axes: Axes, curve: Curve, place: str, look: Look, shift: float) -> list[int]:
    """Returns the seeds behind each point."""
    xs: list[float] = []
    ys: list[float] = []
    counts = []
    for fraction in sorted(curve):
        line = curve[fraction]
        x = fraction * shift
        cell: Cell | None = sources.tables.success.get((sources.records.lines[line], place, Metric.MICRO, ALL))
        interval = cell.interval if cell is not None else None
        xs.append(x)
        ys.append(math.nan if interval is None else interval.value)
        if interval is None:
            axes.plot(x, -0.02, marker="x", markersize=4.5, color=look.color, linestyle="", zorder=4)
            continue
        counts.append(interval.n)
        if not math.isnan(interval.lo):
            style = ":" if interval.kind in EVALUATION_ONLY else "-"
            axes.plot([x, x], [interval.lo, interval.hi], color=look.color, linewidth=0.9, linestyle=style, zorder=2)
        values = seed_values(sources, line, place)
        axes.plot([x] * values.size, values, linestyle="", marker=".", markersize=3, color=look.color, alpha=0.7)
    axes.plot(xs, ys, markeredgewidth=0, zorder=3, **look.line)
    return counts
