"""What the command line does with a search: do=run | plan | status | tables. Returns the exit status."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.cli import GO_ON, INCOMPLETE, INTERRUPTED, OK
from harness.commandline import CommandLine
from harness.compose import Composer
from harness.config import TuneConfig
from harness.errors import ConfigError, Problem
from harness.files import RecordError
from harness.folders import check_writable
from harness.plan import Plan
from harness.report import cell_label
from harness.tune.results import progress, space_lines, study_page, write_results
from harness.tune.searches import searches_of
from harness.tune.study import Study
from harness.tune.trials import Trials
from harness.worker import DEFAULT_ENTRY

FOLDER = "studies"  # below the results of the sweep


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def act(plan: Plan, tune: TuneConfig, composer: Composer, command: CommandLine, entry: str = DEFAULT_ENTRY) -> int:
    """Do with a search what the command line says. entry: what executes a run. Raises ConfigError."""
    trials = Trials(composer, command, plan)
    folder = plan.results / FOLDER
    studies = [Study(search, tune, folder) for search in searches_of(plan, tune, command, trials)]
    actions: dict[str, Callable[[], int]] = {
        "run": lambda: run(plan, tune, studies, trials, command, entry),
        "plan": lambda: show_plan(plan, studies),
        "status": lambda: status(plan, studies, command),
        "tables": lambda: tables(plan, studies, command),
        "sync": lambda: sync(plan, studies),
    }
    if command.do not in actions:
        fix = f"has no meaning for a search; use one of {', '.join(actions)}"
        raise ConfigError(Problem("do", command.do, "command line", fix))
    return actions[command.do]()


def show_plan(plan: Plan, studies: Sequence[Study]) -> int:
    """The space of each search, what is done of it and what the rest is expected to cost. Starts nothing."""
    print(f"{plan.title}: {len(studies)} search{'es' if len(studies) != 1 else ''}, on the panel validation alone")
    for study in studies:
        search = study.search
        left = study.tune.trials - sum(entry.state in ("COMPLETE", "PRUNED", "FAIL") for entry in study.entries())
        cell = next(c for c in plan.cells if c.point == search.points[0])
        seconds = cell.expected_seconds
        hours = "unknown" if seconds is None else f"at most {left * len(search.seeds) * seconds / 3600:.2f} hours"
        print(f"\n{search.label}: {search.place}")
        print("\n".join(f"  {line.removeprefix('- ')}" for line in space_lines(study)))
        print(f"  {progress(study)}; expected CPU time: {hours}")
        print(f"  study {search.name} in {study.journal}")
    return OK


def status(plan: Plan, studies: Sequence[Study], command: CommandLine) -> int:
    """Every trial as it stands. Only reads."""
    print("\n".join(study_page(study, command) for study in studies))
    return _exit(studies)


def tables(plan: Plan, studies: Sequence[Study], command: CommandLine) -> int:
    """Write and print what is found."""
    _print(plan, studies, command)
    return _exit(studies)


def sync(plan: Plan, studies: Sequence[Study]) -> int:
    """Copy the runs of all trials to the tracker."""
    from harness import actions_sync

    return actions_sync.sync(_with_trials(plan, studies))


def run(
    plan: Plan, tune: TuneConfig, studies: Sequence[Study], trials: Trials, command: CommandLine, entry: str
) -> int:
    """Run trials until each study has as many as it should have, then write and print what is found."""
    runtime, launcher = plan.command.runtime, plan.command.launcher.name
    if launcher != "local":
        fix = (
            "a search runs with launcher=local; several commands share one study, so that on a cluster several jobs "
            "may each be this command with launcher=local"
        )
        raise ConfigError(Problem("launcher", launcher, "", fix))
    check_writable(plan.out, "runtime.out", "command line or sweeps/config.yaml", runtime.min_free_gb)
    (plan.results / FOLDER).mkdir(parents=True, exist_ok=True)
    try:
        left = sum(study.to_do() for study in studies)
        stopped = _work(plan, tune, studies, trials, entry) if left else False
        if not left:
            say(f"{plan.title}: all {tune.trials} trials of {len(studies)} searches are done, nothing to run")
    except RecordError as error:
        say(f"error: {error}; {GO_ON}")
        return INCOMPLETE
    if stopped:
        say(f"stopped; {GO_ON}")
        return INTERRUPTED
    from harness.actions_sync import track

    track(_with_trials(plan, studies), say)
    _print(plan, studies, command)
    return _exit(studies)


def _work(plan: Plan, tune: TuneConfig, studies: Sequence[Study], trials: Trials, entry: str) -> bool:
    """Whether the user stopped it."""
    from harness.progress import Progress
    from harness.tune.loop import Loop
    from harness.tune.pool import LocalPool

    _prepare(plan, studies)
    labels = {cell.fingerprint: cell_label(plan, cell) for cell in plan.cells}
    with Progress(labels) as show:
        pool = LocalPool(plan.command.launcher.workers, show, entry)
        parallel = tune.parallel or max(1, math.ceil(pool.workers / len(studies[0].search.seeds)))
        with pool.working():
            finished = Loop(studies, trials, pool, plan.runs, parallel, show.message).run()
    return not finished


def _prepare(plan: Plan, studies: Sequence[Study]) -> None:
    """Games and backbones, made once before any run. Raises ConfigError, RecordError."""
    from harness.prepare import check_cache, prepare

    for study in studies:
        cell = next(c for c in plan.cells if c.point == study.search.points[0])
        check_cache(cell.config)
        try:
            prepare(cell.config, say)
        except (OSError, ImportError, ValueError, RuntimeError) as error:
            if isinstance(error, RecordError) or cell.config.runtime.log_level == "DEBUG":
                raise
            where = f"env={cell.config.env.name} and backbone={cell.config.backbone.name}"
            raise RecordError(f"cannot prepare {where}: {type(error).__name__}: {error}") from error


def _with_trials(plan: Plan, studies: Sequence[Study]) -> Plan:
    """The plan with the runs of all trials as its cells, for the tracker, which needs their names only."""
    first = plan.cells[0]
    names = dict.fromkeys(n for study in studies for entry in study.entries() for n in entry.fingerprints)
    return replace(plan, cells=tuple(replace(first, fingerprint=name) for name in names))


def _print(plan: Plan, studies: Sequence[Study], command: CommandLine) -> None:
    written = write_results(plan.results, studies, command, plan.title)
    print(written["text"])
    print(f"wrote {', '.join(_shown(written[kind]) for kind in ('md', 'csv', 'jsonl'))}", flush=True)


def _exit(studies: Sequence[Study]) -> int:
    """0 if every trial of every study ended, and none failed."""
    done = True
    for study in studies:
        states = [entry.state for entry in study.entries()]
        if failed := states.count("FAIL"):
            say(f"{study.search.place}: {failed} trials failed; the table says why")
        done &= not failed and sum(s in ("COMPLETE", "PRUNED") for s in states) >= study.tune.trials
    return OK if done else INCOMPLETE


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
