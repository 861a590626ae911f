"""What the tables of a large sweep cost: `python benchmarks/analysis.py [--runs 10000] [--episodes 100] [--steps 60]`.

Makes the records of a sweep in a temporary folder (or --keep FOLDER, which a second call reads again), then makes its
tables, with and without report and figures, in fresh processes and prints CPU and wall seconds and peak memory. Figures
depend on the machine and on what else runs there: the CPU seconds tell the cost, the wall seconds the waiting.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NAME = "bench"
ROWS = ("vanilla", "grpo", "gigpo", "opsd", "grpo_opsd", "skill_sd", "rlsd", "sdar", "opid", "retire_opd")
TYPES = ("pick", "look", "clean", "heat", "cool")
GIT = {"commit": "c0ffee" * 6 + "abcd", "dirty": False, "diff_sha256": None}
# What one training step of a run records, about as much as real runs do.
EXTRA = tuple(f"train/{word}" for word in ("return", "length", "invalid", "entropy", "kl", "loss", "grad_norm", "rows"))
TIMES = tuple(f"time/{part}_s" for part in ("rollout", "env", "teacher", "analyzer", "update", "reference"))
WORK = ("tokens/rollout", "tokens/teacher", "tokens/update", "tokens/reference", "cost/teacher_rows")
COUNTS = ("cost/teacher_tokens_rescored", "cost/analyzer_calls", "cost/analyzer_cached", "cost/analyzer_money")

# Run in a process of its own.
_PROGRAM = """
import json, os, resource, sys, time
from analysis.__main__ import main
begin = time.perf_counter()
sys.stdout = open(os.devnull, "w")
status = main({arguments!r})
sys.stdout = sys.__stdout__
spent = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({{
    "status": status,
    "wall_s": round(time.perf_counter() - begin, 1),
    "cpu_s": round(spent.ru_utime + spent.ru_stime, 1),
    "peak_mib": spent.ru_maxrss // 1024,
    "heavy": sorted({{"torch", "transformers", "mlflow"}} & set(sys.modules)),
}}))
"""


def make(out: Path, runs: int, episodes: int, steps: int) -> None:
    """Records of `runs` complete runs: as many seeds of each row as it takes."""
    cells = []
    for number in range(runs):
        row, seed = ROWS[number % len(ROWS)], number // len(ROWS)
        name = hashlib.sha256(f"{row} {seed}".encode()).hexdigest()[:16]
        trains = row != "vanilla"
        cells.append(
            {
                **{"fingerprint": name, "row": row, "method": row, "backbone": "tiny-s", "env": "alfworld"},
                **{"fraction": 1.0, "seed": seed, "scale": "local", "protocol": "fair", "trains": trains},
                **{"requires": [], "stage": False, "changed": {}, "preset": [], "state": "complete"},
                "run_dir": f"runs/{name}",
            }
        )
        _run(out / "runs" / name, name, row, seed, episodes, steps if trains else 0)
    rows = [{"id": row, "label": row, "kind": "method", "base": "grpo" if row != "grpo" else None} for row in ROWS]
    folder = out / "results" / NAME
    folder.mkdir(parents=True)
    plan = {"version": 2, "sweep": NAME, "title": "Benchmark", "scale": "local", "rows": rows, "cells": cells}
    (folder / "plan.json").write_text(json.dumps(plan))


def _run(folder: Path, name: str, row: str, seed: int, episodes: int, steps: int) -> None:
    (folder / "attempts").mkdir(parents=True)
    rng = np.random.default_rng([seed, len(row)])
    counts = {"requested": episodes, "graded": episodes, "excluded": 0}
    state = {"state": "complete", "last_step": steps, "planned_steps": steps, "declared": ["seen/off"]}
    _write(folder / "state.json", {**state, "evaluations": {"seen/off": counts}, "error": None, "failure_class": None})
    _write(folder / "provenance.json", {"version": 1, "git": GIT, "packages": {}, "device": "cpu"})
    attempt = {"attempt": 1, "outcome": "complete", "from_step": 0, "to_step": steps, "git": GIT}
    _write(folder / "attempts" / "001.json", attempt)
    pq.write_table(_episodes(rng, name, seed, episodes, steps), folder / "episodes.parquet")
    lines = [json.dumps({"t": 1.0, "kind": "event", "name": "attempt_started", "data": {"attempt": 1}})]
    for step in range(1, steps + 1):
        draws = rng.random(len(EXTRA) + len(TIMES) + len(WORK) + len(COUNTS)).tolist()
        values = dict(zip((*EXTRA, *TIMES, *WORK, *COUNTS), draws, strict=True))
        values |= {"train/success": draws[0], "time/cpu_total_s": 3.0 * step + draws[1]}
        lines.append(json.dumps({"t": 2.0 + step, "kind": "metrics", "step": step, "values": values}))
    (folder / "spool.jsonl").write_text("\n".join(lines) + "\n")


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2))


def _episodes(rng: np.random.Generator, name: str, seed: int, episodes: int, steps: int) -> pa.Table:
    kinds = [TYPES[i % len(TYPES)] for i in range(episodes)]
    won = rng.random(episodes) < 0.5
    same: dict[str, Any] = {
        **{"run": name, "panel": "seen", "panel_hash": "a" * 64, "data_version": "generated-0", "repeat": 0},
        **{"seed": seed, "termination": "max_steps", "prompt_tokens": 900, "response_tokens": 60, "skills": "off"},
        **{"prompt_protocol": "compact/bare", "context": "growing", "checkpoint_step": steps, "temperature": 0.4},
        "selection": "last",
    }
    columns = {
        **{key: pa.array([value] * episodes) for key, value in same.items()},
        "task_id": pa.array([f"{kind}-{i}" for i, kind in enumerate(kinds)]),
        "task_type": pa.array(kinds),
        "success": pa.array(won),
        "score": pa.array(won.astype(float)),
        "length": pa.array(rng.integers(5, 20, episodes)),
        "malformed": pa.array(rng.integers(0, 2, episodes)),
        "inadmissible": pa.array(rng.integers(0, 3, episodes)),
        "failure": pa.nulls(episodes, pa.string()),
    }
    return pa.table(columns)


def measure(out: Path, *settings: str) -> dict[str, object]:
    program = _PROGRAM.format(arguments=[f"sweep={NAME}", f"out={out}", *settings])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return {"settings": " ".join(settings) or "default", **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--episodes", type=int, default=100, help="evaluated episodes of each run")
    parser.add_argument("--steps", type=int, default=60, help="training steps of each run that trains")
    parser.add_argument("--keep", type=Path, help="folder of the records; made if it holds none")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = chosen.keep or Path(scratch)
        if not (out / "results" / NAME / "plan.json").exists():
            make(out, chosen.runs, chosen.episodes, chosen.steps)
        print(json.dumps({"runs": chosen.runs, "episodes": chosen.episodes, "steps": chosen.steps}))
        for settings in (("figures=none", "report=false"), (), ("figures=all",)):
            print(json.dumps(measure(out, *settings)))


if __name__ == "__main__":
    main()
