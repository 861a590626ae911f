"""Workers forked from one process that has imported everything: starting a run costs milliseconds, not seconds.

    python -m harness.launch.nursery [--preload MODULE]

The launcher writes one JSON object per line to its standard input, {"id": k, "log": path, "arguments": [...]}
(arguments of harness.worker, but for --parent); it answers on standard output {"id": k, "pid": p} when the worker is
forked and {"id": k, "code": c} when it has ended (c < 0: by signal -c). A worker has a session of its own, its output
goes to the log, and its parent is this process: when the launcher dies, standard input ends, this process leaves, and
the workers see that their parent is gone and stop at their next step boundary.

This process itself imports and waits; it runs nothing of a run, so that what it has in memory is the same for each.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.launch.snapshot import environment as import_paths
from harness.worker import EXIT_FAILED, EXIT_HELD, THREAD_VARIABLES

POLL_SECONDS = 0.1


# ------------------------------------------------------------------------------------------------- the launcher's side
class Worker:
    """A worker as the launcher sees it. code: its exit status once it has ended (negative: by that signal)."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid: int | None = None
        self.code: int | None = None
        self._wanted: signal.Signals | None = None  # sent as soon as there is a process

    def forked(self, pid: int) -> None:
        self.pid = pid
        if self._wanted is not None:
            self._send(self._wanted)

    def terminate(self) -> None:
        """Ask to stop at the next step boundary."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it and whatever it started."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.code is not None:
            return
        if self.pid is None:
            self._wanted = number
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if number == signal.SIGKILL else os.kill)(self.pid, number)


class Nursery:
    """Starts workers. Made lazily, and again if its process died.

    entry: `module:function` that the workers execute; its module is what is imported beforehand.
    """

    def __init__(self, entry: str) -> None:
        self._preload = entry.partition(":")[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, Worker] = {}
        self._unread = b""
        self._count = 0

    def start(self, arguments: Sequence[str], log: Path) -> Worker:
        """A worker with these arguments of harness.worker. Raises OSError if none can be started."""
        process = self._running(log)
        assert process.stdin is not None
        self._count += 1
        order = {"id": self._count, "log": str(log), "arguments": list(arguments)}
        with contextlib.suppress(BrokenPipeError):  # it died meanwhile: `listen` finds out
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        self._workers[self._count] = Worker(self._count)
        return self._workers[self._count]

    def listen(self) -> None:
        """Take in what the process has reported, without waiting."""
        process = self._process
        if process is None or process.stdout is None:
            return
        while select.select([process.stdout], [], [], 0)[0]:
            read = os.read(process.stdout.fileno(), 65536)
            if not read:
                self._died(process)
                return
            *lines, self._unread = (self._unread + read).split(b"\n")
            for line in lines:
                report = json.loads(line)
                worker = self._workers[report["id"]]
                if "pid" in report:
                    worker.forked(report["pid"])
                else:
                    worker.code = report["code"]
                    del self._workers[worker.number]

    def wait(self) -> None:
        """Until every worker has ended."""
        while self._workers:
            self.listen()
            if self._process is not None and self._process.stdout is not None:
                select.select([self._process.stdout], [], [], POLL_SECONDS)

    def close(self) -> None:
        """Let the process go. Workers that still run stop at their next step boundary."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def _died(self, process: subprocess.Popen[bytes]) -> None:
        """Workers that it had forked see it as well and stop; until then they hold their runs. Others never were."""
        code = process.wait()
        self._process, self._unread = None, b""
        for worker in self._workers.values():
            worker.code = code if worker.pid is None else EXIT_HELD
        self._workers.clear()

    def _running(self, log: Path) -> subprocess.Popen[bytes]:
        """The process, started now if there is none; what goes wrong before it forks anything is said in `log`."""
        if self._process is None:
            environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONUNBUFFERED": "1"}
            environment.setdefault("PYTHONHASHSEED", "0")
            environment.setdefault("TOKENIZERS_PARALLELISM", "false")
            environment |= import_paths()
            # A session of its own: Ctrl-C in the terminal reaches the launcher only.
            with log.open("ab") as complaints:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "harness.launch.nursery", "--preload", self._preload],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    env=environment,
                    start_new_session=True,
                )
        return self._process


# -------------------------------------------------------------------------------------------------- the process's side
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.launch.nursery", description=__doc__.partition("\n")[0])
    parser.add_argument("--preload", metavar="MODULE", help="imported before any worker is forked")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher decides; it leaves by closing the pipe
    if options.preload:
        # An entry that cannot be imported fails in its worker, where the failure is recorded.
        with contextlib.suppress(ImportError):
            importlib.import_module(options.preload)
    unread = b""
    children: dict[int, int] = {}  # pid -> id
    while True:
        if select.select([0], [], [], POLL_SECONDS)[0]:
            read = os.read(0, 65536)
            if not read:
                return 0
            *lines, unread = (unread + read).split(b"\n")
            for line in lines:
                order = json.loads(line)
                children[_fork(order)] = order["id"]
        _report_ends(children)


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        code = EXIT_FAILED
        try:
            code = _become_worker(order)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else EXIT_FAILED
        except BaseException:  # this copy of the process must not go on as a second nursery
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    _tell({"id": order["id"], "pid": pid})
    return pid


def _become_worker(order: dict[str, Any]) -> int:
    from harness import worker

    parent = os.getppid()
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    arguments = [*order["arguments"], "--parent", str(parent)]
    sys.argv = ["harness.worker", *arguments]
    return worker.main(arguments)


def _report_ends(children: dict[int, int]) -> None:
    """Tell of each child that has ended. What it left running is killed before its number is free again."""
    for pid in sorted(children):
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        _tell({"id": children.pop(pid), "code": code})


def _tell(report: dict[str, int]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the launcher is gone: the next look at standard input says so
        os.write(1, json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
