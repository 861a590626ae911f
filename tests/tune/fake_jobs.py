"""The nodes of a fake cluster: start jobs that wait, and take steps of runs as fake_trials does, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fake_trials
from fake_cluster import FakeCluster
from launch_runs import begins

from harness.config import RunConfig
from harness.launch import tickets
from harness.launch.job import BUDGET_USED
from harness.record import RunDirectory
from harness.states import COMPLETE, FAILED, INTERRUPTED
from harness.stopping import stop_requested
from harness.worker import EXIT_FAILED, EXIT_INTERRUPTED


class Nodes:
    """`play` starts every job that waits, and takes one step of every run whose job runs.

    holds: whether a run's job has to wait; breaks: (error, failure class) where a run fails at its next step; short:
    every job is at its last comeback, and reaches its time limit after one step; steps: of every run, in the order in
    which they were taken.
    """

    def __init__(self, cluster: FakeCluster, runs: Path, holds: Callable[[RunConfig], bool] = lambda config: False):
        self._cluster, self._folder, self.holds = cluster, runs, holds
        self.breaks: Callable[[RunConfig], tuple[str, str] | None] = lambda config: None
        self.short = False
        self._configs: dict[str, RunConfig] = {}
        self.steps: list[tuple[str, int]] = []
        self.starts: list[str] = []

    def runs(self) -> list[RunDirectory]:
        paths = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        return [RunDirectory(path) for path in paths if not path.name.startswith(".")]

    def config(self, run: RunDirectory) -> RunConfig:
        if run.fingerprint not in self._configs:
            self._configs[run.fingerprint] = run.load_config()
        return self._configs[run.fingerprint]

    def word(self, job: str) -> str:
        lines = (self._cluster.folder / "queue").read_text().splitlines()
        return next((line.split()[1] for line in lines if line.split()[0] == job), "")

    def play(self) -> None:
        for run in self.runs():
            ticket = tickets.read(run.path)
            word = "" if ticket is None else self.word(ticket.job_id)
            if ticket is not None and word == "PENDING" and not self.holds(self.config(run)):
                self._cluster.set(ticket.job_id, "RUNNING")
                self.starts.append(run.fingerprint)
            elif ticket is not None and word == "RUNNING":
                self._step(run, ticket.job_id)

    def _step(self, run: RunDirectory, job: str) -> None:
        config, state = self.config(run), run.stored_state()
        attempt = begins(run, job, state.last_step)
        step = state.last_step + 1
        broken = self.breaks(config)
        if config.method.coef == 0.95:  # a value that a search draws only where a test lists it
            broken = ("ValueError: coef is too much", "crash")
        if broken is not None:
            run.write_state(state=FAILED, error=broken[0], failure_class=broken[1])
            attempt.finish(FAILED, state.last_step, *broken)
            self._cluster.set(job, "FAILED", exit_code=f"{EXIT_FAILED}:0")
            return
        if reason := stop_requested(run.path):
            run.write_state(state=INTERRUPTED, error=f"stopped at a step boundary: {reason}")
            attempt.finish(INTERRUPTED, state.last_step, reason)
            self._cluster.set(job, "FAILED", exit_code=f"{EXIT_INTERRUPTED}:0")
            return
        values = {"train/success": 0.5, "validation/success": fake_trials.success(config)}
        run.spool.metrics(step, values if step < state.planned_steps else {"train/success": 0.5})
        run.spool.close()
        run.write_state(last_step=step)
        self.steps.append((run.fingerprint, step))
        if self.short and step < state.planned_steps:
            spent = f"job {job} was in the queue 1 times, and may come back 0 times ({BUDGET_USED}=0)"
            run.write_state(state=INTERRUPTED, error=spent)
            attempt.finish(INTERRUPTED, step, spent)
            self._cluster.set(job, "FAILED", exit_code=f"{EXIT_INTERRUPTED}:0")
            return
        attempt.finish(INTERRUPTED, step, "")  # one attempt for each step will do
        if step == state.planned_steps:
            fake_trials.evaluate(run, config)
            run.write_state(state=COMPLETE)
            self._cluster.set(job, "COMPLETED")
