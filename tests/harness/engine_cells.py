"""The real engine on the tiny environment, slowed down so that there is time to kill it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from envs import registry
from harness.config import BackboneConfig, EnvConfig, EvaluationConfig, RunConfig, RuntimeConfig, TrainingConfig
from harness.record import RunDirectory

STEPS = 8


def make_config(backbone: Path) -> RunConfig:
    training = TrainingConfig(
        steps=STEPS, tasks_per_step=2, group_size=3, max_prompt_tokens=200, max_response_tokens=3, lr=3e-3
    )
    return RunConfig(
        env=EnvConfig(name="tiny", max_steps=4, history=2),
        training=training,
        evaluation=EvaluationConfig(panels=["seen"], temperature=1.0),
        backbone=BackboneConfig(name="random", kind="hub", path=str(backbone)),
        runtime=RuntimeConfig(checkpoint_every=3, keep_trajectories=2),
    )


def execute(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    import harness.run

    registry.BUILTIN["tiny"] = "tiny_env:SPEC"  # type: ignore[index]

    def slow() -> bool:
        time.sleep(float(os.environ.get("FAKE_STEP_SECONDS", "0")))
        return should_stop()

    harness.run.execute(run, slow)
