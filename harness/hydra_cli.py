"""Hydra's own command line: inspection of the configuration (`--info`, shell completion), and multiruns through the
launchers and sweepers of its plugins."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

PLUGINS = ("hydra/sweeper=", "hydra/launcher=", "hydra.sweeper.", "hydra.launcher.")


def names_plugins(argv: Sequence[str]) -> bool:
    """Whether a command names Hydra's sweeper or launcher, or sets one of their keys."""
    return any(word.lstrip("+~").startswith(PLUGINS) for word in argv)


def multirun(argv: Sequence[str]) -> int:
    """Run a command through Hydra: `-m hydra/launcher=harness_slurm ...`, or any other launcher that is installed.

    The harness's sweeper and local launcher are taken unless others are named. Returns the exit status.
    """
    import hydra

    from harness.commandline import SHORT
    from harness.compose import CONFIG_MODULE, CONFIG_NAME, register_schema
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

    words = [f"{SHORT.get(name, name)}{equals}{text}" for name, equals, text in (w.partition("=") for w in argv)]
    words = [word for word in words if word not in ("-m", "--multirun")]
    for plugin, default in (("hydra/sweeper=", "harness"), ("hydra/launcher=", "harness_local")):
        if not any(word.startswith(plugin) for word in words):
            words.append(f"{plugin}{default}")
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
