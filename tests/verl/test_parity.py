"""One recorded batch through the local engine and through verl's own workers: the same step, for every method."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")
pytest.importorskip("transfer_queue")

from harness.compose import package_files

HERE = Path(__file__).parent
TOLERANCE = 1e-5
METHODS = [name for name in package_files()["method"] if not name.startswith("vanilla")]
CASES = [f"{method}/{context}" for method in METHODS for context in ("per_step", "growing")]
# Rows whose teacher has no weight in these two steps, or that have none.
WITHOUT_TEACHER = {"grpo", "gigpo", "gigpo_no_std", "skill_grpo"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """All methods in one process of their own: importing verl takes ten seconds, and it is told to use the CPU."""
    folder = tmp_path_factory.mktemp("parity")
    command = [sys.executable, "-W", "ignore", str(HERE / "backend" / "parity.py"), str(folder), str(folder / "out")]
    done = subprocess.run([*command, *METHODS], capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    content: dict[str, dict[str, float]] = json.loads((folder / "out").read_text())
    return content


@pytest.mark.slow
@pytest.mark.verl
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_both_engines_take_the_same_step(found, case):
    differences = found[case]
    assert differences["gradient"] > 1e-4, "a step without gradient compares nothing"
    for name in ("advantages", "teacher", "loss", "gradients", "entropy", "kl_reference", "method"):
        assert differences[name] < TOLERANCE, name
    assert differences["names"] == 0, "the engines record metrics under different names"
    method = case.partition("/")[0]
    assert (differences["channels"] == 0) == (method in WITHOUT_TEACHER)


@pytest.mark.slow
@pytest.mark.verl
def test_the_cases_exercise_every_part_of_the_loss(found):
    assert found["opid/per_step"]["channels"] == 2  # episode and step skills
    assert found["grpo/per_step"]["reference"] > 1e-3  # a divergence that is not 0
