"""Sample efficiency: success by the fraction of the training tasks or steps, and the area under that curve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from analysis import stats
from analysis.cells import Cell, Metric, Status, measured
from analysis.collect import Records
from analysis.compare import paired, unlike, why_not, with_holm
from analysis.evaluations import Evaluation, Measurements, refused
from analysis.plan import Line


@dataclass(frozen=True)
class Curve:
    """One row at one place. lines: fraction -> line, rising; the area's cells belong to the line of the largest."""

    place: str
    lines: Mapping[float, int]

    @property
    def last(self) -> int:
        return self.lines[max(self.lines)]

    @property
    def column(self) -> str:
        """`0.2-1`: of the area's cells."""
        return f"{min(self.lines):g}-{max(self.lines):g}"


def counted(lines: Iterable[Line]) -> str:
    """What fractions are of: `tasks`, `steps`, or `tasks or steps`."""
    return " or ".join(sorted({line.fraction_of for line in lines}, reverse=True))


def fraction_curves(records: Records, measurements: Measurements) -> list[Curve]:
    """Rows that are planned on more than one fraction of the data, at every place that all fractions have."""
    found: dict[tuple[str, ...], dict[float, int]] = {}
    for number, line in enumerate(records.lines):
        if not line.stage and line.trains is not False:
            found.setdefault(_key(line), {})[line.fraction] = number
    curves = []
    for lines in found.values():
        rising = {fraction: lines[fraction] for fraction in sorted(lines)}
        shared = set.intersection(*(set(measurements.places[line]) for line in rising.values()))
        curves += [Curve(place, rising) for place in sorted(shared) if len(rising) > 1]
    return curves


def _key(line: Line) -> tuple[str, ...]:
    return (line.row, line.backbone, line.env, line.scale, line.protocol)


def fraction_cells(records: Records, measurements: Measurements, curves: list[Curve], reference: str) -> list[Cell]:
    """Areas, and their differences to the reference row's by seed. Only seeds with every planned fraction count.

    A curve whose fractions were not measured alike has no area, and rows that were not, or not on the same fractions,
    are not compared.
    """
    of_reference = {
        (_key(records.lines[c.last])[1:], c.place): c for c in curves if records.lines[c.last].row == reference
    }
    return with_holm(list(_cells(records, measurements, curves, reference, of_reference)))


def _cells(
    records: Records,
    measurements: Measurements,
    curves: list[Curve],
    reference: str,
    of_reference: Mapping[tuple[tuple[str, ...], str], Curve],
) -> Iterator[Cell]:
    for curve in curves:
        here = records.lines[curve.last]
        mine, apart = _areas(measurements, curve), _apart(measurements, curve)
        states = (refused(measurements.refusals, line, curve.place) for line in curve.lines.values())
        status = next((state for state in states if state), None)
        cell = Cell(
            line=here,
            place=curve.place,
            metric=Metric.AREA_FRACTIONS,
            column=curve.column,
            unit="%",
            interval=None,
            status=status or Status.MISSING,
            n_planned=min(measurements.planned[line] for line in curve.lines.values()),
            note=f"records are {status.value}" if status else "no seed is complete on every fraction",
        )
        if mine and apart:
            cell = replace(cell, status=Status.NOT_APPLICABLE, note=apart)
            yield cell
        elif mine:
            interval = stats.t_interval(list(mine.values()))
            yield replace(cell, interval=interval, status=measured(here), note="")
        else:
            yield cell
        if here.row == reference:
            continue
        other = of_reference.get((_key(here)[1:], curve.place))
        difference = replace(cell, metric=Metric.DIFFERENCE_AREA_FRACTIONS, unit="points", reference=reference)
        if not mine or apart:
            yield difference
        elif why := _why_not(measurements, reference, curve, other):
            yield replace(difference, status=Status.NOT_APPLICABLE, note=why)
        else:
            assert other is not None
            theirs = _areas(measurements, other)
            by_seed = np.array([mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())])
            yield replace(difference, status=measured(here), note="", **paired(by_seed, None))


def _evaluations(measurements: Measurements, curve: Curve) -> dict[float, Evaluation | None]:
    """By fraction."""
    return {fraction: measurements.found.get((line, curve.place)) for fraction, line in curve.lines.items()}


def _apart(measurements: Measurements, curve: Curve) -> str:
    """Why the points of a curve do not belong together; empty if they do."""
    known = [(f, e) for f, e in _evaluations(measurements, curve).items() if e is not None]
    for fraction, evaluation in known[1:]:
        if what := unlike(known[0][1], evaluation):
            return f"fractions {known[0][0]:g} and {fraction:g} were measured with another {what}"
    return ""


def _why_not(measurements: Measurements, row: str, curve: Curve, other: Curve | None) -> str:
    """Why the area of a curve is not compared with that of `row`; empty if it is."""
    if other is None:
        return f"{row} has no curve here"
    if list(curve.lines) != list(other.lines):
        return f"{row} was run on other fractions ({', '.join(f'{f:g}' for f in other.lines)})"
    mine, theirs = _evaluations(measurements, curve), _evaluations(measurements, other)
    for fraction, line in other.lines.items():
        if why := why_not(row, line, mine[fraction], theirs[fraction]):
            return f"fraction {fraction:g}: {why}"
    if not _areas(measurements, curve).keys() & _areas(measurements, other).keys():
        return f"no seed in common with {row} on all fractions"
    return ""


def _areas(measurements: Measurements, curve: Curve) -> dict[int, float]:
    """Seed -> area, of seeds that have a usable evaluation on every fraction. Nothing is interpolated."""
    by_fraction: list[dict[int, float]] = []
    for evaluation in _evaluations(measurements, curve).values():
        if evaluation is None:
            return {}
        values = stats.average_by_seed(evaluation.success, evaluation.types, macro=False)
        by_fraction.append(dict(zip(evaluation.seeds.tolist(), values.tolist(), strict=True)))
    seeds = sorted(set.intersection(*(set(values) for values in by_fraction)))
    scores = {seed: [values[seed] for values in by_fraction] for seed in seeds}
    return {
        seed: stats.area_by_fraction(values, list(curve.lines))
        for seed, values in scores.items()
        if np.isfinite(values).all()
    }
