"""One worker process: outcomes, exit statuses, signals, threads, logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from fake_cells import HERE, make_run

from harness import attempts
from harness import claim as claims
from harness.record import RunDirectory
from harness.worker import EXIT_COMPLETE, EXIT_FAILED, EXIT_HELD, EXIT_INTERRUPTED, StopRequest

SECRET = "sk-planted-1a2b3c4d"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_run(tmp_path / "out folder" / "runs")


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setenv("FAKE_JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("FAKE_API_KEY", SECRET)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to end whatever happens."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def command(run: RunDirectory, entry: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "harness.worker", str(run.path), "--entry", f"fake_cells:{entry}", *options]


def work(run: RunDirectory, entry: str, *options: str) -> int:
    return subprocess.run(command(run, entry, *options), check=False, timeout=120).returncode


def journal(tmp_path: Path) -> list[str]:
    path = tmp_path / "journal"
    return path.read_text().splitlines() if path.exists() else []


def wait_for(condition: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_a_complete_run(run: RunDirectory) -> None:
    assert work(run, "train") == EXIT_COMPLETE
    state = run.state()
    assert (state.state, state.last_step, state.error) == ("complete", 3, None)
    names = [entry["name"] for entry in run.spool.read() if entry["kind"] == "event"]
    names = [name for name in names if name != "code_changed"]  # somebody may be editing while this runs
    assert names == ["attempt_started", "evaluation_started", "evaluation_finished", "attempt_finished"]
    (attempt,) = attempts.all_attempts(run.path)
    assert (attempt.content["outcome"], attempt.content["from_step"], attempt.content["to_step"]) == ("complete", 0, 3)
    assert attempt.content["end"] >= attempt.content["start"]
    assert not run.claim_path.exists()
    assert "attempt 1: complete" in run.log_path.read_text()


def test_a_complete_run_is_not_executed_again(run: RunDirectory, tmp_path: Path) -> None:
    assert work(run, "train") == EXIT_COMPLETE
    before = journal(tmp_path)
    assert work(run, "raises", "--retry-after", "9") == EXIT_COMPLETE
    assert journal(tmp_path) == before
    assert attempts.count(run.path) == 1


def test_an_exception_is_a_failure_with_its_reason_and_no_secret(run: RunDirectory) -> None:
    assert work(run, "raises") == EXIT_FAILED
    state = run.state()
    assert (state.state, state.failure_class) == ("failed", "crash")
    assert state.error == "ValueError: no such thing; secret ***"
    log = run.log_path.read_text()
    assert "Traceback" in log and "no such thing" in log
    assert attempts.all_attempts(run.path)[0].content["outcome"] == "failed"
    for path in sorted(run.path.rglob("*")):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("entry", "failure_class", "words"),
    [
        ("out_of_memory", "oom", "can't allocate memory"),
        ("disk_full", "disk", "No space left"),
        ("leaves", "crash", "sys.exit(0)"),
        ("forgets_evaluation", "incomplete", "evaluation seen/off not done"),
        ("no_such_function", "crash", "no_such_function"),
    ],
)
def test_failures_are_classed(run: RunDirectory, entry: str, failure_class: str, words: str) -> None:
    assert work(run, entry) == EXIT_FAILED
    state = run.state()
    assert (state.state, state.failure_class) == ("failed", failure_class)
    assert state.error is not None and words in state.error


def test_a_failed_run_is_repeated_only_when_asked_and_once(run: RunDirectory) -> None:
    assert work(run, "raises") == EXIT_FAILED
    assert work(run, "train") == EXIT_FAILED
    assert attempts.count(run.path) == 1
    assert work(run, "train", "--retry-after", "0") == EXIT_FAILED  # attempt 1 was that retry
    assert attempts.count(run.path) == 1
    assert work(run, "train", "--retry-after", "1") == EXIT_COMPLETE
    assert run.state().state == "complete"


def test_a_damaged_config_is_a_recorded_failure(run: RunDirectory) -> None:
    (run.path / "config.yaml").write_text("trainig: {}\n")
    assert work(run, "train") == EXIT_FAILED
    state = run.state()
    assert (state.state, state.failure_class) == ("failed", "config")
    assert not run.claim_path.exists()


def test_a_held_run_is_left_alone(run: RunDirectory, tmp_path: Path) -> None:
    with run.claim() or pytest.fail("free"):
        before = run.stored_state()
        finished = subprocess.run(command(run, "train"), check=False, timeout=120, capture_output=True, text=True)
    assert finished.returncode == EXIT_HELD
    assert f"process {os.getpid()}" in finished.stderr
    assert journal(tmp_path) == []
    assert run.stored_state() == before


def test_a_claim_of_another_machine_is_left_alone(run: RunDirectory, tmp_path: Path) -> None:
    run.claim_path.write_text(json.dumps({**asdict(claims.current_owner()), "host": "elsewhere"}))
    assert work(run, "train") == EXIT_HELD
    assert journal(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP])
def test_signals_stop_at_a_step_boundary_and_the_next_attempt_resumes(
    run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    started: list[subprocess.Popen[bytes]],
    number: int,
) -> None:
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.5")
    process = subprocess.Popen(command(run, "train"))
    started.append(process)
    wait_for(lambda: any(line.startswith("step") for line in journal(tmp_path)))
    process.send_signal(number)
    assert process.wait(60) == EXIT_INTERRUPTED
    state = run.state()
    assert state.state == "interrupted" and 1 <= state.last_step < 3
    assert state.error == f"stopped at a step boundary: {signal.Signals(number).name}"
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0")
    assert work(run, "train") == EXIT_COMPLETE
    steps = [line.split()[-1] for line in journal(tmp_path) if line.startswith("step")]
    assert steps == ["1", "2", "3"]
    outcomes = [attempt.content["outcome"] for attempt in attempts.all_attempts(run.path)]
    assert outcomes == ["interrupted", "complete"]


def test_a_second_ctrl_c_ends_a_run_without_boundaries(
    run: RunDirectory, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    process = subprocess.Popen(command(run, "ignores_requests"))
    started.append(process)
    wait_for(lambda: journal(tmp_path))
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == EXIT_INTERRUPTED
    assert run.state().state == "interrupted"


def test_a_killed_worker_reads_as_interrupted_and_its_claim_passes_on(
    run: RunDirectory, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    process = subprocess.Popen(command(run, "ignores_requests"))
    started.append(process)
    wait_for(lambda: journal(tmp_path))
    assert run.state().state == "running"
    process.kill()
    process.wait()
    assert run.state().state == "interrupted"
    assert work(run, "train") == EXIT_COMPLETE
    outcomes = [attempt.content["outcome"] for attempt in attempts.all_attempts(run.path)]
    assert outcomes == ["interrupted", "complete"]


def test_the_death_of_the_parent_stops_the_worker(run: RunDirectory, tmp_path: Path) -> None:
    # A launcher that starts a worker and is killed at once.
    code = (
        "import os, subprocess, sys, time\n"
        "process = subprocess.Popen([*sys.argv[1:], '--parent', str(os.getpid())], start_new_session=True)\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, *command(run, "train_until_asked")], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    worker = int(launcher.stdout.readline())
    try:
        wait_for(lambda: journal(tmp_path))
        launcher.kill()
        launcher.wait()
        wait_for(lambda: claims.process_start(worker) is None)
    finally:
        launcher.kill()
        launcher.wait()
        if claims.process_start(worker) is not None:
            os.kill(worker, signal.SIGKILL)
    state = run.state()
    assert (state.state, state.error) == ("interrupted", "stopped at a step boundary: the launcher died")
    assert "the launcher (process" in run.log_path.read_text()


def test_threads_are_limited_before_anything_is_imported(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    assert work(run, "reports_threads") == EXIT_COMPLETE
    assert "threads 1 1 False" in journal(tmp_path)


def test_a_crash_below_python_leaves_a_trace_in_the_log(run: RunDirectory) -> None:
    assert work(run, "segfaults") == -signal.SIGSEGV
    log = run.log_path.read_text()
    assert "Segmentation fault" in log and "segfaults" in log
    assert run.state().state == "interrupted"


def test_changed_code_is_noted(run: RunDirectory) -> None:
    path = run.path / "provenance.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "git": {"commit": "0" * 40, "dirty": False, "diff_sha256": None}}))
    assert work(run, "train") == EXIT_COMPLETE
    event = next(entry for entry in run.spool.read() if entry.get("name") == "code_changed")
    assert event["data"]["planned"]["commit"] == "0" * 40
    assert "the code changed since the run was created" in run.log_path.read_text()


def test_a_full_disk_while_recording_the_outcome_ends_the_worker(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import resource, sys\n"
        "from harness import worker\n"
        "import fake_cells\n"
        "def fill_up(run, stop):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "    raise ValueError('boom')\n"
        "fake_cells.fill_up = fill_up\n"
        "sys.exit(worker.main([sys.argv[1], '--entry', 'fake_cells:fill_up']))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, str(run.path)], check=False, timeout=120, capture_output=True, text=True
    )
    assert finished.returncode == EXIT_FAILED
    assert run.state().state == "interrupted"  # every file still whole, and free for another attempt
    assert not run.claim_path.exists()
    assert work(run, "train") == EXIT_COMPLETE


def test_the_first_reason_to_stop_counts() -> None:
    stop = StopRequest()
    assert not stop()
    stop.ask("one")
    stop.ask("two")
    assert stop() and stop.reason == "one"


def test_a_worker_that_was_succeeded_stops_and_records_nothing(
    run: RunDirectory, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """Thought dead by the scheduler (a machine that was cut off), it finds that its job went on elsewhere."""
    process = subprocess.Popen(command(run, "train_until_asked"))
    started.append(process)
    wait_for(lambda: journal(tmp_path))
    mine = json.loads(run.claim_path.read_text())
    other = {**mine, "token": "another", "host": "node7", "pid": 4}
    successor = run.path / f".claim.json.{mine['token']}.next"
    scratch = run.path / "scratch"
    scratch.write_text(json.dumps(other))
    before = run.stored_state()
    scratch.rename(successor)
    assert process.wait(60) == EXIT_HELD
    assert journal(tmp_path)[-1].startswith("stopped")
    assert run.stored_state() == before
    assert run.claim_path.exists() and successor.exists()
    assert "process 4 on node7 took the run over" in run.log_path.read_text()
    (attempt,) = attempts.all_attempts(run.path)
    assert attempt.content["outcome"] is None
