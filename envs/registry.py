"""Which environments exist. Lazy: an environment's module is imported when it is asked for.

An environment is a constant of type `envs.interface.EnvSpec`. Its module must import no engine, tokenizer or tensor
library at its top, so that specs can be read while planning. Other packages add environments through the entry-point
group `harness.envs` (name = "package.module:SPEC").
"""

from __future__ import annotations

from core.plugins import Specs
from envs.interface import EnvSpec

ENTRY_POINT_GROUP = "harness.envs"

BUILTIN = {
    "alfworld": "envs.alfworld.spec:SPEC",
    "search_qa": "envs.search_qa.spec:SPEC",
    "webshop": "envs.webshop.spec:SPEC",
}


_SPECS = Specs("environment", "env.name", ENTRY_POINT_GROUP, BUILTIN, lambda: EnvSpec)


def names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return _SPECS.names()


def get(name: str) -> EnvSpec:
    """The spec registered under `name`. Raises ValueError with the nearest name if there is none, and names the package
    whose entry point is broken."""
    return _SPECS.get(name)
