"""The tables of a sqlite store, made once and whole. Imports MLflow only when they have to be made.

MLflow makes them in many steps on the file itself: two processes that both find a new file damage it for good, and so
does a process that is killed on the way. Here they are made in a file beside it, which then takes the name.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from harness.files import RecordError, scratch_name, sync_folder, writing

WHOLE, NEW, BROKEN = "whole", "new", "broken"


def schema_state(path: Path) -> str:
    """`new` (no file, or an empty one), `whole`, or `broken`: begun and never finished, or no database at all.

    Raises sqlite3.OperationalError for a file that cannot be read now (locked, or not ours to read).
    """
    if not path.exists() or path.stat().st_size == 0:
        return NEW
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=10)
    try:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return NEW
        marked = "alembic_version" in tables and connection.execute("SELECT 1 FROM alembic_version").fetchone()
        half_way = any(name.startswith("_alembic_tmp_") for name in tables)
        return WHOLE if marked and not half_way else BROKEN
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:  # not a database
        return BROKEN
    finally:
        connection.close()


def ensure_schema(path: Path) -> None:
    """Make the store `path` if it is new. For the holder of the store's lock.

    Raises RecordError for a file that an interrupted MLflow left behind, or that is no database.
    """
    state = schema_state(path)
    if state == WHOLE:
        return
    if state == BROKEN:
        raise RecordError(
            f"{path} is no whole MLflow store (its tables were begun and never finished, or it is another kind of "
            "file); move it away: the next synchronisation makes a new one from the run folders"
        )
    from mlflow.tracking import MlflowClient

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    for left_over in sorted(path.parent.glob(f".{path.name}.*.tmp*")):  # of a process that was killed right here
        left_over.unlink(missing_ok=True)
    scratch = scratch_name(path)
    try:
        MlflowClient(tracking_uri=f"sqlite:///{scratch}").search_experiments(max_results=1)
        with writing(path):
            scratch.replace(path)
            sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)
