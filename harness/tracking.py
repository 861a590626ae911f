"""MLflow as an import of run directories: one experiment per sweep, one run per fingerprint, one child per attempt.

The run directory is the truth and MLflow a view of it, so importing is idempotent (stored times are sent along: the
same line twice is one point), can be repeated after an outage, and rebuilds everything after the store was deleted.
Only the process that imports talks to MLflow; the runs themselves never do.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.files import RecordError
from harness.locks import file_lock
from harness.record import RunDirectory
from harness.redaction import RedactingFormatter, redact
from harness.tracking_marks import normalised, sqlite_path, stale, stale_everywhere

_log = logging.getLogger(__name__)

_GIVE_UP_AFTER = 3  # runs that failed to import: the store is down, do not wait for all others too


@dataclass(frozen=True, slots=True)
class SyncReport:
    """imported: runs sent; unchanged: runs with nothing new; problem: why some are missing, None if none is."""

    imported: int
    unchanged: int
    problem: str | None = None


def needs_sync(run_dirs: Sequence[RunDirectory], uri: str, experiment: str | None = None) -> bool:
    """Whether `sync` would send anything. Does not import MLflow.

    experiment None: whether a run is up to date in no experiment of the store at all. Name the experiment where runs
    are shared between sweeps.
    """
    return bool(stale_everywhere(run_dirs, uri) if experiment is None else stale(run_dirs, uri, experiment))


def sync(
    run_dirs: Sequence[RunDirectory], uri: str, experiment: str, should_stop: Callable[[], bool] = lambda: False
) -> SyncReport:
    """Import what the store lacks. uri: `sqlite:///<file>` or a server's. should_stop: asked between runs.

    One process at a time imports. An outage is a warning and a `problem` in the report: the records stay, and the next
    call catches up. Raises RecordError only if the lock cannot be taken.
    """
    todo = stale(run_dirs, uri, experiment)
    if not todo:
        return SyncReport(0, len(run_dirs))
    with file_lock(_lock_path(todo[0], uri)):
        todo = stale(todo, uri, experiment)  # another process may just have done it
        return _import(todo, len(run_dirs) - len(todo), uri, experiment, should_stop)


def _import(
    todo: Sequence[RunDirectory], unchanged: int, uri: str, experiment: str, should_stop: Callable[[], bool]
) -> SyncReport:
    if not todo:
        return SyncReport(0, unchanged)
    quiet()
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    from harness.tracking_store import Store

    _redact_logs()
    # The store's own errors, the database's, the network's, a driver that is not installed, a damaged record.
    failures = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError, RecordError)
    try:
        store = Store(normalised(uri), experiment, todo[0].path.parent.parent)
    except failures as error:
        return _problem(0, unchanged, uri, error)
    done = 0
    errors: list[Exception] = []
    for run in todo:
        if should_stop():
            break
        try:
            store.import_run(run)
            done += 1
        except failures as error:
            errors.append(error)
            if len(errors) >= _GIVE_UP_AFTER:
                break
    return _problem(done, unchanged, uri, errors[0]) if errors else SyncReport(done, unchanged)


def _problem(done: int, unchanged: int, uri: str, error: Exception) -> SyncReport:
    told = redact(f"{type(error).__name__}: {error}").strip()
    first = told if len(told) <= 600 else told[:600] + " ..."
    problem = f"some records were not copied to {redact(uri)}: {first}"
    _log.warning("%s. The records are safe; the next synchronisation catches up", problem)
    return SyncReport(done, unchanged, problem)


def _lock_path(run: RunDirectory, uri: str) -> Path:
    """A store in a file is locked beside it; for a server, the importers of one output folder exclude each other."""
    path = sqlite_path(uri)
    return run.path.parent / ".tracking.lock" if path is None else path.with_name(path.name + ".lock")


def quiet() -> None:
    """Before MLflow is imported: no telemetry, few retries, warnings only. The user's own settings win."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"  # standard output is for results
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _redact_logs() -> None:
    """Once MLflow is imported: what it and the libraries below it log may name the store, password and all."""
    for name in ("mlflow", "alembic", "sqlalchemy", "urllib3"):
        for handler in logging.getLogger(name).handlers:
            handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
