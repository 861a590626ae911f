"""The process that copies records into the tracker while runs work: one per command, whatever the number of runs.

The command tells it what to copy on its standard input (an address may hold a password, which arguments would show to
every user of the machine) and hears of each round on its standard output. It leaves when that input closes: when the
command is done with it, or has died. It runs apart, so that neither MLflow's memory nor a server that does not answer
is ever in the way of the runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.launch.snapshot import environment as import_paths
from harness.record import RunDirectory
from harness.redaction import redact
from harness.tracking_target import Target

LEAVE_SECONDS = 60.0  # for the run under way when the command ends


@contextlib.contextmanager
def importing(
    runs: Sequence[Path], target: Target | None, interval: float, say: Callable[[str], None]
) -> Iterator[None]:
    """Copy records of `runs` to `target` every `interval` seconds (0: never) while the body runs, beginning one
    interval from now. say: told when the tracker is lost, and when it is back. Trouble never leaves this function."""
    if target is None or interval <= 0 or not runs:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(
        target=_supervise, args=(list(runs), target, interval, say, done), name="tracking", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(LEAVE_SECONDS + 10)


def _supervise(
    runs: Sequence[Path], target: Target, interval: float, say: Callable[[str], None], done: threading.Event
) -> None:
    if done.wait(interval):  # a command of seconds needs no importer
        return
    try:
        process = _start(runs, target, interval)
    except OSError as error:
        say(f"warning: no importer could be started ({error}); records are copied at the end")
        return
    reader = threading.Thread(target=_listen, args=(process, target, say), name="tracking-reader", daemon=True)
    reader.start()
    while not done.wait(0.5) and process.poll() is None:
        pass
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(LEAVE_SECONDS)
    except subprocess.TimeoutExpired:  # a server that hangs; what it was told is told again later
        process.kill()
        process.wait()
    reader.join(5)


def _start(runs: Sequence[Path], target: Target, interval: float) -> subprocess.Popen[str]:
    order = {"runs": [str(run) for run in runs], "uri": target.uri, "experiment": target.experiment}
    # A session of its own: Ctrl-C in the terminal reaches the command only.
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.tracking_importer"],
        env={**os.environ, **import_paths()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what matters is in the reports
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps({**order, "interval": interval}) + "\n")
        process.stdin.flush()
    return process


def _listen(process: subprocess.Popen[str], target: Target, say: Callable[[str], None]) -> None:
    """Pass on what is new: the first round that failed, and the first that went well again."""
    assert process.stdout is not None
    lost = False
    with contextlib.suppress(ValueError):  # closed while it was read
        for line in process.stdout:
            problem = json.loads(line).get("problem")
            if problem and not lost:
                say(f"warning: {problem} (it is tried again while runs go on)")
            elif lost and not problem:
                say(f"tracking: {target.shown} is back, records are copied again")
            lost = bool(problem)


# ----------------------------------------------------------------------------------------------- the process's own side
def main() -> int:
    order = json.loads(sys.stdin.readline())
    reports = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no report
    os.nice(10)  # after the runs
    closed = threading.Event()

    def watch() -> None:
        while sys.stdin.read(4096):
            pass
        closed.set()

    threading.Thread(target=watch, name="stdin", daemon=True).start()
    while True:
        print(json.dumps(_round(order, closed.is_set)), file=reports)
        if closed.wait(float(order["interval"])):
            return 0


def _round(order: dict[str, object], should_stop: Callable[[], bool]) -> dict[str, object]:
    from harness import tracking

    listed = order["runs"]
    assert isinstance(listed, list)
    runs = [RunDirectory(Path(path)) for path in listed if Path(path).is_dir()]
    uri = str(order["uri"])
    try:
        report = tracking.sync(runs, uri, str(order["experiment"]), should_stop)
    except Exception as error:  # whatever a tracking service does: the next round tries again
        return {"imported": 0, "problem": redact(f"{redact(uri)}: {type(error).__name__}: {error}")}
    return {"imported": report.imported, "problem": report.problem}


if __name__ == "__main__":
    sys.exit(main())
