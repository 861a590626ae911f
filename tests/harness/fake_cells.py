"""Stand-ins for `harness.run:execute`, and the runs they work on. Steered by environment variables."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harness.config import RunConfig
from harness.record import RunDirectory
from harness.states import Interrupted

HERE = str(Path(__file__).resolve().parent)


def make_config(seed: int = 0, steps: int = 3) -> RunConfig:
    config = RunConfig(seed=seed)
    config.training.steps = steps
    config.evaluation.panels = ["seen"]
    return config


def make_run(root: Path, seed: int = 0, steps: int = 3) -> RunDirectory:
    return RunDirectory.create(root, make_config(seed, steps), f"{seed:016x}")


def journal(*words: object) -> None:
    """Append one line to the file named by FAKE_JOURNAL: the witness of what really ran."""
    if name := os.environ.get("FAKE_JOURNAL"):
        with Path(name).open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")


def evaluate(run: RunDirectory, requested: int = 4, graded: int = 4) -> None:
    run.spool.event("evaluation_started", panel="seen", skills="off", requested=requested)
    counts = {"requested": requested, "graded": graded, "excluded": 0}
    run.spool.event("evaluation_finished", panel="seen", skills="off", **counts)
    run.write_state(evaluations={"seen/off": counts})


def train(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """Steps and an evaluation; resumes after the last step; stops at a boundary."""
    journal("start", run.fingerprint, os.getpid())
    state = run.state()
    for step in range(state.last_step + 1, state.planned_steps + 1):
        time.sleep(float(os.environ.get("FAKE_STEP_SECONDS", "0")))
        run.spool.metrics(step, {"train/success": step / state.planned_steps, "train/loss": 1.0 / step})
        run.write_state(last_step=step)
        journal("step", run.fingerprint, step)
        if should_stop() and step < state.planned_steps:
            raise Interrupted
    evaluate(run)
    run.write_state(state="complete")
    journal("end", run.fingerprint)


def train_until_asked(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """Never ends by itself, but for FAKE_JOURNAL + `.finish` appearing."""
    journal("start", run.fingerprint, os.getpid())
    while not should_stop():
        if Path(os.environ["FAKE_JOURNAL"] + ".finish").exists():
            run.write_state(last_step=run.state().planned_steps)
            evaluate(run)
            return
        time.sleep(0.02)
    journal("stopped", run.fingerprint)
    raise Interrupted


def ignores_requests(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    journal("start", run.fingerprint, os.getpid())
    while True:
        time.sleep(0.05)


def raises(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    journal("start", run.fingerprint, os.getpid())
    raise ValueError(f"no such thing; secret {os.environ.get('FAKE_API_KEY', '')}")


def out_of_memory(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")


def disk_full(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    with Path("/dev/full").open("w") as file:
        file.write("x")


def leaves(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    sys.exit(0)


def forgets_evaluation(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    run.write_state(last_step=run.state().planned_steps)


def killed_once(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """Killed in the first attempt, fine in the second."""
    first = not any(run.spool.read()) or run.state().last_step == 0
    journal("start", run.fingerprint, os.getpid())
    if first:
        run.write_state(last_step=1)
        os.kill(os.getpid(), signal.SIGKILL)
    train(run, should_stop)


def segfaults(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    ctypes.string_at(0)


def reports_threads(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    journal("threads", os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS"), "torch" in sys.modules)
    train(run, should_stop)


def leaves_child(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """Forks a helper that outlives it, as a killed environment pool would."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    journal("child", pid)
    train(run, should_stop)
