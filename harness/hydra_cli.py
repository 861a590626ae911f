"""Hydra's own inspection of the configuration: `--info`, shell completion. Composes for show, runs nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


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
