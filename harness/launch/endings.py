"""What the end of a job means for its run, and what the job could not record itself.

The run directory has the first word: a job that recorded an outcome is judged by that. Only where it did not (killed,
out of memory, lost with its node, never started) does the scheduler's word decide.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import attempts
from harness import claim as claims
from harness.launch.job import BUDGET_USED, NOT_BACK
from harness.launch.jobstates import Failure, JobState, failure_of
from harness.launch.queue import Held
from harness.launch.records import record_end
from harness.record import RunDirectory
from harness.redaction import redact
from harness.states import COMPLETE, FAILED, INTERRUPTED, PENDING, RunState
from harness.stopping import stop_requested
from harness.worker import EXIT_FAILED, EXIT_HELD, EXIT_INTERRUPTED

ELSEWHERE = "elsewhere"
# Failures that a run recorded itself, and that were the machine's fault and not its own: tried again by itself, and by
# whoever gives the command anew, who may have made room on a disk.
HELPED_BY_A_RETRY = ("infra",)
TRIED_BY_A_NEW_COMMAND = (*HELPED_BY_A_RETRY, "disk")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run stands after its job. status: complete | failed | interrupted | pending | elsewhere (others work on
    it); again: whether submitting it once more can help without anybody changing anything; killed: nobody knows why
    it died, so that once more is enough."""

    status: str
    note: str = ""
    again: bool = False
    killed: bool = False


def settle(run: RunDirectory, held: Held, lacks: bool) -> Ending:
    """The ending of a run whose job has ended or is gone; writes down what the job could not.

    lacks: a run that this one needs is not complete. Raises RecordError.
    """
    state, holder = run.state(), run.claim_status()
    if state.state == COMPLETE:
        return Ending(COMPLETE)
    if holder.status in (claims.ALIVE, claims.UNKNOWN):
        return Ending(ELSEWHERE, claims.told(run.claim_path, holder))
    job = held.state
    last = next(iter(attempts.all_attempts(run.path)[-1:]), None)
    own = last is not None and job_of(last.content) == held.ticket.job_id
    outcome = last.content.get("outcome") if last is not None and own else None
    if own and outcome == FAILED and state.state == FAILED:
        return Ending(FAILED, state.error or "", again=state.failure_class in HELPED_BY_A_RETRY)
    failure = failure_of(job)
    if state.state == INTERRUPTED and outcome == INTERRUPTED:
        return _stopped(run, state, job, failure)
    if not own and (ending := _left(state, job)) is not None:
        return ending
    return _unrecorded(run, held, failure, began=own, lacks=lacks)


def _stopped(run: RunDirectory, state: RunState, job: JobState, failure: Failure) -> Ending:
    """The run stopped at a step boundary, and the job did not come back."""
    note = state.error or ""
    if BUDGET_USED in note:
        return Ending(INTERRUPTED, note)
    if job.word == "CANCELLED":  # the run itself only knows that it was sent SIGTERM
        return _record(run, INTERRUPTED, f"{failure.words}; it {note}" if note else failure.words)
    return Ending(INTERRUPTED, note, again=failure.retry or NOT_BACK in note)


def _left(state: RunState, job: JobState) -> Ending | None:
    """The job left without beginning an attempt, for a reason that it could tell by its exit status."""
    status = _status(job)
    if status == EXIT_HELD:
        return Ending(state.state, f"job {job.id} found somebody else working on the run, who is gone now", again=True)
    if status == EXIT_FAILED and state.state == FAILED:
        return Ending(FAILED, state.error or "")
    if status == EXIT_INTERRUPTED and state.state == INTERRUPTED:
        return Ending(INTERRUPTED, state.error or "")
    return None


def _unrecorded(run: RunDirectory, held: Held, failure: Failure, *, began: bool, lacks: bool) -> Ending:
    """The job said nothing: what the scheduler knows is recorded."""
    job = held.state
    if job.word == "CANCELLED":
        if lacks and not began:  # by the scheduler, because the run that it waited for had failed
            return Ending(PENDING, f"{failure.words}: the run that it needs was not complete", again=True)
        asked = stop_requested(run.path)  # by whoever cancelled a job that still waited
        return _record(run, INTERRUPTED, f"{asked} ({failure.words})" if asked else failure.words)
    again = failure.retry
    if job.word == "TIMEOUT" and began and not _progressed(run):
        again = False  # it would only reach its time limit again
    words = failure.words
    if complaint := last_words(Path(held.ticket.log)):
        words = f"{words}; it said: {complaint}"
    if held.ticket.log:
        words = f"{words}; log: {held.ticket.log}"
    if again and failure.failure_class != "crash":
        return _record(run, INTERRUPTED, words, again=True)
    killed = failure.failure_class == "crash"
    return _record(run, FAILED, words, failure.failure_class, again=again, killed=killed)


def _record(
    run: RunDirectory, status: str, words: str, failure_class: str | None = None, *, again: bool = False,
    killed: bool = False,
) -> Ending:  # fmt: skip
    words = redact(words)
    if record_end(run, status, words, failure_class):
        return Ending(status, words, again, killed)
    state, holder = run.state(), run.claim_status()  # somebody was faster
    if state.state == COMPLETE:
        return Ending(COMPLETE)
    return Ending(ELSEWHERE, claims.told(run.claim_path, holder))


def job_of(attempt: dict[str, Any]) -> str:
    """The job in which an attempt was made, `123_4` or `123`; "" outside of Slurm."""
    slurm = attempt.get("slurm") or {}
    array, element = slurm.get("slurm_array_job_id"), slurm.get("slurm_array_task_id")
    return f"{array}_{element}" if array and element else str(slurm.get("slurm_job_id", ""))


def _progressed(run: RunDirectory) -> bool:
    """Whether the last attempt came further than it began."""
    last = attempts.all_attempts(run.path)[-1:]
    return bool(last) and run.stored_state().last_step > int(last[0].content.get("from_step") or 0)


def _status(job: JobState) -> int:
    status, _, number = (job.exit_code or "").partition(":")
    return int(status) if status.isdigit() and number in ("", "0") else -1


def last_words(log: Path, most: int = 300) -> str:
    """The last line of a job's log that says something about an error; "" if there is none."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in deque(file, maxlen=40) if line.strip()]
    except OSError:
        return ""
    telling = [line for line in lines if "rror" in line or "not found" in line or "illed" in line]
    return telling[-1][:most] if telling else ""
