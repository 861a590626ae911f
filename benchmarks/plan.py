"""What planning costs: `python benchmarks/plan.py [--cells 1000]`.

Plans sweeps of about that many cells in fresh processes, without starting anything, and prints CPU and wall seconds,
Hydra compositions, peak memory, and whether anything heavy was imported. Figures depend on the machine: compare ratios.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HEAVY = ("torch", "transformers", "mlflow", "textworld", "alfworld", "pandas", "scipy")

# Run in a process of its own: {folder}, {out}, {protocol} and {heavy} are filled in.
_PROGRAM = """
import json, resource, sys, time
begin = time.perf_counter()
from harness.commandline import parse
from harness.compose import composer
from harness.plan import build_plan, states, write_plan
hydra = composer({folder!r})
plan = build_plan(hydra, parse(["sweep=bench", "protocol={protocol}", "out=" + {out!r}], hydra.groups()))
write_plan(plan, states(plan))
print(json.dumps({{
    "cells": len(plan.cells),
    "compositions": hydra.compositions,
    "wall_s": round(time.perf_counter() - begin, 2),
    "cpu_s": round(time.process_time(), 2),
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    "heavy": [m for m in {heavy!r} if m in sys.modules],
}}))
"""


def write_sweep(folder: Path, methods: int, envs: int, backbones: int, seeds: int) -> None:
    """Configuration files of a sweep methods x envs x backbones x seeds."""
    groups = {
        "method": [f"id: b{i}\nadvantage: {{pg_coef: {i + 1}.0}}\n" for i in range(methods)],
        "env": [f"max_steps: {20 + i}\n" for i in range(envs)],
        "backbone": [f"name: b{i}\nclone_seed: {i}\n" for i in range(backbones)],
    }
    parents = {"method": "grpo", "env": "alfworld", "backbone": "tiny-s"}
    for group, texts in groups.items():
        (folder / group).mkdir(parents=True)
        for i, text in enumerate(texts):
            head = f"# benchmark\ndefaults: [{parents[group]}, _self_]\n"
            (folder / group / f"b{i}.yaml").write_text(head + text, encoding="utf-8")

    def names(number: int) -> list[str]:
        return [f"b{i}" for i in range(number)]

    # Presets that differ by method and environment, as those of papers do.
    values = {
        "envs": {f"b{i}": {"training.lr": (i + 1) * 1e-4} for i in range(envs)},
        "methods": {f"b{i}": {"any": {"method.signal.clip": i + 1.0}} for i in range(methods)},
    }
    (folder / "protocol").mkdir()
    (folder / "protocol" / "bench.yaml").write_text(json.dumps(values), encoding="utf-8")
    sweep = {
        "rows": [{"method": name} for name in names(methods)],
        "axes": {"env": names(envs), "backbone": names(backbones), "seed": list(range(seeds))},
    }
    (folder / "sweep").mkdir()
    (folder / "sweep" / "bench.yaml").write_text(json.dumps(sweep), encoding="utf-8")  # JSON is YAML


def measure(methods: int, envs: int, backbones: int, seeds: int, protocol: str) -> dict[str, object]:
    """Plan one sweep in a fresh process."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch) / "conf", Path(scratch) / "out"
        write_sweep(folder, methods, envs, backbones, seeds)
        program = _PROGRAM.format(folder=str(folder), out=str(out), heavy=HEAVY, protocol=protocol)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shape = f"{methods} methods x {envs} envs x {backbones} backbones x {seeds} seeds, protocol={protocol}"
    return {"shape": shape, **json.loads(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000, help="about how many cells each sweep has (default 1000)")
    cells = parser.parse_args().cells
    for methods, envs, backbones in ((5, 1, 2), (11, 3, 4), (40, 1, 1)):
        for protocol in ("fair", "bench"):
            seeds = max(1, round(cells / (methods * envs * backbones)))
            print(json.dumps(measure(methods, envs, backbones, seeds, protocol)))


if __name__ == "__main__":
    main()
