"""What the command line does with a plan: run, plan, status, tables. Each returns the exit status."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.actions_sync import track, tracked
from harness.cli import GO_ON, INCOMPLETE, INTERRUPTED, OK
from harness.config import RunConfig
from harness.errors import ConfigError, Problem
from harness.files import RecordError
from harness.folders import check_writable
from harness.plan import Plan, missing, states, write_plan
from harness.record import RunDirectory, declared_evaluations, planned_steps
from harness.report import cell_label, plan_text, status_text, warnings
from harness.stages import Cell, used_panels
from harness.states import COMPLETE, RunState


class PreparationError(RuntimeError):
    """What runs share could not be made; no run was started."""


def say(text: str) -> None:
    """A message about the work; results go to standard output, messages do not."""
    print(text, file=sys.stderr, flush=True)


def plan(plan: Plan) -> int:
    """Print the cells and write plan.json. Starts nothing."""
    _check_folder(plan)
    state_of = states(plan)
    print(plan_text(plan, state_of))
    print(f"wrote {_shown(write_plan(plan, state_of))}{_elsewhere(plan)}")
    return OK


def status(plan: Plan) -> int:
    """Print how far each cell is. Only reads."""
    found = {}
    for cell in plan.selected:
        path = plan.runs / cell.fingerprint
        nothing = RunState(planned_steps=planned_steps(cell.config), declared=declared_evaluations(cell.config))
        found[cell.fingerprint] = RunDirectory(path).state() if path.is_dir() else nothing
    print(status_text(plan, found))
    return INCOMPLETE if missing(plan, {name: state.state for name, state in found.items()}) else OK


def tables(plan: Plan) -> int:
    """Write plan.json, the table, the figures and the report from what is recorded."""
    _check_folder(plan)
    state_of = states(plan)
    write_plan(plan, state_of)
    _print_table(plan)
    _print_extras(plan)
    return _exit_status(plan, state_of)


def run(plan: Plan) -> int:
    """Run what is missing of the selected cells, copy records to the tracker, print the table."""
    _check_folder(plan)
    state_of = states(plan)
    todo = missing(plan, state_of)
    _check_caches(todo)
    write_plan(plan, state_of)
    stopped = False
    if todo:
        teachers = sum(cell.stage for cell in todo)
        also = f", {teachers} only as {'a teacher' if teachers == 1 else 'teachers'} of others" if teachers else ""
        say(f"{plan.title}: {len(todo)} of {len(plan.selected)} cells to run{also}")
        for warning in warnings(plan):
            say(warning)
        try:
            stopped = _run_cells(plan, todo)
        except PreparationError as error:
            say(f"error: {error}")
            return INCOMPLETE
        state_of = states(plan)
        write_plan(plan, state_of)
    else:
        say(f"{plan.title}: all {len(plan.selected)} cells are complete, nothing to run")
    if stopped:  # whoever stops it wants to leave: the tracker catches up with the next command
        say(f"stopped; {GO_ON}")
        return INTERRUPTED
    track(plan, say)
    _print_table(plan)
    say("figures and the report: the same command with do=tables")
    return _exit_status(plan, state_of)


# ------------------------------------------------------------------------------------------------------------ running
def _check_folder(plan: Plan) -> None:
    runtime = plan.command.runtime
    check_writable(plan.out, "runtime.out", "command line or sweeps/config.yaml", runtime.min_free_gb)


def _check_caches(cells: Sequence[Cell]) -> None:
    """The folders of what runs share, like the output folder: before anything starts."""
    from harness.prepare import check_cache

    for config in {cell.config.env.cache: cell.config for cell in cells}.values():
        check_cache(config)


def _run_cells(plan: Plan, todo: Sequence[Cell]) -> bool:
    """Whether the user stopped it before everything had an outcome."""
    _prepare(todo)
    from harness.launch.local import run_cells
    from harness.progress import Progress

    runs = [_create(plan, cell) for cell in todo]
    labels = {cell.fingerprint: cell_label(plan, cell) for cell in plan.cells}
    requires = {cell.fingerprint: cell.requires for cell in todo if cell.requires}
    with Progress(labels) as show, tracked(plan, show.message):
        # A failure seen before this command is tried again: asking again is asking for what is missing.
        report = run_cells(runs, plan.command.launcher.workers, show, retry_failed=True, requires=requires)
    for fingerprint, error in report.errors.items():
        if report.outcomes[fingerprint] != COMPLETE:
            say(f"{report.outcomes[fingerprint]}: {labels[fingerprint]}: {error}")
    return report.stopped


def _create(plan: Plan, cell: Cell) -> RunDirectory:
    try:
        return RunDirectory.create(plan.runs, cell.config, cell.fingerprint)
    except RecordError as error:
        raise ConfigError(Problem("runtime.out", str(plan.out), "", str(error))) from error


def _prepare(cells: Sequence[Cell]) -> None:
    """Make what several runs share (games, the embedded model) once, before any of them starts."""
    from harness.prepare import prepare, uses_skills

    groups: dict[str, RunConfig] = {}
    for cell in cells:
        config = cell.config
        shared = repr((config.env, config.backbone, used_panels(config)))
        # A run that uses skills asks for more than one that does not: it speaks for all of its group.
        if shared not in groups or (uses_skills(config) and not uses_skills(groups[shared])):
            groups[shared] = config
    for config in groups.values():
        try:
            prepare(config, say)
        except (OSError, ImportError, ValueError, RuntimeError) as error:
            if config.runtime.log_level == "DEBUG":
                raise
            what = f"env={config.env.name} and backbone={config.backbone.name}"
            raise PreparationError(
                f"cannot prepare {what}: {type(error).__name__}: {error} (runtime.log_level=DEBUG shows where)"
            ) from error


# ---------------------------------------------------------------------------------------------------------- reporting
def _print_table(plan: Plan) -> None:
    from analysis.tables import write_main_table

    written = write_main_table(plan.out, plan.sweep.name)
    print(written["text"])
    paths = ", ".join(_shown(written[kind]) for kind in ("md", "html", "csv"))
    print(f"wrote {paths}{_elsewhere(plan)}", flush=True)


def _print_extras(plan: Plan) -> None:
    """Draw the figures and write the report; say which figure was not drawn, and why."""
    from analysis.outputs import write_extras

    say(f"{plan.title}: drawing figures, writing the report")
    for line in write_extras(plan.out, plan.sweep.name):
        print(line, flush=True)


def _elsewhere(plan: Plan) -> str:
    """Where the results of changed settings are, since they have a folder of their own."""
    if not plan.sweep.changes:
        return ""
    place = "" if plan.out == Path.cwd() else f" out={shlex.quote(str(plan.out))}"
    name = plan.sweep.name
    return f"\nresults of these settings are called {name}: python -m analysis sweep={name}{place}"


def _exit_status(plan: Plan, state_of: Mapping[str, str]) -> int:
    lacking = missing(plan, state_of)
    if not lacking:
        return OK
    counts = Counter(state_of[cell.fingerprint] for cell in lacking)
    told = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    say(f"{len(lacking)} of {len(plan.selected)} cells are not complete ({told}); do=status says which and why")
    return INCOMPLETE


def _shown(path: Path) -> str:
    """Relative to the current folder where that is shorter to read."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
