"""The tests' end of a laboratory cluster (lab.py): gives it orders and runs Slurm's clients on it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import PACKAGES, missing_programs

REQUIRE = "HARNESS_REQUIRE_SLURM"  # set by the gate: there, a machine without Slurm is a failure
LAB = Path(__file__).with_name("lab.py")
START_SECONDS, ORDER_SECONDS = 240.0, 30.0


class ClusterError(RuntimeError):
    """The laboratory cluster does not do what it should."""


class Cluster:
    """A running cluster; end it with `stop`. It also ends when this process does, however that happens."""

    def __init__(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(LAB), "--attached", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the tests, which then close the pipe
        )
        self._unread = b""
        try:
            told = self._hear(START_SECONDS)
        except BaseException:
            self.stop()
            raise
        self.conf, self.folder, self.nodes = Path(told["conf"]), Path(told["folder"]), tuple(told["nodes"])

    def _hear(self, seconds: float) -> dict[str, Any]:
        """The laboratory's next line. Raises ClusterError when it is an error, or does not come."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise ClusterError(f"no word from the laboratory for {seconds:.0f} s")
            if not (read := os.read(self._process.stdout.fileno(), 65536)):
                raise ClusterError("the laboratory ended without a word")
            self._unread += read
        line, self._unread = self._unread.split(b"\n", 1)
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise ClusterError(told["error"])
        return told

    def order(self, text: str) -> None:
        """`power-off NODE`, `kill-daemon NODE` or `start NODE`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        self._process.stdin.flush()
        self._hear(ORDER_SECONDS)

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    @property
    def environment(self) -> dict[str, str]:
        """Of clients: the caller's, without what another cluster left in it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SQUEUE"))}
        return {**kept, "SLURM_CONF": str(self.conf)}

    def client(self, *command: str) -> str:
        """What a client of Slurm's prints. Raises ClusterError if it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def node_state(self, node: str) -> str:
        return self.client("sinfo", "-h", "-N", "-n", node, "-p", "main", "-o", "%T").strip()

    def queue(self) -> list[tuple[str, str, str]]:
        """(job or array element, state, node) of all that waits or runs."""
        lines = self.client("squeue", "-h", "-r", "-o", "%i|%T|%N").splitlines()
        found = [line.split("|") for line in lines]
        return [(job, state, node) for job, state, node in found]


@contextlib.contextmanager
def laboratory(*options: str) -> Iterator[Cluster]:
    """A cluster for as long as it is used; skips, or fails where the gate runs, if Slurm is not installed."""
    if lacking := missing_programs("--without-accounting" not in options):
        reason = f"no Slurm here ({', '.join(lacking)}); Debian: apt-get install --no-install-recommends {PACKAGES}"
        if os.environ.get(REQUIRE):
            pytest.fail(f"{REQUIRE} is set, but there is {reason}")
        pytest.skip(reason)
    cluster = Cluster(*options)
    try:
        yield cluster
    finally:
        cluster.stop()


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Look again and again until it holds; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.2)
