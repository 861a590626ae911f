"""What a job does on its node: one attempt at a time, going back to the queue, its budget, further processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_cluster import FakeCluster, variables
from launch_runs import completes, fails, journal, make_run

from harness import attempts
from harness.config import LauncherConfig
from harness.launch.job import Place, wants_to_return
from harness.record import RunDirectory
from harness.worker import EXIT_COMPLETE, EXIT_FAILED, EXIT_HELD, EXIT_INTERRUPTED, StopRequest

HERE = str(Path(__file__).resolve().parent)
WORK = """
import sys
from harness.launch.job import Job
Job(sys.argv[1], sys.argv[2], int(sys.argv[3]) if sys.argv[3:] else None)()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path / "clients")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_run(tmp_path / "out folder" / "runs", launcher=LauncherConfig(name="slurm", requeues=2))


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(run: RunDirectory, cluster: FakeCluster) -> Iterator[Start]:
    """Start the job's process on a node of its own; ended whatever happens."""
    started: list[subprocess.Popen[str]] = []

    def make(entry: str, *arguments: str, job: str = "100_2", **place: object) -> subprocess.Popen[str]:
        environment = {**os.environ, **variables(job, **place), "PYTHONPATH": HERE}  # type: ignore[arg-type]
        environment["PATH"] = f"{cluster.folder / 'bin'}:/usr/bin:/bin"
        name = entry if ":" in entry else f"launch_runs:{entry}"
        command = [sys.executable, "-c", WORK, str(run.path), name, *arguments]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield make
    for process in started:
        process.kill()
        process.wait()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    said = process.communicate(timeout=120)[1]
    return process.returncode, said


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def requeued(cluster: FakeCluster) -> list[str]:
    return [call.removeprefix("requeue ") for call in cluster.calls("scontrol") if call.startswith("requeue")]


# ------------------------------------------------------------------------------------- outcomes
def test_a_run_ends_complete_and_says_in_which_job(run: RunDirectory, start: Start) -> None:
    status, said = end(start("at_once"))
    assert status == EXIT_COMPLETE, said
    assert run.state().state == "complete" and run.claim_status().status == "free"
    (attempt,) = attempts.all_attempts(run.path)
    assert attempt.content["slurm"]["slurm_array_task_id"] == "2"
    assert "job 100_2, started 1 times" in said
    assert end(start("at_once"))[0] == EXIT_COMPLETE and journal(run) == ["ran"]  # started again after its end


def test_a_failure_is_recorded_and_shown_by_the_status(run: RunDirectory, start: Start) -> None:
    assert end(start("raises"))[0] == EXIT_FAILED
    assert run.state().error == "ValueError: no such thing"
    assert end(start("at_once"))[0] == EXIT_FAILED and not journal(run)  # not tried again by itself
    assert end(start("at_once", "1"))[0] == EXIT_COMPLETE  # but when it was submitted again


def test_a_run_that_others_work_on_is_left_alone(run: RunDirectory, start: Start) -> None:
    with run.claim() or pytest.fail("free"):
        status, said = end(start("at_once"))
    assert status == EXIT_HELD and "is working on it" in said and not journal(run)


def test_a_run_directory_that_is_none(tmp_path: Path, run: RunDirectory, start: Start) -> None:
    (run.path / "config.yaml").unlink()
    status, said = end(start("at_once"))
    assert status == EXIT_FAILED and "config.yaml" in said


# ------------------------------------------------------------------------------------- back to the queue
def stopped(run: RunDirectory, process: subprocess.Popen[str], *numbers: int) -> tuple[int, str]:
    before = journal(run).count("started")
    wait_for(lambda: journal(run).count("started") > before - 1 and process.poll() is None and _running(run))
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.1)
    return end(process)


def _running(run: RunDirectory) -> bool:
    return "started" in journal(run) and run.claim_status().owner is not None


def test_a_warned_job_stops_at_a_boundary_goes_back_and_goes_on(
    run: RunDirectory, start: Start, cluster: FakeCluster
) -> None:
    status, said = stopped(run, start("until_asked"), signal.SIGUSR2)
    assert status == EXIT_INTERRUPTED and requeued(cluster) == ["100_2"], said
    assert run.state().state == "interrupted" and run.state().last_step == 1
    assert end(start("at_once", restarts=1))[0] == EXIT_COMPLETE
    assert [a.content["outcome"] for a in attempts.all_attempts(run.path)] == ["interrupted", "complete"]


def test_what_a_run_has_started_outlives_the_warning(run: RunDirectory, start: Start, cluster: FakeCluster) -> None:
    process = start("until_asked_with_a_child")
    wait_for(lambda: "started" in journal(run))
    os.kill(int((run.path / "child").read_text()), signal.SIGUSR2)  # Slurm may send it to every process of a job
    time.sleep(0.2)
    assert stopped(run, process, signal.SIGUSR2)[0] == EXIT_INTERRUPTED
    assert journal(run) == ["started", "stopped", "outlived"] and requeued(cluster) == ["100_2"]


def test_what_breaks_after_a_request_to_stop_is_no_failure_of_the_run(
    run: RunDirectory, start: Start, cluster: FakeCluster
) -> None:
    assert stopped(run, start("dies_with_its_child"), signal.SIGUSR2)[0] == EXIT_INTERRUPTED
    assert requeued(cluster) == ["100_2"]
    assert run.state().error == (
        "stopped by SIGUSR2, and not at a step boundary: RuntimeError: a process of the pool is gone"
    )


def test_a_job_that_slurm_has_put_back_already_is_no_failure(
    run: RunDirectory, start: Start, cluster: FakeCluster
) -> None:
    cluster.hook("scontrol", "echo 'Job is pending execution for job 100_2' >&2; exit 1")
    status, said = stopped(run, start("until_asked"), signal.SIGUSR2)
    assert status == EXIT_INTERRUPTED and "could not" not in said
    assert run.state().error == "stopped at a step boundary: SIGUSR2"


def test_a_job_that_cannot_go_back_says_so(run: RunDirectory, start: Start, cluster: FakeCluster) -> None:
    cluster.hook("scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    status, said = stopped(run, start("until_asked"), signal.SIGUSR2)
    assert status == EXIT_INTERRUPTED and "presently disabled" in said
    assert "could not go back to the queue" in (run.state().error or "")
    assert len(attempts.all_attempts(run.path)) == 1


def test_a_cancelled_job_is_not_brought_back_to_life(run: RunDirectory, start: Start, cluster: FakeCluster) -> None:
    status, _ = stopped(run, start("until_asked"), signal.SIGTERM)
    assert status == EXIT_INTERRUPTED and not requeued(cluster)
    assert run.state().error == "stopped at a step boundary: SIGTERM"


def test_the_budget_of_comebacks(run: RunDirectory, start: Start, cluster: FakeCluster) -> None:
    status, said = stopped(run, start("until_asked", restarts=2), signal.SIGUSR2)
    assert status == EXIT_INTERRUPTED and not requeued(cluster)
    assert "may come back 2 times (launcher.requeues=2)" in said
    assert "launcher.requeues=2" in (run.state().error or "")
    # Slurm itself brought it back once more: it does not begin.
    status, said = end(start("at_once", restarts=3))
    assert status == EXIT_INTERRUPTED and "ran" not in journal(run)
    assert len(attempts.all_attempts(run.path)) == 1


def test_a_job_that_came_back_too_often_may_still_find_its_run_complete(run: RunDirectory, start: Start) -> None:
    completes(run)
    assert end(start("at_once", restarts=9))[0] == EXIT_COMPLETE


@pytest.mark.parametrize(
    ("received", "end_in", "back"),
    [
        ({"SIGUSR2": 0.0}, None, True),
        ({"SIGTERM": 0.0}, None, False),
        ({"SIGUSR2": 0.0, "SIGTERM": 10.0}, 3600.0, False),  # cancelled while it wrote its checkpoint
        ({"SIGUSR2": 0.0, "SIGTERM": 120.0}, 120.0, True),  # the step took longer than the time limit
        ({"SIGUSR2": 0.0, "SIGTERM": 120.0}, None, False),  # an old Slurm does not say when the limit is
        ({"SIGINT": 0.0}, None, False),
        ({}, None, False),
    ],
)
def test_who_asks_to_go_back(received: dict[str, float], end_in: float | None, back: bool) -> None:
    stop = StopRequest()
    stop.received = received
    assert wants_to_return(stop, Place("100_2", 0, end_in, 0)) is back
    assert not wants_to_return(stop, Place("", 0, end_in, 0))


# ------------------------------------------------------------------------------------- places
def test_where_a_process_is() -> None:
    assert Place.here({}) == Place("", 0, None, 0)
    assert Place.here(variables("100")) == Place("100", 0, None, 0)
    given = variables("100_2", restarts=3, rank=5, SLURM_JOB_END_TIME="1700000000")
    assert Place.here(given) == Place("100_2", 3, 1.7e9, 5)


def test_only_the_first_process_writes(run: RunDirectory, start: Start) -> None:
    assert end(start("at_once", rank=1))[0] == EXIT_COMPLETE
    assert journal(run) == ["followed"]
    assert run.state().state == "pending" and attempts.count(run.path) == 0


def test_a_further_process_without_anything_to_do_leaves(run: RunDirectory, start: Start) -> None:
    assert end(start("fake_cluster:nothing", rank=1))[0] == EXIT_COMPLETE
    assert attempts.count(run.path) == 0


def test_a_failed_run_is_not_tried_beyond_what_was_submitted(run: RunDirectory, start: Start) -> None:
    fails(run, "")
    fails(run, "")
    assert end(start("at_once", "1"))[0] == EXIT_FAILED and not journal(run)
