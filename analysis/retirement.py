"""When each run parted from its teacher, how good both were then, and whether the teacher was left alone afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.cells import Cell, Metric, Status, measured
from analysis.spools import METRICS, Spool

if TYPE_CHECKING:
    from analysis.collect import DataWarning, Records

_COLUMN = {name: number for number, name in enumerate(METRICS)}
# Counts, not seconds: reading the clock takes some microseconds even where nothing was scored.
FORWARDS = ("cost/teacher_rows", "cost/teacher_tokens_rescored", "tokens/teacher")


@dataclass(frozen=True, slots=True)
class Retirement:
    """One run with a teacher that it may part from.

    step: last training step with the teacher, None if it never retired; last: last recorded step
    teacher: success of the teacher with skills on the validation panel, NaN if not measured
    course: (first step, weight) wherever the weight of the teacher's term changed
    success: of the policy on the validation panel at `step` or last before it (never retired: last of all)
    rows_after: sequences scored under the teacher after `step`; NaN if it never retired, or nothing says
    touched: which records say that the teacher was used after `step`
    gap, window_gap, progress, competence: last values up to `step` that were recorded, NaN if none
    """

    cell: int
    seed: int
    step: int | None
    last: int
    teacher: float
    course: tuple[tuple[int, float], ...]
    success: float
    rows_after: float
    touched: tuple[str, ...]
    gap: float
    window_gap: float
    progress: float
    competence: float


def retirements(records: Records) -> dict[int, list[Retirement]]:
    """Line -> its runs, by seed: lines with a run that has a teacher of other weights or says that it may retire one.

    Runs that are not complete are among them, as far as they are recorded.
    """
    lines, seeds = records.cells["line"].tolist(), records.cells["seed"].tolist()
    needs = records.cells["requires"].tolist()
    wanted = {
        lines[number]
        for number, spool in enumerate(records.spools)
        if needs[number] or spool.events or np.isfinite(spool.values[:, _COLUMN["method/retired"]]).any()
    }
    found: dict[int, list[Retirement]] = {}
    for number, spool in enumerate(records.spools):
        if lines[number] in wanted and not records.lines[lines[number]].stage and spool.steps.size:
            found.setdefault(lines[number], []).append(_of_run(number, int(seeds[number]), spool))
    return {line: sorted(found[line], key=lambda run: run.seed) for line in sorted(found)}


def _of_run(cell: int, seed: int, spool: Spool) -> Retirement:
    step = _retired_step(spool)
    until = spool.steps <= step if step is not None else np.full(spool.steps.shape, True)
    after = spool.values[~until]
    sums = {name: float(after[:, _COLUMN[name]].sum()) if after.size else 0.0 for name in FORWARDS}

    def last(name: str) -> float:
        values = spool.values[until, _COLUMN[name]]
        known = values[np.isfinite(values)]
        return float(known[-1]) if known.size else math.nan

    return Retirement(
        cell=cell,
        seed=seed,
        step=step,
        last=int(spool.steps[-1]),
        teacher=_first(_number(spool.events.get("teacher_measured", {}), "success"), last("method/teacher_success")),
        course=_course(spool.steps, spool.values[:, _COLUMN["method/coef"]]),
        success=_first(last("validation/success"), last("method/validation_success")),
        rows_after=sums["cost/teacher_rows"] if step is not None else math.nan,
        touched=tuple(name for name in FORWARDS if sums[name] > 0) if step is not None else (),
        gap=last("method/gap"),
        window_gap=last("method/window_gap"),
        progress=last("method/progress"),
        competence=last("method/competence"),
    )


def _retired_step(spool: Spool) -> int | None:
    """As the event says; without one, by the first step whose metrics say so.

    A decision after step n is said of n; a stop that was fixed beforehand only of n + 1, whose weight is 0 already.
    """
    said = _number(spool.events.get("retired", {}), "step")
    if math.isnan(said):
        steps = spool.steps[spool.values[:, _COLUMN["method/retired"]] > 0]
        if not steps.size:
            return None
        said = float(steps[0])
    weight = spool.values[spool.steps == said, _COLUMN["method/coef"]]
    return int(said) - 1 if weight.size and weight[0] == 0 else int(said)


def _first(*values: float) -> float:
    """The first that is known."""
    return next((value for value in values if not math.isnan(value)), math.nan)


def _number(data: Mapping[str, Any], name: str) -> float:
    try:
        return float(data[name])
    except (KeyError, TypeError, ValueError):
        return math.nan


def _course(steps: NDArray[np.int64], weights: NDArray[np.float64]) -> tuple[tuple[int, float], ...]:
    """Where a recorded weight differs from the one before."""
    known = np.isfinite(weights)
    found: list[tuple[int, float]] = []
    for step, weight in zip(steps[known].tolist(), weights[known].tolist(), strict=True):
        if not found or found[-1][1] != weight:
            found.append((int(step), float(weight)))
    return tuple(found)


def course_text(run: Retirement) -> str:
    """`0.01 from step 1, 0 from step 61`, or first and last where it changes all the time."""
    if not run.course:
        return "–"
    if len(run.course) > 4:
        (first, start), (last, end) = run.course[0], run.course[-1]
        return f"{start:.4g} (step {first}) to {end:.4g} (step {last}), {len(run.course)} values"
    return ", ".join(f"{weight:.4g} from step {step}" for step, weight in run.course)


def retirement_cells(records: Records) -> Iterator[Cell]:
    """One cell per run and number, of complete runs; `column` is `<name>, seed <n>`."""
    complete = records.cells["complete"].to_numpy(dtype=bool)
    for line, runs in retirements(records).items():
        here = records.lines[line]
        for run in runs:
            if not complete[run.cell]:
                continue
            numbers = (
                ("retired_step", "steps", math.nan if run.step is None else float(run.step)),
                ("teacher_success", "%", run.teacher),
                ("success_at_retirement", "%", run.success),
                ("teacher_rows_after_retirement", "count", run.rows_after),
                ("weight_first", "weight", run.course[0][1] if run.course else math.nan),
                ("weight_last", "weight", run.course[-1][1] if run.course else math.nan),
                ("window_gap", "nats", run.window_gap),
                ("progress", "share", run.progress),
                ("competence", "share", run.competence),
            )
            for name, unit, value in numbers:
                known = math.isfinite(value)
                why = "never retired" if run.step is None and "retire" in name else "not recorded"
                yield Cell(
                    line=here,
                    place="train",
                    metric=Metric.RETIREMENT,
                    column=f"{name}, seed {run.seed}",
                    unit=unit,
                    interval=stats.Interval(value, math.nan, math.nan, stats.NO_INTERVAL, 1) if known else None,
                    status=measured(here) if known else Status.NOT_APPLICABLE,
                    n_planned=1,
                    note="" if known else why,
                )


def retirement_warnings(records: Records) -> Iterator[DataWarning]:
    """A teacher that was used after it had been retired: then the run is not what its row says."""
    from analysis.checks import name_of
    from analysis.collect import DataWarning

    for line, runs in retirements(records).items():
        for run in runs:
            if run.touched:
                text = f"retired at step {run.step}, but {', '.join(run.touched)} after it is not zero"
                who = f"{name_of(records, line)}, seed {run.seed}"
                yield DataWarning("teacher_after_retirement", f"{who}: {text}", (run.cell,))
