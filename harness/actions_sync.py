"""do=sync, and what other actions say to the tracker: copying records of a plan's cells into MLflow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import INCOMPLETE, OK
from harness.tracking_target import Target, target_of

if TYPE_CHECKING:
    from harness.plan import Plan

DEFAULT_SECONDS = 60.0  # between rounds of `do=sync wait=true` where tracking.interval=0


def plan_target(plan: Plan) -> Target | None:
    """Where the records of a plan's cells are copied to; None where tracking is off."""
    return target_of(plan.command.tracking, plan.out, plan.sweep.name)


def sync(plan: Plan) -> int:
    """Copy what the tracker lacks, once; with wait=true go on until every selected cell is complete (or Ctrl-C)."""
    from harness.plan import missing, states

    target = plan_target(plan)
    if target is None:
        print("tracking is off (tracking.enabled=false): nothing is copied")
        return OK
    interval = plan.command.tracking.interval or DEFAULT_SECONDS
    while True:
        finished = not missing(plan, states(plan))  # before copying: what ends meanwhile is copied by the next round
        problem = _once(plan, target)
        if not plan.command.wait or (finished and problem is None):
            return OK if problem is None else INCOMPLETE
        time.sleep(interval)


def _once(plan: Plan, target: Target) -> str | None:
    """Print how it went; returns the problem, None if everything is copied."""
    from harness import tracking
    from harness.record import RunDirectory
    from harness.redaction import redact

    runs = [RunDirectory(path) for path in _run_paths(plan) if path.is_dir()]
    try:
        report = tracking.sync(runs, target.uri, target.experiment, ask_server=True)
    except Exception as error:  # whatever a tracking service does, the records are safe
        problem: str | None = f"records were not copied to {target.shown}: {type(error).__name__}: {redact(str(error))}"
        imported, unchanged = 0, 0
    else:
        problem, imported, unchanged = report.problem, report.imported, report.unchanged
    place = f"{target.shown} ({target.origin}), experiment {target.experiment}"
    print(f"{imported} of {len(runs)} runs copied, {unchanged} had nothing new: {place}", flush=True)
    if problem:
        print(f"problem: {problem}", flush=True)
    return problem


def track(plan: Plan, say: Callable[[str], None]) -> None:
    """Copy records into the tracker, if it lacks any. An outage costs nothing: the next command catches up."""
    from harness.record import RunDirectory

    target = plan_target(plan)
    runs = [RunDirectory(path) for path in _run_paths(plan) if path.is_dir()]
    if target is None or not runs:
        return
    from harness import tracking
    from harness.redaction import redact

    try:
        if not tracking.needs_sync(runs, target.uri, target.experiment):
            return
        say(f"copying records to {target.shown}, experiment {target.experiment}")
        problem = tracking.sync(runs, target.uri, target.experiment, ask_server=True).problem
    except Exception as error:  # whatever a tracking service does, the records are safe
        problem = f"records were not copied to {target.shown}: {type(error).__name__}: {redact(str(error))}"
    if problem:
        say(f"warning: {problem} (the next command tries again)")


@contextmanager
def tracked(plan: Plan, say: Callable[[str], None]) -> Iterator[None]:
    """Records of the plan's cells are copied every tracking.interval seconds while the body runs."""
    from harness.tracking_importer import importing

    with importing(_run_paths(plan), plan_target(plan), plan.command.tracking.interval, say):
        yield


def _run_paths(plan: Plan) -> list[Path]:
    return [plan.runs / cell.fingerprint for cell in plan.cells]
