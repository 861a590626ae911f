"""engine=verl, seen from the run's own process: start verl's, pass stop requests on, tell how it ended.

verl brings Ray, whose processes outlive mistakes. So it runs in a process of its own, in a session of its own, with a
Ray of its own; whatever is left of them when it ends is ended here, each process by its id.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from harness.config import RunConfig
from harness.record import RunDirectory, declared_evaluations, planned_steps
from harness.states import COMPLETE, RUNNING
from harness.training.verl.cluster import ray_over
from harness.training.verl.outcome import judge

FOLDER = "verl"  # below the run's folder
OUTCOME, LOG, AGENTS = "outcome.json", "log.txt", "agents.yaml"
SCRATCH = "HARNESS_VERL_SCRATCH"  # environment variable: folder for Ray's files, short and on this machine
POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0  # for what is left to end by itself
_MAX_SOCKET = 45  # characters of a scratch folder; Ray makes sockets in it whose paths must stay below 108

_log = logging.getLogger(__name__)


def execute(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """As harness.run.execute. Raises Interrupted after a step boundary, VerlError for whatever went wrong."""
    config = run.load_config()
    run.write_state(state=RUNNING, planned_steps=planned_steps(config), declared=declared_evaluations(config))
    folder = run.path / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / OUTCOME).unlink(missing_ok=True)
    run.spool.close()  # verl's process writes it now, and may replace the file
    scratch = Path(tempfile.mkdtemp(prefix="rl", dir=_short_folder()))
    try:
        with ray_over(config, folder) as shared:  # over several machines; on one verl's process starts its own
            process = _start(run, config, folder, {**environment(config, scratch), **shared})
            status = _wait(process, should_stop, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    judge(folder / OUTCOME, status, folder / LOG)
    run.write_state(state=COMPLETE)


def environment(config: RunConfig, scratch: Path) -> dict[str, str]:
    """Environment variables of verl's process; Ray's processes on this machine inherit them."""
    wanted: dict[str, str] = {
        **os.environ,
        SCRATCH: str(scratch),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path or str(Path.cwd()) for path in sys.path)),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token"),
        "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN", secrets.token_hex(32)),  # else Ray writes one into the home
        "RAY_DEDUP_LOGS": "0",
        "TRANSFER_QUEUE_ENABLE": "1",
        "TQ_NUM_THREADS": os.environ.get("TQ_NUM_THREADS", str(min(8, psutil.cpu_count(logical=False) or 1))),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    for name in ("RAY_ADDRESS", "RAY_JOB_ID"):
        wanted.pop(name, None)  # of somebody else's Ray
    if config.runtime.device.partition(":")[0] == "cpu":
        modules = [*filter(None, [os.environ.get("VERL_USE_EXTERNAL_MODULES")]), "harness.training.verl.cpu"]
        wanted |= {
            "VERL_PLATFORM": "cpu",
            "VERL_ENGINE_DEVICE": "cuda",  # under which verl registers the engine that also runs on a CPU
            "VERL_USE_EXTERNAL_MODULES": ",".join(modules),
        }
    return wanted


def _short_folder() -> str | None:
    """Where scratch folders go: the usual place if its name is short enough for sockets, else /tmp."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= _MAX_SOCKET - 12 else "/tmp"


def _start(run: RunDirectory, config: RunConfig, folder: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", "harness.training.verl.driver", str(run.path)]
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(variables),
            start_new_session=True,  # Ctrl-C is for the run's own process, which passes it on
        )


def _wait(process: subprocess.Popen[bytes], should_stop: Callable[[], bool], scratch: Path) -> int:
    """Exit status. A stop request becomes one SIGTERM; nothing of the process is left afterwards, whatever happens."""
    asked = False
    try:
        while process.poll() is None:
            if should_stop() and not asked:
                asked = True
                process.send_signal(signal.SIGTERM)
            time.sleep(POLL_SECONDS)
        return process.returncode
    finally:
        end_family(process, scratch)


def family(scratch: Path) -> list[psutil.Process]:
    """Every process that was started, by whomever, with this scratch folder in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(SCRATCH) == str(scratch):
                found.append(process)
        except psutil.Error:
            continue  # it has just ended, or is another user's
    return found


def end_family(process: subprocess.Popen[bytes], scratch: Path) -> None:
    """End a process and all that comes from it, also what hangs in sessions of its own by now."""
    if process.poll() is None:
        process.kill()
        process.wait()
    _, left = psutil.wait_procs(family(scratch), timeout=GRACE_SECONDS)  # Ray's follow by themselves, mostly
    for one in {*left, *family(scratch)}:
        _log.info("ending process %d, which verl left behind", one.pid)
        try:
            one.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(left, timeout=GRACE_SECONDS)
