"""What of each run is in a tracker already, kept beside the run in `tracking.json`. Imports no tracker.

The marks are a cache: without them everything is found or sent again, to the same effect.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.files import RecordError, atomic_write_json, read_json_object
from harness.record import RunDirectory
from harness.redaction import redact
from harness.states import PENDING, SUBMITTED

MARKS_NAME = "tracking.json"
_SQLITE = "sqlite:///"
# Files whose change means that there is something new to send.
_WATCHED = ("config.yaml", "state.json", "spool.jsonl", "episodes.parquet")


@dataclass
class Mark:
    """State of one run in one experiment of one store.

    run_id       the tracker's id; "" before the run was created there
    signature    of the record when it was last sent whole; "" while that has not happened
    params       whether the parameters were sent
    lines        entries of the spool that were sent
    truncations  rewinds of the spool seen so far
    last_step    highest step sent
    children     attempt number -> {"run_id", "outcome"}
    artifacts    file name -> [size, mtime in ns] as uploaded
    """

    run_id: str = ""
    signature: str = ""
    params: bool = False
    lines: int = 0
    truncations: int = 0
    last_step: int = -1
    children: dict[str, dict[str, str]] = field(default_factory=dict)
    artifacts: dict[str, list[int]] = field(default_factory=dict)


def normalised(uri: str) -> str:
    """The same store under one name: relative sqlite paths are made absolute."""
    path = sqlite_path(uri)
    return uri if path is None else f"{_SQLITE}{path}"


def sqlite_path(uri: str) -> Path | None:
    """The file of a `sqlite:///...` URI, absolute; None for other stores."""
    return Path(uri.removeprefix(_SQLITE)).absolute() if uri.startswith(_SQLITE) else None


def _key(uri: str, experiment: str) -> str:
    return hashlib.sha256(f"{normalised(uri)}\0{experiment}".encode()).hexdigest()[:16]


def _stores(run: RunDirectory) -> dict[str, Any]:
    try:
        stores = (read_json_object(run.path / MARKS_NAME) or {}).get("stores", {})
    except RecordError:  # a damaged cache is an empty one
        return {}
    return stores if isinstance(stores, dict) else {}


def read_mark(run: RunDirectory, uri: str, experiment: str) -> Mark:
    """The mark, an empty one if there is none or it is of another version."""
    try:
        return Mark(**_stores(run).get(_key(uri, experiment), {}).get("mark", {}))
    except (TypeError, AttributeError):
        return Mark()


def write_mark(run: RunDirectory, uri: str, experiment: str, mark: Mark) -> None:
    stores = _stores(run)
    shown = redact(normalised(uri))
    stores[_key(uri, experiment)] = {"uri": shown, "experiment": experiment, "mark": asdict(mark)}
    atomic_write_json(run.path / MARKS_NAME, {"version": 1, "stores": stores})


def signature(run: RunDirectory) -> str:
    """Changes whenever the record changes; "" while there is nothing to send yet."""
    state = run.state().state
    if state in (PENDING, SUBMITTED):
        return ""
    facts: list[Any] = [state]
    folder = run.path / "attempts"
    attempts = sorted(folder.glob("*.json")) if folder.is_dir() else []
    for path in [*(run.path / name for name in _WATCHED), *attempts]:
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        facts.append([path.name, status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def runs_in_store(uri: str) -> frozenset[str] | None:
    """Ids of the runs in a sqlite store, so that a deleted or replaced file is noticed; None: cannot be told."""
    path = sqlite_path(uri)
    if path is None:
        return None
    if not path.exists():
        return frozenset()
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=10)
        try:
            found = connection.execute("SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active'").fetchall()
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        return frozenset() if "no such table" in str(error) else None  # a file without schema, or a locked one
    except sqlite3.Error:  # not a database: syncing says so
        return frozenset()
    return frozenset(str(row[0]) for row in found)


def stale(
    runs: Sequence[RunDirectory], uri: str, experiment: str, present: frozenset[str] | None = None
) -> list[RunDirectory]:
    """The runs whose record has something that the store lacks. present: ids of the runs that it has; None: looked up
    in a file, and of a server what was noted when the runs were sent is believed."""
    there = runs_in_store(uri) if present is None else present
    return [
        run for run in runs if (now := signature(run)) and not _current(read_mark(run, uri, experiment), now, there)
    ]


def _current(mark: Mark, now: str, present: frozenset[str] | None) -> bool:
    return mark.signature == now and (present is None or mark.run_id in present)
