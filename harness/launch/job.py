"""A run as a job of Slurm: what Submitit starts on a node, and what happens when the scheduler wants the node back.

Shortly before the time limit (and on preemption, where the site sends it) a job gets SIGUSR2: the run stops at a step
boundary with a checkpoint, and the job puts itself back into the queue, where it goes on under the same number. After a
preemption or the loss of a node Slurm does that by itself. SIGTERM alone means that Slurm has decided already (a
cancelled job, preemption): the run stops, and the job leaves it at that.

A run that somebody asked to stop (harness.stopping) does not go back: its job leaves.

`launcher.requeues` limits how often one job comes back, whoever sent it.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness import claim as claims
from harness.files import RecordError
from harness.launch.records import record_end
from harness.launch.scheduler import SchedulerError, Slurm
from harness.record import RunDirectory
from harness.redaction import redact
from harness.states import INTERRUPTED
from harness.stopping import stop_requested
from harness.worker import (
    DEFAULT_ENTRY,
    EXIT_COMPLETE,
    EXIT_FAILED,
    EXIT_HELD,
    EXIT_INTERRUPTED,
    StopRequest,
    serve,
)

HELD_SECONDS = 120.0  # how long a claim that cannot be judged is asked about again; the scheduler answers late at times
HELD_POLL_SECONDS = 5.0
LIMIT_SLACK_SECONDS = 90.0  # Slurm looks at time limits every 30 s and may send a signal up to 60 s early: sbatch(1)
# What stands in the record of a run whose job does not come back, for whoever decides about another job.
BUDGET_USED = "launcher.requeues"
NOT_BACK = "could not go back to the queue"


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process is. job: `123` or `123_4`, "" outside of Slurm; restarts: times that the job came back;
    end: unix seconds of its time limit, None if not known; rank: of this process among the job's."""

    job: str
    restarts: int
    end: float | None
    rank: int

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None) -> Place:
        given = os.environ if environment is None else environment
        array, element = given.get("SLURM_ARRAY_JOB_ID"), given.get("SLURM_ARRAY_TASK_ID")
        end = given.get("SLURM_JOB_END_TIME", "")
        return cls(
            job=f"{array}_{element}" if array and element else given.get("SLURM_JOB_ID", ""),
            restarts=int(given.get("SLURM_RESTART_COUNT") or 0),
            end=float(end) if end.isdecimal() else None,
            rank=int(given.get("SLURM_PROCID") or 0),
        )


class JobStop(StopRequest):
    """A stop request that hears SIGUSR2 in a thread of its own, with the signal blocked everywhere else.

    Slurm may send it to every process of a job. What the run starts (environments, a model server) inherits the block
    and lives until the step boundary; with a handler in its place it would inherit the default, which is to die.
    """

    def install(self) -> None:
        super().install()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        threading.Thread(target=self._listen, name="warnings", daemon=True).start()

    def _listen(self) -> None:
        signal.sigwait({signal.SIGUSR2})
        self.received.setdefault("SIGUSR2", time.time())
        self.ask("SIGUSR2")


@dataclass(frozen=True, slots=True)
class Job:
    """Callable that sees one run through on a node; the only thing that is pickled. Everything else is in the run
    directory.

    run_dir: the run's directory. entry: what executes it, `module:function`; in a job of several nodes the processes
    of rank 1 and up call `module.follow(run, stop)` instead, if there is one, and write nothing. retry_after: a failed
    run is tried again unless it had more attempts than this; None: it is not.
    """

    run_dir: str
    entry: str = DEFAULT_ENTRY
    retry_after: int | None = None

    def __call__(self) -> None:
        """Returns if the run is complete; leaves with the worker's exit status otherwise (see harness.worker)."""
        stop = JobStop()
        stop.install()  # in place of Submitit's own handlers, which do not know of step boundaries
        place = Place.here()
        run = RunDirectory(Path(self.run_dir))
        status = self._lead(run, place, stop) if place.rank == 0 else self._follow(run, stop)
        if status != EXIT_COMPLETE:
            sys.exit(status)

    def _follow(self, run: RunDirectory, stop: StopRequest) -> int:
        follow = getattr(importlib.import_module(self.entry.partition(":")[0]), "follow", None)
        if follow is not None:
            follow(run, stop)
        return EXIT_COMPLETE

    def _lead(self, run: RunDirectory, place: Place, stop: StopRequest) -> int:
        _say(f"job {place.job or '(none)'}, started {place.restarts + 1} times, works on {run.path}")
        try:
            budget = run.load_config().launcher.requeues
            if place.restarts > budget and record_end(run, INTERRUPTED, spent(place, budget)):
                _say(spent(place, budget))
                return EXIT_INTERRUPTED
        except (RecordError, OSError) as error:
            _say(f"{run.path}: {error}")
            return EXIT_FAILED
        status = self._serve(run, stop)
        unwanted = stop_requested(run.path) is not None  # whoever asked wants it to leave, warned or not
        if status == EXIT_INTERRUPTED and not unwanted and wants_to_return(stop, place):
            go_back(run, place, budget)
        return status

    def _serve(self, run: RunDirectory, stop: StopRequest) -> int:
        deadline = time.monotonic() + HELD_SECONDS
        while True:
            status = serve(run, self.entry, stop, self.retry_after)
            if status != EXIT_HELD or stop() or time.monotonic() >= deadline:
                return status
            if run.claim_status().status == claims.ALIVE:
                return status
            time.sleep(HELD_POLL_SECONDS)


def wants_to_return(stop: StopRequest, place: Place) -> bool:
    """Whether the job itself has to ask for going on later: it was warned, and nobody cancelled it meanwhile.

    Putting a cancelled job back into the queue would bring it back to life. A SIGTERM at the time limit is no such
    cancellation: the step took longer than `launcher.signal_seconds`.
    """
    if not place.job or "SIGUSR2" not in stop.received:
        return False
    ended = stop.received.get("SIGTERM")
    return ended is None or (place.end is not None and ended >= place.end - LIMIT_SLACK_SECONDS)


def go_back(run: RunDirectory, place: Place, budget: int, scheduler: Slurm | None = None) -> None:
    """Put this job back into the queue, or record why it may or can not. The run's claim must be free."""
    if place.restarts >= budget:
        problem = spent(place, budget)
    else:
        try:
            (scheduler or Slurm()).requeue(place.job)
        except SchedulerError as error:
            problem = f"job {place.job} stopped in time, but {NOT_BACK}: {error}"
        else:
            _say(f"job {place.job} goes back to the queue ({place.restarts + 1} of {budget} times)")
            return
    _say(problem)
    try:
        record_end(run, INTERRUPTED, redact(problem))
    except RecordError as error:
        _say(f"that cannot be recorded: {error}")


def spent(place: Place, budget: int) -> str:
    """Why a job does not come back."""
    return (
        f"job {place.job} was in the queue {place.restarts + 1} times, and may come back {budget} times "
        f"({BUDGET_USED}={budget}); the same command submits what is left of the run"
    )


def _say(text: str) -> None:
    """Into the job's log."""
    print(redact(text), file=sys.stderr, flush=True)
