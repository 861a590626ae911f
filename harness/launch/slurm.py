"""Runs as jobs of a Slurm cluster: submitted in arrays of one shape, watched, and submitted again where that can help.

Every decision is made from the run directories, their tickets and the scheduler's answers, under a lock on the output
folder: submitters may come, be killed and come again, two at a time, and each run has one job. What is not known (no
answer, an unknown word) is left alone.

A run that needs the weights of others is submitted with a dependency on exactly their jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from harness import attempts
from harness import claim as claims
from harness.config import LauncherConfig
from harness.files import RecordError
from harness.launch import batches, tickets
from harness.launch.cells import Cell, Ready, Room, groups, teachers_first
from harness.launch.endings import ELSEWHERE, TRIED_BY_A_NEW_COMMAND, settle
from harness.launch.job import Job
from harness.launch.jobstates import QUEUED, REQUEUED, UNKNOWN
from harness.launch.queue import Held, Queue
from harness.launch.scheduler import SchedulerError, Slurm, user_name
from harness.launch.script import parameters
from harness.launch.snapshot import snapshot
from harness.launch.tasks import UNSURE, WAITING, Report, Task, TaskReport
from harness.launch.tickets import Ticket
from harness.locks import file_lock
from harness.record import RunDirectory
from harness.states import COMPLETE, FAILED, INTERRUPTED, PENDING, RUNNING, SUBMITTED
from harness.stopping import withdraw_stop
from harness.worker import DEFAULT_ENTRY

LOCK_NAME = ".slurm.lock"
KILLED_AGAIN = 1  # times that a run which was killed for an unknown reason is submitted again by itself
FILE_SYSTEM_SECONDS = 2.0  # what a job wrote last may be seen this much later than its end
RETRY_HINT = "do=retry submits it again"
REFUSED = "not submitted: sbatch refused"  # begins the note of a run whose job the site will never take
LIMIT_HINT = "launcher.max_submitted tells this launcher of a limit that Slurm does not show it"


class Dispatcher:
    """Sees tasks through, one `step` at a time; a step never waits for a job.

    sweep: name for jobs and tickets. retry_failed: failed runs are tried again, whatever the failure was. before: told
    the fingerprints of runs before any of them is submitted for the first time, to make what they need; what it raises
    ends the step. entry: what executes a run, `module:function`. say: told what is going on.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        launcher: LauncherConfig,
        out: Path,
        sweep: str,
        *,
        retry_failed: bool = False,
        before: Callable[[Sequence[str]], None] = lambda names: None,
        entry: str = DEFAULT_ENTRY,
        scheduler: Slurm | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.launcher, self.out, self.sweep, self.entry, self.say = launcher, out, sweep, entry, say
        self._scheduler = scheduler or Slurm()
        self._queue = Queue(self._scheduler)
        self._retry_failed = retry_failed
        self._before = before
        self._prepared: set[str] = set()
        # Elements of an array that are known to be taken, where a limit that cannot be looked up refused longer ones.
        self._fits: int | None = None
        self._snapshot: Path | None = None
        self._cells: dict[str, Cell] = {}
        self._order: list[Cell] = []
        self.add(tasks)

    def add(self, tasks: Iterable[Task]) -> None:
        """Further tasks, taken up by the next step. One that is known already is asked for anew."""
        self._cells.update({task.run.fingerprint: Cell(task) for task in tasks})
        self._order = teachers_first(self._cells)

    def drop(self, name: str, reason: str) -> None:
        """A run is not wanted any more: it is never submitted again, and the next step cancels its job if that waits.

        A job that runs goes on: `harness.stopping.request_stop` has it leave at a step boundary.
        """
        cell = self._cells[name]
        cell.dropped = reason
        if cell.status == WAITING:
            cell.end(INTERRUPTED, reason)

    # ------------------------------------------------------------------------------------------------ one look
    def step(self) -> Report:
        """Look at every task, record what jobs could not, submit what is missing and fits. RecordError, OSError."""

        def waiting() -> None:
            self.say("another command is submitting into this folder; waiting for it")

        with file_lock(self.out / LOCK_NAME, on_wait=waiting):
            if adopted := batches.adopt(self.out, self._scheduler):
                self.say(f"{adopted} jobs of a submission that was cut short are found again")
            self._look()
            self._cancel_dropped()
            submitted, arrays, problem = self._submit()
            for cell in self._order:
                cell.new = False
        reports = {name: TaskReport(cell.status, cell.note, cell.job) for name, cell in self._cells.items()}
        return Report(reports, submitted, tuple(arrays), problem)

    def _look(self) -> None:
        todo = [cell for cell in self._order if not cell.final]
        held = self._queue.look(cell.task.run for cell in todo)
        ended = [self._cells[name].task.run for name, job in held.items() if not job.live]
        if not all(run.state().is_complete for run in ended):
            time.sleep(FILE_SYSTEM_SECONDS)
        for cell in todo:
            name = cell.task.run.fingerprint
            cell.job = held[name].ticket.job_id if name in held else ""
            try:
                self._judge(cell, held.get(name))
            except RecordError as error:
                cell.end(FAILED, str(error))

    def _cancel_dropped(self) -> None:
        if jobs := [cell.job for cell in self._order if cell.dropped and cell.status == SUBMITTED]:
            try:
                self._scheduler.cancel(jobs)
            except SchedulerError as error:  # the next step tries again; a job that starts meanwhile leaves by itself
                self.say(f"{len(jobs)} jobs that are not wanted any more still wait: {error}")

    def _judge(self, cell: Cell, held: Held | None) -> None:
        run = cell.task.run
        state = run.state()
        if held is not None:
            cell.ticket = held.ticket
        if state.state == COMPLETE:
            cell.end(COMPLETE)
        elif held is not None and held.state.kind == UNKNOWN:
            cell.status, cell.note = UNSURE, held.told(run)
        elif held is not None and held.live:
            waits = held.state.kind in (QUEUED, REQUEUED)
            cell.status, cell.note = SUBMITTED if waits else RUNNING, str(held)
        elif held is not None:
            self._settle(cell, held)
        else:
            self._without_job(cell)

    def _settle(self, cell: Cell, held: Held) -> None:
        """Its job has ended."""
        ending = settle(cell.task.run, held, lacks=not self._teachers_complete(cell))
        if ending.status == ELSEWHERE:
            cell.status, cell.note = ELSEWHERE, ending.note
            return
        tickets.clear(cell.task.run.path)
        cell.job = ""
        if ending.status == COMPLETE:
            cell.end(COMPLETE)
        elif cell.dropped:
            cell.end(FAILED if ending.status == FAILED else INTERRUPTED, ending.note)
        elif ending.status == PENDING:
            cell.wait(ending.note)
        elif ending.again and cell.again < (KILLED_AGAIN if ending.killed else self.launcher.requeues):
            cell.again += 1
            cell.retry = True
            cell.wait(ending.note)
            self.say(f"{cell.task.run.fingerprint} is submitted again: {ending.note}")
        elif cell.new and (ending.status != FAILED or self._worth_trying(cell)):
            cell.retry = True
            cell.wait()
        elif ending.status == FAILED:
            cell.end(FAILED, f"{ending.note}; {RETRY_HINT}")
        else:
            cell.end(ending.status, ending.note)

    def _without_job(self, cell: Cell) -> None:
        run = cell.task.run
        state, holder = run.state(), run.claim_status()
        if holder.status in (claims.ALIVE, claims.UNKNOWN):
            cell.status, cell.note = ELSEWHERE, claims.told(run.claim_path, holder)
        elif cell.status == WAITING:
            pass
        elif not cell.new and cell.status != ELSEWHERE:  # another command took its job away
            cell.end(state.state, state.error or "")
        elif state.state == FAILED and not (cell.new and self._worth_trying(cell)):
            cell.end(FAILED, f"{state.error or 'failed'}; {RETRY_HINT}")
        else:
            cell.retry = state.state == FAILED
            cell.wait()

    def _worth_trying(self, cell: Cell) -> bool:
        """Whether a run that is recorded as failed should be submitted, now that somebody asks for it."""
        state = cell.task.run.state()
        if self._retry_failed:
            return True
        if state.failure_class == "oom":  # never with the same memory
            asked = [ticket.shape for ticket in tickets.history(cell.task.run.path)[-1:]]
            now = cell.task.shape
            return any(now.mem_gb > before.mem_gb or now.gpus > before.gpus for before in asked)
        return state.failure_class in TRIED_BY_A_NEW_COMMAND

    def _teachers_complete(self, cell: Cell) -> bool:
        return all(self._beside(cell, name) == COMPLETE for name in cell.task.requires)

    def _beside(self, cell: Cell, name: str) -> str:
        """State of a run in the folder of a cell's."""
        path = cell.task.run.path.parent / name
        return RunDirectory(path).state().state if path.is_dir() else PENDING

    # ------------------------------------------------------------------------------------------------ submission
    def _submit(self) -> tuple[int, list[str], str | None]:
        """(jobs submitted, their arrays, what was in the way)."""
        arrays: list[str] = []
        count = 0
        while ready := self._ready():
            try:
                room = self._room()
                if room.left <= 0:
                    return count, arrays, self._no_room(f"the queue takes {room.most} jobs of yours at a time")
                self._prepare()
                longest = min(room.longest, self._fits or room.longest)
                queued = room.queued
                for group, after in groups(ready[: room.left], longest):
                    written = self._submit_what_fits(group, after, room.cluster, alone=not queued)
                    if written:
                        arrays.append(written[0].job_id.partition("_")[0])
                        count, queued = count + len(written), queued + len(written)
                    if self._fits is not None:
                        break  # how many fit has changed
                if self._fits is not None and self._fits >= room.longest:
                    self._fits = None
            except SchedulerError as error:
                return count, arrays, self._no_room(str(error))
            except batches.RefusedError as error:
                hint = f"; {LIMIT_HINT}" if error.kind == batches.FULL else ""
                return count, arrays, self._no_room(f"the scheduler takes no more for now: {error}{hint}")
        return count, arrays, None

    def _submit_what_fits(
        self, group: Sequence[Cell], after: tuple[str, ...], cluster: str, *, alone: bool
    ) -> list[Ticket]:
        """Submit an array; empty if it was not taken. A limit on submission refuses it whole, so half as many are tried
        next, and twice as many where those were taken. alone: nothing of this user's is in the queue. Raises
        RefusedError if not even one fits beside what is."""
        try:
            written = self._submit_group(group, after, cluster)
        except batches.RefusedError as error:
            if error.kind != batches.FULL:
                raise
            self._fits = max(1, len(group) // 2)
            if len(group) > 1:
                return []
            if not alone:
                raise
            shape = group[0].task.shape
            why = f"{REFUSED} {shape}, with no job of yours in the queue: {error}; {LIMIT_HINT}"
            for cell, _ in self._ready():
                if cell.task.shape == shape:  # waiting helps none of them
                    cell.end(PENDING, why)
            return []
        if written and self._fits is not None:
            self._fits = max(self._fits, 2 * len(group))
        return written

    def _prepare(self) -> None:
        """Have made what the runs need that are about to be submitted, now or when there is room."""
        names = [c.task.run.fingerprint for c in self._order if c.status == WAITING]
        if todo := [name for name in names if name not in self._prepared]:
            self._before(todo)
            self._prepared.update(todo)

    def _no_room(self, why: str) -> str:
        """Cells that found no room say so."""
        waiting = [cell for cell in self._order if cell.status == WAITING]
        for cell in waiting:
            cell.note = cell.note or "waits for room in the queue"
        return f"{len(waiting)} runs are not submitted yet: {why}"

    def _ready(self) -> list[Ready]:
        """Cells that can be submitted now, each with the jobs it has to wait for."""
        found = []
        for cell in self._order:
            if cell.status == WAITING and (after := self._after(cell)) is not None:
                found.append((cell, after))
        return found

    def _after(self, cell: Cell) -> tuple[str, ...] | None:
        """Jobs that must succeed before; None if the cell cannot be submitted (its status then says why)."""
        jobs: list[str] = []
        for name in cell.task.requires:
            other = self._cells.get(name)
            status = other.status if other is not None else self._beside(cell, name)
            if status == COMPLETE:
                continue
            if other is not None and other.status in (SUBMITTED, RUNNING):
                jobs.append(other.job)
            elif other is None or other.final:
                cell.end(PENDING, f"not submitted: it needs the weights of {name}, which is {status}")
                return None
            else:
                cell.note = f"waits for the weights of {name}, which is {status}"
                return None
        cell.note = ""
        return tuple(jobs)

    def _room(self) -> Room:
        limits = self._scheduler.limits(self.launcher.account, self.launcher.qos)
        bounds = [self.launcher.max_submitted or None, limits.max_submit_jobs, limits.max_job_count]
        most = min(bound for bound in bounds if bound is not None)
        longest = min(self.launcher.max_array or limits.max_array_size, limits.max_array_size, most)
        queued = self._scheduler.queued()
        return Room(most - queued, queued, most, max(longest, 1), limits.cluster)

    def _submit_group(self, group: Sequence[Cell], after: tuple[str, ...], cluster: str) -> list[Ticket]:
        """Submit an array; nothing is written if sbatch will never take it."""
        if self._snapshot is None:
            self._snapshot = snapshot(self.out)
        first = group[0].task
        settings = parameters(
            self.launcher, first.shape, name=self.sweep, threads=first.threads, snapshot=self._snapshot,
            size=len(group), after=after,
        )  # fmt: skip
        for cell in group:
            withdraw_stop(cell.task.run.path)
        jobs = tuple(Job(str(c.task.run.path), self.entry, self._retry_after(c)) for c in group)
        blanks = tuple(
            Ticket(
                job_id="", submitted=time.time(), attempt=len(tickets.history(cell.task.run.path)) + 1,
                shape=first.shape, cluster=cluster, snapshot=str(self._snapshot), sweep=self.sweep, user=user_name(),
            )
            for cell in group
        )  # fmt: skip
        folder = batches.new_folder(self.out, self.sweep)
        try:
            written = batches.submit(folder, batches.Order(jobs, blanks), self.launcher, settings, self._scheduler)
        except batches.RefusedError as error:
            if error.kind != batches.NEVER:
                raise
            for cell in group:
                cell.end(PENDING, f"{REFUSED} {first.shape}: {error}")
            return []
        for cell, ticket in zip(group, written, strict=True):
            cell.ticket, cell.job, cell.status = ticket, ticket.job_id, SUBMITTED
            cell.note = f"job {ticket.job_id} waits" + (f" for {', '.join(after)}" if after else "")
        return written

    def _retry_after(self, cell: Cell) -> int | None:
        return attempts.count(cell.task.run.path) if cell.retry else None
