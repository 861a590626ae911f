"""MLflow as an import of run directories: one experiment per sweep, one run per fingerprint, one child per attempt.

The run directory is the truth and MLflow a view of it, so importing is idempotent (stored times are sent along: the
same line twice is one point), can be repeated after an outage, and rebuilds everything after the store was deleted.
Only the process that imports talks to MLflow; the runs themselves never do.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.files import RecordError
from harness.locks import file_lock
from harness.record import RunDirectory
from harness.redaction import RedactingFormatter, redact
from harness.tracking_marks import normalised, signature, sqlite_path, stale

_log = logging.getLogger(__name__)

_GIVE_UP_AFTER = 3  # failures of the store, one after another: it is down, do not wait for all others too
_NAMED = 10  # runs that a problem says the reason of; of the others their number and names
# Answers of a store that is up, about one run.
_OF_A_RUN = (
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "INVALID_STATE",
)


@dataclass(frozen=True, slots=True)
class SyncReport:
    """imported: runs sent; unchanged: runs with nothing new; problem: why some are missing, None if none is."""

    imported: int
    unchanged: int
    problem: str | None = None


def needs_sync(run_dirs: Sequence[RunDirectory], uri: str, experiment: str) -> bool:
    """Whether `sync` with ask_server would do anything: send records, or ask a server. Does not import MLflow."""
    if sqlite_path(uri) is None:
        return any(signature(run) for run in run_dirs)
    return bool(stale(run_dirs, uri, experiment))


def sync(
    run_dirs: Sequence[RunDirectory],
    uri: str,
    experiment: str,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    ask_server: bool = False,
) -> SyncReport:
    """Import what the store lacks. uri: `sqlite:///<file>` or a server's. should_stop: asked between runs.

    ask_server: have a server say which runs it has, so that one that came back empty, or does not answer, is noticed; a
    file is always looked into. One process at a time imports. An outage is a warning and a `problem` in the report: the
    records stay, and the next call catches up. Raises RecordError only if the lock cannot be taken.
    """
    ask = ask_server and sqlite_path(uri) is None and needs_sync(run_dirs, uri, experiment)
    todo = list(run_dirs) if ask else stale(run_dirs, uri, experiment)
    if not todo:
        return SyncReport(0, len(run_dirs))
    with file_lock(_lock_path(todo[0], uri)):
        if not ask:
            todo = stale(todo, uri, experiment)  # another process may just have done it
        return _import(todo, len(run_dirs) - len(todo), uri, experiment, should_stop, ask)


def _import(
    todo: Sequence[RunDirectory],
    unchanged: int,
    uri: str,
    experiment: str,
    should_stop: Callable[[], bool],
    ask: bool,
) -> SyncReport:
    """ask: of `todo` only those are imported that the store lacks something of."""
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
        if ask:
            lacking = stale(todo, uri, experiment, store.runs())
            todo, unchanged = lacking, unchanged + len(todo) - len(lacking)
    except failures as error:
        return _problem(0, unchanged, uri, _told(error))
    done = 0
    failed: dict[RunDirectory, Exception] = {}
    in_a_row = 0
    for run in todo:
        if should_stop():
            break
        try:
            store.import_run(run)
            done, in_a_row = done + 1, 0
        except failures as error:
            failed[run] = error
            in_a_row = 0 if _of_the_run(run, error) else in_a_row + 1
            if in_a_row >= _GIVE_UP_AFTER:
                break
    return _problem(done, unchanged, uri, _of_runs(failed)) if failed else SyncReport(done, unchanged)


def _of_the_run(run: RunDirectory, error: Exception) -> bool:
    """Whether it is the run's own record that cannot be read, or be imported, as against the store."""
    if isinstance(error, RecordError):
        return True
    if isinstance(error, OSError) and error.filename is not None:
        return Path(os.fsdecode(error.filename)).is_relative_to(run.path)
    return getattr(error, "error_code", "") in _OF_A_RUN


def _of_runs(failed: Mapping[RunDirectory, Exception]) -> str:
    """Every run that failed: the first ones with their reasons, each reason once."""
    reasons: dict[str, list[str]] = {}
    for run, error in failed.items():
        reasons.setdefault(_told(error), []).append(str(run.path))
    told = [
        f"{', '.join(paths[:_NAMED])}{_more(paths[_NAMED:])}: {why}" for why, paths in list(reasons.items())[:_NAMED]
    ]
    rest = [path for paths in list(reasons.values())[_NAMED:] for path in paths]
    return f"{len(failed)} failed: {'; '.join(told)}{_more(rest)}"


def _more(paths: Sequence[str]) -> str:
    return f" and {len(paths)} more ({', '.join(Path(path).name for path in paths)})" if paths else ""


def _told(error: Exception) -> str:
    told = redact(f"{type(error).__name__}: {error}").strip()
    return told if len(told) <= 600 else told[:600] + " ..."


def _problem(done: int, unchanged: int, uri: str, why: str) -> SyncReport:
    problem = f"some records were not copied to {redact(uri)}: {why}"
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
