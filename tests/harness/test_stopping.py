"""A request in a run's folder stops it at a step boundary, wherever it runs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_cells import HERE, make_run

from harness.stopping import request_stop, stop_requested, withdraw_stop
from harness.worker import EXIT_COMPLETE, EXIT_INTERRUPTED, StopRequest


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setenv("FAKE_JOURNAL", str(tmp_path / "journal"))


def test_a_request_is_there_until_it_is_withdrawn(tmp_path: Path) -> None:
    assert stop_requested(tmp_path) is None
    withdraw_stop(tmp_path)
    request_stop(tmp_path, "enough")
    stop = StopRequest()
    assert not stop()
    stop.look_in(tmp_path)
    assert stop() and stop.reason == "enough"
    withdraw_stop(tmp_path)
    assert stop_requested(tmp_path) is None and stop()  # who was asked stays asked


def test_the_run_ends_as_interrupted_with_the_reason_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "runs", steps=40)
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.2")
    command = [sys.executable, "-m", "harness.worker", str(run.path), "--entry", "fake_cells:train"]
    worker = subprocess.Popen(command)
    while run.state().last_step < 1:
        assert worker.poll() is None
        time.sleep(0.05)
    request_stop(run.path, "the trial was pruned")
    assert worker.wait() == EXIT_INTERRUPTED
    state = run.state()
    assert state.state == "interrupted" and 1 <= state.last_step < 40
    assert state.error == "stopped at a step boundary: the trial was pruned"
    assert subprocess.run(command, check=False).returncode == EXIT_INTERRUPTED  # as long as the request stands
    withdraw_stop(run.path)
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0")
    assert subprocess.run(command, check=False).returncode == EXIT_COMPLETE
