"""A sqlite store is made once and whole, by whoever comes first."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from stores import SWEEP, finished, parents, points

from harness.files import RecordError
from harness.record import RunDirectory
from harness.tracking import sync
from harness.tracking_schema import BROKEN, NEW, WHOLE, ensure_schema, schema_state


def database(path: Path, *statements: str) -> Path:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def test_states_of_a_file(tmp_path: Path) -> None:
    assert schema_state(tmp_path / "none.db") == NEW
    (tmp_path / "empty.db").touch()
    assert schema_state(tmp_path / "empty.db") == NEW
    begun = database(tmp_path / "begun.db", "CREATE TABLE runs (run_uuid TEXT)")
    assert schema_state(begun) == BROKEN
    version = "CREATE TABLE alembic_version (version_num TEXT)"
    unmarked = database(tmp_path / "unmarked.db", version)
    assert schema_state(unmarked) == BROKEN
    whole = database(tmp_path / "whole.db", version, "INSERT INTO alembic_version VALUES ('abc')")
    assert schema_state(whole) == WHOLE
    half_way = database(whole.rename(tmp_path / "half.db"), "CREATE TABLE _alembic_tmp_metrics (key TEXT)")
    assert schema_state(half_way) == BROKEN
    (tmp_path / "text.db").write_text("no database, but long enough to be taken for one" * 10)
    assert schema_state(tmp_path / "text.db") == BROKEN


def test_a_half_made_store_is_a_clear_problem_and_stays_as_it_is(tmp_path: Path) -> None:
    path = database(tmp_path / "mlflow.db", "CREATE TABLE runs (run_uuid TEXT)")
    before = path.read_bytes()
    with pytest.raises(RecordError, match=r"mlflow.db is no whole MLflow store .*move it away"):
        ensure_schema(path)
    run = finished(tmp_path / "runs")
    report = sync([run], f"sqlite:///{path}", SWEEP)
    assert report.imported == 0 and report.problem is not None and "move it away" in report.problem
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_process_killed_while_it_makes_the_store_leaves_none(tmp_path: Path) -> None:
    """MLflow itself would leave a file that no later process can use."""
    path = tmp_path / "mlflow.db"
    code = (
        "import sys; from pathlib import Path; from harness.tracking_schema import *; ensure_schema(Path(sys.argv[1]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], start_new_session=True)
    try:
        while not any(item.stat().st_size for item in tmp_path.glob(".mlflow.db.*")):
            assert process.poll() is None, "it ended before its tables were begun"
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not path.exists()
    run = finished(tmp_path / "runs")
    assert sync([run], f"sqlite:///{path}", SWEEP).problem is None
    assert schema_state(path) == WHOLE
    assert [item.name for item in sorted(tmp_path.glob(".*"))] == []  # what the killed one left is gone, too


def _first_touch(path: Path, uri: str, start: Any, results: Any) -> None:
    start.wait()
    results.put(sync([RunDirectory(path)], uri, SWEEP).problem)


@pytest.mark.slow
def test_eight_processes_that_first_touch_a_store_are_all_fine(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'new folder' / 'mlflow.db'}"
    runs = [finished(tmp_path / "runs", seed) for seed in range(8)]
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(8), context.Queue()
    processes = [context.Process(target=_first_touch, args=(run.path, uri, start, results)) for run in runs]
    for process in processes:
        process.start()
    assert [results.get(timeout=500) for _ in processes] == [None] * 8
    for process in processes:
        process.join(60)
    assert [run.data.tags["harness.fingerprint"] for run in parents(uri)] == [run.fingerprint for run in runs]
    assert all(len(points(uri, run, "train/success")) == 3 for run in parents(uri))
