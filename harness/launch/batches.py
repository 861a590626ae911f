"""One submission: runs of one shape, handed to sbatch by Submitit as one array, with their tickets.

`<out>/slurm/<batch>/` holds Submitit's script, pickles and logs, and `batch.json`: what is being submitted, written
before sbatch is asked, so that a submitter killed at any point leaves enough behind to find its jobs again.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.config import LauncherConfig
from harness.files import RecordError, atomic_write_json, read_json_object, writing
from harness.launch import tickets
from harness.launch.job import Job
from harness.launch.scheduler import SchedulerError, Slurm
from harness.launch.script import executor, outside_of_jobs
from harness.launch.shapes import Shape
from harness.launch.tickets import Ticket

FOLDER = "slurm"
BATCH_NAME = "batch.json"
_DONE = "ticketed"  # an empty file: every job of the batch has its ticket
_GENTLE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Why sbatch took nothing: this user's jobs are too many, or those of a group (fewer may fit); the controller is away or
# busy (nothing fits now); or it never will.
FULL, AWAY, NEVER = "full", "away", "never"
_AWAY = re.compile(
    r"unable to accept job|temporarily una|unable to contact|timed out|connection refused|communication", re.IGNORECASE
)
_FULL = re.compile(r"max\w*submit|grp\w*submit|submit limit|max\w*jobs", re.IGNORECASE)
# Slurm's general word for a broken limit speaks of "job submit limit", whichever it was; the limit's own name is beside
# it where the version prints it. One on a single job (DenyOnLimit) is broken by the job itself, in any queue.
_LIMIT = re.compile(r"\b(?:QOS|Assoc)(?:Max|Min|Grp)\w+", re.IGNORECASE)


class RefusedError(RuntimeError):
    """sbatch took nothing of the batch. Says what it said. kind: full | away | never."""

    def __init__(self, said: str, kind: str) -> None:
        super().__init__(said)
        self.kind = kind


def refusal(said: str) -> str:
    """full | away | never, of what sbatch said."""
    if _AWAY.search(said):
        return AWAY
    named = _LIMIT.findall(said)
    if named and not any("submit" in name.lower() for name in named):
        return NEVER
    return FULL if _FULL.search(said) else NEVER


@dataclass(frozen=True, slots=True)
class Order:
    """What one batch submits. tickets: one per job, in order, complete but for the job's number, script and log."""

    jobs: tuple[Job, ...]
    tickets: tuple[Ticket, ...]


def new_folder(out: Path, name: str) -> Path:
    """A folder for a batch that nobody else uses."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    short = re.sub(r"[^\w.-]+", "_", name)[:60]
    return out / FOLDER / f"{stamp}-{short}-{secrets.token_hex(3)}"


def submit(
    folder: Path, order: Order, launcher: LauncherConfig, settings: dict[str, Any], scheduler: Slurm
) -> list[Ticket]:
    """Submit one batch and write the tickets; returns them. Call under the lock of the output folder.

    settings: of harness.launch.script.parameters. Raises RefusedError if sbatch took nothing, RecordError
    (DiskFullError) if the batch's files cannot be written: jobs that were taken all the same are cancelled. Ctrl-C and
    other requests to stop wait until the tickets are written.
    """
    with _undisturbed(), outside_of_jobs():
        content = {
            "runs": [job.run_dir for job in order.jobs],
            "tickets": [asdict(ticket) for ticket in order.tickets],
        }
        with writing(folder):
            folder.mkdir(parents=True)
        try:
            atomic_write_json(folder / BATCH_NAME, content)
            with writing(folder):
                made = executor(folder, launcher, settings)
                with made.batch():
                    handles = [made.submit(job) for job in order.jobs]
        except RecordError:
            _withdraw(folder, scheduler)
            raise
        except RuntimeError as error:  # Submitit's own errors, with what sbatch said
            said = _said(error)
            shutil.rmtree(folder, ignore_errors=True)  # jobs taken all the same, if any, end for want of it
            raise RefusedError(said, refusal(said)) from error
        ids = [str(handle.job_id) for handle in handles]
        return _write_tickets(folder, order, ids)


def _withdraw(folder: Path, scheduler: Slurm) -> None:
    """Cancel the jobs of a batch whose files could not be written. Where that fails the folder stays, and the next
    command's `adopt` finds them."""
    with contextlib.suppress(SchedulerError):
        if scripts := sorted(folder.glob("*_submission.sh")):
            scheduler.cancel(path.name.partition("_")[0] for path in scripts)
        shutil.rmtree(folder, ignore_errors=True)


def _write_tickets(folder: Path, order: Order, ids: Sequence[str]) -> list[Ticket]:
    written: list[Ticket] = []
    for job, blank, job_id in zip(order.jobs, order.tickets, ids, strict=False):
        ticket = replace(blank, job_id=job_id, script=str(script_of(folder, job_id)), log=str(log_of(folder, job_id)))
        tickets.write(Path(job.run_dir), ticket)
        written.append(ticket)
    (folder / _DONE).touch()
    return written


def script_of(folder: Path, job_id: str) -> Path:
    """Where Submitit keeps the script that sbatch was given."""
    return folder / f"{job_id.partition('_')[0]}_submission.sh"


def log_of(folder: Path, job_id: str) -> Path:
    """Where the first process of a job writes what goes wrong."""
    return folder / f"{job_id}_0_log.err"


def _said(error: BaseException) -> str:
    """What sbatch said, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines) or type(error).__name__


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Requests to stop arrive afterwards, here and in sbatch, which a Ctrl-C in the terminal reaches as well."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers = {number: signal.signal(number, lambda given, frame: received.append(given)) for number in _GENTLE}
    # The mask is for sbatch, which inherits it; here another thread may take the signal all the same.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _GENTLE)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for given in dict.fromkeys(received):
            signal.raise_signal(given)


# ---------------------------------------------------------------------------------------------- submissions cut short
def adopt(out: Path, scheduler: Slurm) -> int:
    """Write the tickets of batches whose submitter was killed before it could; returns how many.

    Submitit moves the job's pickles into place one by one after sbatch has answered. Jobs that lack theirs cannot run:
    they are cancelled, and their runs are free to be submitted again. Call under the lock of the output folder.
    """
    adopted = 0
    root = out / FOLDER
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if (folder / _DONE).exists() or not (folder / BATCH_NAME).is_file():
            continue
        order = _read(folder)
        scripts = sorted(folder.glob("*_submission.sh"))
        if scripts:
            base = scripts[0].name.partition("_")[0]
            size = len(order.jobs)
            ids = [f"{base}_{n}" for n in range(size)] if size > 1 else [base]
            ready = [job_id for job_id in ids if (folder / f"{job_id}_submitted.pkl").exists()]
            started = ids[: len(ready)]  # they are moved in order
            if lacking := ids[len(ready) :]:
                with contextlib.suppress(SchedulerError):  # they end by themselves for want of their pickle
                    scheduler.cancel(lacking)
            adopted += len(_write_tickets(folder, order, started))
        else:  # killed before sbatch answered; jobs that it may have taken end for want of their pickles
            (folder / _DONE).touch()
    return adopted


def _read(folder: Path) -> Order:
    content = read_json_object(folder / BATCH_NAME) or {}
    try:
        blanks = [Ticket(**{**item, "shape": Shape(**item["shape"])}) for item in content["tickets"]]
        return Order(tuple(Job(run) for run in content["runs"]), tuple(blanks))
    except (KeyError, TypeError) as error:
        raise RecordError(f"{folder / BATCH_NAME} does not describe a batch of jobs: {error!r}") from error
