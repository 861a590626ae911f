"""do=sync: once, or until everything is copied; its exit status says whether it is."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cells import make_run
from stores import client, finished, parents

from harness import actions_sync, tracking
from harness.config import CommandConfig, RuntimeConfig, TrackingConfig
from harness.record import RunDirectory
from harness.tracking import SyncReport
from harness.tracking_marks import Mark, signature, write_mark


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    client(f"sqlite:///{path}").search_experiments()
    return path


def plan_with(out: Path, runs: list[RunDirectory], **settings: Any) -> Any:
    """As much of a Plan as copying asks for."""
    tracking_settings = TrackingConfig(**{k: v for k, v in settings.items() if k in ("enabled", "uri", "interval")})
    command = CommandConfig(
        runtime=RuntimeConfig(out=str(out)), tracking=tracking_settings, wait=settings.get("wait", False)
    )
    cells = [SimpleNamespace(fingerprint=run.fingerprint, stage=False, requires=()) for run in runs]
    return SimpleNamespace(
        command=command, out=out, runs=out / "runs", cells=cells, selected=cells, sweep=SimpleNamespace(name="sweep")
    )


def test_once(tmp_path: Path, empty_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    runs = [finished(tmp_path / "runs", seed) for seed in range(2)]
    absent = RunDirectory(tmp_path / "runs" / "not yet made")
    plan = plan_with(tmp_path, [*runs, absent])
    assert actions_sync.sync(plan) == 0
    assert actions_sync.sync(plan) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("2 of 2 runs copied, 0 had nothing new: sqlite:///") and first.endswith("experiment sweep")
    assert second.startswith("0 of 2 runs copied, 2 had nothing new")
    assert len(parents(f"sqlite:///{tmp_path / 'mlflow.db'}", "sweep")) == 2


def test_tracking_that_is_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert actions_sync.sync(plan_with(tmp_path, [], enabled=False)) == 0
    assert "tracking is off" in capsys.readouterr().out


def test_an_outage_is_an_exit_status_and_tells_no_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret-word@127.0.0.1:9")
    plan = plan_with(tmp_path, [finished(tmp_path / "runs")])
    assert actions_sync.sync(plan) == 3
    said: list[str] = []
    actions_sync.track(plan, said.append)

    def breaks(*_: object, **__: object) -> SyncReport:
        raise RuntimeError("http://user:secret-word@127.0.0.1:9 is on fire")

    monkeypatch.setattr(tracking, "sync", breaks)
    assert actions_sync.sync(plan) == 3
    actions_sync.track(plan, said.append)
    told = capsys.readouterr().out
    assert told.count("problem: ") == 2 and "user:***@" in told and "on fire" in told
    assert [line.partition(" ")[0] for line in said] == ["copying", "warning:"] * 2
    assert "secret-word" not in told + "".join(said)


def test_a_server_that_is_gone_is_a_problem_although_everything_was_sent_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = "http://127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    run = finished(tmp_path / "runs")
    write_mark(run, uri, "sweep", Mark(run_id="there", signature=signature(run)))
    plan = plan_with(tmp_path, [run])
    assert actions_sync.sync(plan) == 3
    told = capsys.readouterr().out
    assert "0 of 1 runs copied, 0 had nothing new" in told and "problem: " in told
    said: list[str] = []
    actions_sync.track(plan, said.append)
    assert said[-1].startswith("warning: ")


def test_waiting_goes_on_until_everything_is_complete_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = make_run(tmp_path / "runs", 1)
    plan = plan_with(tmp_path, [finished(tmp_path / "runs", 0), waiting], wait=True, interval=7.0)
    problems: list[str | None] = ["away", None, "away", None]
    slept: list[float] = []

    def report(runs: Any, uri: str, experiment: str, *, ask_server: bool) -> SyncReport:
        assert ask_server
        return SyncReport(len(runs), 0, problems.pop(0))

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:  # the last run ends between two rounds; the third one fails
            shutil.rmtree(waiting.path)
            finished(tmp_path / "runs", 1)

    monkeypatch.setattr(tracking, "sync", report)
    monkeypatch.setattr(time, "sleep", sleep)
    assert actions_sync.sync(plan) == 0
    assert problems == [] and slept == [7.0, 7.0, 7.0]
