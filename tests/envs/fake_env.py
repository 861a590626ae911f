"""A tiny environment whose behaviour the task and the actions choose; importable in worker processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from envs.interface import EnvConfig, EnvironmentFailure, Observation, StepResult, Task


def fake_task(name: str, location: str = "") -> Task:
    return Task(id=f"t/{name}", type="fake", content_hash=f"{abs(hash_of(name)):064x}", location=location)


def hash_of(name: str) -> int:
    """The same in every process, unlike hash()."""
    return sum((i + 1) * ord(c) * 2654435761 for i, c in enumerate(name))


@dataclass
class Counter:
    """Counts steps; actions `raise`, `fail`, `die` and `hang` break it in the way they say; `win` ends the episode."""

    max_steps: int
    task: str = ""
    steps: int = 0
    resets: int = 0

    def reset(self, task: Task) -> Observation:
        if task.location == "unloadable":
            raise FileNotFoundError(f"no file for {task.id}")
        if task.location == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        self.task, self.steps, self.resets = task.id, 0, self.resets + 1
        return Observation(f"start {task.id}", "count.", ("go", "win"))

    def step(self, action: str) -> StepResult:
        if action == "raise":
            raise KeyError("broken inside")
        if action == "fail":
            raise EnvironmentFailure("engine crash")
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "hang":
            time.sleep(3600)
        if action == "pid":
            return self._result(f"pid {os.getpid()} instance {id(self)} resets {self.resets}", False, True)
        self.steps += 1
        return self._result(f"{self.task} step {self.steps} did {action}", action == "win", action in ("go", "win"))

    def _result(self, text: str, won: bool, admissible: bool) -> StepResult:
        done = won or self.steps >= self.max_steps
        seen = Observation(text, "count.", ("go", "win"))
        return StepResult(seen, float(won), done, won, float(won), admissible, truncated=done and not won)

    def close(self) -> None:
        pass


def make_fake(config: EnvConfig) -> Counter:
    return Counter(config.max_steps)


def make_broken(config: EnvConfig) -> Counter:
    raise ModuleNotFoundError("No module named 'engine'")
