"""States of a run, derived from its files and never from hope."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from harness import claim as claims
from harness.files import FULL_ERRNOS, RecordError, read_json_object

STATE_NAME = "state.json"
CLAIM_NAME = "claim.json"

PENDING, SUBMITTED, RUNNING = "pending", "submitted", "running"
FAILED, INTERRUPTED, COMPLETE = "failed", "interrupted", "complete"
STATES = (PENDING, SUBMITTED, RUNNING, FAILED, INTERRUPTED, COMPLETE)

# What a failure was:
#   config      the configuration asks for something impossible that no check before the start could see
#   env         the environment broke
#   analyzer    the analyzer failed too often
#   oom         out of memory, and Python lived to say so
#   disk        no room to write
#   crash       an error in the code, or the process was killed
#   infra       the machine or a service: network, broken file system, unreadable records
#   incomplete  it ended without error, but steps or evaluations are missing
FAILURE_CLASSES = ("config", "env", "analyzer", "oom", "disk", "crash", "infra", "incomplete")


class Interrupted(Exception):  # noqa: N818 - an outcome, not an error
    """The run stopped at a step boundary because it was asked to; its checkpoint is written."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What is known about a run.

    state          pending | submitted | running | failed | interrupted | complete
    last_step      training steps whose results are in a checkpoint or in the spool
    planned_steps  training steps of the whole run
    declared       evaluations the run owes, as `<panel>/<skills>`
    evaluations    `<panel>/<skills>` -> {"requested", "graded", "excluded"} (episodes)
    error          why it failed or was interrupted, in words; None otherwise
    failure_class  one of FAILURE_CLASSES when failed; None otherwise
    updated        unix seconds of the last write; 0.0 before the first
    """

    state: str = PENDING
    last_step: int = 0
    planned_steps: int = 0
    declared: tuple[str, ...] = ()
    evaluations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    error: str | None = None
    failure_class: str | None = None
    updated: float = 0.0

    @property
    def is_complete(self) -> bool:
        return self.state == COMPLETE


def missing_for_completeness(state: RunState) -> list[str]:
    """What a run still lacks to be complete, in words; empty if nothing."""
    lacks: list[str] = []
    if state.last_step != state.planned_steps:
        lacks.append(f"{state.last_step} of {state.planned_steps} training steps done")
    for name in state.declared:
        counts = state.evaluations.get(name)
        if counts is None:
            lacks.append(f"evaluation {name} not done")
            continue
        requested, graded, excluded = (int(counts.get(key, 0)) for key in ("requested", "graded", "excluded"))
        if requested != graded + excluded:
            lacks.append(f"evaluation {name}: {graded} graded + {excluded} excluded of {requested} requested")
        elif graded == 0:
            lacks.append(f"evaluation {name}: no episode graded ({excluded} excluded)")
    return lacks


def updated_state(state: RunState, changes: Mapping[str, Any]) -> RunState:
    """`state` with `changes`, checked. Raises TypeError for unknown fields and ValueError for impossible contents."""
    known = [item.name for item in fields(RunState) if item.name != "updated"]
    for name in changes:
        if name not in known:
            raise TypeError(f"a run's state has no field {name!r}; known: {', '.join(known)}")
    # `updated` must differ between two writes: readers use it to notice one.
    new = replace(state, **changes, updated=max(time.time(), state.updated + 1e-6))
    if new.state not in STATES:
        raise ValueError(f"state={new.state!r}: not a state; known: {', '.join(STATES)}")
    if new.state not in (FAILED, INTERRUPTED):
        new = replace(new, error=None)
    if new.state != FAILED:
        new = replace(new, failure_class=None)
    elif new.failure_class not in FAILURE_CLASSES:
        raise ValueError(f"failure_class={new.failure_class!r}: a failed run needs one of {', '.join(FAILURE_CLASSES)}")
    if new.state == COMPLETE and (lacks := missing_for_completeness(new)):
        raise ValueError(f"state=complete refused: {'; '.join(lacks)}")
    return new


def encode_state(state: RunState) -> dict[str, Any]:
    return {
        **asdict(state),
        "declared": list(state.declared),
        "evaluations": {name: dict(counts) for name, counts in sorted(state.evaluations.items())},
    }


def stored_state(run_dir: Path) -> RunState:
    """What state.json says; a pending RunState if there is none. RecordError if it cannot be understood."""
    content = read_json_object(run_dir / STATE_NAME)
    if content is None:
        return RunState()
    known = {item.name for item in fields(RunState)}
    try:
        state = RunState(**{key: value for key, value in content.items() if key in known})
        state = replace(state, declared=tuple(state.declared))
        consistent = state.state in STATES and missing_for_completeness(state) is not None
    except (TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{run_dir / STATE_NAME} is not a run's state: {error}") from error
    if not consistent:
        raise RecordError(f"{run_dir / STATE_NAME} says state={state.state!r}; known: {', '.join(STATES)}")
    return state


def derive_state(run_dir: Path) -> RunState:
    """The true state of a run. Only reads.

    `running` with a dead or no claim is interrupted; a living claim on anything not complete is running; a claim that
    cannot be judged (another machine) leaves the recorded state; `complete` with steps or evaluations missing is
    failed (`incomplete`), as is an unreadable state file (`infra`).
    """
    try:
        state, holder = _consistent_look(run_dir)
    except RecordError as error:
        return RunState(state=FAILED, error=str(error), failure_class="infra")
    return judge_state(state, holder)


def judge_state(state: RunState, holder: claims.ClaimStatus) -> RunState:
    """The true state, given what is recorded and who holds the claim."""
    if state.state == COMPLETE:
        if lacks := missing_for_completeness(state):
            reason = f"recorded as complete, but {'; '.join(lacks)}"
            return replace(state, state=FAILED, error=reason, failure_class="incomplete")
        return state
    if holder.status == claims.ALIVE:
        return replace(state, state=RUNNING, error=None, failure_class=None)
    if state.state == RUNNING and holder.status in (claims.DEAD, claims.FREE):
        return replace(state, state=INTERRUPTED, error=f"left unfinished: {holder.reason}")
    return state


def _consistent_look(run_dir: Path) -> tuple[RunState, claims.ClaimStatus]:
    """State and claim as they were at one moment.

    A worker writes its last state, then gives its claim back. Read one after the other, the two could read `running`
    and `free` of a run that ended in between, so the state is read again until it stood still around the claim.
    """
    state = stored_state(run_dir)
    while True:
        holder = claims.inspect(run_dir / CLAIM_NAME)
        again = stored_state(run_dir)
        if again == state:
            return state, holder
        state = again


def classify(error: BaseException) -> str:
    """The failure class of an exception: its own `failure_class` attribute first, then its kind, then its causes'."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        found = _classify_one(current)
        if found is not None:
            return found
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "crash"


# Without importing torch or an environment, whose exceptions these are.
_BY_NAME = {
    "ConfigError": "config",
    "EnvironmentFailure": "env",
    "OutOfMemoryError": "oom",
    "AcceleratorError": "infra",
}
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


def _classify_one(error: BaseException) -> str | None:
    own = getattr(error, "failure_class", None)
    if isinstance(own, str) and own in FAILURE_CLASSES:
        return own
    if isinstance(error, MemoryError):
        return "oom"
    for kind in type(error).__mro__:
        if kind.__name__ in _BY_NAME:
            return _BY_NAME[kind.__name__]
    if isinstance(error, (RuntimeError, OSError)) and any(words in str(error).lower() for words in _NO_MEMORY):
        return "oom"
    if isinstance(error, OSError):
        if error.errno in FULL_ERRNOS:
            return "disk"
        # A missing file is a mistake in code or data; what remains is the machine or the network.
        return None if isinstance(error, (FileNotFoundError, FileExistsError, IsADirectoryError)) else "infra"
    return None
