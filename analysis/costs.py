"""What training cost: means per training step, their ratio to the reference row, and totals with the teacher's run.

Seconds are those of each run's clock (clocks.py): what is of two kinds is neither averaged, added nor divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis import stats
from analysis.cells import ALL, Cell, Metric, Status, measured
from analysis.clocks import SECONDS_PER_HOUR, clash
from analysis.clocks import of_lines as clocks_of_lines
from analysis.collect import Records
from analysis.compare import reference_lines
from analysis.curves import PLACE, training_lines
from analysis.spools import METRICS, Spool

TOTAL = "time/cpu_total_s"
UNKNOWN = "the cost of the teacher's run is not known"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a training step costs.

    column: its name in the CSV; header: over its column; unit: see text.number; names: recorded metrics, summed
    """

    column: str
    header: str
    unit: str
    names: tuple[str, ...]


# Of the clock of the run.
TIME_ITEMS = (
    Item("time_total", "total", "s", (TOTAL,)),
    Item("time_rollout", "sampling", "s", ("time/rollout_s",)),
    Item("time_environment", "environment", "s", ("time/env_s",)),
    Item("time_teacher", "teacher", "s", ("time/teacher_s",)),
    Item("time_analyzer", "analyzer", "s", ("time/analyzer_s",)),
    Item("time_update", "update", "s", ("time/update_s",)),
    Item("time_reference", "reference", "s", ("time/reference_s",)),
    Item("time_validation", "validation", "s", ("time/validation_s",)),
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
    Item("analyzer_wall", "Analyzer wall s", "wall s", ("time/analyzer_wall_s",)),
)
_COLUMN = {name: number for number, name in enumerate(METRICS)}
_ITEMS = tuple((item, [_COLUMN[name] for name in item.names]) for item in (*TIME_ITEMS, *WORK_ITEMS))


def per_step(spool: Spool) -> dict[str, float]:
    """Item.column -> mean per training step; NaN if some step lacks a value.

    What an analyzer was asked is the sum of all its events, where there are any: steps that failed or were undone by a
    resume were paid for too.
    """
    means = spool.values.mean(axis=0)
    means[_COLUMN[TOTAL]] = spool.values[-1, _COLUMN[TOTAL]] / len(spool.steps)  # cumulative
    for name, spent in spool.usage.items():
        means[_COLUMN[name]] = spent / len(spool.steps)
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
    clocks = [spool.clock for spool in records.spools]
    of_lines = clocks_of_lines(records)
    for line in training_lines(records):
        here = records.lines[line]
        runs = of_line.get(line, {})
        clock, unlike = of_lines.get(line), clash(clocks[cell] for cell in runs.values())
        unit = f"{clock.name} s" if clock else "s"
        blank = Cell(
            line=here,
            place=PLACE,
            metric=Metric.COST_STEP,
            column=ALL,
            unit=unit,
            interval=None,
            status=Status.MISSING,
            n_planned=int(planned[line]),
        )
        for item in (*TIME_ITEMS, *WORK_ITEMS):
            values = [steps[cell][item.column] for cell in runs.values()]
            timed = item.unit == "s"
            cell = replace(blank, column=item.column, unit=unit if timed else item.unit)
            why = f"{' and '.join(item.names)} is not recorded in every step"
            yield _filled(cell, values, why, unlike if timed else "")
        theirs = of_line.get(others.get(here.setting, -1), {})
        ratio = replace(blank, metric=Metric.COST_RATIO, unit="ratio", reference=reference)
        both = [(runs[s], theirs[s]) for s in sorted(runs.keys() & theirs.keys())]
        pairs = [(steps[mine]["time_total"], steps[its]["time_total"]) for mine, its in both]
        yield _ratio(ratio, bool(runs), pairs, clash(clocks[cell] for pair in both for cell in pair))
        of_runs = [totals[cell] for cell in runs.values()]
        yield _filled(replace(blank, metric=Metric.TIME), [t.own for t in of_runs], f"{TOTAL} is not recorded", unlike)
        whole = replace(blank, metric=Metric.TIME_WITH_TEACHER)
        apart = unlike or next((t.unlike for t in of_runs if t.unlike), "")
        yield _filled(whole, [t.whole for t in of_runs], UNKNOWN, apart)
        if any(t.gpu_hours > 0 or t.gpu_hours_whole > 0 for t in of_runs):
            hours = replace(blank, metric=Metric.GPU_HOURS, unit="GPU h")
            yield _filled(hours, [t.gpu_hours for t in of_runs], "the clock of a run is not known")
            hours = replace(hours, metric=Metric.GPU_HOURS_WITH_TEACHER)
            yield _filled(hours, [t.gpu_hours_whole for t in of_runs], UNKNOWN)


def _filled(cell: Cell, values: Sequence[float], why_not: str, unlike: str = "") -> Cell:
    """The mean of values. unlike: why they have no one unit."""
    assert cell.line is not None
    if not values:
        return cell
    if unlike or not np.isfinite(values).all():
        return replace(cell, status=Status.NOT_APPLICABLE, note=unlike or why_not)
    return replace(cell, interval=stats.range_interval(values), status=measured(cell.line))


def _ratio(cell: Cell, complete: bool, pairs: Sequence[tuple[float, float]], unlike: str) -> Cell:
    """Seconds per step over the reference's, seed by seed. complete: whether the line has a complete run."""
    if not pairs:
        why = f"no seed in common with {cell.reference}" if complete else ""
        return replace(cell, status=Status.NOT_APPLICABLE if complete else cell.status, note=why)
    return _filled(cell, [a / b if b > 0 else np.nan for a, b in pairs], f"{TOTAL} is not recorded or zero", unlike)


@dataclass(frozen=True, slots=True)
class Total:
    """Seconds and GPU hours of one run, NaN where not known. whole: with all runs whose weights it needs, each once.

    unlike: why their seconds are not added
    """

    own: float
    whole: float
    gpu_hours: float
    gpu_hours_whole: float
    unlike: str


def _totals(records: Records) -> list[Total]:
    """Of each planned run."""
    complete = records.cells["complete"].to_numpy(dtype=bool)
    own, hours = (np.full(len(records.spools), np.nan) for _ in range(2))
    clocks = [spool.clock for spool in records.spools]
    for number, (spool, clock) in enumerate(zip(records.spools, clocks, strict=True)):
        if complete[number] and spool.steps.size:
            own[number] = spool.values[-1, _COLUMN[TOTAL]]
            hours[number] = own[number] * clock.gpus / SECONDS_PER_HOUR if clock else np.nan
    requires: list[tuple[str, ...]] = records.cells["requires"].tolist()
    by_name: dict[str, int] = dict(zip(records.cells["fingerprint"], range(len(own)), strict=True))
    found = []
    for number in range(len(own)):
        needed = _closure(number, requires, by_name)
        seconds, gpu_hours, unlike = np.nan, np.nan, ""
        if needed is not None:
            seconds, gpu_hours = float(own[needed].sum()), float(hours[needed].sum())
            unlike = clash(clocks[i] for i in needed if np.isfinite(own[i]))
        found.append(Total(float(own[number]), seconds, float(hours[number]), gpu_hours, unlike))
    return found


def _closure(start: int, requires: Sequence[Sequence[str]], by_name: Mapping[str, int]) -> list[int] | None:
    """A cell and everything that it needs, each once; None if the plan lacks one of them."""
    found = [start]
    for number in found:  # grows on the way
        for name in requires[number]:
            if name not in by_name:
                return None
            if by_name[name] not in found:
                found.append(by_name[name])
    return found
