"""A synthetic sweep in the formats of the records: plan.json and run directories, every number chosen by the test."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import code

TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
ROWS = (
    {"id": "vanilla", "label": "Vanilla", "kind": "baseline"},
    {"id": "vanilla_skill", "label": "Vanilla + skill", "kind": "control"},
    {"id": "grpo", "label": "GRPO", "kind": "method"},
    {"id": "opid", "label": "OPID", "kind": "method"},
    {"id": "opid_random", "label": "OPID, random skills", "kind": "control"},
)
TEACHER_ROWS = (
    {"id": "grpo", "label": "GRPO", "kind": "method", "base": None},
    {"id": "skill_grpo", "label": "Skill-GRPO", "kind": "method", "base": "grpo"},
    {"id": "retire_opd", "label": "RetireOPD", "kind": "method", "base": "grpo", "uses_teacher": True},
    {"id": "retire_opd_fixed", "label": "RetireOPD, fixed stop", "kind": "method", "base": "retire_opd"},
)
EVALUATED = {"vanilla_skill": ("on",), "skill_grpo": ("off", "on")}
METHODS = {"opid_random": "opid", "vanilla_skill": "vanilla", "retire_opd_fixed": "retire_opd"}
RETIRED_AFTER = 8  # step of the fixture's retirements
LEVEL = {"vanilla": 0.2, "vanilla_skill": 0.5, "grpo": 0.55, "opid": 0.6, "opid_random": 0.54}
STEPS = 12
COMMIT = "c0ffee" * 6 + "abcd"


def fingerprint(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass
class Sweep:
    """Builds a sweep below `out`; change a run's files with the methods, or rewrite them by hand."""

    out: Path
    name: str = "main_table"
    scale: str = "local"
    rows: Sequence[dict[str, Any]] = ROWS
    seeds: Sequence[int] = (0, 1, 2)
    per_type: int = 5
    panels: Sequence[str] = ("seen", "unseen")
    commit: str = COMMIT
    cells: list[dict[str, Any]] = field(default_factory=list)

    def build(self) -> Sweep:
        for row in self.rows:
            for seed in self.seeds:
                self.add(row["id"], seed)
        return self.write_plan()

    def write_plan(self, **changes: Any) -> Sweep:
        folder = self.out / "results" / self.name
        folder.mkdir(parents=True, exist_ok=True)
        plan = {
            "version": 2,
            "sweep": self.name,
            "title": "Main table",
            "scale": self.scale,
            "rows": list(self.rows),
            "cells": self.cells,
            **changes,
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        return self

    def run_dir(self, row: str, seed: int) -> Path:
        return self.out / "runs" / fingerprint(row, seed)

    def add(self, row: str, seed: int, **changes: Any) -> None:
        name = fingerprint(row, seed)
        self.cells.append(
            {
                "fingerprint": name,
                "row": row,
                "method": METHODS.get(row, row),
                "backbone": "tiny-s",
                "embedded": True,
                "analyzer": "rules" if row.startswith("opid") else None,
                "env": "alfworld",
                "fraction": 1.0,
                "seed": seed,
                "scale": self.scale,
                "protocol": "fair",
                "trains": not row.startswith("vanilla"),
                "delta": [],
                "base": None,
                "requires": [],
                "stage": False,
                "changed": {},
                "preset": [],
                "state": "complete",
                "run_dir": f"runs/{name}",
                **changes,
            }
        )
        folder = self.run_dir(row, seed)
        if folder.exists():
            return
        folder.mkdir(parents=True)
        trains = not row.startswith("vanilla")
        steps = STEPS if trains else 0
        places = [(panel, skills) for panel in self.panels for skills in EVALUATED.get(row, ("off",))]
        self.write_episodes(row, seed, [e for place in places for e in self.episodes(row, seed, *place, steps)])
        n = 6 * self.per_type
        counts = {"requested": n, "graded": n, "excluded": 0}
        evaluations = {f"{panel}/{skills}": counts for panel, skills in places}
        self.write_state(row, seed, last_step=steps, planned_steps=steps, evaluations=evaluations)
        self.write_provenance(row, seed, self.commit)
        self.write_spool(row, seed, self.curve(row, seed) if trains else [], self.events(row))

    # -------------------------------------------------------------------------------------- one run
    def episodes(self, row: str, seed: int, panel: str, skills: str, step: int) -> list[dict[str, Any]]:
        """Tasks differ in difficulty alike for all rows and seeds, so that pairing has something to remove."""
        tasks = [(t, f"{panel}-{t}-{i}") for t in TYPES for i in range(self.per_type)]
        rng = np.random.default_rng([seed, sum(map(ord, row)), sum(map(ord, panel))])
        hard = np.random.default_rng(sum(map(ord, panel))).uniform(-0.25, 0.25, len(tasks))
        level = LEVEL.get(row, 0.5) - (0.05 if panel == "unseen" else 0)
        won = rng.random(len(tasks)) < np.clip(level + hard + rng.normal(0, 0.02), 0, 1)
        return [
            {
                "run": fingerprint(row, seed),
                "panel": panel,
                "panel_hash": hashlib.sha256(panel.encode()).hexdigest(),
                "data_version": "generated-0",
                "task_id": task,
                "task_type": kind,
                "repeat": 0,
                "seed": seed,
                "success": bool(success),
                "score": float(success),
                "length": int(rng.integers(5, 12)) if success else 20,
                "malformed": int(rng.integers(0, 2)),
                "inadmissible": int(rng.integers(0, 3)),
                "termination": "success" if success else "max_steps",
                "failure": None,
                "prompt_tokens": 900,
                "response_tokens": 60,
                "skills": skills,
                "prompt_protocol": "compact/bare",
                "context": "growing",
                "checkpoint_step": step,
                "temperature": 0.4,
                "selection": "last",
            }
            for (kind, task), success in zip(tasks, won, strict=True)
        ]

    def curve(self, row: str, seed: int) -> list[dict[str, Any]]:
        rng = np.random.default_rng([seed, sum(map(ord, row))])
        teacher = 2.0 if row.startswith("opid") else 0.0
        cost, values = 5.0, []
        for step in range(1, STEPS + 1):
            cost += 3.0 + teacher + 0.1 * seed
            values.append(
                {
                    "train/success": float(np.clip(0.2 + 0.03 * step + rng.normal(0, 0.03), 0, 1)),
                    "time/cpu_total_s": cost,
                    "time/rollout_s": 1.5,
                    "time/env_s": 0.5,
                    "time/teacher_s": teacher * 0.9,
                    "time/analyzer_s": teacher * 0.1,
                    "time/update_s": 1.0,
                    "tokens/rollout": 20000.0,
                    "tokens/teacher": 10000.0 * teacher,
                    "tokens/update": 20000.0,
                    **self.further(row, step, teacher),
                }
            )
        return values

    def further(self, row: str, step: int, teacher: float) -> dict[str, float]:
        """Counts of every step, and what a method with a frozen teacher says of itself."""
        analyzed = 16.0 if row.startswith("opid") else 0.0
        scored = 32.0 if teacher or (row.startswith("retire") and step <= RETIRED_AFTER) else 0.0
        values = {
            "time/reference_s": 0.25,
            "time/validation_s": 0.0,
            "time/analyzer_wall_s": teacher * 0.1,
            "tokens/reference": 20000.0,
            "cost/teacher_rows": scored,
            "cost/teacher_tokens_rescored": 50 * scored,
            "cost/analyzer_calls": analyzed,
            "cost/analyzer_cached": analyzed / 4,
            "cost/analyzer_retries": 0.0,
            "cost/analyzer_repairs": 1.0 if analyzed and step == 1 else 0.0,
            "cost/analyzer_prompt_tokens": 300 * analyzed,
            "cost/analyzer_completion_tokens": 100 * analyzed,
            "cost/analyzer_money": 0.001 * analyzed,
        }
        if row.startswith("retire"):
            values["method/coef"] = 0.25 if step <= RETIRED_AFTER else 0.0
            values["method/retired"] = float(step >= RETIRED_AFTER + (row == "retire_opd_fixed"))
            if scored:
                values["method/gap"] = 0.5 - 0.01 * step
        if row == "retire_opd" and step in (4, RETIRED_AFTER):
            values |= {"validation/success": 0.4 + 0.01 * step, "method/window_gap": 0.45}
        if row == "retire_opd" and step == RETIRED_AFTER:
            values |= {"method/progress": -0.02, "method/competence": 0.95}
        return values

    def events(self, row: str) -> list[tuple[str, dict[str, Any]]]:
        """Events of a run besides its start."""
        if row != "retire_opd":
            return []
        measured = {"success": 0.5, "episodes": 20, "panel_hash": "v" * 64}
        return [("teacher_measured", measured), ("retired", {"step": RETIRED_AFTER})]

    def write_spool(
        self,
        row: str,
        seed: int,
        curve: Sequence[dict[str, Any]],
        events: Sequence[tuple[str, dict[str, Any]]] = (),
    ) -> None:
        first = 1
        lines = [{"t": 1.0, "kind": "event", "name": "started", "data": {"metrics": 1}}]
        lines += [{"t": 1.0, "kind": "event", "name": name, "data": data} for name, data in events]
        lines += [
            {"t": 2.0, "kind": "metrics", "step": step, "values": values} for step, values in enumerate(curve, first)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.run_dir(row, seed) / "spool.jsonl").write_text(text)

    def write_provenance(self, row: str, seed: int, commit: str | None, dirty: bool = False) -> None:
        git = {"commit": commit, "dirty": dirty, "diff_sha256": "d" * 64 if dirty else None}
        (self.run_dir(row, seed) / "provenance.json").write_text(json.dumps({"version": 1, "git": git}))

    def write_attempts(self, row: str, seed: int, *attempts: dict[str, Any]) -> None:
        """Attempts from first to last; each says what differs from a whole run under the sweep's commit."""
        folder = self.run_dir(row, seed) / "attempts"
        folder.mkdir()
        git = {"commit": self.commit, "dirty": False, "diff_sha256": None}
        whole = {"outcome": "complete", "from_step": 0, "to_step": STEPS, "git": git}
        for number, changes in enumerate(attempts, 1):
            content = {**whole, **changes, "attempt": number}
            (folder / f"{number:03d}.json").write_text(json.dumps(content))

    def write_state(self, row: str, seed: int, **changes: Any) -> None:
        path = self.run_dir(row, seed) / "state.json"
        old = json.loads(path.read_text()) if path.exists() else {"state": "complete", "error": None, "updated": 1.0}
        path.write_text(json.dumps({**old, "failure_class": None, **changes}))

    def write_episodes(self, row: str, seed: int, rows: Sequence[dict[str, Any]]) -> None:
        pq.write_table(pa.Table.from_pylist(list(rows)), self.run_dir(row, seed) / "episodes.parquet")

    def edit_episodes(self, row: str, seed: int, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        path = self.run_dir(row, seed) / "episodes.parquet"
        self.write_episodes(row, seed, edit(pq.read_table(path).to_pylist()))


@pytest.fixture(autouse=True)
def code_of_today(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The code that makes the tables is the one that made the runs, unless a test changes it."""
    git: dict[str, Any] = {"commit": COMMIT, "dirty": False, "diff_sha256": None}
    monkeypatch.setattr(code, "this_code", lambda: git)
    return git


@pytest.fixture
def make_sweep(tmp_path: Path) -> Callable[..., Sweep]:
    def make(**changes: Any) -> Sweep:
        return Sweep(tmp_path, **changes).build()

    return make


@pytest.fixture
def teachers(tmp_path: Path) -> Sweep:
    """Rows with frozen teachers: the teacher is a row of the table; change `cells` and write the plan again."""
    sweep = Sweep(tmp_path, name="retirement", rows=TEACHER_ROWS, panels=("seen",)).build()
    changed = {
        "skill_grpo": {"method.skill.source": ["none", "library"], "method.rollout_skills_train": [False, True]},
        "retire_opd": {
            "method.coef": [0.0, 0.25],
            "method.teacher.run": [None, "skill_grpo"],
            "training.kl_coef": [0.01, 0.0],
        },
        "retire_opd_fixed": {"method.knobs.stop_step": [None, RETIRED_AFTER]},
    }
    for cell in sweep.cells:
        own = {**changed.get(cell["row"], {})}
        if cell["row"] == "retire_opd":
            own["method.teacher.source"] = [None, fingerprint("skill_grpo", cell["seed"])]
            cell["preset"] = ["training.kl_coef"]
        cell["changed"] = own
        if cell["row"].startswith("retire"):
            cell["requires"] = [fingerprint("skill_grpo", cell["seed"])]
    return sweep.write_plan()


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return Sweep(tmp_path_factory.mktemp("template")).build()


@pytest.fixture
def sweep(_template: Sweep, tmp_path: Path) -> Sweep:
    """A clean sweep: five rows, three seeds, two panels of 30 tasks. A copy, made once and copied for speed."""
    shutil.copytree(_template.out, tmp_path, dirs_exist_ok=True)
    return Sweep(tmp_path, cells=[dict(cell) for cell in _template.cells])
