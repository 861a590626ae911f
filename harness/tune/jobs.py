"""A search's runs as jobs of a Slurm cluster: the loop's pool over the dispatcher of jobs.

What the loop asks for is done at the next step of the dispatcher: at once where runs are new or to be stopped, else
`launcher.poll_seconds` after the one before. Jobs outlive the command: the next one is given the same trials by their
study, and attaches to the jobs that their runs have.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from harness.actions_common import PreparationError
from harness.actions_slurm import Views, counts
from harness.config import LauncherConfig
from harness.launch.endings import TRIED_BY_A_NEW_COMMAND
from harness.launch.scheduler import Slurm
from harness.launch.shapes import shape_of
from harness.launch.slurm import REFUSED, RETRY_HINT, Dispatcher
from harness.launch.tasks import Task, TaskReport
from harness.record import RunDirectory
from harness.stages import Cell
from harness.states import PENDING
from harness.stopping import request_stop
from harness.worker import DEFAULT_ENTRY

if TYPE_CHECKING:
    from harness.progress import Progress

LOOK_SECONDS = 1.0  # between looks at the records of runs; the scheduler is asked every launcher.poll_seconds
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class RefusedJobError(PreparationError):
    """The site will never take a job as it is asked for: no trial's fault, and no trial is told as failed for it."""


class JobPool:
    """Runs as jobs. runs: the folder of run directories, beside which the jobs' files lie; sweep: name for jobs; retry:
    runs that failed are tried again, whatever the failure was."""

    def __init__(
        self,
        launcher: LauncherConfig,
        runs: Path,
        sweep: str,
        show: Progress,
        entry: str = DEFAULT_ENTRY,
        scheduler: Slurm | None = None,
        retry: bool = False,
    ) -> None:
        self._retry, self._cells = retry, dict[str, Cell]()
        self._dispatcher = Dispatcher(
            [], launcher, runs.parent, sweep, retry_failed=retry, before=self._before, entry=entry,
            scheduler=scheduler, say=show.message,
        )  # fmt: skip
        self._seconds = launcher.poll_seconds
        self._show, self._views = show, Views(show.labels, runs)
        self._runs: dict[str, RunDirectory] = {}
        self._tasks: dict[str, TaskReport] = {}  # as the last step found them; without those that are new
        self._next = 0.0
        self._interrupts = 0
        self._told = self._problem = ""

    @contextlib.contextmanager
    def working(self) -> Iterator[JobPool]:
        """Signals end the command, and leave the jobs alone. A second Ctrl-C does not wait for the step to end."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        def handler(number: int, frame: FrameType | None) -> None:
            self._interrupts += 1
            if number == signal.SIGINT and self._interrupts > 1:
                raise KeyboardInterrupt

        before = {number: signal.signal(number, handler) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, old in before.items():
                signal.signal(number, old if old is not None else signal.SIG_DFL)

    # ------------------------------------------------------------------------------------------------ for the loop
    def add(self, run: RunDirectory, cell: Cell, label: str) -> None:
        name = cell.fingerprint
        if name in self._runs and self.outcome(name)[0] is None:
            return
        self._runs[name], self._cells[name] = run, cell
        self._tasks.pop(name, None)
        self._show.labels[name] = label
        self._dispatcher.add([Task(run, shape_of(cell.config), cell.requires, cell.config.runtime.threads)])
        self._next = 0.0

    def _before(self, names: Sequence[str]) -> None:
        for name in names:
            RunDirectory.create(self._runs[name].path.parent, self._cells[name].config, name)

    def stop(self, fingerprint: str, reason: str) -> None:
        request_stop(self._runs[fingerprint].path, reason)
        self._dispatcher.drop(fingerprint, reason)
        self._next = 0.0

    def tick(self) -> bool:
        """Raises RefusedJobError."""
        if self.stopping:
            return False
        if self._runs and time.monotonic() >= self._next:
            self._step()
        return any(self.outcome(name)[0] is None for name in self._runs)

    def outcome(self, fingerprint: str) -> tuple[str | None, str]:
        task = self._tasks.get(fingerprint)
        if task is None or task.open:  # a job of which nobody knows whether it runs is open, too
            return None, ""
        return task.status, task.note.removesuffix(f"; {RETRY_HINT}")

    def tries_again(self, failure_class: str) -> bool:
        return self._retry or failure_class in TRIED_BY_A_NEW_COMMAND

    @property
    def stopping(self) -> bool:
        return self._interrupts > 0

    @property
    def pause(self) -> float:
        return min(LOOK_SECONDS, self._seconds)

    # ------------------------------------------------------------------------------------------------ one look
    def _step(self) -> None:
        report = self._dispatcher.step()
        self._next = time.monotonic() + self._seconds
        self._tasks = dict(report.tasks)
        if report.submitted:
            self._show.message(f"{report.submitted} jobs submitted: {', '.join(report.arrays)}")
        if report.problem and report.problem != self._problem:
            self._show.message(report.problem)
        self._problem = report.problem or ""
        if (line := counts(report)) != self._told:
            self._told = line
            self._show.message(f"jobs: {line}")
        self._show.update(self._views.of(report))
        for name, task in report.tasks.items():
            if task.status == PENDING and task.note.startswith(REFUSED):
                raise RefusedJobError(f"run {name} was {task.note}")
