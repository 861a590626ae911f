"""A run that costs nothing: stands in for `harness.run` where only the life of jobs is looked at.

It reads `<out>/trouble.json`, seed, method or "any" -> what happens to runs of it:

    seconds   a step takes so long
    die       SIGKILL of itself after this step, in the first process that gets there
    deaf      from this step on the first process that gets there sleeps, whatever signal comes
    fail      an exception after this step, always
    hog       megabytes that the first process takes after its first step

`<out>/journal` is the witness of what really ran: lines of `start|step|asked|end <seed> <pid> <job> <restart> [step]`.
Results depend on the configuration alone, so that a table does not know how often a run was interrupted.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from harness.config import RunConfig
from harness.record import RunDirectory
from harness.states import Interrupted

__all__ = ["Interrupted", "execute"]

TASKS, STEP_TYPES = 6, ("pick", "look")
BEST_RATE = 3e-4  # for searches


class _Stage:
    def __init__(self, run: RunDirectory, config: RunConfig, should_stop: Callable[[], bool]) -> None:
        self.run, self.config, self.asked = run, config, should_stop
        self.out = run.path.parent.parent
        try:
            trouble = json.loads((self.out / "trouble.json").read_text())
        except FileNotFoundError:
            trouble = {}
        names = ("any", config.method.id, str(config.seed))
        self.trouble: dict[str, Any] = {key: value for name in names for key, value in trouble.get(name, {}).items()}

    def write(self, word: str, *more: object) -> None:
        array = "_".join(filter(None, map(os.environ.get, ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))))
        job = array or os.environ.get("SLURM_JOB_ID", "")
        restart = os.environ.get("SLURM_RESTART_COUNT", "0")
        line = " ".join(map(str, [word, self.config.seed, os.getpid(), job or "-", restart, *more]))
        with (self.out / "journal").open("a") as file:
            file.write(f"{line}\n")

    def first(self, what: str) -> bool:
        """Whether nobody has been here yet."""
        try:
            (self.out / f"{what}.{self.run.fingerprint}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def after(self, step: int) -> None:
        """What is arranged to happen."""
        until = time.monotonic() + float(self.trouble.get("seconds", 0))
        while (left := until - time.monotonic()) > 0 and not self.asked():
            time.sleep(min(left, 0.05))
        if step == self.trouble.get("die") and self.first("died"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.trouble.get("deaf") and self.first("deaf"):
            self.write("deaf")
            time.sleep(600)
        if step == self.trouble.get("fail"):
            raise ValueError("as arranged")
        if "hog" in self.trouble and step == 1 and self.first("hogged"):
            self.memory = bytearray(os.urandom(2**20)) * int(self.trouble["hog"])
            time.sleep(20)

    def train(self) -> None:
        state = self.run.state_without_claim()
        for step in range(state.last_step + 1, state.planned_steps + 1):
            if self.asked():
                self.write("asked")
                raise Interrupted
            chance = random.Random(f"{self.run.fingerprint}/{step}")
            values = {
                "train/success": chance.random(),
                "train/return": chance.random(),
                "time/cpu_total_s": float(step),
            }
            if self.config.evaluation.validate_every:
                values["validation/success"] = 1.0 if self.config.training.lr == BEST_RATE else 0.1
            self.run.spool.metrics(step, values)
            self.run.write_state(last_step=step)
            self.write("step", step)
            self.after(step)

    def evaluate(self) -> None:
        import pyarrow as pa  # not harness.evaluation, which imports torch
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = []
        done: dict[str, dict[str, int]] = {}
        sought = "validation" in self.config.evaluation.panels
        for panel in ("validation",) if sought else ("seen", "unseen"):
            for skills in self.config.method.rollout_skills_eval:
                rows += self.episodes(panel, skills)
                done[f"{panel}/{skills}"] = {"requested": TASKS, "graded": TASKS, "excluded": 0}
        failure = pa.array([None] * len(rows), pa.string())
        table = pa.Table.from_pylist(rows).drop_columns("failure").append_column("failure", failure)
        scratch = self.run.episodes_path.with_suffix(f".{os.getpid()}")
        pq.write_table(table, scratch)
        scratch.rename(self.run.episodes_path)
        self.run.write_state(evaluations=done)

    def episodes(self, panel: str, skills: str) -> list[dict[str, Any]]:
        chance = random.Random(f"{self.run.fingerprint}/{panel}/{skills}")
        common = {
            "run": self.run.fingerprint,
            "seed": self.config.seed,
            "skills": skills,
            "prompt_protocol": "stand-in",
            "context": self.config.training.context,
            "checkpoint_step": self.run.stored_state().planned_steps,
            "temperature": 0.0,
            "selection": "last",
            "panel": panel,
            "panel_hash": f"hash of {panel}",
            "data_version": "stand-in",
        }
        zero = {"malformed": 0, "inadmissible": 0, "prompt_tokens": 9, "response_tokens": 9, "repeat": 0, "length": 3}
        rows = []
        for number in range(TASKS):
            success = chance.random() < 0.5
            own = {"task_id": f"{panel}{number}", "task_type": STEP_TYPES[number % 2], "failure": None}
            ended = {"success": success, "score": float(success), "termination": "success" if success else "max_steps"}
            rows.append({**common, **zero, **own, **ended})
        return rows


def execute(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    stage = _Stage(run, run.load_config(), should_stop)
    stage.write("start")
    stage.train()
    stage.evaluate()
    run.write_state(state="complete")
    stage.write("end")
