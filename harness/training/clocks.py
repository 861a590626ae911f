"""What `time/*` of training is measured with: CPU seconds of the process, or wall seconds where a GPU does the work.

A process that waits for its GPU spends next to no CPU time, or all of it, whatever the GPU does; only the wall tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.config import RunConfig

CPU, WALL = "cpu_s", "wall_s"


def now_on(device: str) -> Callable[[], float]:
    """The clock of the local engine. device: its kind, such as cpu or cuda."""
    return time.process_time if device == "cpu" else time.monotonic


def unit_of(config: RunConfig) -> tuple[str, int]:
    """(unit of `time/*`: cpu_s | wall_s; GPUs that the run holds while it trains)."""
    on_cpu = config.runtime.device.partition(":")[0] == "cpu"
    if config.engine == "verl":
        from harness.training.verl.sizes import sizes_of

        return WALL, 0 if on_cpu else sizes_of(config).gpus
    return (CPU, 0) if on_cpu else (WALL, 1)


@dataclass
class Clock:
    """Seconds between marks. now: what the time is."""

    now: Callable[[], float]
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    def lap(self) -> float:
        before, self.started = self.started, self.now()
        return self.started - before
