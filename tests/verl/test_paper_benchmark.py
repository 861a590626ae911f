"""benchmarks/gpu.py runs where there is no GPU, and says that it measured none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, str(PROGRAM), "--seconds", "0.1", "--out", str(out)]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "NO GPU WAS MEASURED" in said and "training tokens_per_s" in said
    found = json.loads(out.read_text())
    assert found["gpu_measured"] is False and found["found"]["float32"]["rollout"]["decode_tokens_per_s"] > 0
