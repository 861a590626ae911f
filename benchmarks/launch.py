"""What submitting costs: `python benchmarks/launch.py [--cells 1000]`.

The same cells, planned and handed to a real Slurm by this harness and by the stock Hydra launcher for Submitit
(hydra-submitit-launcher), one after the other in one run. Jobs are submitted on hold, so that none starts and both find
the same quiet cluster (tests/slurm/lab.py); they are cancelled afterwards. The clock runs from the start of the process
until the last call of sbatch has returned; for the harness also until the command has ended, since it does not wait.
The stock launcher waits for its jobs and is ended at that point.

Not the same work: the harness also validates each cell, compares rows with their bases, finds out what is done, writes
a run directory per cell and takes a snapshot of the code; the stock launcher composes each configuration again when its
job starts. Figures depend on the machine: compare the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "slurm"))

from lab import missing_programs
from slurm_cluster import Cluster

METHODS = 20
LIMIT_SECONDS = 900.0

# A shim before sbatch on the path: notes when each call returned, and with what.
SHIM = """#!/bin/sh
{sbatch} "$@"
status=$?
echo "$(date +%s.%N) $status" >> {log}
exit $status
"""

STOCK = """
import hydra
from harness.compose import register_schema
register_schema()

def train(config):
    pass

if __name__ == "__main__":
    from stock_app import train
    hydra.main(version_base=None, config_path="pkg://sweeps", config_name="config")(train)()
"""


def write_sweep(folder: Path, seeds: int) -> None:
    """METHODS rows x seeds, on one environment and one backbone."""
    (folder / "method").mkdir(parents=True)
    for i in range(METHODS):
        text = f"# benchmark\ndefaults: [grpo, _self_]\nid: b{i}\nadvantage: {{pg_coef: {i + 1}.0}}\n"
        (folder / "method" / f"b{i}.yaml").write_text(text, encoding="utf-8")
    sweep = {
        "rows": [{"method": f"b{i}"} for i in range(METHODS)],
        "axes": {"env": ["alfworld"], "backbone": ["tiny-s"], "seed": list(range(seeds))},
        "set": {"scale": "test"},
    }
    (folder / "sweep").mkdir()
    (folder / "sweep" / "bench.yaml").write_text(json.dumps(sweep), encoding="utf-8")  # JSON is YAML


class Submission:
    """One way of submitting, timed."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.log = folder / "sbatch.log"
        shims = folder / "bin"
        shims.mkdir()
        shim = shims / "sbatch"
        shim.write_text(SHIM.format(sbatch=shutil.which("sbatch"), log=self.log), encoding="utf-8")
        shim.chmod(0o755)
        self.environment = {**cluster.environment, "PATH": f"{shims}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        self.output = folder / "output"
        self._seen = self._queued = 0

    def measure(self, command: Sequence[str], cells: int, ends: bool, cwd: Path) -> Mapping[str, float]:
        """Seconds until all cells are in the queue, and until the command ended if it does (`ends`)."""
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
        with (
            self.output.open("w") as output,
            subprocess.Popen(
                command, env=self.environment, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True
            ) as process,
        ):
            try:
                while process.poll() is None and (ends or not self.submitted(cells)):
                    if time.time() - begin > LIMIT_SECONDS:
                        raise SystemExit(f"more than {LIMIT_SECONDS:.0f} s: {self.output.read_text()[-2000:]}")
                    time.sleep(0.1)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        ended = time.time() - begin
        if not self.submitted(cells):
            raise SystemExit(f"{cells} cells were not submitted: {self.output.read_text()[-4000:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        calls = self.log.read_text().splitlines()
        last = float(calls[-1].split()[0]) - begin
        return {
            "submitted_s": last,
            "command_s": ended if ends else last,
            "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "sbatch_calls": len(calls),
        }

    def submitted(self, cells: int) -> bool:
        """Whether all cells are in the queue; asks the scheduler only after another call of sbatch has returned."""
        size = self.log.stat().st_size if self.log.exists() else 0
        if size != self._seen:
            self._seen, self._queued = size, len(self.cluster.queue())
        return self._queued >= cells

    def clear(self) -> None:
        self.cluster.client("scancel", "-u", str(os.getuid()))
        while self.cluster.queue():
            time.sleep(0.2)


def harness(cluster: Cluster, folder: Path, conf: Path, cells: int) -> Mapping[str, float]:
    """`python -m harness sweep=bench launcher=slurm`, everything held."""
    submission = Submission(cluster, folder)
    command = [sys.executable, "-m", "harness", "--config-dir", str(conf), "sweep=bench", "launcher=slurm"]
    command += ["++launcher.sbatch.hold=true", f"out={folder / 'out'}"]
    found = submission.measure(command, cells, True, folder)
    submission.clear()
    return found


def stock(cluster: Cluster, folder: Path, conf: Path, cells: int) -> Mapping[str, float]:
    """The same configurations through hydra/launcher=submitit_slurm, everything held."""
    (folder / "stock_app.py").write_text(STOCK, encoding="utf-8")
    submission = Submission(cluster, folder)
    methods = ",".join(f"b{i}" for i in range(METHODS))
    command = [sys.executable, "stock_app.py", "--multirun", f"hydra.searchpath=[file://{conf}]"]
    command += ["hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=60", "hydra.launcher.cpus_per_task=1"]
    command += ["hydra.launcher.mem_gb=3", "+hydra.launcher.additional_parameters.hold=true"]
    command += [f"hydra.sweep.dir={folder / 'out'}", "scale=test", "env=alfworld", "backbone=tiny-s"]
    command += [f"method={methods}", f"seed=range(0,{cells // METHODS})"]
    found = submission.measure(command, cells, False, folder)
    submission.clear()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000, help=f"cells, a multiple of {METHODS} (default 1000)")
    parser.add_argument("--only", choices=("harness", "stock"), help="one of the two")
    options = parser.parse_args()
    if lacking := missing_programs():
        print(f"no Slurm on this machine ({', '.join(lacking)}): see tests/slurm/lab.py")
        return
    ways = {"harness": harness, "stock": stock}
    found: dict[str, Mapping[str, float]] = {}
    cluster = Cluster()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            conf = Path(scratch) / "conf"
            write_sweep(conf, options.cells // METHODS)
            for name in [options.only] if options.only else ways:
                folder = Path(scratch) / name
                folder.mkdir()
                found[name] = ways[name](cluster, folder, conf, options.cells)
                rounded = {key: round(value, 1) for key, value in found[name].items()}
                print(json.dumps({"launcher": name, "cells": options.cells, **rounded}), flush=True)
    finally:
        cluster.stop()
    if len(found) == 2:
        ratios = {key: round(found["stock"][key] / found["harness"][key], 1) for key in ("command_s", "cpu_s")}
        print(json.dumps({"stock / harness": ratios}))


if __name__ == "__main__":
    main()
