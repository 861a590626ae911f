"""Paired differences between lines, per seed and task, and which of them a table may call a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.cells import ALL, Cell, Metric, Status, measured
from analysis.checks import IN_WORDS, PROTOCOL
from analysis.collect import Records
from analysis.evaluations import Evaluation, Measurements, refused
from analysis.plan import Line

ALONE = "a task type has one task here: no bootstrap interval, so never bold"


def reference_lines(lines: Sequence[Line], row: str) -> dict[tuple[str, str, float, str, str], int]:
    """Setting (backbone, environment, fraction, scale, protocol) -> index of the line of `row` in it."""
    return {line.setting: index for index, line in enumerate(lines) if line.row == row and not line.stage}


def difference_cells(records: Records, measurements: Measurements, row: str | None) -> list[Cell]:
    """Micro and macro differences of every line and place to `row` (same setting, panel, seeds and tasks).

    row: None compares every line with its own base, and leaves out lines that have none
    A line evaluated with skills in its prompt, where the reference was evaluated without only, is set against that,
    with a note, and is never called significant: its prompt differs too. p values are adjusted by Holm over one
    family per metric: all lines and places of the sweep.
    """
    found = measurements.found
    wanted = {row} if row is not None else {line.base for line in records.lines if line.base is not None}
    of_row = {name: reference_lines(records.lines, name) for name in wanted}
    cells: list[Cell] = []
    for line, its_places in measurements.places.items():
        here = records.lines[line]
        reference = here.base if row is None else row
        if reference is None or here.row == reference:
            continue
        other = of_row[reference].get(here.setting)
        for place in its_places:
            mine, theirs, note = found.get((line, place)), None, ""
            if other is not None:
                theirs = found.get((other, place))
                plain = f"{place.rpartition('/')[0]}/off"
                if theirs is None and plain != place and (theirs := found.get((other, plain))):
                    note = f"with skills in its prompt, {records.lines[other].label} without"
            status = refused(measurements.refusals, line, place)
            why = why_not(reference, other, mine, theirs, status)
            cell = Cell(
                line=here,
                place=place,
                metric=Metric.DIFFERENCE_MICRO,
                column=ALL,
                unit="points",
                interval=None,
                status=status or (Status.MISSING if mine is None else Status.NOT_APPLICABLE),
                n_planned=measurements.planned[line],
                reference=reference,
                note=why,
            )
            if why or mine is None or theirs is None:
                cells += [cell, replace(cell, metric=Metric.DIFFERENCE_MACRO)]
            else:
                cells += _differences(replace(cell, note=note), mine, theirs)
    return with_holm(cells)


def unlike(mine: Evaluation, theirs: Evaluation) -> str:
    """In what two evaluations were not measured alike, in words; empty if in nothing."""
    return ", ".join(IN_WORDS[name] for name in PROTOCOL if mine.protocol[name] != theirs.protocol[name])


def why_not(
    row: str, other: int | None, mine: Evaluation | None, theirs: Evaluation | None, status: Status | None = None
) -> str:
    """Why there is no difference to `row`, whose line here is `other`; empty if there is one. status: if refused"""
    if status:
        return f"records are {status.value}"
    if mine is None:
        return "no complete run"
    if other is None:
        return f"no row {row} in this setting"
    if theirs is None:
        return f"{row} has no usable evaluation here"
    if what := unlike(mine, theirs):
        return f"{row} was measured with another {what}"
    if not np.intersect1d(mine.seeds, theirs.seeds).size:
        return f"no seed in common with {row}"
    return ""


def _differences(cell: Cell, mine: Evaluation, theirs: Evaluation) -> list[Cell]:
    """The micro and the macro difference."""
    a, b = _common(mine.seeds, theirs.seeds)
    i, j = _common(mine.tasks, theirs.tasks)
    table = mine.success[np.ix_(a, i)] - theirs.success[np.ix_(b, j)]
    types = mine.types[i]
    graded = int(np.count_nonzero(~np.isnan(table)))
    cell = replace(cell, n_tasks=i.size, n_episodes=graded, protocol=mine.protocol)
    micro = _difference(cell, table, types)
    sizes = np.unique(types.astype(str), return_counts=True)[1]
    macro = replace(cell, metric=Metric.DIFFERENCE_MACRO)
    if graded == table.size and np.ptp(sizes) == 0:  # types of equal size: the two means are one
        return [micro, replace(micro, metric=Metric.DIFFERENCE_MACRO)]
    return [micro, _difference(macro, table, types)]


def _difference(cell: Cell, table: NDArray[np.float64], types: NDArray[np.object_]) -> Cell:
    assert cell.line is not None
    macro = cell.metric == Metric.DIFFERENCE_MACRO
    by_seed = stats.average_by_seed(table, types, macro)
    if not np.isfinite(by_seed).all():
        return replace(cell, status=Status.INVALID, note="nothing graded in both rows in some seed")
    tested = paired(by_seed, stats.hierarchical_bootstrap(table, types, macro))
    tested["significant"] = tested["significant"] and not cell.note
    alone = np.unique(types.astype(str), return_counts=True)[1].min() == 1
    note = "; ".join(part for part in (cell.note, ALONE if alone else "") if part)
    return replace(cell, status=measured(cell.line), note=note, **tested)


def _common(first: NDArray[Any], second: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of what two sorted arrays have in common."""
    if np.array_equal(first, second):  # the usual case, many times faster
        everything = np.arange(first.size)
        return everything, everything
    return np.intersect1d(first, second, return_indices=True)[1:]


def paired(by_seed: NDArray[np.float64], second: stats.Interval | None) -> dict[str, Any]:
    """Interval and tests of seed-level paired differences [S].

    The t interval over seeds is the interval shown; the bootstrap stands beside it. Significant needs both to exclude
    zero: the bootstrap alone is too narrow with few seeds, and the t interval alone knows nothing of the tasks.
    With one seed, or seeds that all differ by the same amount, the t interval does not exist or claims certainty: the
    bootstrap is shown, labelled, if there is one, and nothing is significant.
    """
    interval = stats.t_interval(by_seed)
    proper = by_seed.size > 1 and float(np.ptp(by_seed)) > stats.MIN_SPREAD
    significant = proper and interval.excludes_zero and (second is None or second.excludes_zero)
    if not proper:
        n, kind = by_seed.size, stats.EVALUATION_ONE_SEED if by_seed.size == 1 else stats.EVALUATION_EQUAL_SEEDS
        if second is None or math.isnan(second.lo):
            interval = stats.Interval(interval.value, math.nan, math.nan, stats.NO_INTERVAL, n)
        else:
            interval = stats.Interval(interval.value, second.lo, second.hi, kind, n)
    few = 1 << by_seed.size <= stats.EXACT_LIMIT
    return {
        "interval": interval,
        "second": second,
        "p_t": stats.t_test_p(by_seed) if proper else math.nan,
        "p_exact": stats.sign_flip_test(by_seed).p if few else math.nan,
        "p_smallest": stats.smallest_sign_flip_p(by_seed.size),
        "significant": significant,
    }


def with_holm(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with p_holm filled in, one family per metric."""
    adjusted = list(cells)
    for metric in dict.fromkeys(cell.metric for cell in cells):
        family = [number for number, cell in enumerate(cells) if cell.metric == metric]
        for number, p in zip(family, stats.holm([cells[i].p_t for i in family]), strict=True):
            adjusted[number] = replace(cells[number], p_holm=float(p))
    return adjusted
