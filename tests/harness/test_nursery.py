"""The process that workers are forked from: what it imports, how it reports, what happens when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.launch.nursery import Nursery, Worker
from harness.worker import EXIT_HELD, EXIT_USAGE

SECONDS = 60.0


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery("harness.run:execute")
    yield made
    made.close()


def until(nursery: Nursery, met: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < end, "the nursery did not do it"
        nursery.listen()
        time.sleep(0.02)


def ended(nursery: Nursery, worker: Worker) -> int:
    until(nursery, lambda: worker.code is not None)
    assert worker.code is not None
    return worker.code


def test_a_workers_status_and_output_are_its_own(nursery: Nursery, tmp_path: Path) -> None:
    log = tmp_path / "log with space.txt"
    wrong = nursery.start(["--no-such-option"], log)
    lost = nursery.start([str(tmp_path / "nothing")], tmp_path / "other.txt")
    assert ended(nursery, wrong) == EXIT_USAGE and "required: run_dir" in log.read_text()
    assert ended(nursery, lost) not in (0, EXIT_USAGE)
    assert wrong.pid is not None and wrong.pid != lost.pid


def test_what_a_run_needs_is_imported_once_and_no_thread_is_forked_away() -> None:
    look = (
        "import importlib, sys, threading; from pathlib import Path; importlib.import_module('harness.run');"
        "tasks = Path('/proc/self/task').iterdir(); print('torch' in sys.modules, threading.active_count());"
        "print(*sorted((task / 'comm').read_text().strip() for task in tasks), sep=chr(10))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    told = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, env=environment, check=True)
    first, *threads = told.stdout.splitlines()
    assert first == "True 1"
    # the allocator of Arrow keeps a thread that tidies up, and takes care of forks itself
    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1


def test_workers_run_the_code_of_their_launcher_and_not_that_of_the_folder(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("harness", "harness/launch"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('the wrong code')\n")
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.txt"
    assert ended(nursery, nursery.start(["--no-such-option"], log)) == EXIT_USAGE, log.read_text()
    assert "the wrong code" not in log.read_text()


def test_a_nursery_that_dies_is_made_again(nursery: Nursery, tmp_path: Path) -> None:
    assert ended(nursery, nursery.start(["--no-such-option"], tmp_path / "log.txt")) == EXIT_USAGE
    assert nursery._process is not None
    first = nursery._process.pid
    os.kill(first, signal.SIGKILL)
    waiting = nursery.start(["--no-such-option"], tmp_path / "log.txt")
    assert ended(nursery, waiting) in (EXIT_USAGE, -signal.SIGKILL)  # forked before the end, or never
    assert ended(nursery, nursery.start(["--no-such-option"], tmp_path / "log.txt")) == EXIT_USAGE
    assert nursery._process is not None and nursery._process.pid != first


def test_a_running_worker_of_a_dead_nursery_holds_its_run(nursery: Nursery) -> None:
    worker, other = Worker(1), Worker(2)
    worker.forked(12345)
    nursery._workers = {1: worker, 2: other}
    nursery._died(subprocess.Popen(["false"]))
    assert (worker.code, other.code) == (EXIT_HELD, 1)


def test_a_request_to_stop_before_the_fork_reaches_the_worker() -> None:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    early = Worker(1)
    early.terminate()
    early.forked(child.pid)
    assert child.wait(timeout=SECONDS) == -signal.SIGTERM
    early.kill()  # nobody is there any more: nothing happens
