"""`mlflow server` on PostgreSQL, as `make tracking-server` starts it: nothing is lost, twice is once."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from stores import SWEEP, content, finished, live_runs, parents, points

from harness import tracking_postgres, tracking_server
from harness.record import RunDirectory
from harness.tracking import needs_sync, sync
from harness.tracking_marks import MARKS_NAME
from harness.tracking_postgres import ServerError
from harness.tracking_server import Server, Settings, answers


def available() -> bool:
    try:
        tracking_postgres.binaries()
    except ServerError:
        return False
    return tracking_server.find_spec("psycopg") is not None


installed = pytest.mark.skipif(not available(), reason="needs PostgreSQL's initdb and postgres, and psycopg")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that PostgreSQL's user may enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="tracking-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


class Child:
    """The server as a user starts it."""

    def __init__(self, folder: Path, port: int) -> None:
        command = [sys.executable, "-m", "harness.tracking_server", "--folder", str(folder), "--port", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip()
        self.uri = self.line.removeprefix("tracking.uri=")

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=90)
        return self.process.returncode


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Child]:
    child = Child(place / "server", 0)
    try:
        assert child.uri.startswith("http://127.0.0.1:"), child.process.communicate(timeout=60)[1]
        yield child
    finally:
        child.stop()


# ------------------------------------------------------------------------------------------------------------- records
@installed
@pytest.mark.slow
@pytest.mark.postgres
def test_64_runs_that_finish_together_lose_nothing_and_twice_is_once(server: Child, tmp_path: Path) -> None:
    runs: list[RunDirectory] = []
    threads = [
        threading.Thread(target=lambda seed=seed: runs.append(finished(tmp_path / "runs", seed))) for seed in range(64)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sync(runs, server.uri, SWEEP).problem is None
    there = parents(server.uri)
    assert [run.data.tags["seed"] for run in there] == [str(seed) for seed in range(64)]
    assert {run.info.status for run in live_runs(server.uri)} == {"FINISHED"}
    assert len(live_runs(server.uri)) == 128  # each with one attempt
    for run in there:
        assert [step for step, _, _ in points(server.uri, run, "train/success")] == [1, 2, 3]
    before = content(server.uri)
    assert not needs_sync(runs, server.uri, SWEEP)
    for run in runs[:8]:
        (run.path / MARKS_NAME).unlink()
    assert sync(runs, server.uri, SWEEP).imported == 8
    assert content(server.uri) == before


@installed
@pytest.mark.slow
@pytest.mark.postgres
def test_two_importers_that_know_nothing_of_each_other_make_one_run(
    server: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines, two locks: both find no run and make one. Each keeps the same one and takes the other out."""
    from harness.tracking_store import Store

    here = finished(tmp_path / "here" / "runs", 0)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    there = RunDirectory(tmp_path / "there" / "runs" / here.path.name)
    both = threading.Barrier(2)
    create = Store._create

    def together(self: Store, *arguments: object) -> str:
        both.wait(60)
        return create(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "_create", together)
    problems: list[str | None] = []
    threads = [
        threading.Thread(target=lambda run=run: problems.append(sync([run], server.uri, "race").problem))
        for run in (here, there)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    for run in (here, there):  # whoever lost catches up
        assert sync([run], server.uri, "race").problem is None
    (run,) = parents(server.uri, "race")
    assert run.info.status == "FINISHED"
    assert [step for step, _, _ in points(server.uri, run, "train/success")] == [1, 2, 3]


@installed
@pytest.mark.slow
@pytest.mark.postgres
def test_a_server_that_goes_away_and_comes_back_loses_nothing(place: Path, tmp_path: Path) -> None:
    port = free_port()
    runs = [finished(tmp_path / "runs", seed) for seed in range(6)]
    first = Child(place / "outage", port)
    try:
        assert sync(runs[:3], first.uri, SWEEP).problem is None
        before = content(first.uri)
    finally:
        assert first.stop() == 0
    assert not answers(first.uri)
    away = sync(runs, first.uri, SWEEP)
    assert away.imported == 0 and away.problem is not None and needs_sync(runs, first.uri, SWEEP)
    second = Child(place / "outage", port)
    try:
        assert second.uri == first.uri
        assert sync(runs, second.uri, SWEEP).problem is None
        after = content(second.uri)
        assert len(parents(second.uri)) == 6 and [entry for entry in after if entry in before] == before
    finally:
        second.stop()


# ---------------------------------------------------------------------------------------------------------- the server
@installed
@pytest.mark.slow
@pytest.mark.postgres
def test_all_of_it_ends_with_one_signal_or_with_its_parent(place: Path) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        child = Child(place / "ends", 0)
        family = psutil.Process(child.process.pid).children(recursive=True)
        sockets = [c.laddr for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert {address.ip for address in sockets} == {"127.0.0.1"}
        assert {address.port for address in sockets} == {int(child.uri.rpartition(":")[2])}  # PostgreSQL: none
        assert any("postgres" in p.name() for p in family)
        code = child.stop(number)
        assert code == (0 if number == signal.SIGINT else -signal.SIGKILL)
        assert psutil.wait_procs(family, timeout=60)[1] == []


@installed
@pytest.mark.slow
@pytest.mark.postgres
def test_one_folder_has_one_server_and_a_child_that_dies_takes_the_other_along(place: Path) -> None:
    child = Child(place / "one", 0)
    try:
        twice = subprocess.run(
            [sys.executable, "-m", "harness.tracking_server", "--folder", str(place / "one"), "--port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert twice.returncode == 1
        assert f"already: {child.uri}, process {child.process.pid}" in twice.stderr
        family = psutil.Process(child.process.pid).children()
        (database,) = [p for p in family if "postgres" in p.name()]
        database.send_signal(signal.SIGQUIT)
        _, complaint = child.process.communicate(timeout=90)
        assert child.process.returncode == 1 and "PostgreSQL ended" in complaint
        assert psutil.wait_procs(family, timeout=60)[1] == []
    finally:
        child.stop()


def test_a_taken_port_is_a_clear_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking_server, "_need", lambda *_: None)
    monkeypatch.setattr(tracking_server, "Postgres", lambda folder: FakePostgres())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} of 127.0.0.1 is taken"), Server(Settings(tmp_path, port)):
            pass
    FakePostgres.stopped = False
    monkeypatch.setattr(FakePostgres, "start", lambda self: (_ for _ in ()).throw(ServerError("initdb failed")))
    with pytest.raises(ServerError, match="initdb failed"), Server(Settings(tmp_path, 0)):
        pass
    assert FakePostgres.stopped  # whatever goes wrong on the way


class FakePostgres:
    stopped = False

    def start(self) -> None:
        pytest.fail("started")

    def stop(self) -> None:
        FakePostgres.stopped = True


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerError, match="the package no_such_driver is not installed: pip install it"):
        tracking_server._need("no_such_driver", "pip install it")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(tracking_postgres, "_PLACES", ())
    with pytest.raises(ServerError, match="apt-get install postgresql"):
        tracking_postgres.binaries()


def test_root_runs_postgresql_as_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tracking_postgres, "_USERS", ("no such user",))
    with pytest.raises(ServerError, match="refuses to run as root"):
        tracking_postgres.run_as()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert tracking_postgres.run_as() is None


@installed
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as another user")
def test_a_folder_that_postgresqls_user_cannot_reach_is_a_clear_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ServerError, match=r"cannot get to .*/postgres .*FOLDER="):
        tracking_postgres.Postgres(tmp_path / "closed").start()


@installed
def test_a_cluster_that_cannot_be_made_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tracking_postgres.Postgres(place / "bad")
    monkeypatch.setattr(made, "_bin", place / "bin")
    (place / "bin").mkdir(exist_ok=True)
    (place / "bin" / "initdb").write_text("#!/bin/sh\necho 'no space here' >&2\nexit 3\n")
    (place / "bin" / "initdb").chmod(0o755)
    with pytest.raises(ServerError, match="initdb failed: no space here"):
        made.start()
    assert not made.data.exists()
    made.stop()


def test_nobody_answers_where_nobody_listens() -> None:
    started = time.monotonic()
    assert not answers(f"http://127.0.0.1:{free_port()}")
    assert time.monotonic() - started < 60
