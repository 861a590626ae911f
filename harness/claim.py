"""Who works on a run: one atomic file, taken over only when its owner is provably dead.

`claim.json` appears complete or not at all (a hard link to a finished file), so of any number of processes exactly one
creates it. A claim is *dead* when it was made on this machine by a process that is gone: another boot, no such process
id, another start time under the same id, or a zombie. Everything else that is not plainly alive is *unknown*: another
machine, another process-id namespace (a container), an unreadable file. Unknown is never taken over.

Taking over happens under a lock of this machine. That is enough for file systems shared between machines, because only
processes of the dead owner's own machine may ever take a claim over.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from harness.files import atomic_write, json_bytes, scratch_name, sync_folder, write_new, writing
from harness.locks import file_lock

ALIVE, DEAD, UNKNOWN, FREE = "alive", "dead", "unknown", "free"
HIDDEN = -1.0  # start time of a process that belongs to another user and is hidden from us
_HAS_PROC = Path("/proc/self/stat").exists()


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, so that it cannot be mistaken for another.

    start: start time of the process; kernel ticks since boot on Linux, else seconds since 1970.
    boot: id of the running kernel; machine: id of the installation; namespace: process-id namespace. "" = not known.
    token: unique per claim. created: unix seconds.
    """

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    start: float
    token: str
    created: float


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
    )


def judge(owner: Owner) -> ClaimStatus:
    """Whether the owner is alive, dead or unknown, seen from this process."""
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


def _parse(text: str) -> Owner | None:
    try:
        content: Any = json.loads(text)
        return Owner(**content)
    except (json.JSONDecodeError, TypeError):
        return None


def inspect(path: Path) -> ClaimStatus:
    """Who holds the claim file `path`. Only reads."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ClaimStatus(FREE, None, "nobody works on it")
    except OSError as error:
        return ClaimStatus(UNKNOWN, None, f"{path} cannot be read: {error}")
    owner = _parse(text)
    if owner is None:
        return ClaimStatus(UNKNOWN, None, f"{path} does not name a process; delete it if nobody works on the run")
    return judge(owner)


class Claim:
    """A held claim. Use as a context manager, or call `release`; a process that dies simply leaves it behind."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self.path = path
        self.owner = owner

    def held(self) -> bool:
        """Whether the file still is this claim (somebody may have deleted it by hand)."""
        return inspect(self.path).owner == self.owner

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


def acquire(path: Path) -> Claim | None:
    """Claim `path` for this process; None if somebody alive or unknown holds it. Not re-entrant.

    Raises RecordError (DiskFullError) when the folder cannot be written.
    """
    owner = current_owner()
    content = json_bytes(asdict(owner))
    if _create(path, content):
        return Claim(path, owner)
    if inspect(path).status in (ALIVE, UNKNOWN):
        return None
    with file_lock(path.with_name(f".{path.name}.lock")):
        status = inspect(path).status  # again: another process may have taken over meanwhile
        if status == DEAD:
            atomic_write(path, content)
            return Claim(path, owner)
    return Claim(path, owner) if status == FREE and _create(path, content) else None


def _create(path: Path, content: bytes) -> bool:
    """Make `path` with `content` in one step; False if it exists."""
    scratch = scratch_name(path)
    with writing(path):
        write_new(scratch, content)
        try:
            os.link(scratch, path)
        except FileExistsError:
            return False
        finally:
            scratch.unlink(missing_ok=True)
        sync_folder(path.parent)
    return True
