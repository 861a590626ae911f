"""What a launcher of jobs is asked to do, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.launch.endings import ELSEWHERE
from harness.launch.shapes import Shape
from harness.record import RunDirectory
from harness.states import RUNNING, SUBMITTED

WAITING, UNSURE = "waiting", "unknown"


@dataclass(frozen=True, slots=True)
class Task:
    """A run to be seen through. requires: fingerprints of the runs beside it that must be complete before it starts;
    threads: per process."""

    run: RunDirectory
    shape: Shape
    requires: tuple[str, ...] = ()
    threads: int = 1


@dataclass(frozen=True, slots=True)
class TaskReport:
    """How a task stands.

    status  complete | failed | interrupted | pending (what it needs is not to be had) | submitted | running |
            elsewhere (others work on it) | waiting (for room in the queue, or for others) | unknown (the scheduler
            does not say)
    note    why, or what its job does
    job     its number, "" without one
    """

    status: str
    note: str = ""
    job: str = ""

    @property
    def open(self) -> bool:
        """Whether this may change without a new command."""
        return self.status in (SUBMITTED, RUNNING, ELSEWHERE, WAITING, UNSURE)


@dataclass(frozen=True, slots=True)
class Report:
    """How the tasks stand after a look.

    tasks: by fingerprint; submitted: jobs submitted by it; arrays: numbers of their arrays; problem: why not
    everything could be submitted now, None if nothing was in the way.
    """

    tasks: Mapping[str, TaskReport]
    submitted: int = 0
    arrays: tuple[str, ...] = ()
    problem: str | None = None

    def count(self, *statuses: str) -> int:
        return sum(task.status in statuses for task in self.tasks.values())

    @property
    def open(self) -> bool:
        """Whether anything may change without a new command."""
        return any(task.open for task in self.tasks.values())
