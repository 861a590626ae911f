"""How verl's process ended, as it says itself and as its parent sees it. Imports nothing heavy."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.files import RecordError, atomic_write_json, read_json_object
from harness.states import COMPLETE, FAILED, INTERRUPTED, Interrupted, classify

LOG_TAIL = 2000  # characters of the log that an error quotes when the process said nothing itself
# Exceptions of Ray and vLLM by name: Ray wraps what happened in its processes, in a kind that has both names.
_RAY_CLASSES = {
    "OutOfMemoryError": "oom",
    "ActorDiedError": "infra",
    "ActorUnavailableError": "infra",
    "RayActorError": "infra",
    "WorkerCrashedError": "infra",
    "NodeDiedError": "infra",
    "ObjectLostError": "infra",
    "RaySystemError": "infra",
    "OutOfDiskError": "disk",
    "EngineDeadError": "infra",  # vLLM's engine behind a server that still answers
}


class VerlError(RuntimeError):
    """The run failed in verl's process. failure_class: see harness.states.FAILURE_CLASSES."""

    def __init__(self, text: str, failure_class: str) -> None:
        super().__init__(text)
        self.failure_class = failure_class


@dataclass(frozen=True)
class Outcome:
    """outcome: complete | interrupted | failed; error: why, in words; failure_class: of a failure."""

    outcome: str
    error: str | None = None
    failure_class: str | None = None

    def write(self, path: Path) -> None:
        atomic_write_json(path, asdict(self))


def outcome_of(error: BaseException) -> Outcome:
    """What an exception means for the run."""
    if isinstance(error, (Interrupted, KeyboardInterrupt)):
        return Outcome(INTERRUPTED, str(error) or type(error).__name__)
    return Outcome(FAILED, f"{type(error).__name__}: {error}", failure_class(error))


def failure_class(error: BaseException) -> str:
    """As harness.states.classify, with what Ray's exceptions mean."""
    found = classify(error)
    if found != "crash":
        return found
    names = [kind.__name__ for kind in type(error).__mro__]
    return next((_RAY_CLASSES[name] for name in names if name in _RAY_CLASSES), found)


def judge(path: Path, exit_status: int, log: Path) -> None:
    """Return if the run is complete. Raises Interrupted or VerlError otherwise.

    path: what the process wrote, if it did; exit_status: negative for a signal; log: its output.
    """
    said: dict[str, Any] | None
    try:
        said = read_json_object(path)
    except RecordError as error:
        raise VerlError(f"the outcome of verl's process cannot be read: {error}", "infra") from error
    if said is None:
        raise VerlError(_silent(exit_status, log), "oom" if exit_status == -signal.SIGKILL else "crash")
    outcome = Outcome(**said)
    if outcome.outcome == COMPLETE:
        return
    if outcome.outcome == INTERRUPTED:
        raise Interrupted(outcome.error or "stopped")
    raise VerlError(outcome.error or "verl's process failed", outcome.failure_class or "crash")


def _silent(status: int, log: Path) -> str:
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    hint = " (out of memory is the usual reason)" if status == -signal.SIGKILL else ""
    try:
        tail = log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:].strip()
    except OSError:
        tail = ""
    return f"verl's process {how}{hint} without a word; see {log.name}" + (f". Its last lines:\n{tail}" if tail else "")
