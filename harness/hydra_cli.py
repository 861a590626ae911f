"""Hydra's own command line: inspection of the configuration (`--info`, shell completion), and multiruns through the
launchers and sweepers of its plugins."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.cli import Arguments

PLUGINS = ("hydra/sweeper=", "hydra/launcher=", "hydra.sweeper.", "hydra.launcher.")


def names_plugins(argv: Sequence[str]) -> bool:
    """Whether a command names Hydra's sweeper or launcher, or sets one of their keys."""
    return any(word.lstrip("+~").startswith(PLUGINS) for word in argv)


def _is_hydras(word: str) -> bool:
    return word.lstrip("+~").startswith(("hydra.", "hydra/"))


def multirun(argv: Sequence[str], arguments: Arguments) -> int:
    """Run a command through Hydra: `-m hydra/launcher=harness_slurm ...`, or any other launcher that is installed.

    The harness's sweeper and local launcher are taken unless others are named. arguments: those of `argv` that are none
    of the plugins'. Returns the exit status. Raises ConfigError for what can be seen before Hydra starts.
    """
    import hydra

    from harness.commandline import SEARCHPATH, check_once, parse, spelt
    from harness.compose import CONFIG_MODULE, CONFIG_NAME, composer, register_schema
    from harness.errors import ConfigError, Problem

    try:
        import hydra_plugins.agentic_rl_harness  # noqa: F401
    except ImportError as error:
        fix = "the project's Hydra plugins are not installed; install it again (pip install -e ., or make install)"
        raise ConfigError(Problem("hydra/launcher", "", "command line", fix)) from error
    register_schema()

    def task(config: Any) -> None:
        """What Hydra's own launchers call for each job: the run, in their process."""
        from harness.hydra_jobs import execute

        execute(config)

    words = [spelt(word) for word in argv if word not in ("-m", "--multirun")]
    for plugin, default in (("hydra/sweeper=", "harness"), ("hydra/launcher=", "harness_local")):
        if not any(word.startswith(plugin) for word in words):
            words.append(f"{plugin}{default}")
    # Hydra's own messages are no messages of ours: what is wrong is told before it starts, if it can be seen by then.
    of_hydra = [word for word in words if _is_hydras(word)]
    typed = [word for word in arguments.overrides if not _is_hydras(word)]
    check_once(typed)
    ours = composer(arguments.config_dir, arguments.searchpath)
    if "hydra/sweeper=harness" in words:  # other sweepers have a syntax of their own
        parse(typed, ours.groups())
    ours.compose([word for word in of_hydra if not word.startswith(SEARCHPATH)])
    sys.argv = ["harness", "--multirun", *words]
    try:
        hydra.main(version_base="1.3", config_path=f"pkg://{CONFIG_MODULE}", config_name=CONFIG_NAME)(task)()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    return 0


def inspect(argv: Sequence[str]) -> None:
    """Hand the arguments to Hydra's own command line, which prints and leaves."""
    import hydra

    from harness.compose import CONFIG_MODULE, CONFIG_NAME, PROTOCOL, register_schema

    register_schema()

    def nothing(config: Any) -> None:
        """Hydra calls this only if no inspection flag was given."""

    # Hydra would take the folder of protocols for a group; for us it is a value (harness.protocols).
    sys.argv = ["harness", *(word for word in argv if not word.startswith(f"{PROTOCOL}="))]
    hydra.main(version_base="1.3", config_path=f"pkg://{CONFIG_MODULE}", config_name=CONFIG_NAME)(nothing)()
