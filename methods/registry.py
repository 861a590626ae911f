"""Which methods exist. Lazy: a method's module is imported when it is asked for, and none of them imports torch.

A method is a module with a constant `SPEC` of type `methods.interface.MethodSpec`. Modules import torch inside the
functions that compute, so that versions, needs and deviations can be read while planning. Other packages add methods
through the entry-point group `harness.methods` (name = "package.module:SPEC").
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points

from core.knobs import resolve_knobs
from core.names import unknown_name
from methods.interface import Method, MethodConfig, MethodContext, MethodSpec
from methods.validation import check_values

ENTRY_POINT_GROUP = "harness.methods"

BUILTIN = {
    "vanilla": "methods.vanilla:SPEC",
    "grpo": "methods.grpo:SPEC",
    "gigpo": "methods.gigpo:SPEC",
    "skill_grpo": "methods.skill_grpo:SPEC",
    "rlsd": "methods.rlsd:SPEC",
    "opid": "methods.opid:SPEC",
    "opsd": "methods.opsd:SPEC",
    "opsd_released": "methods.opsd:SPEC_RELEASED",
    "grpo_opsd": "methods.grpo_opsd:SPEC",
    "grpo_opsd_released": "methods.grpo_opsd:SPEC_RELEASED",
    "skill_sd": "methods.skill_sd:SPEC",
    "sdar": "methods.sdar:SPEC",
    "sdar_entropy": "methods.sdar:SPEC_ENTROPY",
    "opd": "methods.opd:SPEC",
    "grpo_opd": "methods.opd:SPEC_GRPO",
    "retire_opd": "methods.retire_opd:SPEC",
}


def _plugins() -> dict[str, str]:
    """Import path of each method that an installed package offers. Raises ValueError if a name is taken twice."""
    found: dict[str, str] = {}
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: (p.name, p.value)):
        taken = BUILTIN.get(point.name) or found.get(point.name)
        if taken is not None and taken != point.value:
            raise ValueError(
                f"the method name {point.name!r} is offered by both {taken} and {point.value} "
                f"(entry points of group {ENTRY_POINT_GROUP}); rename or uninstall one of them"
            )
        found[point.name] = point.value
    return found


def names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted({*BUILTIN, *_plugins()}))


def get(name: str) -> MethodSpec:
    """The spec registered under `name`. Raises ValueError with the nearest name if there is none."""
    path = BUILTIN.get(name) or _plugins().get(name)
    if path is None:
        raise ValueError(unknown_name("method.name", name, names()))
    return _load(name, path)


@cache
def _load(name: str, path: str) -> MethodSpec:
    module_name, _, attribute = path.partition(":")
    try:
        spec = getattr(importlib.import_module(module_name), attribute or "SPEC")
    except (ImportError, AttributeError) as error:
        raise ValueError(f"method {name!r} is registered as {path}, which cannot be loaded: {error}") from error
    if not isinstance(spec, MethodSpec):
        raise ValueError(f"method {name!r} is registered as {path}, which is a {type(spec).__name__}, not a MethodSpec")
    if spec.name != name:
        raise ValueError(f"method {name!r} is registered as {path}, whose spec calls itself {spec.name!r}")
    return spec


def validate(config: MethodConfig) -> MethodSpec:
    """The spec of a configuration that its method can honour. Raises ValueError naming key, value and remedy."""
    spec = get(config.name)
    check_values(config)
    resolve_knobs(spec.knobs, config.knobs, "method.knobs")
    if spec.check is not None:
        spec.check(config)
    return spec


def build(config: MethodConfig, context: MethodContext) -> Method:
    """Validate the configuration and make the method of one run."""
    return validate(config).build(config, context)


def requirements(config: MethodConfig, analyzer: str) -> frozenset[str]:
    """Capabilities that this row needs: its method's, its skill source's and, if one is used, its analyzer's."""
    needs = set(get(config.name).needs)
    if config.skill.source == "library":
        needs.add("env:library")
    if config.skill.source == "own_trajectory":
        from methods.skills import analyzer as analyzers

        needs |= analyzers.get(analyzer).needs
    return frozenset(needs)
