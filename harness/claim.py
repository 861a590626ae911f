"""Who works on a run: one atomic file, taken over only when its owner is provably dead.

`claim.json` appears complete or not at all (a hard link to a finished file), so of any number of processes exactly one
creates it. A claim is *dead* when it was made on this machine by a process that is gone: another boot, no such process
id, another start time under the same id, or a zombie. A claim made elsewhere in a job of a scheduler is dead when that
job has ended, waits in the queue again, was started again, or is no longer known to the scheduler. Everything else that
is not plainly alive is *unknown*: another machine, another process-id namespace (a container), a scheduler that does
not answer, an unreadable file. Unknown is never taken over.

Taking over needs no lock, so it is safe between machines: whoever makes the hard link `.claim.json.<token>.next`, of
which there can be one, succeeds the dead owner with that token, and then puts its own claim into `claim.json`. Should
it die in between, its successor is found by following the links.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from harness.files import RecordError, atomic_write, json_bytes, scratch_name, sync_folder, write_new, writing
from harness.owner import ALIVE, DEAD, UNKNOWN, Owner, current_owner, job_of_process, known_here, process_start

if TYPE_CHECKING:
    from harness.launch.jobstates import JobState

FREE = "free"
# job id, cluster -> its state; never raises.
AskJob = Callable[[str, str], "JobState"]


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """status: alive | dead | unknown | free; owner: None if free or unreadable; reason: why, in words."""

    status: str
    owner: Owner | None
    reason: str


def ask_scheduler(job: str, cluster: str) -> JobState:
    """The state of a job, asked at most every few seconds."""
    from harness.launch.lookup import default_lookup  # only claims of jobs need it

    return default_lookup()(job, cluster)


def judge(owner: Owner, ask: AskJob | None = None) -> ClaimStatus:
    """Whether the owner is alive, dead or unknown, seen from this process.

    What this machine knows of a process counts more than what a scheduler says. ask: None: `ask_scheduler`.
    """
    status, reason = known_here(owner)
    here = ClaimStatus(status, owner, reason)
    return _judge_job(owner, here, ask or ask_scheduler) if owner.job and status == UNKNOWN else here


def _judge_job(owner: Owner, here: ClaimStatus, ask: AskJob) -> ClaimStatus:
    """What is known of the owner's job: a job runs once at a time, so a later start of it means that this one ended."""
    who = f"job {owner.job} on {owner.host}"
    own = job_of_process(os.environ)
    if (own.get("job"), own.get("cluster")) == (owner.job, owner.cluster) and own["restarts"] > owner.restarts:
        return ClaimStatus(DEAD, owner, f"{who} was started again, as this process")
    state = ask(owner.job, owner.cluster)
    if state.kind == "running":
        if state.restarts is not None and state.restarts > owner.restarts:
            return ClaimStatus(DEAD, owner, f"{who} was started again")
        return ClaimStatus(ALIVE, owner, f"{who} is working on it")
    if state.kind == "gone" and owner.uid not in (-1, os.getuid()):
        # Sites may hide the jobs of others (PrivateData in slurm.conf), and a hidden job looks like none.
        return ClaimStatus(UNKNOWN, owner, f"{who} belongs to another user, and the scheduler does not show it")
    if state.kind in ("ended", "gone", "queued"):
        return ClaimStatus(DEAD, owner, f"{who} is no longer running: {state}")
    return ClaimStatus(UNKNOWN, owner, f"{here.reason}, in job {owner.job}: {state}")


def _successor(path: Path, token: str) -> Path:
    return path.with_name(f".{path.name}.{token}.next")


def _read_owner(path: Path) -> Owner | None:
    """Who is named by a claim file; None if there is no such file. RecordError if it names nobody."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        return Owner(**content)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path} does not name a process; delete it if nobody works on the run") from error


def _owners(path: Path) -> list[Owner]:
    """The owner in the claim file and, if it died, those that succeeded it in turn: the last one counts."""
    chain: list[Owner] = []
    owner = _read_owner(path)
    while owner is not None:
        chain.append(owner)
        owner = _read_owner(_successor(path, owner.token))
    return chain


def inspect(path: Path, ask: AskJob | None = None) -> ClaimStatus:
    """Who holds the claim file `path`. Only reads. ask: see `judge`."""
    while True:
        try:
            chain = _owners(path)
            if not chain:
                return ClaimStatus(FREE, None, "nobody works on it")
            status = judge(chain[-1], ask)
            # A successor puts its claim in place, then removes the link to it: between two looks both can be missed.
            if status.status == ALIVE or _owners(path)[-1:] == chain[-1:]:
                return status
        except RecordError as error:
            return ClaimStatus(UNKNOWN, None, str(error))


def told(path: Path, holder: ClaimStatus) -> str:
    """Who holds the claim file `path`, in words; where nobody can tell whether it lives, with the way on."""
    way = f"; if you know that it is dead, delete {path}" if holder.status == UNKNOWN else ""
    return f"{holder.reason}{way}"


class Claim:
    """A held claim. Use as a context manager, or call `release`; a process that dies simply leaves it behind."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path
        self.owner = owner

    def held(self) -> bool:
        """Whether the claim still is this one: somebody may have deleted it by hand, or succeeded a process that was
        thought dead."""
        try:
            return _owners(self.path)[-1:] == [self.owner]
        except RecordError:
            return False

    def successor(self) -> Owner | None:
        """Who succeeded this process because it was thought dead: it must not write to the run any more.

        None while that has not happened, also where it cannot be told.
        """
        try:
            last = _owners(self.path)[-1:]
        except RecordError:
            return None
        return last[0] if last and last != [self.owner] else None

    def release(self) -> None:
        """Give the claim back. Does nothing in a forked child or when the file is no longer ours."""
        # Nobody takes over from a living owner, so between the look and the removal the file cannot change hands.
        if os.getpid() == self.owner.pid and self.held():
            with writing(self.path):
                self.path.unlink(missing_ok=True)
                sync_folder(self.path.parent)

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(path: Path, ask: AskJob | None = None) -> Claim | None:
    """Claim `path` for this process; None if somebody alive or unknown holds it. Not re-entrant. ask: see `judge`.

    Raises RecordError (DiskFullError) when the folder cannot be written.
    """
    owner = current_owner()
    content = json_bytes(asdict(owner))
    while True:
        if _create(path, content):
            return Claim(path, owner)
        holder = inspect(path, ask)
        if holder.status in (ALIVE, UNKNOWN):
            return None
        if holder.owner is not None and _succeed(path, holder.owner, owner, content):
            return Claim(path, owner)
        # It was freed or changed hands meanwhile: look again. Each round somebody got on, so this ends.


def _succeed(path: Path, dead: Owner, owner: Owner, content: bytes) -> bool:
    """Become the one successor of a dead owner; False if another process was elected, or the claim changed hands."""
    link = _successor(path, dead.token)
    if not _create(link, content):
        return False
    elected = False
    try:
        # If the dead owner was succeeded long ago and that successor has cleaned up, this election is void.
        elected = _owners(path)[-1:] == [owner]
        if not elected:
            return False
        # First the claim, then the links: whoever still follows them must find them, or a claim that leads elsewhere.
        atomic_write(path, content)
    except BaseException:
        elected = False
        raise
    finally:
        if not elected:
            link.unlink(missing_ok=True)
    for old in sorted(path.parent.glob(f".{path.name}.*.next")):
        if old != _successor(path, owner.token):
            old.unlink(missing_ok=True)
    return True


def _create(path: Path, content: bytes) -> bool:
    """Make `path` with `content` in one step; False if it exists."""
    scratch = scratch_name(path)
    with writing(path):
        write_new(scratch, content)
        try:
            os.link(scratch, path)
        except FileExistsError:
            # A network file system may carry an order out, lose the answer and repeat it: then the name is our own.
            if scratch.stat().st_nlink < 2:
                return False
        finally:
            scratch.unlink(missing_ok=True)
        sync_folder(path.parent)
    return True


__all__ = [
    "ALIVE",
    "DEAD",
    "FREE",
    "UNKNOWN",
    "AskJob",
    "Claim",
    "ClaimStatus",
    "Owner",
    "acquire",
    "current_owner",
    "inspect",
    "judge",
    "process_start",
    "told",
]
