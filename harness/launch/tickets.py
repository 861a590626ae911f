"""Tickets: which job of the scheduler's was submitted for a run. `<run>/ticket.json` is the one that counts,
`<run>/tickets.jsonl` all there ever were.

Only submitters write them, each under the lock of its output folder and right after the scheduler took the job. What
the job itself does is in state.json, attempts/ and the spool.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.files import RecordError, atomic_write_json, sync_folder, write_all, writing
from harness.launch.shapes import Shape

TICKET_NAME = "ticket.json"
HISTORY_NAME = "tickets.jsonl"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A job submitted for a run.

    job_id     `123_4`, or `123` for a job of its own
    submitted  unix seconds
    attempt    how many jobs were submitted for the run, this one included
    requeues   times that the submitter saw it go back to the queue
    shape      what it asks for
    script     the file given to sbatch; log: where the job's output goes; both "" if not known
    cluster    name of the cluster; "" if not known
    snapshot   folder of the code that it runs; "" for the installed code
    sweep      name of the sweep it was submitted for; "" for a single run
    user       who submitted it
    """

    job_id: str
    submitted: float
    attempt: int = 1
    requeues: int = 0
    shape: Shape = field(default_factory=Shape)
    script: str = ""
    log: str = ""
    cluster: str = ""
    snapshot: str = ""
    sweep: str = ""
    user: str = ""


def read(run_path: Path) -> Ticket | None:
    """The ticket of a run; None if it has none. RecordError if there is one that cannot be understood."""
    path = run_path / TICKET_NAME
    try:
        return _decoded(json.loads(path.read_text(encoding="utf-8")), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error}") from error
    except (ValueError, RecordError) as error:
        # Without it a live job is forgotten, and its run submitted once more.
        what = error if isinstance(error, RecordError) else f"{path} is not a job's ticket: {error}"
        fix = f"{HISTORY_NAME} beside it names the run's jobs; delete the ticket only when squeue knows none of them"
        raise RecordError(f"{what}; {fix}") from error


def write(run_path: Path, ticket: Ticket) -> None:
    """Make `ticket` the one that counts, and remember it for good. Call while holding the lock of the output folder."""
    _append(run_path / HISTORY_NAME, ticket)
    atomic_write_json(run_path / TICKET_NAME, asdict(ticket))


def clear(run_path: Path) -> None:
    """Let the run have no ticket: its job has ended and has been dealt with. The history keeps it."""
    path = run_path / TICKET_NAME
    with writing(path):
        path.unlink(missing_ok=True)
        sync_folder(run_path)


def history(run_path: Path) -> list[Ticket]:
    """Every ticket the run ever had, oldest first, each job once as it was last written."""
    path = run_path / HISTORY_NAME
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error}") from error
    found: dict[str, Ticket] = {}
    for line in lines:
        try:
            content = json.loads(line)
        except ValueError:  # a line that a full disk or a crash cut short
            continue
        ticket = _decoded(content, path)
        found.pop(ticket.job_id, None)
        found[ticket.job_id] = ticket
    return sorted(found.values(), key=lambda ticket: ticket.submitted)


def _append(path: Path, ticket: Ticket) -> None:
    line = json.dumps(asdict(ticket), allow_nan=False).encode() + b"\n"
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # after a line that was cut short
            # Without waiting for the disk: after a power failure the history may lack what ticket.json still says.
            write_all(descriptor, line)
        finally:
            os.close(descriptor)


def _decoded(content: Any, path: Path) -> Ticket:
    try:
        known = {item.name for item in fields(Ticket)}
        values = {name: value for name, value in content.items() if name in known}
        shape = Shape(**values.pop("shape", {}))
        ticket = Ticket(**values, shape=shape)
    except (AttributeError, TypeError) as error:
        raise RecordError(f"{path} is not a job's ticket: {error}") from error
    if not isinstance(ticket.job_id, str) or not isinstance(ticket.submitted, (int, float)):
        raise RecordError(f"{path} is not a job's ticket: job_id={ticket.job_id!r}, submitted={ticket.submitted!r}")
    return ticket
