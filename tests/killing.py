"""Killing a command and its worker in the middle of a run, without a word of warning."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from harness import claim as claims
from harness.record import RunDirectory

PATIENCE = 240.0  # seconds until a test gives up waiting for a run to get going


def kill_midway(command: subprocess.Popen[bytes], run: RunDirectory, steps: int, worker: bool = True) -> None:
    """SIGKILL the launching command, and its worker too unless told otherwise, once `steps` steps of `run` are done.

    Returns when the worker is gone. The run's directory need not exist yet.
    """
    try:
        deadline = time.monotonic() + PATIENCE
        while not run.path.is_dir() or run.state().last_step < steps or run.claim_status().status != claims.ALIVE:
            log = run.log_path.read_text() if run.log_path.exists() else "no log"
            assert command.poll() is None and time.monotonic() < deadline, log
            time.sleep(0.02)
        owner = run.claim_status().owner
        assert owner is not None
    finally:
        command.kill()
        command.wait()
    if worker:
        os.kill(owner.pid, signal.SIGKILL)
    while claims.process_start(owner.pid) is not None:
        time.sleep(0.02)
