"""What the command line does with jobs of a scheduler: submit and stay, look, watch, cancel."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.actions_common import check_before_submitting, create_run, exit_status, labels_of, prepare_cells, say
from harness.actions_sync import tracked
from harness.cli import INCOMPLETE, INTERRUPTED, OK
from harness.errors import ConfigError
from harness.plan import Plan, states
from harness.record import RunDirectory, declared_evaluations, planned_steps
from harness.stages import Cell
from harness.states import COMPLETE, FAILED, PENDING, RUNNING, SUBMITTED, RunState
from harness.states import INTERRUPTED as STOPPED

if TYPE_CHECKING:
    from harness.launch.slurm import Dispatcher
    from harness.launch.tasks import Report, TaskReport
    from harness.progress import CellView

GO_ON = "the jobs go on; the same command attaches to them again"
WATCH_SECONDS = 2.0  # between looks at the records; the scheduler is asked less often


# ------------------------------------------------------------------------------------------------------------- planning
def jobs(plan: Plan, todo: Sequence[Cell]) -> str:
    """The jobs that a plan would submit, for do=plan. ConfigError for settings that make no job script."""
    from harness.launch import script
    from harness.report_jobs import jobs_text

    if wrong := script.problems(plan.command.launcher, plan.out):
        raise ConfigError(wrong)
    return jobs_text(plan, todo)


# -------------------------------------------------------------------------------------------------------------- running
def run(plan: Plan, todo: Sequence[Cell], retry_failed: bool) -> int | None:
    """Submit what is missing; stay with wait=true. Exit status, or None when nothing is under way any more."""
    from harness.launch import script
    from harness.launch.shapes import shape_of
    from harness.launch.slurm import Dispatcher
    from harness.launch.tasks import Task

    if wrong := script.problems(plan.command.launcher, plan.out):
        raise ConfigError(wrong)
    cells = {cell.fingerprint: cell for cell in todo}

    def before(names: Sequence[str]) -> None:
        chosen = [cells[name] for name in names]
        check_before_submitting(plan, chosen, any(task.shape.gpus for task in tasks))
        prepare_cells(chosen)
        for cell in chosen:
            create_run(plan, cell)

    tasks = [
        Task(
            RunDirectory(plan.runs / cell.fingerprint),
            shape_of(cell.config),
            cell.requires,
            cell.config.runtime.threads,
        )
        for cell in todo
    ]
    launcher = plan.command.launcher
    dispatcher = Dispatcher(
        tasks, launcher, plan.out, plan.sweep.name, retry_failed=retry_failed, before=before, say=say
    )
    try:
        report = _stay(plan, dispatcher) if plan.command.wait else dispatcher.step()
    except KeyboardInterrupt:
        say(f"stopped; {GO_ON}")
        return INTERRUPTED
    _tell(plan, report)
    if report.open:
        say("do=status says how far they are, do=watch looks on, do=cancel ends them, wait=true stays until the end")
        return INCOMPLETE if report.problem or report.count(FAILED, PENDING, STOPPED) else OK
    return None


def _stay(plan: Plan, dispatcher: Dispatcher) -> Report:
    """Look again and again until nothing is under way."""
    from harness.launch.tasks import Report
    from harness.progress import Progress

    views = Views(labels_of(plan), plan.runs)
    told = ""
    problem: str | None = None
    with Progress(labels_of(plan)) as show, tracked(plan, show.message):
        dispatcher.say = show.message
        submitted = 0
        arrays: tuple[str, ...] = ()
        while True:
            report = dispatcher.step()
            submitted, arrays = submitted + report.submitted, (*arrays, *report.arrays)
            if report.problem and report.problem != problem:
                show.message(report.problem)
            problem = report.problem
            if (line := counts(report)) != told:
                told = line
                show.message(f"jobs: {line}")
            show.update(views.of(report))
            if not report.open:
                return Report(report.tasks, submitted, arrays, report.problem)
            time.sleep(plan.command.launcher.poll_seconds)


class Views:
    """What the display shows of each cell; files are read again only where something may have changed.

    labels: fingerprint -> how the cell is called; runs: the folder of run directories.
    """

    def __init__(self, labels: Mapping[str, str], runs: Path) -> None:
        self._labels, self._runs = labels, runs
        self._known: dict[str, tuple[TaskReport, CellView]] = {}

    def of(self, report: Report) -> list[CellView]:
        from harness.progress import look

        for name, task in report.tasks.items():
            known = self._known.get(name)
            if known is None or known[0] != task or task.status == RUNNING:
                run = RunDirectory(self._runs / name)
                self._known[name] = (task, look(run, self._labels[name], _shown_as(task.status), task.note))
        return [self._known[name][1] for name in report.tasks]


def _shown_as(status: str) -> str:
    """A task's status in the words of the display."""
    from harness.progress import ACTIVE, ELSEWHERE, FINAL, WAITING

    if status in FINAL or status == ELSEWHERE:
        return status
    return ACTIVE if status == RUNNING else WAITING


def counts(report: Report) -> str:
    """How many tasks stand how, in words."""
    words = {SUBMITTED: "in the queue", RUNNING: "running", PENDING: "not to be had"}
    found = Counter(task.status for task in report.tasks.values())
    return ", ".join(f"{number} {words.get(status, status)}" for status, number in sorted(found.items()))


def _tell(plan: Plan, report: Report) -> None:
    from harness.launch.endings import ELSEWHERE
    from harness.launch.tasks import UNSURE

    labels = labels_of(plan)
    if report.submitted:
        arrays = ", ".join(report.arrays[:12]) + (", ..." if len(report.arrays) > 12 else "")
        say(f"{report.submitted} jobs submitted in {len(report.arrays)} arrays: {arrays}")
    say(f"{plan.title}: {counts(report)}")
    for name, task in report.tasks.items():
        if task.status in (FAILED, STOPPED, PENDING, UNSURE, ELSEWHERE) and task.note:
            say(f"{task.status}: {labels[name]}: {task.note}")
    if report.problem:
        say(f"{report.problem}; the same command later (or with wait=true) submits the rest")


# -------------------------------------------------------------------------------------------------------------- looking
def look(plan: Plan) -> tuple[dict[str, RunState], dict[str, str], dict[str, str]]:
    """(state, job as the scheduler says, remark on it) of the selected cells, each by fingerprint. Only reads.

    A run whose job waits is `submitted`, whatever its last attempt came to; `running` once the job does.
    """
    from dataclasses import replace

    from harness.launch.jobstates import QUEUED, REQUEUED, UNKNOWN
    from harness.launch.jobstates import RUNNING as JOB_RUNS
    from harness.launch.queue import Queue

    found: dict[str, RunState] = {}
    for cell in plan.selected:
        path = plan.runs / cell.fingerprint
        nothing = RunState(planned_steps=planned_steps(cell.config), declared=declared_evaluations(cell.config))
        found[cell.fingerprint] = RunDirectory(path).state() if path.is_dir() else nothing
    unfinished = [RunDirectory(plan.runs / name) for name, state in found.items() if state.state != COMPLETE]
    shown: dict[str, str] = {}
    notes: dict[str, str] = {}
    for name, held in Queue().look(unfinished).items():
        shown[name] = f"{held.ticket.job_id} {held.state.word or held.state.kind}".strip()
        state = found[name]
        if held.state.kind in (QUEUED, REQUEUED) and state.state != RUNNING:
            found[name] = replace(state, state=SUBMITTED, error=None, failure_class=None)
        elif held.state.kind == JOB_RUNS:
            found[name] = replace(state, state=RUNNING, error=None, failure_class=None)
        if not held.live:
            notes[name] = f"{held}; the same command with do=run records why and submits it again where that can help"
        elif held.state.kind == UNKNOWN:
            notes[name] = held.told(RunDirectory(plan.runs / name))
        elif held.state.kind not in (QUEUED, JOB_RUNS) or held.state.reason not in ("", "Priority", "Resources"):
            notes[name] = str(held)
    return found, shown, notes


def watch(plan: Plan) -> int:
    """Show how the selected cells go on until nothing works on them or waits any more. Only reads."""
    from harness import claim as claims
    from harness.launch.jobstates import UNKNOWN
    from harness.launch.queue import Queue
    from harness.progress import ACTIVE, WAITING, Progress
    from harness.progress import look as look_at

    queue = Queue(seconds=plan.command.launcher.poll_seconds)
    labels = labels_of(plan)
    try:
        with Progress(labels) as show:
            while True:
                views, alive = [], False
                for cell in plan.selected:
                    run = RunDirectory(plan.runs / cell.fingerprint)
                    state = run.state() if run.path.is_dir() else RunState()
                    status, note = state.state, state.error or ""
                    if state.state != COMPLETE:
                        held, holder = queue.holds(run), run.claim_status()
                        alive = alive or held is not None or holder.status in (claims.ALIVE, claims.UNKNOWN)
                        if state.state == RUNNING:
                            status, note = ACTIVE, str(held) if held is not None else holder.reason
                        elif held is not None:
                            status, note = WAITING, held.told(run) if held.state.kind == UNKNOWN else str(held)
                        elif holder.status == claims.UNKNOWN:
                            note = claims.told(run.claim_path, holder)
                    views.append(look_at(run, labels[cell.fingerprint], status, note))
                show.update(views)
                if not alive:
                    break
                time.sleep(min(WATCH_SECONDS, plan.command.launcher.poll_seconds))
    except KeyboardInterrupt:
        say("stopped watching; the runs go on")
        return INTERRUPTED
    say("nothing works on these cells or waits for a machine any more")
    return exit_status(plan, states(plan))


# ----------------------------------------------------------------------------------------------------------- cancelling
def cancel(plan: Plan) -> int:
    """End the jobs of the selected cells, those that wait and those that run, and record the runs as interrupted."""
    from harness.launch.cancelling import cancel_jobs
    from harness.launch.scheduler import SchedulerError, user_name

    needed = {name for cell in plan.cells if not cell.selected for name in cell.requires}
    chosen = [cell for cell in plan.selected if not (cell.stage and cell.fingerprint in needed)]
    runs = [run for c in chosen if (run := RunDirectory(plan.runs / c.fingerprint)).path.is_dir()]
    try:
        report = cancel_jobs(runs, plan.out, f"cancelled by {user_name()} with do=cancel", say=say)
    except SchedulerError as error:
        say(f"error: {error}")
        return INCOMPLETE
    labels = labels_of(plan)
    say(f"{len(report.cancelled)} jobs cancelled" + (", nothing else has one" if not report.left else ""))
    for name, why in report.left.items():
        say(f"{labels[name]}: {why}")
    return INCOMPLETE if report.left else OK
