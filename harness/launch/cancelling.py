"""Ending the jobs of runs, and writing down who did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.launch import batches, tickets
from harness.launch.jobstates import UNKNOWN
from harness.launch.queue import Held, Queue
from harness.launch.records import record_end
from harness.launch.scheduler import Slurm
from harness.launch.slurm import LOCK_NAME
from harness.locks import file_lock
from harness.record import RunDirectory
from harness.states import FAILED, INTERRUPTED

PATIENCE_SECONDS = 60.0  # for jobs that run: Slurm kills them KillWait (30 s by default) after the first signal
POLL_SECONDS = 1.0


@dataclass
class Cancelled:
    """cancelled: fingerprints of runs whose jobs are gone; left: fingerprint -> why its job may still be there."""

    cancelled: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def cancel_jobs(
    runs: Iterable[RunDirectory],
    out: Path,
    reason: str,
    *,
    scheduler: Slurm | None = None,
    say: Callable[[str], None] = lambda text: None,
    patience: float = PATIENCE_SECONDS,
    poll: float = POLL_SECONDS,
) -> Cancelled:
    """Cancel the jobs of these runs and record the runs as interrupted, with `reason`. Complete runs stay complete.

    Jobs whose state nobody knows are left alone. Raises SchedulerError if the scheduler does not take the order.
    """
    slurm = scheduler or Slurm()
    queue = Queue(slurm)
    by_name = {run.fingerprint: run for run in runs}
    report = Cancelled()
    with file_lock(out / LOCK_NAME, on_wait=lambda: say("another command is submitting into this folder; waiting")):
        batches.adopt(out, slurm)
        waiting: dict[str, Held] = {}
        for name, held in queue.look(by_name.values()).items():
            if held.state.kind == UNKNOWN:
                report.left[name] = f"{held.told(by_name[name])}; it is left alone"
            elif held.live:
                waiting[name] = held
        if waiting:
            slurm.cancel(held.ticket.job_id for held in waiting.values())
        deadline = time.monotonic() + patience
        while waiting:
            for name, held in queue.look(by_name[name] for name in waiting).items():
                if not held.live and _record(by_name[name], f"{reason} (job {held.ticket.job_id})"):
                    tickets.clear(by_name[name].path)
                    report.cancelled.append(name)
                    del waiting[name]
                else:
                    waiting[name] = held
            if waiting and time.monotonic() >= deadline:
                report.left.update(
                    {name: f"{held}; it was told to end, and has not yet" for name, held in waiting.items()}
                )
                break
            if waiting:
                time.sleep(poll)
    return report


def _record(run: RunDirectory, reason: str) -> bool:
    """Whether the run is free and says what became of it."""
    state = run.state()
    if state.is_complete or (state.state == FAILED and not run.claim_status().owner):
        return True  # it was faster, or had failed before
    return record_end(run, INTERRUPTED, reason)
