"""What the command line does with a search: run, retry, plan, status, tables, sync, cancel; returns the exit status."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.actions_common import PreparationError, check_before_submitting
from harness.cli import GO_ON, INCOMPLETE, INTERRUPTED, OK
from harness.commandline import CommandLine
from harness.compose import Composer
from harness.config import TuneConfig
from harness.errors import ConfigError, Problem
from harness.files import RecordError
from harness.folders import check_writable
from harness.launch import script
from harness.launch.shapes import shape_of
from harness.plan import Plan, missing, states
from harness.report import cell_label
from harness.tune.results import progress, space_lines, study_page, write_results
from harness.tune.searches import searches_of
from harness.tune.study import ENDED, Study
from harness.tune.trials import Trials
from harness.tune.upcoming import jobs_of, left, under_way
from harness.worker import DEFAULT_ENTRY

if TYPE_CHECKING:
    from harness.progress import Progress
    from harness.tune.jobs import JobPool
    from harness.tune.pool import LocalPool

FOLDER = "studies"  # below the results of the sweep
SLURM = "slurm"
JOBS_GO_ON = "the jobs go on, and the same command takes their trials up again; do=cancel ends them"
AT_ONCE = 4  # trials, where neither the search nor the launcher says how many; the sampler knows less of more


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def act(plan: Plan, tune: TuneConfig, composer: Composer, command: CommandLine, entry: str = DEFAULT_ENTRY) -> int:
    """Do with a search what the command line says. entry: what executes a run. Raises ConfigError."""
    trials = Trials(composer, command, plan)
    folder = plan.results / FOLDER
    studies = [Study(search, tune, folder) for search in searches_of(plan, tune, command, trials)]
    actions: dict[str, Callable[[], int]] = {
        "run": lambda: run(plan, tune, studies, trials, command, entry),
        "retry": lambda: run(plan, tune, studies, trials, command, entry, retry=True),
        "plan": lambda: show_plan(plan, studies, trials),
        "status": lambda: status(plan, studies, trials, command),
        "tables": lambda: tables(plan, studies, command),
        "sync": lambda: sync(plan, studies),
        "cancel": lambda: cancel(plan, studies, trials),
    }
    if command.do not in actions:
        fix = f"has no meaning for a search; use one of {', '.join(actions)}"
        raise ConfigError(Problem("do", command.do, "command line", fix))
    return actions[command.do]()


def show_plan(plan: Plan, studies: Sequence[Study], trials: Trials) -> int:
    """The space of each search, what is done of it and what the rest may cost, and its jobs. Starts nothing."""
    print(f"{plan.title}: {len(studies)} search{'es' if len(studies) != 1 else ''}, on the panel validation alone")
    for study in studies:
        search = study.search
        to_do = study.tune.trials - sum(entry.state in ENDED and not entry.retried for entry in study.entries())
        cell = next(c for c in plan.cells if c.point == search.points[0])
        seconds = cell.expected_seconds
        hours = "unknown" if seconds is None else f"at most {to_do * len(search.seeds) * seconds / 3600:.2f} hours"
        print(f"\n{search.label}: {search.place}")
        print("\n".join(f"  {line.removeprefix('- ')}" for line in space_lines(study)))
        print(f"  {progress(study)}; expected CPU time: {hours}")
        print(f"  study {search.name} in {study.journal}")
    if plan.command.launcher.name == SLURM:
        from harness import actions_slurm

        coming = left(plan, studies, trials)
        print("\njobs of all runs that are left, which a search submits trial by trial:")
        print(actions_slurm.jobs(coming, missing(coming, states(coming))))
    return OK


def status(plan: Plan, studies: Sequence[Study], trials: Trials, command: CommandLine) -> int:
    """Every trial as it stands, and the jobs of those under way. Only reads."""
    print("\n".join(study_page(study, command) for study in studies))
    for line in jobs_of(under_way(plan, studies, trials)):
        print(line)
    return _exit(studies)


def cancel(plan: Plan, studies: Sequence[Study], trials: Trials) -> int:
    """End the jobs of the trials under way, which then go on with the next do=run."""
    from harness import actions_slurm

    return actions_slurm.cancel(under_way(plan, studies, trials))


def tables(plan: Plan, studies: Sequence[Study], command: CommandLine) -> int:
    """Write and print what is found."""
    _print(plan, studies, command)
    return _exit(studies)


def sync(plan: Plan, studies: Sequence[Study]) -> int:
    """Copy the runs of all trials to the tracker."""
    from harness import actions_sync

    return actions_sync.sync(_with_trials(plan, studies))


def run(
    plan: Plan,
    tune: TuneConfig,
    studies: Sequence[Study],
    trials: Trials,
    command: CommandLine,
    entry: str,
    retry: bool = False,
) -> int:
    """Run trials until each study has as many as it should have, then write and print what is found.

    retry: trials that failed are done once more, with the same parameters, and so are runs that failed. With
    launcher=slurm their runs are jobs, and the command stays all the same: it has to ask and to tell.
    """
    runtime, jobs = plan.command.runtime, plan.command.launcher.name == SLURM
    if jobs and (wrong := script.problems(plan.command.launcher, plan.out)):
        raise ConfigError(wrong)
    check_writable(plan.out, "runtime.out", plan.out_origin, runtime.min_free_gb)
    (plan.results / FOLDER).mkdir(parents=True, exist_ok=True)
    try:
        if retry and (failed := sum(study.retry() for study in studies)):
            say(f"{failed} trials that failed are done once more")
        to_do = sum(study.to_do() for study in studies)
        stopped = _work(plan, tune, studies, trials, entry, retry) if to_do else False
        if not to_do:
            say(f"{plan.title}: all {tune.trials} trials of {len(studies)} searches are done, nothing to run")
    except RecordError as error:
        say(f"error: {error}; {GO_ON}")
        return INCOMPLETE
    except PreparationError as error:
        say(f"error: {error}")
        return INCOMPLETE
    if stopped:
        say(f"stopped; {JOBS_GO_ON if jobs else GO_ON}")
        return INTERRUPTED
    from harness.actions_sync import track

    track(_with_trials(plan, studies), say)
    _print(plan, studies, command)
    return _exit(studies)


def _work(plan: Plan, tune: TuneConfig, studies: Sequence[Study], trials: Trials, entry: str, retry: bool) -> bool:
    """Whether the user stopped it."""
    from harness.progress import Progress
    from harness.tune.loop import Loop

    if plan.command.launcher.name == SLURM:
        coming = left(plan, studies, trials)
        todo = missing(coming, states(coming))
        check_before_submitting(coming, todo, any(shape_of(cell.config).gpus for cell in todo))
    _prepare(plan, studies)
    labels = {cell.fingerprint: cell_label(plan, cell) for cell in plan.cells}
    with Progress(labels) as show:
        pool, at_once = _pool(plan, show, entry, retry)
        parallel = tune.parallel or (max(1, math.ceil(at_once / len(studies[0].search.seeds))) if at_once else AT_ONCE)
        with pool.working():
            try:
                return not Loop(studies, trials, pool, plan.runs, parallel, show.message).run()
            except KeyboardInterrupt:  # a second Ctrl-C
                return True


def _pool(plan: Plan, show: Progress, entry: str, retry: bool) -> tuple[LocalPool | JobPool, int]:
    """What executes runs, and how many the launcher gives at a time; 0 if it does not say."""
    from harness.tune.jobs import JobPool
    from harness.tune.pool import LocalPool

    launcher = plan.command.launcher
    if launcher.name == SLURM:
        return JobPool(launcher, plan.runs, plan.sweep.name, show, entry, retry=retry), launcher.parallel
    pool = LocalPool(launcher.workers, show, entry)
    return pool, pool.workers


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
        states = [entry.state for entry in study.entries() if not entry.retried]
        if failed := states.count("FAIL"):
            say(f"{study.search.place}: {failed} trials failed; the table says why")
        done &= not failed and sum(s in ("COMPLETE", "PRUNED") for s in states) >= study.tune.trials
    return OK if done else INCOMPLETE


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
