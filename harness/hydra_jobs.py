"""What the Hydra plugins do: a multirun's arguments, or the jobs of any sweeper, become a plan of the harness.

Whatever the application's configuration is, it must be that of the package `sweeps` or inherit from it
(`defaults: [config, _self_]`): only then do jobs mean runs. Everything is composed and validated here, in the parent.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cli import BAD_CONFIG, INCOMPLETE, OK, perform
from harness.commandline import SEARCHPATH, CommandLine, as_override, parse
from harness.compose import Composer, composer_over, render
from harness.config import CommandConfig
from harness.errors import ConfigError, Problem
from harness.files import RecordError
from harness.plan import Plan, build_plan
from harness.plan_checks import check_labels
from harness.schema import value
from harness.stages import Cell
from harness.states import COMPLETE, PENDING, RUNNING, SUBMITTED


def sweep(loader: Any, config: Any, launcher: Any, arguments: Sequence[str]) -> Any:
    """Do with a multirun's arguments what `python -m harness` does with them. For the plugin sweeper.

    loader, config: Hydra's configuration loader and master configuration. With a launcher of the harness the process
    leaves with the harness's exit status if that is not 0; another launcher gets the selected cells as overrides.
    """
    try:
        composer = _composer(loader, config)
        ours = getattr(launcher, "harness_launcher", "")
        command = _command(composer, [*arguments, *(launcher.arguments() if ours else [])], arguments)
        if not ours:
            return launcher.launch(_jobs_of(composer, command, launcher), initial_job_idx=0)
        code = perform(composer, command)
    except ConfigError as error:
        code = _refuse(error)
    except RecordError as error:
        code = _cannot_record(error)
    if code != OK:
        sys.exit(code)
    return None


def launch(loader: Any, config: Any, launcher: Any, job_overrides: Sequence[Sequence[str]]) -> list[Any]:
    """Run the jobs of any sweeper; a Hydra JobReturn for each. For the plugin launchers.

    A job is complete if its runs are, or have a job of the scheduler's that waits or runs; `return_value` is then the
    folder of its run. All others failed, those too that were never started, with the reason.
    """
    from hydra.core.utils import JobReturn, JobStatus

    from harness import actions
    from harness.actions_slurm import look

    try:
        composer = _composer(loader, config)
        plan, of_job = merged(composer, [[*job, *launcher.arguments()] for job in job_overrides])
        code = actions.run(plan)
        if code not in (OK, INCOMPLETE):
            sys.exit(code)
        state_of, jobs, notes = look(plan)
    except ConfigError as error:
        sys.exit(_refuse(error))
    except RecordError as error:
        sys.exit(_cannot_record(error))
    found = []
    for overrides, names in zip(job_overrides, of_job, strict=True):
        bad: list[str] = []
        for name in names:
            state = state_of[name]
            if state.state == COMPLETE or (name in jobs and state.state in (SUBMITTED, RUNNING)):
                continue
            why = state.error or notes.get(name) or ("it was not started" if state.state == PENDING else "")
            bad.append(f"{name} is {state.state}{f' ({why})' if why else ''}")
        job = JobReturn(overrides=list(overrides), task_name="harness", working_dir=str(plan.runs / names[0]))
        job.status = JobStatus.FAILED if bad else JobStatus.COMPLETED
        job.return_value = RuntimeError(f"{'; '.join(bad)}; see {plan.runs}") if bad else str(plan.runs / names[0])
        found.append(job)
    return found


def merged(composer: Composer, jobs: Sequence[Sequence[str]]) -> tuple[Plan, list[list[str]]]:
    """One plan of several jobs' cells, and the fingerprints of each job. Raises ConfigError.

    Keys whose values differ between jobs name the rows, as in a grid of the command line.
    """
    groups = composer.groups()
    commands = [parse(job, groups) for job in jobs]
    keys = dict.fromkeys(key for command in commands for key in command.fixed)
    differ = [key for key in keys if len({command.fixed.get(key) for command in commands}) > 1]
    plans = [build_plan(composer, _varied(command, differ)) for command in commands]
    first = plans[0]
    cells: dict[str, Cell] = {}
    for cell in (cell for plan in plans for cell in plan.cells):
        known = cells.get(cell.fingerprint)
        if known is None or (cell.selected and not known.selected):
            cells[cell.fingerprint] = cell
    rows = {row.id: row for plan in plans for row in plan.sweep.rows}
    whole = replace(
        first.sweep,
        rows=tuple(rows.values()),
        points=tuple(dict.fromkeys(point for plan in plans for point in plan.sweep.points)),
        selected=frozenset(point for plan in plans for point in plan.sweep.selected),
    )
    labels = {name: label for plan in plans for name, label in plan.labels.items()}
    check_labels(whole.rows, labels)
    changes = {key: change for plan in plans for key, change in plan.changes.items()}
    plan = Plan(whole, first.command, tuple(cells.values()), labels, changes)
    return plan, [[cell.fingerprint for cell in p.selected if not cell.stage] for p in plans]


def _varied(command: CommandLine, keys: Sequence[str]) -> CommandLine:
    here = {key: (command.fixed[key],) for key in keys if key in command.fixed}
    rest = {key: text for key, text in command.fixed.items() if key not in here}
    return replace(command, fixed=rest, varied={**command.varied, **here})


# ------------------------------------------------------------------------------------------- launchers of other people
def execute(config: Any) -> str:
    """One run in this process, from a composed configuration; returns its folder. What an application's own function
    may do with what it is given, under any launcher of Hydra's.

    Raises ConfigError, RuntimeError if the run did not complete.
    """
    from omegaconf import OmegaConf

    from harness.cells import run_config
    from harness.prepare import prepare
    from harness.record import RunDirectory
    from harness.stages import identity_of
    from harness.validate import problems
    from harness.worker import DEFAULT_ENTRY, EXIT_COMPLETE, StopRequest, serve

    whole = OmegaConf.to_object(config)
    if not isinstance(whole, CommandConfig):
        raise ConfigError(Problem("", "", "", "this configuration is not that of the package sweeps, nor made from it"))
    one = run_config(whole)
    if wrong := problems(one, lambda key: "composed by Hydra"):
        raise ConfigError(wrong)
    runs = Path(one.runtime.out).expanduser().absolute() / "runs"
    run = RunDirectory.create(runs, one, identity_of(one))
    prepare(one)
    if (code := serve(run, DEFAULT_ENTRY, StopRequest())) != EXIT_COMPLETE:
        state = run.state()
        raise RuntimeError(f"run {run.path} is {state.state}: {state.error or f'exit status {code}'}")
    return str(run.path)


def _jobs_of(composer: Composer, command: CommandLine, launcher: Any) -> list[list[str]]:
    """The selected cells as overrides that compose to them in any job. Raises ConfigError for what cannot be given to
    jobs that know nothing of each other."""
    plan = build_plan(composer, command)
    kind = type(launcher).__name__
    if command.do != "run" or (plan.command.sweep is not None and plan.command.sweep.tune is not None):
        fix = f"has a meaning only with hydra/launcher=harness_local or harness_slurm, not with {kind}"
        raise ConfigError(Problem("do" if command.do != "run" else "sweep.tune", command.do, "", fix))
    waiting = next((cell for cell in plan.selected if cell.requires), None)
    if waiting is not None:
        fix = f"needs the weights of another run first, which {kind} knows nothing of; use hydra/launcher=harness_local"
        raise ConfigError(Problem("method", waiting.row.id, "", fix))
    return [job_overrides(composer, command, cell) for cell in plan.selected if not cell.stage]


def job_overrides(composer: Composer, command: CommandLine, cell: Cell) -> list[str]:
    """Hydra overrides that compose to a cell, whatever sweep or protocol it came from."""
    groups, point, row = composer.groups(), cell.point, cell.row
    settings: dict[str, str] = {key: as_override(key, render(value(cell.config, key)), groups) for key in cell.preset}
    settings.update(row.overrides)
    settings.update({k: text for k, text in command.fixed.items() if k.partition(".")[0] != "sweep"})
    names = {"method.id": cell.config.method.id, "method.label": cell.config.method.label}
    files = [f"method={row.method}", f"env={point.env}", f"backbone={point.backbone}"]
    axes = [f"fraction={point.fraction!r}", f"seed={point.seed}"]
    return [*files, *axes, *settings.values(), *(f"{key}={render(text)}" for key, text in names.items())]


# --------------------------------------------------------------------------------------------------------------- parts
def _composer(loader: Any, config: Any) -> Composer:
    from omegaconf import OmegaConf

    given = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
    assert isinstance(given, list)
    searchpath = [text for text in map(str, given) if text.lstrip("+~").startswith(f"{SEARCHPATH}=")]
    return composer_over(loader, str(config.hydra.job.config_name), searchpath)


def _command(composer: Composer, arguments: Sequence[str], typed: Sequence[str]) -> CommandLine:
    """A launcher named twice must be the same one."""
    command = parse(arguments, composer.groups())
    for text in typed:
        key, _, given = text.partition("=")
        if key == "launcher" and command.fixed.get("launcher") != f"launcher={given}":
            fix = f"hydra/launcher says {command.fixed['launcher']}; give one of them"
            raise ConfigError(Problem("launcher", given, "command line", fix))
    return command


def _cannot_record(error: RecordError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return INCOMPLETE


def _refuse(error: ConfigError) -> int:
    for problem in error.problems:
        print(f"error: {problem}", file=sys.stderr)
    print("nothing was started", file=sys.stderr)
    return BAD_CONFIG
