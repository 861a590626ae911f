"""Records are copied while runs work, by a process that nobody waits for and that leaves with its command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from fake_cells import evaluate, make_run
from stores import SWEEP, client, finished, parents, points

from harness import attempts, tracking_importer
from harness.config import TrackingConfig
from harness.tracking_importer import importing
from harness.tracking_target import Target, target_of


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def target(tmp_path: Path, empty_store: Path) -> Target:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Target(f"sqlite:///{tmp_path / 'mlflow.db'}", SWEEP, "test")


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


# ------------------------------------------------------------------------------------------------------------ where to
def test_where_records_are_copied_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert target_of(TrackingConfig(enabled=False), tmp_path, "s") is None
    default = target_of(TrackingConfig(), tmp_path, "s")
    assert default == Target(f"sqlite:///{tmp_path}/mlflow.db", "s", "default")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:secret-word@lab.example/mlflow")
    lab = target_of(TrackingConfig(experiment="mine"), tmp_path, "s")
    assert lab is not None and (lab.experiment, lab.origin) == ("mine", "$MLFLOW_TRACKING_URI")
    assert lab.uri.startswith("https://user:secret-word@") and "secret-word" not in lab.shown + repr(lab)
    given = target_of(TrackingConfig(uri="http://127.0.0.1:5000"), tmp_path, "s")
    assert given is not None and given.origin == "tracking.uri"  # what is configured comes first


# ------------------------------------------------------------------------------------------------------ while it runs
@pytest.mark.slow
def test_a_run_is_copied_while_it_works(tmp_path: Path, target: Target) -> None:
    run = make_run(tmp_path / "runs", steps=2)
    said: list[str] = []
    with importing([run.path, tmp_path / "runs" / "not yet made"], target, 0.2, said.append):
        with run.claim() or pytest.fail("free"):
            attempt = attempts.begin(run.path, "host", 0)
            run.write_state(state="running")
            run.log_path.write_text("begun\n")
            run.spool.metrics(1, {"train/success": 0.5})
            until(lambda: bool(parents(target.uri)) and bool(parents(target.uri)[0].data.metrics), "a running run")
            there = parents(target.uri)[0]
            assert there.info.status == "RUNNING"
            # Files that still grow are sent when the run stops.
            assert sorted(f.path for f in client(target.uri).list_artifacts(there.info.run_id)) == [
                "config.yaml",
                "provenance.json",
            ]
            run.spool.metrics(2, {"train/success": 1.0})
            evaluate(run)
            run.write_state(state="complete", last_step=2)
            attempt.finish("complete", 2)
        until(lambda: parents(target.uri)[0].info.status == "FINISHED", "a finished run")
    there = parents(target.uri)[0]
    assert [step for step, _, _ in points(target.uri, there, "train/success")] == [1, 2]
    assert said == []


@pytest.mark.slow
def test_a_tracker_that_is_lost_and_comes_back_is_said_once_each(tmp_path: Path, empty_store: Path) -> None:
    run = finished(tmp_path / "runs")
    place = tmp_path / "store"
    place.write_text("in the way of the folder")
    target = Target(f"sqlite:///{place / 'mlflow.db'}", SWEEP, "test")
    said: list[str] = []
    with importing([run.path], target, 0.2, said.append):
        until(lambda: bool(said), "the loss is said")
        time.sleep(1.0)
        place.unlink()
        place.mkdir()
        shutil.copy(empty_store, place / "mlflow.db")
        until(lambda: len(said) > 1, "the return is said")
    lost, back = said
    assert lost.startswith("warning: ") and "tried again" in lost
    assert back == f"tracking: {target.shown} is back, records are copied again"
    assert len(parents(target.uri)) == 1


def test_nothing_is_started_where_nothing_is_to_be_copied(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_importer, "_start", lambda *_: pytest.fail("a process was started"))
    run = finished(tmp_path / "runs")
    for runs, where, interval in (([], target, 0.1), ([run.path], None, 0.1), ([run.path], target, 0.0)):
        with importing(runs, where, interval, pytest.fail):
            time.sleep(0.3)
    with importing([run.path], target, 3600, pytest.fail):  # a command that is done before the first interval
        pass


def test_trouble_with_the_process_stays_here(tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(tracking_importer, "_start", refuses)
    said: list[str] = []
    with importing([finished(tmp_path / "runs").path], target, 0.05, said.append):
        until(lambda: bool(said), "it is said")
    assert "no more processes" in said[0] and "at the end" in said[0]


@pytest.mark.slow
def test_the_process_leaves_with_its_command_and_shows_no_password(tmp_path: Path) -> None:
    """The command is killed: its end of the pipe closes, and that is all the process needs to know."""
    run = finished(tmp_path / "runs")
    uri = "postgresql://user:secret-word@127.0.0.1:9/none"
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom harness.tracking_importer import importing\n"
        "from harness.tracking_target import Target\n"
        f"with importing([Path(sys.argv[1])], Target({uri!r}, 's', 'test'), 0.1, lambda t: print(t, flush=True)):\n"
        "    time.sleep(600)\n"
    )
    command = subprocess.Popen([sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert command.stdout is not None
        said = command.stdout.readline()
        assert said.startswith("warning: ") and "postgresql://user:***@127.0.0.1:9/none" in said
        (child,) = psutil.Process(command.pid).children()
        assert "secret-word" not in said + " ".join(child.cmdline())
        assert not any("secret-word" in value for value in child.environ().values())
    finally:
        command.kill()
        command.wait()
    assert psutil.wait_procs([child], timeout=60)[1] == []


def test_a_round_says_what_it_did_and_never_a_password(tmp_path: Path) -> None:
    uri = "postgresql://user:secret-word@127.0.0.1:9/none"
    order = {"runs": [str(finished(tmp_path / "runs").path)], "uri": uri, "experiment": SWEEP}
    told = json.dumps(tracking_importer._round(order, lambda: False))
    assert "user:***@" in told and "secret-word" not in told
