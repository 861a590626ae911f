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
from pathlib import Path

from core.knobs import resolve_knobs
from core.names import unknown_name
from core.plugins import Specs
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


_SPECS = Specs("method", "method.name", ENTRY_POINT_GROUP, BUILTIN, lambda: MethodSpec)


def names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return _SPECS.names()


def get(name: str) -> MethodSpec:
    """The spec registered under `name`, or the one that a path `package.module:ATTRIBUTE` leads to.

    Raises ValueError with the nearest name if there is none, says why a path leads nowhere, and names the package whose
    entry point is broken.
    """
    if ":" in name:
        return _imported(name)
    return _SPECS.get(name, "A method of your own, in the working directory or on Python's path, is module:SPEC")


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
