"""A stand-in for `harness.run:execute` whose success is a known function of the searched keys.

success = 1 - |log10(coef) + 1|, least 0: best at coef=0.1. FAKE_TRIALS names a file that gets a line per start and per
step; where a file of that name with `.full` exists, the disk is full. Runs with coef = BROKEN fail: a value that a
search draws only where a test lists it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from harness.config import RunConfig
from harness.record import RunDirectory
from harness.states import Interrupted

EPISODES = 20
BROKEN = 0.95


def journal(*words: object) -> None:
    with Path(os.environ["FAKE_TRIALS"]).open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def success(config: RunConfig) -> float:
    return max(0.0, 1.0 - abs(math.log10(config.method.coef or 0.1) + 1.0))  # a teacher has none


def train(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    config = run.load_config()
    journal("start", run.fingerprint)
    if Path(os.environ["FAKE_TRIALS"] + ".full").exists():
        raise OSError(28, "No space left on device")
    if config.method.coef == BROKEN:
        raise ValueError("coef is too much")
    state = run.state()
    for step in range(state.last_step + 1, state.planned_steps + 1):
        time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
        values = {"train/success": 0.5, "time/cpu_total_s": float(step), "tokens/rollout": 100.0}
        every = config.evaluation.validate_every
        if every and step % every == 0 and step < state.planned_steps:
            values["validation/success"] = success(config)
        run.spool.metrics(step, values)
        run.write_state(last_step=step)
        journal("step", run.fingerprint, step)
        if should_stop() and step < state.planned_steps:
            raise Interrupted
    evaluate(run, config)


def evaluate(run: RunDirectory, config: RunConfig) -> None:
    won = round(success(config) * EPISODES)
    rows = [
        {
            "panel": "validation",
            "skills": "off",
            "failure": None,
            "success": k < won,
            "score": float(k < won),
            "length": 5,
        }
        for k in range(EPISODES)
    ]
    pq.write_table(pa.Table.from_pylist(rows), run.episodes_path)
    counts = {"requested": EPISODES, "graded": EPISODES, "excluded": 0}
    run.write_state(evaluations=dict.fromkeys(run.stored_state().declared, counts))
