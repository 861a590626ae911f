"""Processes as owners of claims: who they are, so that none is mistaken for another, and whether they live."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ALIVE, DEAD, UNKNOWN = "alive", "dead", "unknown"
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


def known_here(owner: Owner) -> tuple[str, str]:
    """(alive | dead | unknown, why in words): what this machine knows of an owner."""
    who = f"process {owner.pid} on {owner.host}"
    if owner.host != socket.gethostname() or owner.machine != machine_id():
        return UNKNOWN, f"{who} is on another machine"
    if owner.boot != boot_id():
        return DEAD, f"{who} ended when the machine was restarted"
    if owner.namespace != pid_namespace():
        return UNKNOWN, f"{who} is in another container"
    start = process_start(owner.pid)
    if start is None:
        return DEAD, f"{who} is gone"
    if start == HIDDEN:
        return UNKNOWN, f"process number {owner.pid} on {owner.host} belongs to another user"
    if abs(start - owner.start) > (0.0 if _HAS_PROC else 1.0):
        return DEAD, f"{who} is gone (its number now belongs to another process)"
    return ALIVE, f"{who} is working on it"
