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
from stores import SWEEP, client, content, finished, live_runs, parents, points

from harness import tracking_postgres, tracking_server
from harness.children import die_with_parent, leave
from harness.record import RunDirectory
from harness.tracking import SyncReport, sync
from harness.tracking_marks import MARKS_NAME
from harness.tracking_postgres import ServerError
from harness.tracking_server import Server, Settings, answers


def available() -> bool:
    try:
        tracking_postgres.binaries()
    except ServerError:
        return False
    return tracking_server.find_spec("psycopg") is not None


installed = pytest.mark.skipif(
    not available() and not os.environ.get("HARNESS_REQUIRE_POSTGRES"),
    reason="needs PostgreSQL's initdb and postgres, and psycopg",
)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that PostgreSQL's user may enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="tracking-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


class Child:
    """The server as a user starts it; the same folder and address again after `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "harness.tracking_server", "--folder", str(self.folder), "--workers", "1"]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent(signal.SIGTERM),  # also when the tests are killed
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        self.uri = line.removeprefix("tracking.uri=")
        assert self.uri == f"http://127.0.0.1:{self.port}", self.process.communicate(timeout=60)[1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=120)
        return self.process.returncode


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Child]:
    child = Child(place / "server")
    try:
        yield child
    finally:
        child.stop()


# ------------------------------------------------------------------------------------------------------------- records
@installed
@pytest.mark.slow
@pytest.mark.postgres
def test_64_runs_that_finish_together_lose_nothing_and_twice_is_once(
    server: Child, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
    assert {run.data.metrics["train/success"] for run in there} == {0.3}  # the last point of three
    for run in there[:8]:
        assert [step for step, _, _ in points(server.uri, run, "train/success")] == [1, 2, 3]
    assert capfd.readouterr().out == ""  # MLflow says where runs can be seen, on standard output
    before = content(server.uri)
    assert sync(runs, server.uri, SWEEP, ask_server=True) == SyncReport(0, 64)
    client(server.uri).delete_run(there[3].info.run_id)
    assert sync(runs, server.uri, SWEEP, ask_server=True) == SyncReport(1, 63)
    before = content(server.uri)
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
def test_a_server_that_goes_away_and_comes_back_loses_nothing(server: Child, tmp_path: Path) -> None:
    """It leaves at one signal, with all that belongs to it."""
    runs = [finished(tmp_path / "runs", seed) for seed in range(6)]
    assert sync(runs[:3], server.uri, "outage").problem is None
    before = content(server.uri, "outage")
    family = psutil.Process(server.process.pid).children(recursive=True)
    assert any("postgres" in process.name() for process in family)
    listening = [c.laddr for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert {(address.ip, address.port) for address in listening} == {("127.0.0.1", server.port)}  # no PostgreSQL
    assert server.stop(signal.SIGINT) == 0
    assert psutil.wait_procs(family, timeout=60)[1] == []

    away = sync(runs, server.uri, "outage")
    assert away.imported == 0 and away.problem is not None
    sent_before = sync(runs[:3], server.uri, "outage", ask_server=True)
    assert (sent_before.imported, sent_before.unchanged) == (0, 0) and sent_before.problem is not None
    server.start()
    assert sync(runs, server.uri, "outage").problem is None
    after = content(server.uri, "outage")
    assert len(parents(server.uri, "outage")) == 6 and [entry for entry in after if entry in before] == before


# ---------------------------------------------------------------------------------------------------------- the server
@installed
@pytest.mark.slow
@pytest.mark.postgres
def test_one_folder_has_one_server_and_a_child_that_dies_takes_the_other_along(server: Child) -> None:
    """The last test of this server."""
    command = [sys.executable, "-m", "harness.tracking_server", "--folder", str(server.folder), "--port", "0"]
    twice = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert twice.returncode == 1
    assert f"already: {server.uri}, process {server.process.pid}" in twice.stderr
    family = psutil.Process(server.process.pid).children(recursive=True)
    (database,) = [p for p in psutil.Process(server.process.pid).children() if "postgres" in p.name()]
    database.send_signal(signal.SIGQUIT)
    _, complaint = server.process.communicate(timeout=120)
    assert server.process.returncode == 1 and "PostgreSQL ended" in complaint
    assert psutil.wait_procs(family, timeout=60)[1] == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the Linux kernel")
def test_children_do_not_outlive_a_parent_that_is_killed() -> None:
    code = (
        "import signal, subprocess, time\nfrom harness.children import die_with_parent\n"
        "child = subprocess.Popen(['sleep', '600'], preexec_fn=die_with_parent(signal.SIGTERM))\n"
        "print(child.pid, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    assert psutil.wait_procs([child], timeout=60)[1] == []


def test_a_child_that_does_not_listen_is_made_to_leave() -> None:
    deaf = subprocess.Popen(["sh", "-c", "trap '' TERM; echo on; sleep 600"], stdout=-1, start_new_session=True)
    assert deaf.stdout is not None and deaf.stdout.readline() == b"on\n"
    leave(deaf, signal.SIGTERM, 0.3, group=True)
    assert deaf.returncode == -signal.SIGKILL


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


@pytest.mark.parametrize(
    ("host", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("lab.example", "lab.example")],
)
def test_where_a_server_is_reached(host: str, reached: str) -> None:
    assert tracking_server._reached_at(host) == reached


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_a_port_of_ipv6_is_looked_at_as_such() -> None:
    port = tracking_server._free_port("::")
    assert tracking_server._free("::", port)
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", port))
        taken.listen()
        assert not tracking_server._free("::", port)


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
