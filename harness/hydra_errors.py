"""What Hydra, OmegaConf and YAML say, as errors of the configuration: key, value, file and fix.

Their own words depend on how far a composition came, and for whole classes of mistakes name nothing ("Error merging
override"). So their exceptions only say where to look: the file that was being read, and the overrides, are checked
against the schema here (harness.typed), and what is wrong there is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from harness.config import CommandConfig
from harness.configs import available_files
from harness.errors import FROM_COMMAND_LINE, ConfigError, Problem
from harness.schema import dataclass_in, exists, keys
from harness.typed import Fault, checked, entries

_PACKAGE = "sweeps"  # folder of the project's own files
_HYDRA = "hydra/"  # begins the names of Hydra's own groups


def place(files: Any, path: str) -> str:
    """Where Hydra finds a file, to be shown: `sweeps/method/grpo.yaml` for one of the project's. files: Hydra's
    repository of the search path; path: `method/grpo`. A file that does not exist is called as if it were ours."""
    for source in files.get_sources():
        if source.scheme() != "structured" and source.is_config(path):
            return _shown(str(source.path), source.scheme(), path)
    return f"{_PACKAGE}/{path}.yaml"


def _shown(folder: str, scheme: str, path: str) -> str:
    if scheme == "pkg":
        return f"{folder.replace('.', '/')}/{path}.yaml"
    if Path(folder).resolve() == Path(str(resources.files(_PACKAGE))).resolve():
        return f"{_PACKAGE}/{path}.yaml"
    return _relative(Path(folder, f"{path}.yaml").absolute())


def _relative(file: Path) -> str:
    return str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)


@contextmanager
def translated(files: Any, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Turn the errors of Hydra, OmegaConf and YAML into ConfigError. files: as in `place`; overrides: what is being
    composed, each of which was typed or checked before."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError, AssertionError) as error:  # OmegaConf asserts, too
        raise ConfigError(_problems(error, files, overrides)) from error


def _problems(error: BaseException, files: Any, overrides: Sequence[str]) -> list[Problem]:
    text = "\n".join(str(e) for e in _chain(error))
    file = _search(r"In '([^']+)'", text)
    if (mark := getattr(error, "problem_mark", None)) is not None:
        where = f"{_relative(Path(mark.name))}, line {mark.line + 1}" if mark.name else ""
        told = " ".join(str(part) for part in (getattr(error, "context", None), getattr(error, "problem", "")) if part)
        return [Problem("", "", where, f"cannot be read as YAML: {told}")]
    if missing := getattr(error, "missing_cfg_file", None):
        return [_missing(str(missing), getattr(error, "options", None), file, files)]
    if file and (wrong := _in_file(file, files)):
        return [Problem(fault.key, fault.value, place(files, file), fault.fix) for fault in wrong]
    if wrong := [fault for override in overrides for fault in _in_override(override)]:
        return [Problem(fault.key, fault.value, FROM_COMMAND_LINE, fault.fix) for fault in wrong]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = next((line for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
    origin = place(files, file) if file else (FROM_COMMAND_LINE if "verrid" in text else "")
    return [Problem(_search(r"full_key: (\S+)", text), "", origin, " ".join(lines) or last)]


def _missing(missing: str, options: Sequence[str] | None, file: str, files: Any) -> Problem:
    """A file that does not exist: chosen for a group, or named in the `defaults` of another."""
    from hydra.core.object_type import ObjectType

    group, _, name = missing.rpartition("/")
    known = list(options) if options is not None else files.get_group_options(group, ObjectType.CONFIG)
    if group.startswith(_HYDRA):
        return Problem(group, name, FROM_COMMAND_LINE, available_files(name, known))
    if "/" in file:
        return Problem("defaults", name, place(files, file), f"there is no such file; {available_files(name, known)}")
    return Problem(group, name, "", available_files(name, known))


def _in_file(path: str, files: Any) -> list[Fault]:
    """What the schema finds wrong in one file."""
    from omegaconf import OmegaConf

    result = files.load_config(path)
    if result is None or result.is_schema_source:
        return []
    group = path.rpartition("/")[0]
    content = OmegaConf.to_container(result.config, resolve=False)
    if "/" not in path or (result.header or {}).get("package") in ("_global_", ""):
        return entries("", CommandConfig, content)
    known = keys().get(group)
    return [] if known is None or not known.branch else entries(group, dataclass_in(known.type), content)


def _in_override(text: str) -> list[Fault]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        return []
    if override.is_sweep_override() or override.is_delete():
        return []
    key, given = override.key_or_group, override.value()
    if f"{key}.".startswith(("hydra.", _HYDRA)):
        return []  # Hydra's own, which the schema does not know
    if not exists(key):
        return entries("", CommandConfig, _nested(key, given))
    chooses = key in keys() and keys()[key].branch and not isinstance(given, dict)  # a group's file
    return [] if chooses else checked(key, given)[1]


def _nested(key: str, given: Any) -> Any:
    for part in reversed(key.split(".")):
        given = {part: given}
    return given


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _search(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""
