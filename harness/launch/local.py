"""Runs on this machine: one worker process per cell, a few at a time.

Every decision is made from the run directories, so several launchers may work on the same cells at once: a cell that
somebody else has claimed, or that has a job at a scheduler, is waited for, and taken over when its worker died or its
job ended. Each cell is started at most once per command; a cell left unfinished by others (a killed launcher) is picked
up again.

A cell that needs the weights of others starts when those are complete, whoever ran them. Where one of them cannot be
had, the cell stays pending and the report says why.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from harness import attempts
from harness import claim as claims
from harness.files import RecordError
from harness.launch.nursery import Nursery, Worker
from harness.launch.queue import Queue
from harness.record import RunDirectory
from harness.states import COMPLETE, FAILED, INTERRUPTED, PENDING, RUNNING, classify
from harness.stopping import withdraw_stop
from harness.worker import DEFAULT_ENTRY, EXIT_HELD, EXIT_INTERRUPTED

if TYPE_CHECKING:  # rich stays off the path of planning
    from harness.progress import CellView, Progress

WAITING, ACTIVE, ELSEWHERE = "waiting", "active", "elsewhere"
POLL_SECONDS = 0.2
SHOW_SECONDS = 0.5
ATTACHED_SECONDS = 1.0  # how often cells of others are looked at
ASK_SECONDS = 15.0  # how often a scheduler is asked, where a cell has a job
_GENTLE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class LaunchReport:
    """How the cells stand. outcomes: fingerprint -> state; errors: fingerprint -> why it is not complete;
    stopped: the user asked to stop before everything was done."""

    outcomes: Mapping[str, str]
    errors: Mapping[str, str]
    stopped: bool


@dataclass
class Cell:
    """One run as the launcher sees it."""

    run: RunDirectory
    requires: tuple[str, ...] = ()  # fingerprints of the runs that must be complete before
    status: str = WAITING  # waiting | active | elsewhere | complete | failed | interrupted | pending (cannot start)
    retry_after: int | None = None  # a failed run is tried again unless it had more attempts than this
    process: Worker | None = None
    note: str = ""
    view: CellView | None = field(default=None, repr=False)

    def end(self, status: str, note: str = "") -> None:
        self.status, self.note = status, note

    @property
    def ended(self) -> bool:
        return self.status in (COMPLETE, FAILED, INTERRUPTED, PENDING)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_cells(
    run_dirs: Sequence[RunDirectory],
    workers: int,
    show: Progress,
    *,
    retry_failed: bool = False,
    entry: str = DEFAULT_ENTRY,
    requires: Mapping[str, Sequence[str]] | None = None,
    before: Callable[[RunDirectory], object] = lambda run: None,
) -> LaunchReport:
    """See every run through: start what is missing, wait for what others run, until each has an outcome.

    workers: runs at a time, 0 for one per available core. retry_failed: try failed runs once more. entry: what executes
    a run, `module:function`. requires: fingerprint -> fingerprints of runs beside it that must be complete before it
    starts; those are started here only if they are among `run_dirs`. before: given each run right before it starts,
    when nobody else works on it or will; a RecordError of it fails the run. The first Ctrl-C (or SIGTERM, SIGHUP) has
    the workers stop at their next step boundary and returns when they have; a second Ctrl-C kills them. Failures of
    runs are outcomes, not exceptions.
    """
    unique = {run.path: run for run in run_dirs}
    launcher = Launcher(
        list(unique.values()), workers if workers > 0 else available_cores(), show, retry_failed, entry, requires or {},
        before,
    )  # fmt: skip
    with launcher.signals():
        try:
            launcher.loop()
        finally:
            launcher.leave_nobody_behind()
    return launcher.report()


class Launcher:
    """Sees runs through; see `run_cells`. Runs may be added while it works: call `tick` until nothing is waited for."""

    def __init__(
        self,
        runs: Sequence[RunDirectory],
        workers: int,
        show: Progress,
        retry_failed: bool,
        entry: str,
        requires: Mapping[str, Sequence[str]],
        before: Callable[[RunDirectory], object] = lambda run: None,
    ) -> None:
        self.workers = workers
        self.show = show
        self.entry = entry
        self._before = before
        self.nursery = Nursery(entry)
        self._queue = Queue(seconds=ASK_SECONDS)
        self.interrupts = 0  # Ctrl-C and other requests to stop
        self.kill = False
        self._told = 0
        self._next_show = self._next_look = 0.0
        self.cells = [
            Cell(
                run,
                tuple(requires.get(run.fingerprint, ())),
                retry_after=attempts.count(run.path) if retry_failed else None,
            )
            for run in runs
        ]
        self._by_name = {cell.run.fingerprint: cell for cell in self.cells}
        needed = {name for cell in self.cells for name in cell.requires}
        # Others wait for these: they come first.
        self._order = sorted(self.cells, key=lambda cell: cell.run.fingerprint not in needed)

    # ------------------------------------------------------------------------------------------------ the loop
    def loop(self) -> None:
        for cell in self.cells:
            self._settled(cell)
        while self.tick():
            time.sleep(POLL_SECONDS)

    def tick(self) -> bool:
        """One look at everything; whether anything is still waited for."""
        self._pass_on_signals()
        self.nursery.listen()
        for cell in self.cells:
            if cell.process is not None and cell.process.code is not None:
                self._reap(cell, cell.process.code)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + ATTACHED_SECONDS
            for cell in self.cells:
                if cell.status == ELSEWHERE:
                    self._settled(cell)  # if it is free or its owner died unfinished: ours to start
        if not self.interrupts:
            self._fill()
        self._refresh()
        return any(self._pending(cell) for cell in self.cells)

    def add(self, run: RunDirectory, label: str, requires: Sequence[str] = ()) -> None:
        """See one more run through, with one more try if it failed before; a run that it knows begins anew."""
        known = self._by_name.get(run.fingerprint)
        if known is not None and not known.ended:
            return
        cell = Cell(run, tuple(requires), retry_after=attempts.count(run.path))
        if known is not None:
            self.cells.remove(known)
            self._order.remove(known)
        self.cells.append(cell)
        self._order.append(cell)
        self._by_name[run.fingerprint] = cell
        self.show.labels[run.fingerprint] = label
        self._settled(cell)

    def drop(self, fingerprint: str, reason: str) -> None:
        """Do not start a run that has not started."""
        cell = self._by_name[fingerprint]
        if cell.status == WAITING:
            cell.end(PENDING, reason)

    def cell(self, fingerprint: str) -> Cell:
        """How a run that was given or added stands."""
        return self._by_name[fingerprint]

    def _pending(self, cell: Cell) -> bool:
        """Whether the command still waits for this cell; once asked to stop it waits for its own workers only."""
        return cell.status == ACTIVE if self.interrupts else not cell.ended

    def _fill(self) -> None:
        free = self.workers - sum(cell.status == ACTIVE for cell in self.cells)
        for cell in self._order:
            if free <= 0:
                return
            if cell.status == WAITING and self._ready(cell):
                self._start(cell)
                free -= cell.status == ACTIVE

    def _ready(self, cell: Cell) -> bool:
        """Whether all that a cell requires is complete; a cell that waits for nothing any more ends as pending."""
        for name in cell.requires:
            other = self._by_name.get(name)
            state = self._beside(cell, name) if other is None else other.status
            if state == COMPLETE:
                continue
            if other is None or other.ended:
                label = self.show.label(name)
                cell.end(PENDING, f"not started: it needs the weights of {label} ({name}), which is {state}")
            return False
        return True

    def _beside(self, cell: Cell, name: str) -> str:
        """State of a run in the folder of a cell's."""
        path = cell.run.path.parent / name
        return RunDirectory(path).state().state if path.is_dir() else PENDING

    def _settled(self, cell: Cell) -> bool:
        """Whether the records say that there is nothing to start; the cell's status then says why."""
        state = cell.run.state()
        holder = cell.run.claim_status()
        if state.state == COMPLETE:
            cell.end(COMPLETE)
        elif holder.status in (claims.ALIVE, claims.UNKNOWN):
            cell.status, cell.note = ELSEWHERE, claims.told(cell.run.claim_path, holder)
        elif (job := self._queue.holds(cell.run)) is not None:
            cell.status, cell.note = ELSEWHERE, job.told(cell.run)
        elif state.state == FAILED and (cell.retry_after is None or attempts.count(cell.run.path) > cell.retry_after):
            cell.end(FAILED, state.error or "")
        else:
            cell.status, cell.note = WAITING, ""
        return cell.status != WAITING

    def _start(self, cell: Cell) -> None:
        if self._settled(cell):
            return
        try:
            self._before(cell.run)
            cell.process = self._spawn(cell)
            cell.status = ACTIVE
        except (OSError, RecordError) as error:
            self._record_failure(cell, f"its worker could not be started: {error}", classify(error))

    def _spawn(self, cell: Cell) -> Worker:
        withdraw_stop(cell.run.path)  # starting it is the newer wish
        arguments = [str(cell.run.path), "--entry", self.entry]
        if cell.retry_after is not None:
            arguments += ["--retry-after", str(cell.retry_after)]
        cell.run.log_path.touch()  # a log that cannot be written is known before anything starts
        return self.nursery.start(arguments, cell.run.log_path)

    # ------------------------------------------------------------------------------------------------ ends of workers
    def _reap(self, cell: Cell, code: int) -> None:
        cell.process = None
        state = cell.run.state()
        if state.state == COMPLETE:
            cell.end(COMPLETE)
        elif state.state == RUNNING or code == EXIT_HELD:
            cell.status, cell.note = ELSEWHERE, claims.told(cell.run.claim_path, cell.run.claim_status())
        elif (
            state.state == FAILED and cell.retry_after is not None and attempts.count(cell.run.path) == cell.retry_after
        ):
            # It died before its attempt began: what is recorded is the failure before.
            self._record_failure(cell, _death(code), "crash")
        elif state.state == FAILED:
            cell.end(FAILED, state.error or "")
        elif code == EXIT_INTERRUPTED or self.kill or (self.interrupts and -code in _GENTLE):
            cell.end(INTERRUPTED, state.error or "")
        else:
            self._record_failure(cell, _death(code), "crash")

    def _record_failure(self, cell: Cell, reason: str, failure_class: str) -> None:
        """Write down for a worker what it could not say itself."""
        error = f"{reason}; log: {cell.run.log_path}"
        try:
            claim = cell.run.claim()
            if claim is None:  # another launcher was faster and works on it again
                cell.status, cell.note = ELSEWHERE, claims.told(cell.run.claim_path, cell.run.claim_status())
                return
            with claim:
                state = cell.run.write_state(state=FAILED, error=error, failure_class=failure_class)
                data = {"outcome": FAILED, "error": error, "failure_class": failure_class}
                cell.run.spool.event("attempt_finished", **data)
                cell.run.spool.close()
                for attempt in attempts.all_attempts(cell.run.path)[-1:]:
                    if attempt.content.get("outcome") is None:
                        attempt.finish(FAILED, state.last_step, error, failure_class)
        except RecordError as problem:
            error = f"{error} (and that cannot be recorded: {problem})"
        cell.end(FAILED, error)

    # ------------------------------------------------------------------------------------------------ stopping
    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Requests to stop come here while the launcher works (only the main thread can receive signals)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handler(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGINT and self.interrupts:
                self.kill = True
            self.interrupts += 1

        before = {number: signal.signal(number, handler) for number in _GENTLE}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old if old is not None else signal.SIG_DFL)

    def _pass_on_signals(self) -> None:
        wanted = (1 if self.interrupts else 0) + (1 if self.kill else 0)
        if wanted == self._told:
            return
        self._told = wanted
        running = [cell.process for cell in self.cells if cell.process is not None]
        if self.kill:
            self.show.message(f"killing {len(running)} worker(s)")
            for process in running:
                process.kill()
        else:
            self.show.message(
                f"stopping: {len(running)} worker(s) end at their next step boundary; Ctrl-C again kills them"
            )
            for process in running:
                process.terminate()

    def leave_nobody_behind(self) -> None:
        """After an error in the launcher itself: stop the workers rather than lose sight of them."""
        running = [cell.process for cell in self.cells if cell.process is not None]
        for process in running:
            process.terminate()
        self.nursery.wait()
        self.nursery.close()

    # ------------------------------------------------------------------------------------------------ reporting
    def _refresh(self) -> None:
        finished = not any(self._pending(cell) for cell in self.cells)
        if time.monotonic() < self._next_show and not finished:
            return
        self._next_show = time.monotonic() + SHOW_SECONDS
        from harness.progress import look

        for cell in self.cells:
            known = cell.view
            if known is None or known.status != cell.status or cell.status in (ACTIVE, ELSEWHERE):
                cell.view = look(cell.run, self.show.label(cell.run.fingerprint), cell.status, cell.note)
        self.show.update([cell.view for cell in self.cells if cell.view is not None])

    def report(self) -> LaunchReport:
        outcomes: dict[str, str] = {}
        errors: dict[str, str] = {}
        for cell in self.cells:
            state = cell.run.state()
            # What could not be written (a full disk) is known here only.
            outcomes[cell.run.fingerprint] = FAILED if cell.status == FAILED else state.state
            note = cell.note if cell.status in (FAILED, PENDING) else state.error
            if note:
                errors[cell.run.fingerprint] = note
        return LaunchReport(outcomes, errors, stopped=self.interrupts > 0)


def _death(code: int) -> str:
    """How a worker ended, from its exit status."""
    if code >= 0:
        return f"its worker ended with status {code} without recording an outcome"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown signal"
    hint = ", perhaps by the kernel for want of memory" if -code == signal.SIGKILL else ""
    return f"its worker was killed by signal {-code} ({name}){hint}"
