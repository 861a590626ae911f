"""What the command line does with a plan: run, retry, plan, status, tables. Each returns the exit status.

Jobs of launcher=slurm, watch and cancel: harness.actions_slurm; copying records: harness.actions_sync.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness import actions_slurm
from harness.actions_common import (
    PreparationError,
    check_caches,
    check_folder,
    create_run,
    elsewhere,
    exit_status,
    labels_of,
    prepare_cells,
    print_extras,
    print_table,
    say,
    shown,
)
from harness.actions_sync import track, tracked
from harness.cli import GO_ON, INCOMPLETE, INTERRUPTED, OK
from harness.plan import Plan, missing, states, write_plan
from harness.record import RunDirectory
from harness.report import plan_text, status_text, warnings
from harness.stages import Cell
from harness.states import COMPLETE
from harness.training.verl.planning import notes as verl_notes
from harness.training.verl.planning import section as verl_section

SLURM = "slurm"


def plan(plan: Plan) -> int:
    """Print the cells, and the job scripts if there will be jobs, and write plan.json. Starts nothing."""
    check_folder(plan)
    state_of = states(plan)
    print(plan_text(plan, state_of))
    for line in verl_section(plan):
        print(line)
    if plan.command.launcher.name == SLURM:
        print(f"\n{actions_slurm.jobs(plan, missing(plan, state_of))}\n")
    print(f"wrote {shown(write_plan(plan, state_of))}{elsewhere(plan)}")
    return OK


def status(plan: Plan) -> int:
    """Print how far each cell is, and what the scheduler says of its job if it has one. Only reads."""
    found, jobs, notes = actions_slurm.look(plan)
    print(status_text(plan, found, jobs, notes))
    return INCOMPLETE if missing(plan, {name: state.state for name, state in found.items()}) else OK


def tables(plan: Plan) -> int:
    """Write plan.json, the table, the figures and the report from what is recorded."""
    check_folder(plan)
    state_of = states(plan)
    write_plan(plan, state_of)
    print_table(plan)
    print_extras(plan)
    return exit_status(plan, state_of)


def retry(plan: Plan) -> int:
    """As `run`, and runs that failed are tried again, whatever the failure was."""
    return run(plan, retry_failed=True)


def run(plan: Plan, retry_failed: bool = False) -> int:
    """Run what is missing of the selected cells, copy records to the tracker, print the table.

    With launcher=slurm: submit what is missing and return; with wait=true stay until every cell has an outcome.
    """
    check_folder(plan)
    state_of = states(plan)
    todo = missing(plan, state_of)
    check_caches(todo)
    notes = verl_notes(plan, todo)
    write_plan(plan, state_of)
    if todo:
        teachers = sum(cell.stage for cell in todo)
        also = f", {teachers} only as {'a teacher' if teachers == 1 else 'teachers'} of others" if teachers else ""
        say(f"{plan.title}: {len(todo)} of {len(plan.selected)} cells to run{also}")
        for warning in [*warnings(plan), *notes]:
            say(warning)
        try:
            if plan.command.launcher.name == SLURM:
                left = actions_slurm.run(plan, todo, retry_failed)
            else:
                left = _run_here(plan, todo)
        except PreparationError as error:
            say(f"error: {error}")
            return INCOMPLETE
        if left is not None:
            return left
        state_of = states(plan)
        write_plan(plan, state_of)
    else:
        say(f"{plan.title}: all {len(plan.selected)} cells are complete, nothing to run")
    track(plan, say)
    print_table(plan)
    say("figures and the report: the same command with do=tables")
    return exit_status(plan, state_of)


def _run_here(plan: Plan, todo: Sequence[Cell]) -> int | None:
    """Exit status if the user stopped it before everything had an outcome; None: everything has one."""
    from harness.actions_preflight import gate

    if not gate(plan, say):  # only where an analyzer is paid for
        return INCOMPLETE
    prepare_cells(todo)
    from harness.launch.local import run_cells
    from harness.progress import Progress

    runs = [create_run(plan, cell, update=False) for cell in todo]
    cells = {cell.fingerprint: cell for cell in todo}
    labels = labels_of(plan)
    requires = {cell.fingerprint: cell.requires for cell in todo if cell.requires}
    with Progress(labels) as show, tracked(plan, show.message):
        # A failure seen before this command is tried again: asking again is asking for what is missing.
        report = run_cells(
            runs, plan.command.launcher.workers, show, retry_failed=True, requires=requires,
            before=lambda run: RunDirectory.create(plan.runs, cells[run.fingerprint].config, run.fingerprint),
        )  # fmt: skip
    for fingerprint, error in report.errors.items():
        if report.outcomes[fingerprint] != COMPLETE:
            say(f"{report.outcomes[fingerprint]}: {labels[fingerprint]}: {error}")
    if report.stopped:  # whoever stops it wants to leave: the tracker catches up with the next command
        say(f"stopped; {GO_ON}")
        return INTERRUPTED
    return None
