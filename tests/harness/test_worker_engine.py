"""The real engine under the launcher: kill -9 in the middle, the same command again, the same numbers bit for bit."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_cells import STEPS, make_config
from fake_cells import HERE
from killing import kill_midway

from harness import attempts
from harness.launch.local import run_cells
from harness.progress import Progress
from harness.record import RunDirectory

ENTRY = "engine_cells:execute"
FINGERPRINT = "0123456789abcdef"
LAUNCH = """
import sys
from pathlib import Path
from harness.launch.local import run_cells
from harness.progress import Progress
from harness.record import RunDirectory
with Progress() as show:
    run_cells([RunDirectory(Path(sys.argv[1]))], 1, show, entry=sys.argv[2])
"""


def launch(run: RunDirectory) -> dict[str, str]:
    from rich.console import Console

    with Progress(console=Console(file=io.StringIO())) as show:
        return dict(run_cells([run], 1, show, entry=ENTRY).outcomes)


def numbers(run: RunDirectory) -> list[Any]:
    """Training metrics but for times and memory, and the evaluated episodes."""
    import pandas as pd

    metrics = [
        (entry["step"], {k: v for k, v in entry["values"].items() if not k.startswith(("time/", "memory/"))})
        for entry in run.spool.read()
        if entry["kind"] == "metrics"
    ]
    return [metrics, pd.read_parquet(run.episodes_path).to_dict("records")]


@pytest.mark.slow
def test_a_killed_command_ends_like_an_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiny_model import make_model, make_tokenizer

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, str(Path(HERE).parent)]))
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(tmp_path / "backbone")
    tokenizer.save_pretrained(tmp_path / "backbone")
    config = make_config(tmp_path / "backbone")
    unbroken = RunDirectory.create(tmp_path / "unbroken", config, FINGERPRINT)
    assert launch(unbroken) == {FINGERPRINT: "complete"}, unbroken.log_path.read_text()

    run = RunDirectory.create(tmp_path / "killed twice", config, FINGERPRINT)
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.5")
    for whom in ("launcher and worker", "launcher"):
        before = run.state().last_step
        process = subprocess.Popen([sys.executable, "-c", LAUNCH, str(run.path), ENTRY])
        kill_midway(process, run, before + 1, worker=whom == "launcher and worker")
        assert run.state().state == "interrupted"
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0")
    assert launch(run) == {FINGERPRINT: "complete"}
    assert [item.content["outcome"] for item in attempts.all_attempts(run.path)] == [
        "interrupted",
        "interrupted",
        "complete",
    ]
    assert numbers(run) == numbers(unbroken)
    weights = f"checkpoints/step_{STEPS:06d}/model.safetensors"
    assert (run.path / weights).read_bytes() == (unbroken.path / weights).read_bytes()
