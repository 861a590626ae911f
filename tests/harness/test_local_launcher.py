"""The local launcher: each cell once, kills, takeovers, stopping, display."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_cells import HERE, evaluate, make_run
from rich.console import Console

from harness import attempts
from harness import claim as claims
from harness.files import RecordError
from harness.launch.local import LaunchReport, available_cores, run_cells
from harness.progress import CellView, Progress, describe, look
from harness.record import RunDirectory

LAUNCH = """
import io, sys
from pathlib import Path
from rich.console import Console
import json, os
from harness.launch.local import run_cells
from harness.progress import Progress
from harness.record import RunDirectory
runs = [RunDirectory(path) for path in sorted(Path(sys.argv[1]).iterdir()) if not path.name.startswith(".")]
with Progress(console=Console(file=sys.stdout), interval=0.5) as show:
    requires = json.loads(os.environ.get("FAKE_REQUIRES", "{}"))
    report = run_cells(runs, int(sys.argv[3]), show, entry=f"fake_cells:{sys.argv[2]}", requires=requires)
print("report", sorted(report.outcomes.values()), report.stopped)
"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setenv("FAKE_JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out folder" / "runs"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Launchers to end whatever happens, and the workers named in the journal with them."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
    for pid in worker_pids(tmp_path):
        if claims.process_start(pid) is not None:
            os.kill(pid, signal.SIGKILL)


def launch(runs: list[RunDirectory], entry: str = "train", workers: int = 2, **options: Any) -> LaunchReport:
    with Progress(console=Console(file=io.StringIO())) as show:
        return run_cells(runs, workers, show, entry=f"fake_cells:{entry}", **options)


def launcher(root: Path, entry: str, workers: int = 2) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(root), entry, str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def journal(tmp_path: Path) -> list[list[str]]:
    path = tmp_path / "journal"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def worker_pids(tmp_path: Path) -> list[int]:
    return [int(words[2]) for words in journal(tmp_path) if words[0] == "start"]


def steps_done(tmp_path: Path) -> Counter[tuple[str, str]]:
    return Counter((words[1], words[2]) for words in journal(tmp_path) if words[0] == "step")


def wait_for(condition: object, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


# ------------------------------------------------------------------------------------- outcomes
def test_every_cell_runs_once_and_a_second_command_starts_nothing(root: Path, tmp_path: Path) -> None:
    runs = [make_run(root, seed) for seed in range(4)]
    report = launch([*runs, runs[0]])
    assert report.outcomes == {run.fingerprint: "complete" for run in runs}
    assert (report.errors, report.stopped) == ({}, False)
    assert set(steps_done(tmp_path).values()) == {1}
    before = journal(tmp_path)
    again = launch(runs)
    assert again.outcomes == report.outcomes
    assert journal(tmp_path) == before
    assert [attempts.count(run.path) for run in runs] == [1, 1, 1, 1]


def test_what_has_to_come_before_a_run_comes_right_before_it_and_may_fail_it(root: Path, tmp_path: Path) -> None:
    runs = [make_run(root, seed) for seed in range(3)]
    launch(runs[:1])
    told: list[str] = []

    def before(run: RunDirectory) -> None:
        told.append(run.fingerprint)
        assert attempts.count(run.path) == 0
        if run is runs[2]:
            raise RecordError("its configuration is another one's")

    report = launch(runs, before=before)
    assert told == [run.fingerprint for run in runs[1:]]  # the first has nothing to do
    assert list(report.outcomes.values()) == ["complete", "complete", "failed"]
    assert "its configuration is another one's" in report.errors[runs[2].fingerprint]


def test_no_more_workers_than_asked(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.1")
    launch([make_run(root, seed) for seed in range(3)], workers=1)
    kinds = [words[0] for words in journal(tmp_path) if words[0] in ("start", "end")]
    assert kinds == ["start", "end"] * 3
    assert available_cores() >= 1


def test_failed_cells_are_reported_and_repeated_only_when_asked(root: Path, tmp_path: Path) -> None:
    runs = [make_run(root, seed) for seed in range(2)]
    report = launch(runs, "raises")
    assert set(report.outcomes.values()) == {"failed"}
    assert all("ValueError: no such thing" in report.errors[run.fingerprint] for run in runs)
    assert len(worker_pids(tmp_path)) == 2
    assert set(launch(runs, "train").outcomes.values()) == {"failed"}
    assert len(worker_pids(tmp_path)) == 2
    assert set(launch(runs, "raises", retry_failed=True).outcomes.values()) == {"failed"}
    assert len(worker_pids(tmp_path)) == 4
    assert set(launch(runs, "train", retry_failed=True).outcomes.values()) == {"complete"}


def test_one_failure_does_not_stop_the_others(root: Path) -> None:
    runs = [make_run(root, seed) for seed in range(3)]
    (runs[1].path / "config.yaml").write_text("nonsense: 1\n")
    report = launch(runs)
    assert [report.outcomes[run.fingerprint] for run in runs] == ["complete", "failed", "complete"]


@pytest.mark.parametrize(("entry", "words"), [("killed_once", "SIGKILL"), ("segfaults", "SIGSEGV")])
def test_a_killed_worker_is_a_crash_that_names_its_log(root: Path, entry: str, words: str) -> None:
    run = make_run(root)
    report = launch([run], entry)
    state = run.state()
    assert (state.state, state.failure_class) == ("failed", "crash")
    assert state.error is not None and words in state.error and str(run.log_path) in state.error
    assert report.errors[run.fingerprint] == state.error
    (attempt,) = attempts.all_attempts(run.path)
    assert (attempt.content["outcome"], attempt.content["failure_class"]) == ("failed", "crash")
    assert not run.claim_path.exists()


def test_a_killed_worker_resumes_when_retried(root: Path, tmp_path: Path) -> None:
    run = make_run(root)
    launch([run], "killed_once")
    assert launch([run], "killed_once", retry_failed=True).outcomes == {run.fingerprint: "complete"}
    assert [step for _, step in steps_done(tmp_path)] == ["2", "3"]


def test_a_worker_that_cannot_even_start_is_a_failure(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(root)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "psutil.py").write_text("raise ImportError('broken installation')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    report = launch([run])
    assert report.outcomes == {run.fingerprint: "failed"}
    assert "status 1 without recording an outcome" in report.errors[run.fingerprint]
    assert "broken installation" in run.log_path.read_text()
    monkeypatch.setenv("PYTHONPATH", HERE)
    assert launch([run], retry_failed=True).outcomes == {run.fingerprint: "complete"}


def test_a_log_that_cannot_be_opened_is_a_failure_of_that_cell(root: Path) -> None:
    runs = [make_run(root, seed) for seed in range(2)]
    runs[0].log_path.mkdir()
    report = launch(runs)
    assert [report.outcomes[run.fingerprint] for run in runs] == ["failed", "complete"]
    assert "could not be started" in report.errors[runs[0].fingerprint]


def test_what_a_worker_leaves_behind_is_killed(root: Path, tmp_path: Path) -> None:
    launch([make_run(root)], "leaves_child")
    (child,) = [int(words[1]) for words in journal(tmp_path) if words[0] == "child"]
    wait_for(lambda: claims.process_start(child) is None)


# ------------------------------------------------------------------------------------- several launchers
def test_two_launchers_at_once_run_each_cell_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.05")
    runs = [make_run(root, seed) for seed in range(6)]
    started += [launcher(root, "train"), launcher(root, "train")]
    for process in started:
        output, _ = process.communicate(timeout=120)
        assert f"report {['complete'] * 6} False" in output
    assert steps_done(tmp_path) == {(run.fingerprint, str(step)): 1 for run in runs for step in (1, 2, 3)}
    assert [attempts.count(run.path) for run in runs] == [1] * 6


def test_two_launchers_at_once_fail_each_cell_once(
    root: Path, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    for seed in range(6):
        make_run(root, seed)
    started += [launcher(root, "raises"), launcher(root, "raises")]
    for process in started:
        output, _ = process.communicate(timeout=120)
        assert f"report {['failed'] * 6} False" in output
    assert len(worker_pids(tmp_path)) == 6


def test_a_killed_launcher_loses_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.3")
    runs = [make_run(root, seed, steps=15) for seed in range(3)]
    process = launcher(root, "train")
    started.append(process)
    wait_for(lambda: len(steps_done(tmp_path)) >= 2)
    process.kill()
    process.wait()
    # At once, while the orphans still work: the new command waits for them, then resumes what they left.
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0")
    report = launch(runs)
    assert set(report.outcomes.values()) == {"complete"}
    assert steps_done(tmp_path) == {(run.fingerprint, str(step)): 1 for run in runs for step in range(1, 16)}
    outcomes = [attempt.content["outcome"] for run in runs for attempt in attempts.all_attempts(run.path)]
    assert outcomes.count("interrupted") == 2 and outcomes.count("complete") == 3


def test_a_cell_held_elsewhere_is_waited_for_and_taken_over_when_its_worker_dies(
    root: Path, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    run = make_run(root)
    command = [sys.executable, "-m", "harness.worker", str(run.path), "--entry", "fake_cells:ignores_requests"]
    holder = subprocess.Popen(command, text=True)
    started.append(holder)
    wait_for(lambda: journal(tmp_path))
    other = launcher(root, "train")
    started.append(other)
    assert other.stdout is not None
    while "is working on it" not in other.stdout.readline():
        assert other.poll() is None
    holder.kill()
    holder.wait()
    output, _ = other.communicate(timeout=120)
    assert "report ['complete'] False" in output
    assert attempts.count(run.path) == 2


# ------------------------------------------------------------------------------------- teachers
def chain(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[RunDirectory], dict[str, list[str]]]:
    """Four runs: 0 needs 3, 1 needs nothing, 2 needs 0 (so it is the third generation)."""
    runs = [make_run(root, seed) for seed in range(4)]
    names = [run.fingerprint for run in runs]
    requires = {names[0]: [names[3]], names[2]: [names[0]]}
    monkeypatch.setenv("FAKE_REQUIRES", json.dumps(requires))
    return runs, requires


def test_a_run_starts_when_what_it_needs_is_complete(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, requires = chain(root, monkeypatch)
    report = launch(runs, workers=4, requires=requires)
    assert set(report.outcomes.values()) == {"complete"} and not report.errors
    lines = [(words[0], words[1]) for words in journal(tmp_path)]
    for student, teachers in requires.items():
        for teacher in teachers:
            assert lines.index(("end", teacher)) < lines.index(("start", student))


def test_what_others_wait_for_comes_first(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, requires = chain(root, monkeypatch)
    launch(runs, workers=1, requires=requires)
    order = [words[1] for words in journal(tmp_path) if words[0] == "start"]
    assert order == [runs[i].fingerprint for i in (3, 0, 1, 2)]


def test_without_its_teacher_a_run_stays_pending_and_says_why(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, requires = chain(root, monkeypatch)
    names = [run.fingerprint for run in runs]
    report = launch(runs, "raises", requires=requires)
    assert report.outcomes == {names[0]: "pending", names[1]: "failed", names[2]: "pending", names[3]: "failed"}
    assert report.errors[names[0]] == f"not started: it needs the weights of {names[3]} ({names[3]}), which is failed"
    assert report.errors[names[2]].endswith("which is pending")
    assert len(worker_pids(tmp_path)) == 2 and not attempts.count(runs[0].path)
    # Asking again tries the teacher once more, and then goes on.
    assert set(launch(runs, retry_failed=True, requires=requires).outcomes.values()) == {"complete"}


def test_a_teacher_of_an_earlier_command_need_not_be_among_the_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, requires = chain(root, monkeypatch)
    report = launch([runs[0]], requires=requires)
    assert report.outcomes == {runs[0].fingerprint: "pending"}
    assert "which is pending" in report.errors[runs[0].fingerprint]
    launch([runs[3]])
    assert launch([runs[0]], requires=requires).outcomes == {runs[0].fingerprint: "complete"}
    gone = {runs[1].fingerprint: ["f" * 16]}
    assert "which is pending" in launch([runs[1]], requires=gone).errors[runs[1].fingerprint]


def test_two_launchers_at_once_train_a_teacher_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.05")
    runs, requires = chain(root, monkeypatch)
    started += [launcher(root, "train"), launcher(root, "train")]
    for process in started:
        output, _ = process.communicate(timeout=120)
        assert f"report {['complete'] * 4} False" in output
    assert [attempts.count(run.path) for run in runs] == [1] * 4
    lines = [(words[0], words[1]) for words in journal(tmp_path)]
    assert all(lines.index(("end", t)) < lines.index(("start", s)) for s, (t,) in requires.items())


def test_two_launchers_at_once_fail_a_teacher_once_and_start_no_student(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    chain(root, monkeypatch)
    started += [launcher(root, "raises"), launcher(root, "raises")]
    for process in started:
        output, _ = process.communicate(timeout=120)
        assert "report ['failed', 'failed', 'pending', 'pending'] False" in output
    assert len(worker_pids(tmp_path)) == 2


def test_a_launcher_killed_while_the_teacher_trains_loses_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.3")
    runs, requires = chain(root, monkeypatch)
    process = launcher(root, "train", workers=1)
    started.append(process)
    wait_for(lambda: steps_done(tmp_path))
    process.kill()
    process.wait()
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0")
    assert set(launch(runs, requires=requires).outcomes.values()) == {"complete"}
    assert set(steps_done(tmp_path).values()) == {1}


def test_stopping_leaves_students_pending_without_blaming_their_teacher(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    chain(root, monkeypatch)
    process = launcher(root, "train_until_asked", workers=4)
    started.append(process)
    wait_for(lambda: len(worker_pids(tmp_path)) == 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert "report ['interrupted', 'interrupted', 'pending', 'pending'] True" in output
    assert "not started" not in output


def test_workers_find_modules_where_the_command_was_given(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "project"
    place.mkdir()
    (place / "mine.py").write_text("from fake_cells import train as execute\n")
    monkeypatch.chdir(place)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # or `python -m` would look there by itself
    run = make_run(root)
    with Progress(console=Console(file=io.StringIO())) as show:
        report = run_cells([run], 1, show, entry="mine:execute")
    assert report.outcomes == {run.fingerprint: "complete"}, run.log_path.read_text()


# ------------------------------------------------------------------------------------- stopping
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_request_stops_at_step_boundaries(
    root: Path, tmp_path: Path, started: list[subprocess.Popen[str]], number: int
) -> None:
    runs = [make_run(root, seed) for seed in range(3)]
    process = launcher(root, "train_until_asked")
    started.append(process)
    wait_for(lambda: len(worker_pids(tmp_path)) == 2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert "stopping: 2 worker(s) end at their next step boundary" in output
    assert "report ['interrupted', 'interrupted', 'pending'] True" in output
    assert sum(words[0] == "stopped" for words in journal(tmp_path)) == 2
    Path(f"{tmp_path / 'journal'}.finish").touch()
    assert set(launch(runs, "train_until_asked").outcomes.values()) == {"complete"}


def test_a_second_ctrl_c_kills(root: Path, tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    runs = [make_run(root, seed) for seed in range(2)]
    process = launcher(root, "ignores_requests")
    started.append(process)
    wait_for(lambda: len(worker_pids(tmp_path)) == 2)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    while "stopping" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert "killing 2 worker(s)" in output
    assert "report ['interrupted', 'interrupted'] True" in output
    assert all(claims.process_start(pid) is None for pid in worker_pids(tmp_path))
    assert set(launch(runs).outcomes.values()) == {"complete"}


def test_handlers_of_the_caller_come_back(root: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    launch([make_run(root)])
    assert {number: signal.getsignal(number) for number in before} == before


def test_an_error_in_the_display_stops_the_workers(root: Path, tmp_path: Path) -> None:
    class Broken(Progress):
        def update(self, cells: object) -> None:
            if worker_pids(tmp_path):
                raise RuntimeError("no display")

    run = make_run(root)
    with pytest.raises(RuntimeError, match="no display"), Broken(console=Console(file=io.StringIO())) as show:
        run_cells([run], 1, show, entry="fake_cells:train_until_asked")
    assert run.state().state == "interrupted"


# ------------------------------------------------------------------------------------- display
def test_a_look_at_a_cell(root: Path) -> None:
    run = make_run(root, steps=4)
    assert look(run, "GRPO", "waiting") == CellView(run.fingerprint, "GRPO", "waiting", planned=4)
    run.spool.event("attempt_started")
    assert look(run, "GRPO", "active").phase == "starting"
    run.spool.metrics(1, {"train/success": 0.25})
    run.spool.metrics(2, {"train/success": float("nan"), "train/loss": 1.0})
    run.write_state(last_step=1)
    view = look(run, "GRPO", "active")
    assert (view.step, view.planned, view.phase) == (2, 4, "training")
    assert view.success is not None and view.success != view.success
    run.spool.metrics(4, {"train/success": 0.5})
    run.spool.event("evaluation_started", panel="seen", skills="off")
    view = look(run, "GRPO", "active")
    assert (view.phase, view.success, view.done) == ("evaluating seen/off", 0.5, 0.8)
    assert "GRPO: evaluating seen/off, step 4/4, success 0.50" in describe(view)
    evaluate(run)
    assert look(run, "GRPO", "complete").done == 1.0


def test_a_look_at_damaged_records_shows_the_damage(root: Path) -> None:
    run = make_run(root)
    (run.path / "state.json").write_text("{")
    assert "not valid JSON" in look(run, "GRPO", "active").note


def test_a_log_file_gets_lines_now_and_then(root: Path) -> None:
    output = io.StringIO()
    cells = [
        CellView("a", "GRPO [seed 1]", "active", step=1, planned=4, success=0.5, phase="training"),
        CellView("b", "OPID", "waiting", planned=4),
    ]
    with Progress(console=Console(file=output), interval=3600) as show:
        for _ in range(5):
            show.update(cells)
        show.update([cells[0], CellView("b", "OPID", "failed", note="boom")])
    lines = output.getvalue().splitlines()
    assert "2 cells: 1 active" in lines[0]
    assert lines[1] == "  GRPO [seed 1]: training, step 1/4, success 0.50"
    assert lines[2:] == ["OPID: failed, boom"]


def test_a_terminal_gets_a_bar_per_running_cell_and_one_for_all(root: Path) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120)
    running = CellView("a", "GRPO [seed 1]", "active", step=1, planned=4, success=0.5, phase="training", done=0.2)
    other = CellView("b", "OPID", "elsewhere", phase="training", note="process 7 on h", done=0.1)
    with Progress(console=console) as show:
        show.update([running, CellView("b", "OPID", "waiting")])
        show.update([running, other])
        show.update([CellView("a", "GRPO [seed 1]", "complete", done=1.0), other])
        show.message("a line [between]")
    shown = output.getvalue()
    for words in ("GRPO [seed 1]", "1/4", "success 0.50", "training", "all cells", "0/2", "1/2", "process 7 on h"):
        assert words in shown, words
    assert "a line [between]" in shown


def test_labels_fall_back_to_the_fingerprint() -> None:
    show = Progress({"a": "GRPO"})
    assert (show.label("a"), show.label("b")) == ("GRPO", "b")
