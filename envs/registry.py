"""Which environments exist. Lazy: an environment's module is imported when it is asked for.

An environment is a constant of type `envs.interface.EnvSpec`. Its module must import no engine, tokenizer or tensor
library at its top, so that specs can be read while planning. Other packages add environments through the entry-point
group `harness.envs` (name = "package.module:SPEC").
"""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from importlib.metadata import entry_points

from envs.interface import EnvSpec

ENTRY_POINT_GROUP = "harness.envs"

BUILTIN = {
    "alfworld": "envs.alfworld.spec:SPEC",
    "search_qa": "envs.search_qa.spec:SPEC",
    "webshop": "envs.webshop.spec:SPEC",
}


def _plugins() -> dict[str, str]:
    """Import path of each environment that an installed package offers. Raises ValueError if a name is taken twice."""
    found: dict[str, str] = {}
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: (p.name, p.value)):
        taken = BUILTIN.get(point.name) or found.get(point.name)
        if taken is not None and taken != point.value:
            raise ValueError(
                f"the environment name {point.name!r} is offered by both {taken} and {point.value} "
                f"(entry points of group {ENTRY_POINT_GROUP}); rename or uninstall one of them"
            )
        found[point.name] = point.value
    return found


def names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted({*BUILTIN, *_plugins()}))


def get(name: str) -> EnvSpec:
    """The spec registered under `name`. Raises ValueError with the nearest name if there is none."""
    path = BUILTIN.get(name) or _plugins().get(name)
    if path is None:
        known = names()
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"env.name={name!r} is unknown{meant} Known: {', '.join(known)}. "
            f"An installed package adds one through the entry-point group {ENTRY_POINT_GROUP!r}."
        )
    return _load(name, path)


@cache
def _load(name: str, path: str) -> EnvSpec:
    module_name, _, attribute = path.partition(":")
    try:
        spec = getattr(importlib.import_module(module_name), attribute or "SPEC")
    except (ImportError, AttributeError) as error:
        raise ValueError(f"environment {name!r} is registered as {path}, which cannot be loaded: {error}") from error
    if not isinstance(spec, EnvSpec):
        raise ValueError(
            f"environment {name!r} is registered as {path}, which is a {type(spec).__name__}, not an EnvSpec"
        )
    if spec.name != name:
        raise ValueError(f"environment {name!r} is registered as {path}, whose spec calls itself {spec.name!r}")
    return spec
