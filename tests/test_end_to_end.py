"""The product as its user meets it: `python -m harness` on real games with the shipped model, as processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from killing import PATIENCE, kill_midway

from envs import registry
from harness import attempts
from harness.record import RunDirectory
from harness.states import COMPLETE, INTERRUPTED

pytestmark = [pytest.mark.slow, pytest.mark.engine]
METHODS = ("vanilla", "vanilla_skill", "grpo", "opid", "opid_random")
CELLS = len(METHODS)
QUICK = ("sweep=quick", f"method={','.join(METHODS)}", "runtime.out=out")
HEAVY = {"torch", "transformers", "mlflow"}


@dataclass(frozen=True)
class Place:
    """A folder to run commands in, with a cache and a home of its own."""

    folder: Path

    @property
    def environment(self) -> Mapping[str, str]:
        own = {"HARNESS_CACHE": str(self.folder / "cache"), "HOME": str(self.folder / "home"), "COLUMNS": "200"}
        kept = {name: value for name, value in os.environ.items() if name != "ALFWORLD_DATA"}
        return {**kept, **own}

    def start(self, *arguments: str, python: Sequence[str] = (), **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, *python, "-m", "harness", *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, **options)

    def run(self, *arguments: str, python: Sequence[str] = ()) -> tuple[int, str]:
        """Exit status and everything that was said."""
        said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = self.start(*arguments, python=python, **said)
        text = process.communicate(timeout=2 * PATIENCE)[0].decode()
        return process.returncode, text


def runs_in(out: Path) -> list[RunDirectory]:
    return [RunDirectory(path) for path in sorted((out / "runs").iterdir())]


def attempts_of(out: Path) -> dict[str, list[str | None]]:
    return {run.fingerprint: [a.content["outcome"] for a in attempts.all_attempts(run.path)] for run in runs_in(out)}


def weights_hash(run: RunDirectory) -> str:
    newest = max(run.checkpoints_dir.iterdir())
    return hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Where two commands ran the same sweep at the same time, starting from an empty cache."""
    place = Place(tmp_path_factory.mktemp("end to end"))
    (place.folder / "home").mkdir()
    logs = [place.folder / f"launcher {number}.log" for number in (1, 2)]
    processes = []
    for log in logs:
        with log.open("wb") as file:
            processes.append(place.start(*QUICK, stdout=file, stderr=file))
    try:
        ends = [process.wait(timeout=2 * PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert ends == [0, 0], "\n".join(log.read_text() for log in logs)
    return place


def test_two_commands_at_once_run_each_cell_once(place: Place) -> None:
    found = attempts_of(place.folder / "out")
    assert len(found) == CELLS and list(found.values()) == [[COMPLETE]] * CELLS


def test_every_run_played_every_task_of_every_panel_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", place.environment["HARNESS_CACHE"])
    hashes: dict[str, set[str]] = {}
    for run in runs_in(place.folder / "out"):
        config = run.load_config()
        rows = pq.read_table(run.episodes_path).to_pylist()
        evaluated = {(row["panel"], row["skills"]) for row in rows}
        assert evaluated == {(p, s) for p in config.evaluation.panels for s in config.method.rollout_skills_eval}
        for name, skills in evaluated:
            panel = registry.get(config.env.name).load_panel(config.env, name)
            played = [row for row in rows if (row["panel"], row["skills"]) == (name, skills)]
            assert Counter(row["task_id"] for row in played) == {task.id: 1 for task in panel.tasks}
            assert {row["panel_hash"] for row in played} == {panel.hash}
            assert all(row["failure"] is None for row in played)
            hashes.setdefault(name, set()).add(panel.hash)
    assert sorted(hashes) == ["seen", "unseen"] and all(len(found) == 1 for found in hashes.values())


def test_the_same_command_again_starts_nothing(place: Place) -> None:
    out = place.folder / "out"
    table = out / "results" / "quick" / "main_table.csv"
    before, tried = table.read_bytes(), attempts_of(out)
    status, said = place.run(*QUICK, python=["-X", "importtime"])
    assert status == 0, said
    assert "nothing to run" in said and attempts_of(out) == tried
    assert table.read_bytes() == before
    imported = {line.rpartition("|")[2].strip() for line in said.splitlines() if line.startswith("import time:")}
    assert "harness.plan" in imported
    assert not {name.partition(".")[0] for name in imported} & HEAVY


def test_a_killed_command_ends_like_an_unbroken_one(place: Place) -> None:
    arguments = ("method=opid", "backbone=tiny-s", "scale=test", "runtime.checkpoint_every=1", "runtime.out=killed")
    [unbroken] = [run for run in runs_in(place.folder / "out") if run.load_config().method.id == "opid"]
    run = RunDirectory(place.folder / "killed" / "runs" / unbroken.fingerprint)
    # After two steps the checkpoint of the first is whole; that of the second may be half written.
    kill_midway(place.start(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), run, steps=2)
    assert run.state().state == INTERRUPTED
    status, said = place.run(*arguments)
    assert status == 0, said
    assert attempts_of(place.folder / "killed") == {run.fingerprint: [INTERRUPTED, COMPLETE]}
    resumed = [entry["data"]["step"] for entry in run.spool.read() if entry.get("name") == "resumed"]
    assert len(resumed) == 1 and resumed[0] >= 1
    assert run.episodes_path.read_bytes() == unbroken.episodes_path.read_bytes()
    assert weights_hash(run) == weights_hash(unbroken)


def test_nothing_is_written_outside(place: Place) -> None:
    """Last, so that it sees what all commands together left in the home folder and beside their output."""
    assert not any((place.folder / "home").iterdir())
    assert {p.name for p in place.folder.iterdir() if p.is_dir()} <= {"cache", "home", "out", "killed"}
