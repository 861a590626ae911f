"""What training cost: means per training step, their ratio to the reference row, and totals with the teacher's run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.cells import ALL, Cell, Metric, Status, measured
from analysis.collect import Records
from analysis.compare import reference_lines
from analysis.curves import PLACE, training_lines
from analysis.spools import METRICS, Spool

TOTAL = "time/cpu_total_s"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a training step costs.

    column: its name in the CSV; header: over its column; unit: see text.number; names: recorded metrics, summed
    """

    column: str
    header: str
    unit: str
    names: tuple[str, ...]


CPU_ITEMS = (
    Item("cpu_total", "CPU s", "s", (TOTAL,)),
    Item("cpu_rollout", "sampling", "s", ("time/rollout_s",)),
    Item("cpu_environment", "environment", "s", ("time/env_s",)),
    Item("cpu_teacher", "teacher", "s", ("time/teacher_s",)),
    Item("cpu_analyzer", "analyzer", "s", ("time/analyzer_s",)),
    Item("cpu_update", "update", "s", ("time/update_s",)),
    Item("cpu_reference", "reference", "s", ("time/reference_s",)),
    Item("cpu_validation", "validation", "s", ("time/validation_s",)),
)
WORK_ITEMS = (
    Item("rollout_tokens", "Rollout tokens", "tokens", ("tokens/rollout",)),
    Item("update_tokens", "Update tokens", "tokens", ("tokens/update",)),
    Item("reference_tokens", "Reference tokens", "tokens", ("tokens/reference",)),
    Item("teacher_tokens", "Teacher tokens, prompts too", "tokens", ("tokens/teacher",)),
    Item("teacher_rows", "Teacher rows", "count", ("cost/teacher_rows",)),
    Item("tokens_rescored", "Tokens rescored", "tokens", ("cost/teacher_tokens_rescored",)),
    Item("analyzer_calls", "Analyzer calls", "count", ("cost/analyzer_calls",)),
    Item("analyzer_cached", "from the cache", "count", ("cost/analyzer_cached",)),
    Item("analyzer_retries", "retries", "count", ("cost/analyzer_retries",)),
    Item("analyzer_repairs", "repairs", "count", ("cost/analyzer_repairs",)),
    Item(
        "analyzer_tokens",
        "Analyzer tokens",
        "tokens",
        ("cost/analyzer_prompt_tokens", "cost/analyzer_completion_tokens"),
    ),
    Item("analyzer_money", "Analyzer money", "money", ("cost/analyzer_money",)),
    Item("analyzer_wall", "Analyzer wall s", "s", ("time/analyzer_wall_s",)),
)
_COLUMN = {name: number for number, name in enumerate(METRICS)}
_ITEMS = tuple((item, [_COLUMN[name] for name in item.names]) for item in (*CPU_ITEMS, *WORK_ITEMS))


def per_step(spool: Spool) -> dict[str, float]:
    """Item.column -> mean per training step; NaN if some step lacks a value."""
    means = spool.values.mean(axis=0)
    means[_COLUMN[TOTAL]] = spool.values[-1, _COLUMN[TOTAL]] / len(spool.steps)  # cumulative
    found: list[float] = means.tolist()
    return {item.column: sum(found[c] for c in columns) for item, columns in _ITEMS}


def cost_cells(records: Records, reference: str) -> Iterator[Cell]:
    """Cost of complete runs as mean with smallest and largest value, for every line that trains, teachers too."""
    complete = records.cells["complete"].to_numpy(dtype=bool)
    lines, seeds = records.cells["line"].to_numpy(), records.cells["seed"].to_numpy()
    of_line: dict[int, dict[int, int]] = {}  # line -> seed -> cell
    for number, spool in enumerate(records.spools):
        if complete[number] and spool.steps.size:
            of_line.setdefault(int(lines[number]), {})[int(seeds[number])] = number
    planned = records.cells.groupby("line")["seed"].size()
    others = reference_lines(records.lines, reference)
    totals = _totals(records)
    steps = {cell: per_step(records.spools[cell]) for runs in of_line.values() for cell in runs.values()}
    for line in training_lines(records):
        here = records.lines[line]
        runs = of_line.get(line, {})
        blank = Cell(
            line=here,
            place=PLACE,
            metric=Metric.COST_STEP,
            column=ALL,
            unit="s",
            interval=None,
            status=Status.MISSING,
            n_planned=int(planned[line]),
        )
        for item in (*CPU_ITEMS, *WORK_ITEMS):
            values = [steps[cell][item.column] for cell in runs.values()]
            cell = replace(blank, column=item.column, unit=item.unit)
            yield _filled(cell, values, f"{' and '.join(item.names)} is not recorded in every step")
        theirs = of_line.get(others.get(here.setting, -1), {})
        ratio = replace(blank, metric=Metric.COST_RATIO, unit="ratio", reference=reference)
        pairs = [(steps[runs[s]], steps[theirs[s]]) for s in sorted(runs.keys() & theirs.keys())]
        yield _ratio(ratio, bool(runs), [(mine["cpu_total"], its["cpu_total"]) for mine, its in pairs])
        own = [totals[cell][0] for cell in runs.values()]
        yield _filled(replace(blank, metric=Metric.CPU), own, f"{TOTAL} is not recorded")
        both = [totals[cell][1] for cell in runs.values()]
        why = "the cost of the teacher's run is not known"
        yield _filled(replace(blank, metric=Metric.CPU_WITH_TEACHER), both, why)


def _filled(cell: Cell, values: Sequence[float], why_not: str) -> Cell:
    assert cell.line is not None
    if not values:
        return cell
    if not np.isfinite(values).all():
        return replace(cell, status=Status.NOT_APPLICABLE, note=why_not)
    return replace(cell, interval=stats.range_interval(values), status=measured(cell.line))


def _ratio(cell: Cell, complete: bool, pairs: Sequence[tuple[float, float]]) -> Cell:
    """CPU seconds per step over the reference's, seed by seed. complete: whether the line has a complete run."""
    if not pairs:
        why = f"no seed in common with {cell.reference}" if complete else ""
        return replace(cell, status=Status.NOT_APPLICABLE if complete else cell.status, note=why)
    return _filled(cell, [a / b if b > 0 else np.nan for a, b in pairs], f"{TOTAL} is not recorded or zero")


def _totals(records: Records) -> list[tuple[float, float]]:
    """CPU seconds of each cell's own run, and with all runs whose weights it needs; NaN where not known."""
    complete = records.cells["complete"].to_numpy(dtype=bool)
    own = np.full(len(records.spools), np.nan)
    for number, spool in enumerate(records.spools):
        if complete[number] and spool.steps.size:
            own[number] = spool.values[-1, _COLUMN[TOTAL]]
    requires: list[tuple[str, ...]] = records.cells["requires"].tolist()
    by_name: dict[str, int] = dict(zip(records.cells["fingerprint"], range(len(own)), strict=True))
    return [(float(own[i]), _closure(i, own, requires, by_name)) for i in range(len(own))]


def _closure(
    start: int, own: NDArray[np.float64], requires: Sequence[Sequence[str]], by_name: Mapping[str, int]
) -> float:
    """Sum over a cell and everything that it needs, each once."""
    todo, seen = [start], {start}
    total = 0.0
    while todo:
        number = todo.pop()
        total += float(own[number])
        for name in requires[number]:
            if name not in by_name:
                return float("nan")
            if (needed := by_name[name]) not in seen:
                seen.add(needed)
                todo.append(needed)
    return total
