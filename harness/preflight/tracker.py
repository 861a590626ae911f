"""Can records be copied to the tracker? A file is opened for writing; a server is written to by a process apart."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.errors import ConfigError
from harness.folders import check_writable
from harness.launch.snapshot import environment as import_paths
from harness.preflight.findings import OK, WARNING, Finding, Scope
from harness.redaction import redact
from harness.tracking_marks import sqlite_path
from harness.tracking_schema import BROKEN, NEW, schema_state
from harness.tracking_target import Target, target_of

KEEP_SECONDS = 600.0  # a server that was written to is not asked again for so long
PROBE_SECONDS = 90.0
_FIX = "runs lose nothing meanwhile: they keep their records, and do=sync copies them later; or tracking=none"


def tracking(scope: Scope, *, ask_server: bool = True) -> Iterator[Finding]:
    """Whether the store can be written to. Trouble is a warning: no run depends on it."""
    plan = scope.plan
    target = target_of(plan.command.tracking, plan.out, plan.sweep.name)
    if target is None:
        yield scope.finding(OK, None, "tracking.enabled", "false", "records are copied nowhere")
        return
    path = sqlite_path(target.uri)
    if path is not None:
        wrong = _file_problem(path)
        said = f"{target.shown} can be written to" if wrong is None else wrong
        yield _finding(scope, target, wrong is None, said)
    elif ask_server:
        scope.say(f"tracking: {target.shown}")
        wrong = _server_problem(scope, target)
        said = f"{target.shown} takes records of experiment {target.experiment}" if wrong is None else wrong
        yield _finding(scope, target, wrong is None, said)


def _finding(scope: Scope, target: Target, fine: bool, said: str) -> Finding:
    origin = target.origin if target.origin.startswith("$") else ""
    made = scope.finding(OK if fine else WARNING, None, "tracking.uri", target.shown, said, "" if fine else _FIX)
    return made if not origin else Finding(made.status, made.key, made.value, origin, made.said, made.fix)


def _file_problem(path: Path) -> str | None:
    try:
        check_writable(path.parent, "tracking.uri", "", 0.0)
        state = schema_state(path)
        if state == BROKEN:
            return f"{path} is no whole MLflow store; move it away, and a new one is made from the run folders"
        if state != NEW:
            with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
    except ConfigError as error:
        return error.problems[0].fix
    except (sqlite3.Error, OSError) as error:
        return f"{path} cannot be written to: {error}"
    return None


def _server_problem(scope: Scope, target: Target) -> str | None:
    content = [target.shown, target.experiment]
    if scope.cache.get("tracker", content, KEEP_SECONDS) is not None:
        return None
    order = json.dumps({"uri": target.uri, "experiment": target.experiment, "folder": str(scope.out)})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.preflight.tracker"],
            env={**os.environ, **import_paths()},
            input=order,  # not an argument: an address may hold a password
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{target.shown} did not answer within {PROBE_SECONDS:g} s"
    except OSError as error:
        return f"the check could not be started: {error}"
    if done.returncode == 0:
        scope.cache.put("tracker", content, {"writable": True})
        return None
    said = redact(done.stdout).strip() or f"the check ended with status {done.returncode}"
    return f"{target.shown} does not take records: {said[:400]}"


def main() -> int:
    """Write a tag to the experiment that is described on standard input; what goes wrong is said on standard output."""
    import time

    order = json.loads(sys.stdin.read())
    from harness.tracking import quiet

    quiet()
    try:
        from harness.tracking_store import Store

        store = Store(order["uri"], order["experiment"], Path(order["folder"]))
        store.client.set_experiment_tag(store.experiment_id, "harness.preflight", f"{time.time():.0f}")
    except Exception as error:  # whatever it is, it is the answer
        print(redact(f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
