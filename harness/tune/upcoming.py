"""The runs of trials as cells of a plan, for what is done with plans: checks, costs and jobs. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.errors import ConfigError
from harness.plan import Plan
from harness.report import cell_label
from harness.stages import Cell
from harness.tune.study import Study
from harness.tune.trials import Made, Trials


def under_way(plan: Plan, studies: Sequence[Study], trials: Trials) -> Plan:
    """The plan with the runs of all trials that were begun and have not ended, and what these need, as its cells."""
    return _with(plan, [made for study in studies for made in _begun(study, trials)])


def left(plan: Plan, studies: Sequence[Study], trials: Trials) -> Plan:
    """The plan with every run that is still to come as its cells: those of trials under way, and for each trial that
    nobody asked for yet the row's own, under names that no run has. What it costs does not depend on the settings."""
    found: list[Cell] = []
    for study in studies:
        own = [cell for cell in plan.cells if not cell.stage and cell.point in study.search.points]
        for number in range(sum(not entry.retried for entry in study.entries()), study.tune.trials):
            found += [replace(cell, fingerprint=f"{cell.fingerprint}-trial-{number}") for cell in own]
    stages = [cell for cell in plan.cells if cell.stage and cell.selected]
    return _with(plan, [made for study in studies for made in _begun(study, trials)], [*found, *stages])


def jobs_of(plan: Plan) -> list[str]:
    """A line for each job of a plan's runs, with what the scheduler says of it."""
    from harness import actions_slurm

    _, shown, notes = actions_slurm.look(plan)
    cells = {cell.fingerprint: cell for cell in plan.cells}
    lines = (f"{cell_label(plan, cells[name])}: job {job}" for name, job in shown.items())
    return [f"{line}: {notes[name]}" if name in notes else line for line, name in zip(lines, shown, strict=True)]


def _begun(study: Study, trials: Trials) -> list[Made]:
    found = []
    for entry in study.entries():
        if entry.state == "RUNNING":
            search = study.search
            try:
                found.append(trials.make(search.row, search.points, entry.params, f"trial {entry.number}"))
            except ConfigError:  # the next do=run tells the trial as failed, with the reason
                continue
    return found


def _with(plan: Plan, made: Sequence[Made], more: Iterable[Cell] = ()) -> Plan:
    cells = {cell.fingerprint: replace(cell, selected=True) for cell in [*(c for m in made for c in m.all), *more]}
    labels = {cell.row.id: cell.config.method.label for cell in cells.values()}
    return replace(plan, cells=tuple(cells.values()), labels={**labels, **plan.labels})
