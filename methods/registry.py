"""Which methods exist. Lazy: a method's module is imported when it is asked for, and none of them imports torch.

A method is a module with a constant `SPEC` of type `methods.interface.MethodSpec`. Modules import torch inside the
functions that compute, so that versions, needs and deviations can be read while planning. Other packages add methods
through the entry-point group `harness.methods` (name = "package.module:SPEC"). Without a package, `method.name` may be
such a path itself, of a module in the working directory or anywhere on Python's path.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

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
    """The spec registered under `name`, or the one that a path `package.module:ATTRIBUTE` leads to.

    Raises ValueError with the nearest name if there is none, and says why a path leads nowhere.
    """
    if ":" in name:
        return _imported(name)
    path = BUILTIN.get(name) or _plugins().get(name)
    if path is None:
        hint = "A method of your own, in the working directory or on Python's path, is module:SPEC"
        raise ValueError(unknown_name("method.name", name, names(), hint))
    return _load(name, path)


@cache
def _imported(path: str) -> MethodSpec:
    module_name, _, attribute = path.partition(":")
    parts = [*module_name.split("."), attribute]
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"method.name={path!r} must be a registered name or a path package.module:ATTRIBUTE")
    here = str(Path.cwd())
    sys.path.append(here)  # last: a file of the working directory hides no installed module
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"method.name={path!r}: {module_name} itself imports {error.name}: {error}") from error
        raise ValueError(
            f"method.name={path!r}: there is no module {error.name!r} in the working directory ({here}) or on Python's "
            f"path; it would be the file {error.name.replace('.', '/')}.py"
        ) from error
    except Exception as error:  # whatever the module's own code raises
        raise ValueError(
            f"method.name={path!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(here)
    spec = getattr(module, attribute, None)
    if isinstance(spec, MethodSpec):
        return spec
    specs = sorted(key for key, value in vars(module).items() if isinstance(value, MethodSpec))
    where = f"{module_name} ({module.__file__})"
    if spec is None:
        raise ValueError(f"method.name={path!r}: " + unknown_name(f"attribute of {where}", attribute, specs))
    raise ValueError(
        f"method.name={path!r}: {attribute} of {where} is a {type(spec).__name__}, not a MethodSpec; "
        f"MethodSpecs there: {', '.join(specs) or 'none'}"
    )


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
