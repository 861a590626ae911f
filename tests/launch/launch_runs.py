"""Runs without an engine, and what their jobs would have recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fake_cluster import inside

from harness import attempts
from harness.config import LauncherConfig, RunConfig
from harness.launch.shapes import Shape
from harness.launch.tasks import Task
from harness.record import RunDirectory
from harness.states import COMPLETE, FAILED, INTERRUPTED, RUNNING, Interrupted


def make_run(root: Path, seed: int = 0, launcher: LauncherConfig | None = None) -> RunDirectory:
    config = RunConfig(seed=seed, launcher=launcher or LauncherConfig(name="slurm"))
    config.training.steps = 3
    config.evaluation.panels = ["seen"]
    return RunDirectory.create(root, config, f"{seed:016x}")


def make_tasks(out: Path, number: int, shape: Shape | None = None) -> list[Task]:
    return [Task(make_run(out / "runs", seed), shape or Shape()) for seed in range(number)]


def begins(run: RunDirectory, job: str, step: int = 0) -> attempts.Attempt:
    """A job has begun an attempt and got so far."""
    with inside(job):
        attempt = attempts.begin(run.path, "node1", run.stored_state().last_step)
    run.write_state(state=RUNNING, last_step=step)
    return attempt


def completes(run: RunDirectory, job: str = "") -> None:
    attempt = begins(run, job) if job else None
    counts = {"requested": 1, "graded": 1, "excluded": 0}
    planned = run.stored_state().planned_steps
    evaluations = dict.fromkeys(run.stored_state().declared, counts)
    run.write_state(state=COMPLETE, last_step=planned, evaluations=evaluations)
    if attempt is not None:
        attempt.finish(COMPLETE, planned)


def fails(run: RunDirectory, job: str, error: str = "ValueError: no", failure_class: str = "crash") -> None:
    attempt = begins(run, job)
    run.write_state(state=FAILED, error=error, failure_class=failure_class)
    attempt.finish(FAILED, 0, error, failure_class)


def stops(run: RunDirectory, job: str, error: str = "stopped at a step boundary: SIGTERM") -> None:
    attempt = begins(run, job, 1)
    run.write_state(state=INTERRUPTED, error=error)
    attempt.finish(INTERRUPTED, 1, error)


# ------------------------------------------------------------------------------------- entries of jobs
def note(run: RunDirectory, word: str) -> None:
    with (run.path / "journal").open("a") as file:
        file.write(f"{word}\n")


def journal(run: RunDirectory) -> list[str]:
    path = run.path / "journal"
    return path.read_text().split() if path.exists() else []


def at_once(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    note(run, "ran")
    completes(run)


def until_asked(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    import time

    note(run, "started")
    run.write_state(last_step=min(run.stored_state().last_step + 1, 2))
    while not should_stop():
        time.sleep(0.02)
    note(run, "stopped")
    raise Interrupted


def until_asked_with_a_child(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """Something that the run started, as a pool of environments is."""
    import subprocess

    with subprocess.Popen(["sleep", "600"]) as child:
        (run.path / "child").write_text(str(child.pid))
        try:
            until_asked(run, should_stop)
        finally:
            note(run, "outlived" if child.poll() is None else f"killed:{child.returncode}")
            child.kill()


def dies_with_its_child(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    try:
        until_asked(run, should_stop)
    except Interrupted as reason:
        raise RuntimeError("a process of the pool is gone") from reason


def raises(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    raise ValueError("no such thing")


def follow(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """What processes of rank 1 and up do."""
    note(run, "followed")


def states_of(runs: list[RunDirectory]) -> dict[str, str]:
    return {run.fingerprint: json.loads((run.path / "state.json").read_text())["state"] for run in runs}
