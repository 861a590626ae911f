"""The command line: compose, validate every cell, plan, then run what is missing and report.

Exit status: 0 all selected cells complete; 2 bad configuration, nothing started; 3 cells failed or are missing, or
records cannot be read or written; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.dependencies import advice
from harness.errors import FROM_COMMAND_LINE, ConfigError, Problem, suggest
from harness.files import RecordError

if TYPE_CHECKING:
    from harness.commandline import CommandLine
    from harness.compose import Composer

OK, BAD_CONFIG, INCOMPLETE, INTERRUPTED = 0, 2, 3, 130
GO_ON = "the same command again goes on from here"

_FLAGS = ("--help", "--cfg", "--resolve", "--config-dir", "--info", "--shell-completion", "--multirun")
_CFG = ("job", "hydra", "all")


@dataclass(frozen=True)
class Arguments:
    """overrides: everything that is no flag; cfg: what --cfg asked for; searchpath: Hydra's, as typed."""

    overrides: tuple[str, ...] = ()
    cfg: str | None = None
    resolve: bool = False
    config_dir: str | None = None
    searchpath: tuple[str, ...] = ()


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit status. Messages and errors go to standard error, results to standard out."""
    try:
        if not argv or any(a in ("-h", "--help") for a in argv):  # a bare command should explain, not train
            from harness.help import help_text

            print(help_text())
            return OK
        if any(a in ("--info", "-i", "-sc", "--shell-completion", "--hydra-help") for a in argv):
            from harness.hydra_cli import inspect

            inspect(argv)
            return OK
        if any("hydra" in a for a in argv):
            from harness.hydra_cli import multirun, names_plugins

            if names_plugins(argv):
                return multirun(argv, _read([word for word in argv if not names_plugins([word])]))
        return _command(_read(argv))
    except ConfigError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        print("nothing was started; `python -m harness --help` lists keys and choices", file=sys.stderr)
        return BAD_CONFIG
    except ModuleNotFoundError as error:
        if (told := advice(error)) is None:
            raise
        print(f"error: {told}", file=sys.stderr)
        return BAD_CONFIG
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return INCOMPLETE
    except KeyboardInterrupt:
        print(f"\ninterrupted; {GO_ON}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output (`| head`) has gone
        sys.stderr.close()
        return OK


def _read(argv: Sequence[str]) -> Arguments:
    """Flags apart from overrides. Raises ConfigError for an unknown flag or a missing value."""
    overrides: list[str] = []
    searchpath: list[str] = []
    found: dict[str, str] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag in ("-c", "--cfg", "--config-dir", "-cd"):
            name = {"-c": "--cfg", "-cd": "--config-dir"}.get(flag, flag)
            if not equals and not rest:
                raise ConfigError(Problem(flag, "", FROM_COMMAND_LINE, "needs a value"))
            value = value if equals else rest.pop(0)
            if found.setdefault(name, value) != value:
                fix = f"is given twice, and as {found[name]} before; " + (
                    "several folders go into one hydra.searchpath=[file://A,file://B]"
                    if name == "--config-dir"
                    else "give it once"
                )
                raise ConfigError(Problem(name, value, FROM_COMMAND_LINE, fix))
        elif word in ("-m", "--multirun"):
            pass  # a sweep needs no flag here; accepted because fingers know it
        elif word == "--resolve":
            found[word] = "yes"
        elif word.startswith("-"):
            raise ConfigError(Problem(word, "", FROM_COMMAND_LINE, f"unknown flag; {suggest(word, _FLAGS, 'flags')}"))
        elif word.startswith("hydra.searchpath="):
            searchpath.append(word)
        else:
            overrides.append(word)
    cfg = found.get("--cfg")
    if cfg is not None and cfg not in _CFG:
        raise ConfigError(Problem("--cfg", cfg, FROM_COMMAND_LINE, suggest(cfg, _CFG, "available")))
    return Arguments(tuple(overrides), cfg, "--resolve" in found, found.get("--config-dir"), tuple(searchpath))


def _command(arguments: Arguments) -> int:
    from harness.commandline import check_once, parse
    from harness.compose import composer

    check_once(arguments.overrides)
    hydra = composer(arguments.config_dir, arguments.searchpath)
    command = parse(arguments.overrides, hydra.groups())
    if arguments.cfg is not None:
        from harness.plan import shown

        print(hydra.text(shown(hydra, command), arguments.cfg, arguments.resolve), end="")
        return OK
    return perform(hydra, command)


def perform(composer: Composer, command: CommandLine) -> int:
    """Plan a command and do what it says; returns the exit status. Raises ConfigError."""
    from harness.plan import build_plan

    plan = build_plan(composer, command)
    if plan.command.sweep is not None and plan.command.sweep.tune is not None:
        from harness.tune.actions import act

        return act(plan, plan.command.sweep.tune, composer, command)
    from harness import actions, actions_preflight, actions_slurm, actions_sync

    return {
        "run": actions.run,
        "retry": actions.retry,
        "plan": actions.plan,
        "status": actions.status,
        "watch": actions_slurm.watch,
        "cancel": actions_slurm.cancel,
        "preflight": actions_preflight.preflight,
        "sync": actions_sync.sync,
        "tables": actions.tables,
    }[command.do](plan)
