"""Paired differences between lines, per seed and task, and which of them a table may call a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.cells import ALL, Cell, Evaluation, Measurements, Metric, Status, measured, refused
from analysis.checks import IN_WORDS, PROTOCOL
from analysis.collect import Line, Records


def reference_line(lines: Sequence[Line], of: Line, row: str) -> int | None:
    """Index of the line of `row` with the same backbone, environment, fraction, scale and protocol as `of`."""
    return next((i for i, line in enumerate(lines) if line.row == row and line.setting == of.setting), None)


def difference_cells(records: Records, measurements: Measurements, row: str) -> list[Cell]:
    """Micro and macro differences of every line and place to `row` (same setting, panel, seeds and tasks).

    A line evaluated with skills in its prompt, where the reference was evaluated without only, is set against that,
    with a note, and is never called significant: its prompt differs too. p values are adjusted by Holm over one
    family per metric: all lines and places of the sweep.
    """
    found = measurements.found
    cells: list[Cell] = []
    for line, its_places in measurements.places.items():
        here = records.lines[line]
        if here.row == row:
            continue
        other = reference_line(records.lines, here, row)
        for place in its_places:
            status = refused(measurements.refusals, line, place)
            for metric in (Metric.DIFFERENCE_MICRO, Metric.DIFFERENCE_MACRO):
                mine, theirs, note = found.get((line, place)), None, ""
                if other is not None:
                    theirs = found.get((other, place))
                    plain = f"{place.rpartition('/')[0]}/off"
                    if theirs is None and plain != place and (theirs := found.get((other, plain))):
                        note = f"skills in the prompt of {here.row}, not of {row}"
                why = _why_not(row, other, mine, theirs, status)
                nothing = status or (Status.MISSING if mine is None else Status.NOT_APPLICABLE)
                cell = Cell(
                    line=here,
                    place=place,
                    metric=metric,
                    column=ALL,
                    unit="points",
                    interval=None,
                    status=nothing,
                    n_planned=measurements.planned[line],
                    reference=row,
                    note=why,
                )
                if not why and mine is not None and theirs is not None:
                    cell = _difference(replace(cell, note=note), mine, theirs)
                cells.append(cell)
    return with_holm(cells)


def _why_not(
    row: str, other: int | None, mine: Evaluation | None, theirs: Evaluation | None, status: Status | None
) -> str:
    if status:
        return f"records are {status.value}"
    if mine is None:
        return "no complete run"
    if other is None:
        return f"no row {row} in this setting"
    if theirs is None:
        return f"{row} has no usable evaluation here"
    unlike = [IN_WORDS[name] for name in PROTOCOL if mine.protocol[name] != theirs.protocol[name]]
    if unlike:
        return f"{row} was measured with another {', '.join(unlike)}"
    if not np.intersect1d(mine.seeds, theirs.seeds).size:
        return f"no seed in common with {row}"
    return ""


def _difference(cell: Cell, mine: Evaluation, theirs: Evaluation) -> Cell:
    assert cell.line is not None
    macro = cell.metric == Metric.DIFFERENCE_MACRO
    _, a, b = np.intersect1d(mine.seeds, theirs.seeds, return_indices=True)
    _, i, j = np.intersect1d(mine.tasks.astype(str), theirs.tasks.astype(str), return_indices=True)
    table = mine.success[np.ix_(a, i)] - theirs.success[np.ix_(b, j)]
    graded = int(np.count_nonzero(~np.isnan(table)))
    filled = replace(cell, n_tasks=i.size, n_episodes=graded, protocol=mine.protocol)
    by_seed = stats.average_by_seed(table, mine.types[i], macro)
    if not np.isfinite(by_seed).all():
        return replace(filled, status=Status.INVALID, note="nothing graded in both rows in some seed")
    bootstrap = stats.paired_bootstrap(table, mine.types[i], macro)
    tested = replace(filled, status=measured(cell.line), **paired(by_seed, bootstrap))
    return replace(tested, significant=tested.significant and not cell.note)


def paired(by_seed: NDArray[np.float64], second: stats.Interval | None) -> dict[str, Any]:
    """Interval and tests of seed-level paired differences [S].

    The t interval over seeds is the interval shown; the bootstrap stands beside it. Significant needs both to exclude
    zero: the bootstrap alone is too narrow with few seeds, and the t interval alone knows nothing of the tasks.
    With one seed, or seeds that all differ by the same amount, the t interval does not exist or claims certainty: the
    bootstrap is shown, labelled, and nothing is significant.
    """
    interval = stats.t_interval(by_seed)
    proper = by_seed.size > 1 and float(np.ptp(by_seed)) > stats.MIN_SPREAD
    significant = proper and interval.excludes_zero and (second is None or second.excludes_zero)
    if not proper:
        n, kind = by_seed.size, stats.EVALUATION_ONE_SEED if by_seed.size == 1 else stats.EVALUATION_EQUAL_SEEDS
        if second is None:
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
