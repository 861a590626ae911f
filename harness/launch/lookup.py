"""Questions about single jobs, asked of the scheduler together and at most every few seconds.

Whoever looks at a thousand runs asks about a thousand jobs, one after another; a controller that is asked a thousand
times answers nobody. So each look at the scheduler asks about every job ever asked for, and answers until it is old.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable

from harness.launch.jobids import expand
from harness.launch.jobstates import UNKNOWN, JobState
from harness.launch.scheduler import SchedulerError, Slurm

FRESH_SECONDS = 5.0
SILENT_SECONDS = 30.0  # pause after no answer
FORGET_SECONDS = 600.0  # a job that nobody asked about for so long is not asked for any more


class Lookup:
    """job id, its cluster -> JobState; never raises.

    seconds: how old an answer may be. clock: seconds that never go back, for tests.
    """

    def __init__(
        self, slurm: Slurm, seconds: float = FRESH_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slurm = slurm
        self._seconds = seconds
        self._clock = clock
        self._wanted: dict[str, float] = {}  # job -> when it was last asked about
        self._known: dict[str, JobState] = {}
        self._mine: dict[str, JobState] = {}  # the user's whole queue: answers for jobs not asked about before
        self._cluster: str | None = None
        self._problem: str | None = None  # why the scheduler did not answer
        self._until = -float("inf")  # when the answers are old

    def __call__(self, job: str, cluster: str = "") -> JobState:
        expression = expand(job)
        if expression is None or expression.ids != (job,):
            return JobState(job, "", UNKNOWN, f"{job!r} is not the id of one job")
        self._wanted[job] = now = self._clock()
        if now >= self._until:
            self._look(now)
        if self._problem is not None:
            return JobState(job, "", UNKNOWN, self._problem)
        if cluster and cluster != self._cluster:
            other = f"it is a job of cluster {cluster}, and this machine asks cluster {self._cluster}"
            return JobState(job, "", UNKNOWN, other)
        if job not in self._known:
            self._known.update({job: self._mine[job]} if job in self._mine else self._slurm.states([job]))
        return self._known[job]

    def expect(self, jobs: Iterable[str]) -> None:
        """Jobs that will be asked about: the next look at the scheduler, which is due now, asks for all at once."""
        self._wanted.update(dict.fromkeys(jobs, self._clock()))
        self._until = -float("inf")

    def _look(self, now: float) -> None:
        self._wanted = {job: last for job, last in self._wanted.items() if now - last < FORGET_SECONDS}
        self._known, self._mine, self._problem = {}, {}, None
        try:
            if self._cluster is None:
                self._cluster = self._slurm.cluster()
            self._mine = self._slurm.my_jobs()
        except SchedulerError as error:
            self._problem = str(error)
        else:
            self._known = {job: self._mine[job] for job in self._wanted if job in self._mine}
            rest = [job for job in self._wanted if job not in self._known]
            self._known.update(self._slurm.states(rest) if rest else {})
        # Counted from the answer: a scheduler that is slow, or down, is not asked without a pause.
        pause = self._seconds if self._problem is None else max(self._seconds, SILENT_SECONDS)
        self._until = self._clock() + pause


@functools.lru_cache(maxsize=1)
def default_lookup() -> Lookup:
    """The one of this process, with the clients on PATH."""
    return Lookup(Slurm())


__all__ = ["Lookup", "default_lookup"]
