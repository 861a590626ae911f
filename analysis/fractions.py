"""Sample efficiency: success by the fraction of the training tasks, and the area under that curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from analysis import stats
from analysis.cells import Cell, Metric, Status, measured
from analysis.collect import Records
from analysis.compare import paired, with_holm
from analysis.evaluations import Measurements, refused
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
    """Areas, and their differences to the reference row's by seed. Only seeds with every planned fraction count."""
    areas = {
        (_key(records.lines[c.last])[1:], records.lines[c.last].row, c.place): _areas(measurements, c) for c in curves
    }
    return with_holm(list(_cells(records, measurements, curves, reference, areas)))


Areas = Mapping[tuple[tuple[str, ...], str, str], Mapping[int, float]]


def _cells(
    records: Records, measurements: Measurements, curves: list[Curve], reference: str, areas: Areas
) -> Iterator[Cell]:
    for curve in curves:
        here = records.lines[curve.last]
        setting = _key(here)[1:]
        mine = areas[setting, here.row, curve.place]
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
        if mine:
            interval = stats.t_interval(list(mine.values()))
            yield replace(cell, interval=interval, status=measured(here), note="")
        else:
            yield cell
        if here.row == reference:
            continue
        theirs = areas.get((setting, reference, curve.place), {})
        seeds = sorted(mine.keys() & theirs.keys())
        difference = replace(cell, metric=Metric.DIFFERENCE_AREA_FRACTIONS, unit="points", reference=reference)
        if seeds:
            by_seed = np.array([mine[seed] - theirs[seed] for seed in seeds])
            yield replace(difference, status=measured(here), note="", **paired(by_seed, None))
        elif mine:
            yield replace(difference, status=Status.NOT_APPLICABLE, note=f"no seed in common with {reference}")
        else:
            yield difference


def _areas(measurements: Measurements, curve: Curve) -> dict[int, float]:
    """Seed -> area, of seeds that have a usable evaluation on every fraction. Nothing is interpolated."""
    by_fraction: list[dict[int, float]] = []
    for line in curve.lines.values():
        evaluation = measurements.found.get((line, curve.place))
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
