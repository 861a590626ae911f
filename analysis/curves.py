"""Learning curves at equal steps and at equal time of one clock, from the metrics of training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.cells import ALL, Cell, Metric, Status, measured
from analysis.clocks import Clock, clash, shared
from analysis.collect import Records
from analysis.compare import paired, reference_lines, with_holm
from analysis.evaluations import refusal, refused
from analysis.plan import Line
from analysis.spools import METRICS

WINDOW = 5  # training steps of the first and of the last mean
PLACE = "train"
Setting = tuple[str, str, float, str, str]  # Line.setting


@dataclass(frozen=True, slots=True)
class Curve:
    """One complete run: success and cumulative seconds of `clock` per training step [N]. clock: None: not known."""

    seed: int
    success: NDArray[np.float64]
    spent: NDArray[np.float64]
    clock: Clock | None


@dataclass(frozen=True, slots=True)
class Budget:
    """What is equal: the fewest steps and the least seconds of any curve in one setting.

    clock: that of all its curves; None where they were measured with several, so that no time is equal; why_not: why
    """

    steps: int
    seconds: float
    clock: Clock | None
    why_not: str = ""


def _runs(records: Records) -> dict[int, NDArray[np.float64]]:
    """Metrics [N, METRICS] of complete runs in step order, by cell."""
    complete = records.cells["complete"].to_numpy(dtype=bool)
    return {cell: spool.values for cell, spool in enumerate(records.spools) if complete[cell] and spool.steps.size}


def curves(records: Records) -> dict[int, list[Curve]]:
    """Line -> curves of its complete runs, by seed. Runs that a warning about curves names are left out."""
    out = {i for w in records.warnings if w.place == PLACE for i in w.cells}
    lines, seeds = records.cells["line"].to_numpy(), records.cells["seed"].to_numpy()
    found: dict[int, list[Curve]] = {}
    success, spent = METRICS.index("train/success"), METRICS.index("time/cpu_total_s")
    for number, values in _runs(records).items():
        if number not in out and not records.lines[int(lines[number])].stage:
            clock = records.spools[number].clock
            curve = Curve(int(seeds[number]), values[:, success], values[:, spent], clock)
            found.setdefault(int(lines[number]), []).append(curve)
    return {line: sorted(found[line], key=lambda curve: curve.seed) for line in sorted(found)}


def budgets(records: Records, found: Mapping[int, list[Curve]]) -> dict[Setting, Budget]:
    """Setting -> budget over all its curves."""
    by_setting: dict[Setting, list[Curve]] = {}
    for line, its_curves in found.items():
        by_setting.setdefault(records.lines[line].setting, []).extend(its_curves)
    return {setting: _budget(all_curves) for setting, all_curves in by_setting.items()}


def _budget(every: Sequence[Curve]) -> Budget:
    clocks = [curve.clock for curve in every]
    steps, seconds = min(c.success.size for c in every), min(float(c.spent[-1]) for c in every)
    return Budget(steps, seconds, shared(clocks), clash(clocks))


def learning_cells(
    records: Records, found: Mapping[int, list[Curve]], budget: Mapping[Setting, Budget], reference: str
) -> list[Cell]:
    """First and last steps, areas, and the areas' paired differences to `reference`, for every line that trains.

    found: see `curves`; budget: see `budgets`.
    """
    planned = records.cells.groupby("line")["seed"].size()
    refusals = refusal(records)
    others = reference_lines(records.lines, reference)
    cells: list[Cell] = []
    for line in [i for i in training_lines(records) if not records.lines[i].stage]:
        here = records.lines[line]
        mine = found.get(line, [])
        blank = _blank(here, int(planned[line]))
        if status := refused(refusals, line, PLACE):
            blank, mine = replace(blank, status=status), []
        equal = budget[here.setting] if mine else Budget(1, 1.0, None)
        for metric, measure in _measures(equal):
            cell = replace(blank, metric=metric)
            if mine and metric == Metric.AREA_TIME and equal.why_not:
                cell = replace(cell, status=Status.NOT_APPLICABLE, note=equal.why_not)
            elif mine:
                interval = stats.t_interval([measure(curve) for curve in mine])
                cell = replace(cell, interval=interval, status=measured(here))
            cells.append(cell)
        other = others.get(here.setting)
        if other != line:
            theirs = [] if other is None or refused(refusals, other, PLACE) else found.get(other, [])
            cells += _area_differences(blank, mine, theirs, reference, equal)
    return with_holm(cells)


def training_lines(records: Records) -> list[int]:
    """Lines that train, as the plan says. Where it does not: those whose runs plan training steps, or of which nothing
    is known yet."""
    steps = records.cells.groupby("line")["planned_steps"].agg(list)
    started = records.cells.groupby("line")["complete"].any()
    known = [line.trains for line in records.lines]
    return [
        int(line)
        for line in steps.index
        if (known[line] if known[line] is not None else any(steps[line]) or not started[line])
    ]


def _blank(line: Line, planned: int) -> Cell:
    return Cell(
        line=line,
        place=PLACE,
        metric=Metric.AREA_STEPS,
        column=ALL,
        unit="%",
        interval=None,
        status=Status.MISSING,
        n_planned=planned,
    )


def _measures(budget: Budget) -> list[tuple[Metric, Callable[[Curve], float]]]:
    return [
        (Metric.TRAIN_FIRST, lambda curve: float(curve.success[:WINDOW].mean())),
        (Metric.TRAIN_LAST, lambda curve: float(curve.success[-WINDOW:].mean())),
        (Metric.AREA_STEPS, lambda curve: stats.area_by_steps(curve.success, budget.steps)),
        (Metric.AREA_TIME, lambda curve: stats.area_by_cost(curve.success, curve.spent, budget.seconds)),
    ]


def _area_differences(
    blank: Cell,
    mine: Sequence[Curve],
    theirs: Sequence[Curve],
    reference: str,
    equal: Budget,
) -> Iterator[Cell]:
    difference = {
        Metric.AREA_STEPS: Metric.DIFFERENCE_AREA_STEPS,
        Metric.AREA_TIME: Metric.DIFFERENCE_AREA_TIME,
    }
    others = {curve.seed: curve for curve in theirs}
    pairs = [(curve, others[curve.seed]) for curve in mine if curve.seed in others]
    for metric, measure in _measures(equal):
        if metric not in difference:
            continue
        cell = replace(blank, metric=difference[metric], unit="points", reference=reference)
        if pairs and metric == Metric.AREA_TIME and equal.why_not:
            yield replace(cell, status=Status.NOT_APPLICABLE, note=equal.why_not)
        elif pairs:
            by_seed = np.array([measure(a) - measure(b) for a, b in pairs])
            assert cell.line is not None
            yield replace(cell, status=measured(cell.line), **paired(by_seed, None))
        else:
            status = Status.NOT_APPLICABLE if mine else blank.status
            yield replace(cell, status=status, note=f"no seed in common with {reference}" if mine else "no curve")
