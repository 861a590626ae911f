"""States of a job in Slurm's words, sorted into the few kinds that decisions are made from, and what an end means.

Words: "JOB STATE CODES" of squeue(1) and sacct(1), and slurm.schedmd.com/job_state_codes.html. A word that is not
listed here (a newer Slurm, a patched one) is UNKNOWN, and nobody acts on that.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

QUEUED, RUNNING, REQUEUED, ENDED, GONE, UNKNOWN = "queued", "running", "requeued", "ended", "gone", "unknown"
# Of a job in one of these, somebody may still be working on the run, or will be.
LIVE_KINDS = frozenset({QUEUED, RUNNING, REQUEUED, UNKNOWN})

_QUEUED = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
        "POWER_UP_NODE",
        "EXPEDITING",
    }
)
_RUNNING = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT", "UPDATE_DB"}
)
# Still listed by squeue, these may go on by themselves: the controller is about to put the job back into the queue.
_RETURNING = frozenset({"PREEMPTED", "NODE_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"})
_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "REVOKED"})
WORDS = _QUEUED | _RUNNING | _RETURNING | _ENDED | {"REQUEUED"}

# Why a waiting job will never start by itself (squeue(1), "JOB REASON CODES").
_NEVER: Mapping[str, str] = {
    "DependencyNeverSatisfied": "it waits for a job that ended without success",
    "JobHeldUser": "it is held; `scontrol release {id}` lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "launch failed requeued held": "it could not be launched and is held; `scontrol release {id}` lets it try again",
    "launch_failed_requeued_held": "it could not be launched and is held; `scontrol release {id}` lets it try again",
    "job_requeued_in_held_state": "it went back to the queue and is held; `scontrol release {id}` lets it go",
    "PartitionTimeLimit": "its time limit is above that of the partition",
    "PartitionNodeLimit": "it asks for more nodes than the partition has",
    "BadConstraints": "no node has what it asks for",
    "AccountNotAllowed": "its account may not use the partition",
    "InvalidAccount": "its account does not exist",
    "InvalidQOS": "its qos does not exist",
    "AssocMaxWallDurationPerJobLimit": "its time limit is above that of the account",
    "QOSMaxWallDurationPerJobLimit": "its time limit is above that of the qos",
}


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as the scheduler knows it.

    id         `123`, or `123_4` for an element of an array
    word       Slurm's own, e.g. `OUT_OF_MEMORY`; "" if there is none
    kind       queued | running | requeued (it will run again) | ended (in whatever way) | gone (the scheduler answered
               and does not know it) | unknown (no answer, contradicting answers, or a word that nobody knows)
    reason     why it waits, who cancelled it, or why its state is not known; "" if nothing was said
    exit_code  `<status>:<signal>`; None if not known
    restarts   times that it went back to the queue; None if not known
    """

    id: str
    word: str
    kind: str
    reason: str = ""
    exit_code: str | None = None
    restarts: int | None = None

    @property
    def live(self) -> bool:
        """Whether the job may still work on its run, or will: nobody else may then."""
        return self.kind in LIVE_KINDS

    def __str__(self) -> str:
        return f"{self.word or self.kind}{f' ({self.reason})' if self.reason else ''}"


class Failure(NamedTuple):
    """What the end of a job means for a run that recorded no outcome of its own.

    failure_class: one of harness.states.FAILURE_CLASSES. retry: whether the same job again can help. words: what
    happened, and what to do, for the user.
    """

    failure_class: str
    retry: bool
    words: str


def kind_of(word: str, in_queue: bool) -> str:
    """The kind of a state in Slurm's words. in_queue: squeue lists the job, as against sacct alone."""
    if word in _ENDED or (word in _RETURNING and not in_queue):
        return ENDED
    if not in_queue:
        return UNKNOWN  # the controller does not know it, so it neither waits nor runs, whatever the accounting says
    if word in _QUEUED:
        return QUEUED
    if word in _RUNNING:
        return RUNNING
    return REQUEUED if word in _RETURNING or word == "REQUEUED" else UNKNOWN


def never_starts(state: JobState) -> str | None:
    """Why a waiting job will not start unless somebody does something; None if it may."""
    if state.kind != QUEUED:
        return None
    words = _NEVER.get(state.reason.strip("()"))
    return None if words is None else words.format(id=state.id)


_ENDS: Mapping[str, Failure] = {
    "TIMEOUT": Failure(
        "incomplete",
        True,
        "it reached its time limit before it could stop at a step boundary; raise backbone.resources.minutes or "
        "launcher.signal_seconds if this happens again",
    ),
    "NODE_FAIL": Failure("infra", True, "its node failed"),
    "BOOT_FAIL": Failure("infra", True, "its node could not be started"),
    "LAUNCH_FAILED": Failure("infra", True, "it could not be launched on its node"),
    "RECONFIG_FAIL": Failure("infra", True, "its node could not be configured"),
    "PREEMPTED": Failure("infra", True, "it gave way to a job of higher priority and was not put back into the queue"),
    "OUT_OF_MEMORY": Failure(
        "oom", False, "it used more memory than it had asked for; raise backbone.resources.mem_gb, then do=retry"
    ),
    "DEADLINE": Failure("infra", False, "it could not end before its deadline (launcher.sbatch.deadline)"),
    "REVOKED": Failure("infra", False, "another cluster of the federation took it over"),
}


def failure_of(state: JobState) -> Failure:
    """What the end of a job means when its run recorded no outcome. Raises ValueError for a job that has not ended."""
    if state.kind == GONE:
        return Failure("crash", True, f"job {state.id} ended without a word, and the scheduler has forgotten it")
    if state.kind != ENDED:
        raise ValueError(f"job {state.id} is {state.kind} ({state.word}), it has not ended")
    start = f"job {state.id} ended as {state.word}"
    if state.word == "CANCELLED":
        return Failure("infra", False, f"{start}{f': {state.reason}' if state.reason else ''}")
    if state.word == "COMPLETED":
        return Failure("incomplete", True, f"{start}, but its run recorded no outcome")
    if state.word == "FAILED":
        return _failed(start, state.exit_code)
    failure_class, retry, words = _ENDS[state.word]
    return Failure(failure_class, retry, f"{start}: {words}")


def _failed(start: str, exit_code: str | None) -> Failure:
    """FAILED: killed by a signal (worth another try), or left with a status (the same job would leave so again)."""
    status, number = _numbers(exit_code)
    if status > 128 and number == 0:  # a shell's way to say that its command was killed
        status, number = 0, status - 128
    if number == 53 and status == 0:  # Slurm's own sign, not a signal
        return Failure("infra", False, f"{start}: its folder or its output file could not be opened on the node (0:53)")
    if number == signal.SIGUSR2:  # the job's own signal, which the run handles as soon as Python has started
        return Failure("infra", True, f"{start}: it was asked to stop (SIGUSR2) before it could listen")
    if number:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        hint = ", perhaps for want of memory" if number == signal.SIGKILL else ""
        return Failure("crash", True, f"{start}: killed by {name}{hint}")
    if status:
        return Failure("crash", False, f"{start} with exit status {status}, before its run could record why")
    return Failure("crash", True, f"{start}, before its run could record why")


def _numbers(exit_code: str | None) -> tuple[int, int]:
    status, _, number = (exit_code or "").partition(":")
    return int(status) if status.isdigit() else 0, int(number) if number.isdigit() else 0
