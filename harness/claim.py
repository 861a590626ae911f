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
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psutil

from harness.files import RecordError, atomic_write, json_bytes, scratch_name, sync_folder, write_new, writing

if TYPE_CHECKING:
    from harness.launch.jobstates import JobState

ALIVE, DEAD, UNKNOWN, FREE = "alive", "dead", "unknown", "free"
HIDDEN = -1.0  # start time of a process that belongs to another user and is hidden from us
_HAS_PROC = Path("/proc/self/stat").exists()


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, so that it cannot be mistaken for another.

    start: start time of the process; kernel ticks since boot on Linux, else seconds since 1970.
    boot: id of the running kernel; machine: id of the installation; namespace: process-id namespace. "" = not known.
    token: unique per claim. created: unix seconds.
    job: the scheduler's job that it is part of, `123` or `123_4`, "" for none; restarts: times that the job had gone
    back to the queue; cluster: whose job, "" = not known. uid: number of the user, -1 = not known.
    """

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    start: float
    token: str
    created: float
    job: str = ""
    restarts: int = 0
    cluster: str = ""
    uid: int = -1


# job id, cluster -> its state; never raises.
AskJob = Callable[[str, str], "JobState"]


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """status: alive | dead | unknown | free; owner: None if free or unreadable; reason: why, in words."""

    status: str
    owner: Owner | None
    reason: str


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def boot_id() -> str:
    """Identity of the running kernel: differs after every reboot."""
    return _read_text("/proc/sys/kernel/random/boot_id") or f"{psutil.boot_time():.0f}"


def machine_id() -> str:
    return _read_text("/etc/machine-id")


def pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def process_start(pid: int) -> float | None:
    """Start time of a living process, None if there is none. A zombie has ended: None. HIDDEN if we may not know."""
    if not _HAS_PROC:
        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except psutil.NoSuchProcess:
            return None
        except psutil.AccessDenied:
            return HIDDEN
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return HIDDEN if _exists_for_others(pid) else None
    except PermissionError:
        return HIDDEN
    # The second field is the program's name in brackets, which may itself hold spaces and brackets.
    fields = stat[stat.rindex(")") + 1 :].split()
    return None if fields[0] in ("Z", "X", "x") else float(fields[19])


def _exists_for_others(pid: int) -> bool:
    """Whether a process exists that /proc does not show us: /proc mounted with hidepid hides those of other users."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return False  # one of ours is never hidden: it started or ended between the two looks


def current_owner() -> Owner:
    """This process as an owner, with a new token."""
    start = process_start(os.getpid())
    if start is None or start == HIDDEN:  # a living process always finds itself
        raise RuntimeError("cannot read the start time of the own process; is /proc mounted?")
    return Owner(
        host=socket.gethostname(),
        machine=machine_id(),
        boot=boot_id(),
        namespace=pid_namespace(),
        pid=os.getpid(),
        start=start,
        token=uuid.uuid4().hex,
        created=time.time(),
        **job_of_process(os.environ),
        uid=os.getuid(),
    )


def job_of_process(environment: Mapping[str, str]) -> dict[str, Any]:
    """`job`, `restarts` and `cluster` of a process, from the variables that Slurm sets; empty outside a job."""
    array, element = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{element}" if array and element else environment.get("SLURM_JOB_ID", "")
    if not job:
        return {}
    restarts = environment.get("SLURM_RESTART_COUNT", "")
    return {
        "job": job,
        "restarts": int(restarts) if restarts.isdigit() else 0,
        "cluster": environment.get("SLURM_CLUSTER_NAME", ""),
    }


def ask_scheduler(job: str, cluster: str) -> JobState:
    """The state of a job, asked at most every few seconds."""
    from harness.launch.lookup import default_lookup  # only claims of jobs need it

    return default_lookup()(job, cluster)


def judge(owner: Owner, ask: AskJob | None = None) -> ClaimStatus:
    """Whether the owner is alive, dead or unknown, seen from this process.

    What this machine knows of a process counts more than what a scheduler says. ask: None: `ask_scheduler`.
    """
    here = _judge_here(owner)
    return _judge_job(owner, here, ask or ask_scheduler) if owner.job and here.status == UNKNOWN else here


def _judge_here(owner: Owner) -> ClaimStatus:
    """What this machine knows."""
    who = f"process {owner.pid} on {owner.host}"
    if owner.host != socket.gethostname() or owner.machine != machine_id():
        return ClaimStatus(UNKNOWN, owner, f"{who} is on another machine")
    if owner.boot != boot_id():
        return ClaimStatus(DEAD, owner, f"{who} ended when the machine was restarted")
    if owner.namespace != pid_namespace():
        return ClaimStatus(UNKNOWN, owner, f"{who} is in another container")
    start = process_start(owner.pid)
    if start is None:
        return ClaimStatus(DEAD, owner, f"{who} is gone")
    if start == HIDDEN:
        return ClaimStatus(UNKNOWN, owner, f"process number {owner.pid} on {owner.host} belongs to another user")
    if abs(start - owner.start) > (0.0 if _HAS_PROC else 1.0):
        return ClaimStatus(DEAD, owner, f"{who} is gone (its number now belongs to another process)")
    return ClaimStatus(ALIVE, owner, f"{who} is working on it")


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
