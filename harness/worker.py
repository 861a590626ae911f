"""One run in one process: `python -m harness.worker <run_dir>`.

Claims the run, limits threads, logs to the run's log.txt, executes it and turns the outcome into a recorded state.
SIGTERM, SIGINT, SIGUSR2, SIGHUP and the death of the process given by `--parent` ask it to stop at a step boundary.

Exit status: 0 complete, 3 failed, 4 interrupted, 5 held by somebody else, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import logging
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

from harness import attempts
from harness.claim import Claim
from harness.config import RunConfig
from harness.files import RecordError
from harness.owner import Owner
from harness.record import RunDirectory, declared_evaluations, planned_steps
from harness.redaction import RedactingFormatter, redact
from harness.states import COMPLETE, FAILED, INTERRUPTED, RUNNING, Interrupted, classify, missing_for_completeness
from harness.stopping import stop_requested

EXIT_COMPLETE, EXIT_USAGE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_HELD = 0, 2, 3, 4, 5
DEFAULT_ENTRY = "harness.run:execute"
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP)
PARENT_POLL_SECONDS = 1.0

Entry = Callable[[RunDirectory, Callable[[], bool]], None]

_log = logging.getLogger("harness.worker")


class StopRequest:
    """Whether, and why, the run should stop at its next step boundary. Calling it asks.

    received: signal -> unix seconds of its first arrival.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason: str | None = None
        self.received: dict[str, float] = {}
        self._folder: Path | None = None
        self._claim: Claim | None = None

    def __call__(self) -> bool:
        if not self._event.is_set() and (other := self.successor()) is not None:
            self.ask(f"process {other.pid} on {other.host} took the run over")
        if self._folder is not None and not self._event.is_set() and (reason := stop_requested(self._folder)):
            self.ask(reason)
        return self._event.is_set()

    def look_in(self, run_dir: Path) -> None:
        """Also obey requests that somebody leaves in the run's folder (harness.stopping)."""
        self._folder = run_dir

    def guard(self, claim: Claim) -> None:
        """Also stop when somebody else took the run over, because this process was thought dead: a machine that was
        cut off, and whose job the scheduler started again elsewhere."""
        self._claim = claim

    def successor(self) -> Owner | None:
        """Who took the run over; None if nobody did."""
        return self._claim.successor() if self._claim is not None else None

    def ask(self, reason: str) -> None:
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def install(self) -> None:
        """Route the stop signals here. A second SIGINT ends a run that does not reach a boundary."""

        def handler(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGINT and self._event.is_set():
                raise KeyboardInterrupt
            name = signal.Signals(number).name
            self.received.setdefault(name, time.time())
            self.ask(name)

        for number in STOP_SIGNALS:
            signal.signal(number, handler)

    def watch_parent(self, parent: int, poll: float = PARENT_POLL_SECONDS) -> None:
        """Ask to stop when `parent` is no longer the parent of this process."""

        def watch() -> None:
            while not self._event.wait(poll):
                if os.getppid() != parent:
                    _log.warning("the launcher (process %d) is gone; stopping at the next step boundary", parent)
                    self.ask("the launcher died")

        threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def limit_threads(threads: int) -> None:
    """Must run before numpy or torch are imported: their thread pools read the environment once."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def load_entry(name: str) -> tuple[Entry, tuple[type[BaseException], ...]]:
    """`module:function`, and the exceptions by which it says that it stopped because it was asked to."""
    module_name, _, function = name.partition(":")
    module = importlib.import_module(module_name)
    entry: Entry = getattr(module, function)
    own = getattr(module, "Interrupted", Interrupted)
    return entry, (Interrupted, own, KeyboardInterrupt)


def start_logging(path: Path, level: str) -> TextIO:
    """Log to `path` (appending), and to the terminal if there is one. Returns the file, for faulthandler."""
    file = path.open("a", encoding="utf-8", buffering=1)
    handlers: list[logging.Handler] = [logging.StreamHandler(file)]
    if sys.stderr.isatty():
        handlers.append(logging.StreamHandler(sys.stderr))
    formatter = RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in handlers:
        handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=handlers, force=True)
    logging.captureWarnings(True)
    faulthandler.enable(file)
    return file


def refusal(run: RunDirectory, retry_after: int | None) -> int | None:
    """Exit status if the claimed run needs no work: complete already, or failed and not to be tried again."""
    state = run.state_without_claim()
    if state.state == COMPLETE:
        return EXIT_COMPLETE
    if state.state == FAILED and (retry_after is None or attempts.count(run.path) > retry_after):
        return EXIT_FAILED
    return None


def perform(run: RunDirectory, config: RunConfig, entry_name: str, stop: StopRequest) -> int:
    """One attempt at a claimed run. Returns the exit status; the state is recorded."""
    attempt = attempts.begin(run.path, platform.node(), run.stored_state().last_step)
    try:
        run.write_state(state=RUNNING, planned_steps=planned_steps(config), declared=declared_evaluations(config))
        run.spool.event("attempt_started", attempt=attempt.number, host=platform.node(), pid=os.getpid())
        _log.info("attempt %d of %s (process %d)", attempt.number, run.fingerprint, os.getpid())
        _compare_code(run, attempt)
        outcome, error, failure_class = _execute(run, config, entry_name, stop)
    except Exception as failure:  # the records themselves failed; say so as well as is still possible
        _log.exception("cannot record the attempt")
        outcome, error, failure_class = FAILED, redact(f"{type(failure).__name__}: {failure}"), classify(failure)
    if (other := stop.successor()) is not None:  # the records are that one's now
        _log.error("process %d on %s took the run over; not recorded: %s (%s)", other.pid, other.host, outcome, error)
        return EXIT_HELD
    return _finish(run, attempt, outcome, error, failure_class)


def _compare_code(run: RunDirectory, attempt: attempts.Attempt) -> None:
    """Note when the code is not the one that the run was planned with: its numbers then have two sources."""
    planned, now = (run.provenance().get("git"), attempt.content["git"])
    if planned != now:
        run.spool.event("code_changed", planned=planned, now=now)
        _log.warning("the code changed since the run was created: planned %s, now %s", planned, now)


def _execute(
    run: RunDirectory, config: RunConfig, entry_name: str, stop: StopRequest
) -> tuple[str, str | None, str | None]:
    """(state, error, failure class) in which the attempt ended."""
    stopped: tuple[type[BaseException], ...] = (Interrupted, KeyboardInterrupt)
    try:
        entry, stopped = load_entry(entry_name)  # seconds: the first import of torch
        if stop():
            return INTERRUPTED, f"stopped before it began: {stop.reason}", None
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(config.runtime.threads)
        entry(run, stop)
    except stopped as interruption:
        reason = stop.reason or str(interruption) or type(interruption).__name__
        return INTERRUPTED, redact(f"stopped at a step boundary: {reason}"), None
    except SystemExit as leaving:
        return FAILED, f"the code called sys.exit({leaving.code!r}) in mid-run", "crash"
    except Exception as failure:
        _log.exception("the run failed")
        text = "".join(traceback.format_exception_only(failure)).strip()
        if stop():  # whoever sends signals sends them to what the run has started, too: no verdict on the run
            return INTERRUPTED, redact(f"stopped by {stop.reason}, and not at a step boundary: {text}"), None
        return FAILED, redact(text), classify(failure)
    state = run.stored_state()
    if state.state == FAILED:  # it judged itself
        return FAILED, state.error, state.failure_class
    if lacks := missing_for_completeness(state):
        return FAILED, f"it ended without an error, but {'; '.join(lacks)}", "incomplete"
    return COMPLETE, None, None


def _finish(
    run: RunDirectory, attempt: attempts.Attempt, outcome: str, error: str | None, failure_class: str | None
) -> int:
    last_step = 0
    try:
        last_step = run.write_state(state=outcome, error=error, failure_class=failure_class).last_step
        data = {"attempt": attempt.number, "outcome": outcome, "error": error, "failure_class": failure_class}
        run.spool.event("attempt_finished", **data)
        run.spool.close()
        attempt.finish(outcome, last_step, error, failure_class)
    except RecordError as problem:
        # Nothing can be written any more. The claim goes with the process, so the run reads as interrupted.
        _log.error("the outcome (%s: %s) cannot be recorded: %s", outcome, error, problem)
        return EXIT_COMPLETE if run.state_without_claim().state == COMPLETE else EXIT_FAILED
    _log.info("attempt %d: %s%s", attempt.number, outcome, f" ({error})" if error else "")
    return {COMPLETE: EXIT_COMPLETE, INTERRUPTED: EXIT_INTERRUPTED}.get(outcome, EXIT_FAILED)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.worker", description=__doc__.partition("\n")[0])
    parser.add_argument("run_dir", type=Path, help="the run directory")
    parser.add_argument("--entry", default=DEFAULT_ENTRY, metavar="MODULE:FUNCTION", help="what executes the run")
    parser.add_argument("--parent", type=int, metavar="PID", help="stop at a step boundary when this parent is gone")
    parser.add_argument(
        "--retry-after", type=int, metavar="N", help="work on a failed run too, unless it had more than N attempts"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    stop = StopRequest()
    stop.install()
    if options.parent is not None:
        stop.watch_parent(options.parent)
    return serve(RunDirectory(options.run_dir), options.entry, stop, options.retry_after)


def serve(run: RunDirectory, entry_name: str, stop: StopRequest, retry_after: int | None = None) -> int:
    """Claim the run and perform one attempt, if it needs one. Returns the exit status."""
    try:
        claim = run.claim()
        if claim is None:
            print(f"{run.path}: {run.claim_status().reason}", file=sys.stderr)
            return EXIT_HELD
        with claim:
            stop.look_in(run.path)
            stop.guard(claim)
            status = refusal(run, retry_after)
            return work(run, entry_name, stop) if status is None else status
    except (RecordError, OSError) as error:
        print(redact(f"{run.path}: {error}"), file=sys.stderr)
        return EXIT_FAILED


def work(run: RunDirectory, entry_name: str, stop: StopRequest) -> int:
    """Prepare this process for the claimed run and perform one attempt."""
    try:
        config = run.load_config()
    except RecordError as error:
        run.write_state(state=FAILED, error=redact(str(error)), failure_class="config")
        raise
    limit_threads(config.runtime.threads)
    with start_logging(run.log_path, config.runtime.log_level):
        try:
            return perform(run, config, entry_name, stop)
        finally:  # the file closes here: nothing may write to it later
            faulthandler.disable()
            logging.basicConfig(level=logging.WARNING, force=True)


if __name__ == "__main__":
    sys.exit(main())
