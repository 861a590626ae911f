"""One output folder, the commands given in it, and what became of its runs."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_cluster import Cluster, wait_until

from harness import attempts
from harness.launch import tickets
from harness.record import RunDirectory

STAND_IN = Path(__file__).with_name("stand_in")
ENDED = 240.0  # seconds within which any command of these tests should have ended, on a loaded machine


@dataclass(frozen=True)
class Line:
    """One line of the journal that stand-in runs keep."""

    word: str
    seed: int
    pid: int
    job: str
    restart: int
    more: tuple[str, ...]


@dataclass
class Ended:
    """A command that has ended."""

    status: int
    text: str


class Story:
    """Commands on one output folder. trouble: what happens to runs (see stand_in_run.py); real: no stand-ins."""

    def __init__(self, out: Path, cluster: Cluster, trouble: dict[str, Any] | None = None, real: bool = False) -> None:
        self.out, self.cluster, self.real = out, cluster, real
        out.mkdir(parents=True)
        (out / "trouble.json").write_text(json.dumps(trouble or {}))
        self._commands = 0

    # --------------------------------------------------------------------------------------------------- commands
    def start(self, *arguments: str, path: Path | None = None) -> subprocess.Popen[bytes]:
        """Give a command; its output goes to a file. path: a folder before all others on PATH."""
        self._commands += 1
        environment = {**self.cluster.environment, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment.pop("PYTHONPATH", None)
        command = [sys.executable, "-m", "harness", f"out={self.out}", "tracking=none", *arguments]
        if not self.real:
            environment["PYTHONPATH"] = str(STAND_IN)
            command[3:3] = ["--config-dir", str(STAND_IN / "conf")]
        if path is not None:
            environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
        with self._output(self._commands).open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        process.number = self._commands  # type: ignore[attr-defined]
        return process

    def _output(self, number: int) -> Path:
        return self.out / f"command{number}.txt"

    def end(self, process: subprocess.Popen[bytes], seconds: float = ENDED) -> Ended:
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = -1
        text = self._output(process.number).read_text(errors="replace")  # type: ignore[attr-defined]
        assert status != -1, f"not over after {seconds:.0f} s: {text[-3000:]}"
        return Ended(status, text)

    def sweep(self, *arguments: str, name: str = "stormy") -> subprocess.Popen[bytes]:
        """Start the sweep as jobs, and stay until all have an outcome."""
        return self.start(f"sweep={name}", *SLURM, "wait=true", *arguments)

    def do(self, what: str, *arguments: str) -> Ended:
        return self.end(self.start("sweep=stormy", *SLURM, f"do={what}", *arguments))

    # ----------------------------------------------------------------------------------------------------- records
    @property
    def runs(self) -> dict[int, RunDirectory]:
        """Seed -> run, of sweeps with one row."""
        found = {}
        for path in sorted((self.out / "runs").glob("*/config.yaml")):
            # load_config takes so long that what is looked for would be over
            if seed := re.search(r"^seed: (\d+)$", path.read_text(), re.MULTILINE):
                found[int(seed[1])] = RunDirectory(path.parent)
        return found

    def states(self) -> list[str]:
        """Of all runs, in no particular order."""
        return sorted(RunDirectory(path).state().state for path in (self.out / "runs").iterdir() if path.is_dir())

    def journal(self, *words: str) -> list[Line]:
        path = self.out / "journal"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        found = [Line(w, int(s), int(p), j, int(r), tuple(more)) for w, s, p, j, r, *more in lines]
        return [line for line in found if not words or line.word in words]

    def steps(self, seed: int | None = None) -> int:
        return sum(seed in (None, line.seed) for line in self.journal("step"))

    def until_steps(self, number: int, seed: int, seconds: float = 120.0) -> None:
        wait_until(lambda: self.steps(seed) >= number, seconds, f"step {number} of seed {seed}; {self.heard()}")

    def heard(self) -> str:
        """Ends of all outputs, for messages."""
        return "\n".join(p.read_text(errors="replace")[-1500:] for p in sorted(self.out.glob("command*.txt")))

    def job(self, seed: int) -> str:
        ticket = tickets.read(self.runs[seed].path)
        return ticket.job_id if ticket is not None else ""

    def nodes(self) -> dict[int, str]:
        """Seed -> node on which its job runs."""
        jobs = {self.job(seed): seed for seed in self.runs}
        return {jobs[job]: node for job, _, node in self.cluster.queue() if job in jobs}

    def words(self, seed: int) -> list[str]:
        """What Slurm's accounting says of every job that the run of this seed ever had, restarts one by one."""
        jobs = ",".join(ticket.job_id for ticket in tickets.history(self.runs[seed].path))
        text = self.cluster.client("sacct", "-D", "-X", "-n", "-P", "-o", "State", "-j", jobs)
        return [line.split()[0] for line in text.splitlines()]

    def jobs_of(self, seed: int) -> int:
        return len(tickets.history(self.runs[seed].path))

    def outcomes(self, seed: int) -> list[str | None]:
        """Of the attempts, oldest first."""
        return [attempt.content.get("outcome") for attempt in attempts.all_attempts(self.runs[seed].path)]

    def table(self, name: str = "stormy") -> list[list[str]]:
        """The sweep's table without what its runs cost, and without warnings, which tell of edited code."""
        with (self.out / "results" / name / "main_table.csv").open(newline="") as file:
            lines = list(csv.reader(file))
        kind, metric, warned = map(lines[0].index, ("table", "metric", "warnings"))
        kept = [line for line in lines if line[kind] != "cost" and "time" not in line[metric]]
        return [[*line[:warned], *line[warned + 1 :]] for line in kept]

    def check_each_once(self, killed: tuple[int, ...] = ()) -> None:
        """Every run is complete, ended once, and no step was taken twice. killed: seeds whose processes were killed
        at an arbitrary moment, which may be between a step and its line in the journal."""
        for seed, run in self.runs.items():
            assert run.state().is_complete, (seed, run.state(), self.heard())
            assert self.outcomes(seed).count("complete") == 1, (seed, self.outcomes(seed))
            assert None not in self.outcomes(seed)
            assert [line.seed for line in self.journal("end")].count(seed) == 1
            taken = Counter(int(line.more[0]) for line in self.journal("step") if line.seed == seed)
            expected = Counter(range(1, run.state().planned_steps + 1))
            assert taken == expected or (seed in killed and taken <= expected), (seed, taken)


SLURM = ("launcher=slurm", "launcher.poll_seconds=1")
