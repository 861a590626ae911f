"""Arguments of the command line: Hydra overrides, split into what selects cells and what applies to every cell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.compose import render
from harness.configs import available_files
from harness.errors import FROM_COMMAND_LINE, ConfigError, Problem, describe, suggest
from harness.schema import exists, keys, nearest_key
from harness.typed import checked

AXES = ("method", "env", "backbone", "fraction", "seed")
GROUP_AXES = ("method", "env", "backbone")
DO = ("run", "retry", "plan", "status", "watch", "cancel", "preflight", "sync", "tables")
# Short names for what is typed often.
SHORT = {"out": "runtime.out", "workers": "launcher.workers"}
OUT = "runtime.out"
# Keys whose values are paths, taken as they are typed.
PATHS = (OUT, "env.data", "env.cache", "backbone.path", "analyzer.cache", "analyzer.record", "analyzer.answers")
SEARCHPATH = "hydra.searchpath"
_QUOTED = re.compile(r"""'.*'|".*\"""", re.DOTALL)


@dataclass(frozen=True)
class CommandLine:
    """do, sweep      what to do with which sweep (None: a single run)
    axes           axis -> values given; they select cells of a sweep, or span a small grid without one
    fixed          key -> override that applies to every cell, e.g. {"training.lr": "training.lr=1e-4"}
    varied         key -> several overrides: every row is crossed with them
    """

    do: str = "run"
    sweep: str | None = None
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    varied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[str, ...]:
        """Every override that changes what cells are, as typed; not those that say where and how they run, or names."""
        given = dict(self.fixed)
        for key, several in self.varied.items():
            given[key] = f"{key}={','.join(text.partition('=')[2] for text in several)}"
        return tuple(
            text.lstrip("+") for key, text in given.items() if not f"{key}.".startswith(_HOW) and key not in _NAMES
        )


_HOW = ("runtime.", "launcher.", "tracking.", "expected_seconds.", "wait.", "backbone.resources.")
# How long a search goes on, and how many at a time, makes it no other search.
_NAMES = ("sweep.name", "sweep.title", "sweep.tune.trials", "sweep.tune.parallel")


def parse(arguments: Sequence[str], groups: Mapping[str, Sequence[str]]) -> CommandLine:
    """Read Hydra overrides. groups: configuration group -> its files. Raises ConfigError for every bad argument."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    problems: list[Problem] = []
    do, sweep = "run", None
    axes: dict[str, tuple[Any, ...]] = {}
    fixed: dict[str, str] = {}
    varied: dict[str, tuple[str, ...]] = {}
    for typed in arguments:
        try:
            argument = spelt(typed)
            override = parser.parse_override(argument)
            if override.is_hydra_override():
                _check_hydra_override(override.key_or_group)
                continue
            key = _known_key(override, argument, groups)
            values = _values(override, argument, groups)
            problems.extend(_wrong_values(key, values, groups))
            if key in ("do", "sweep"):
                one = _single(key, values)
                _require(key, one, DO if key == "do" else groups["sweep"])
                do, sweep = (one, sweep) if key == "do" else (do, one)
            elif key in AXES:
                axes[key] = tuple(_axis_value(key, v, groups) for v in values)
            elif len(values) > 1:
                fixed.pop(key, None)
                varied[key] = tuple(as_override(key, text, groups) for text in _texts(override, values))
            else:
                varied.pop(key, None)
                fixed[key] = as_override(key, _texts(override, values)[0], groups)
        except ConfigError as error:
            problems.extend(error.problems)
        except (HydraException, ValueError) as error:
            problems.append(
                Problem(typed, "", FROM_COMMAND_LINE, _unreadable(typed, str(error) or type(error).__name__))
            )
    if sweep is None:
        problems.extend(_unknown_methods(axes.get("method", ()), groups))
    if problems:
        raise ConfigError(problems)
    return CommandLine(do, sweep, axes, fixed, varied)


def spelt(typed: str) -> str:
    """An argument as Hydra reads it: with the long name of its key, and with a path in quotes where Hydra's grammar
    would refuse or split it. Raises ConfigError for a path that can be none."""
    name, equals, text = typed.partition("=")
    key = SHORT.get(name, name)
    if key == OUT and equals and not text:
        raise ConfigError(Problem(name, "", FROM_COMMAND_LINE, f"names no folder; {name}=. is the current one"))
    if key in PATHS and text.startswith("~"):
        try:
            Path(text).expanduser()
        except RuntimeError as error:
            fix = f"begins with the home of a user that does not exist; a folder of that name is {name}=./{text}"
            raise ConfigError(Problem(name, text, FROM_COMMAND_LINE, fix)) from error
    literal = key in PATHS and text and text != "null" and "${" not in text and not _QUOTED.fullmatch(text)
    return f"{key}={render(text)}" if literal and _splits(key, text) else f"{key}{equals}{text}"


def _splits(key: str, text: str) -> bool:
    """Whether Hydra would not take a path as it stands. Of other paths than `out` several may be meant (PATH,PATH)."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(f"{key}={text}")
    except HydraException:
        return True
    if override.is_sweep_override():
        return key == OUT
    return str(override.value()) != text


def _unreadable(typed: str, error: str) -> str:
    name, equals, text = typed.partition("=")
    fix = f"cannot be read ({error.splitlines()[0]}); arguments are KEY=VALUE"
    quotable = equals and text and name == name.strip() and "'" not in name and '"' not in text
    return (
        f"{fix}, and text with special characters stands in quotes: {shlex.quote(f'{name}={render(text)}')}"
        if quotable
        else fix
    )


def check_once(arguments: Sequence[str]) -> None:
    """Raise ConfigError for a key that was typed twice with different values. `parse` itself lets the last one win, as
    Hydra does: arguments that a file keeps yield to typed ones."""
    given: dict[str, str] = {}
    problems = []
    for typed in arguments:
        name, equals, text = typed.lstrip("+").partition("=")
        key = SHORT.get(name, name)
        if equals and given.setdefault(key, text) != text:
            fix = f"is given twice, and {name}={given[key]} before; give it once"
            problems.append(Problem(name, text, FROM_COMMAND_LINE, fix))
    if problems:
        raise ConfigError(problems)


def _wrong_values(key: str, values: Sequence[Any], groups: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Values of the wrong type, and those named twice."""
    if key in groups or key in AXES or key == "do":
        faults = []
    else:
        faults = [fault for value in values for fault in checked(key, value)[1]]
    found = [Problem(fault.key, fault.value, FROM_COMMAND_LINE, fault.fix) for fault in faults]
    texts = [repr(value) for value in values]
    if not found and len(set(texts)) < len(texts):
        found.append(Problem(key, ",".join(map(describe, values)), FROM_COMMAND_LINE, "names a value twice"))
    return found


def _texts(override: Any, values: Sequence[Any]) -> list[str]:
    """Each value as it is spelt in an override."""
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if override.value_type.name == "GLOB_CHOICE_SWEEP":
        return [str(v) for v in values]
    return list(override.sweep_string_iterator())


def as_override(key: str, text: str, groups: Mapping[str, Sequence[str]]) -> str:
    """`key=text`, in the form that may add an entry to a mapping of the schema."""
    known = keys().get(key)
    plain = key in groups or (known is not None and not known.mapping)
    return f"{key}={text}" if plain else f"++{key}={text}"


def _unknown_methods(values: Sequence[Any], groups: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Without a sweep `method` names files; with one it names rows, which the sweep knows."""
    return [
        Problem("method", str(v), FROM_COMMAND_LINE, available_files(str(v), groups["method"]))
        for v in values
        if v not in groups["method"]
    ]


def check_key(key: str, value: str, origin: str, groups: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError unless `key` is a group or a key of the schema, naming the nearest one."""
    if key in groups or exists(key):
        return
    near = nearest_key(key, tuple(groups))
    top = sorted({k for k in keys() if "." not in k})
    hint = f"did you mean {near}?" if near else f"keys: {', '.join(top)}"
    raise ConfigError(Problem(key, value, origin, f"there is no such key; {hint}"))


def check_group(key: str, value: Any, origin: str, groups: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError unless the group `key` has a file named `value`."""
    if key in groups and value not in groups[key]:
        raise ConfigError(Problem(key, str(value), origin, available_files(str(value), groups[key])))


def _check_hydra_override(key: str) -> None:
    """The search path is read before anything is parsed (harness.cli); nothing else of Hydra's is used here."""
    if key != SEARCHPATH:
        fix = f"only {SEARCHPATH}=[file://DIR] has an effect; drop this argument"
        raise ConfigError(Problem(key, "", FROM_COMMAND_LINE, fix))


def _known_key(override: Any, argument: str, groups: Mapping[str, Sequence[str]]) -> str:
    key: str = override.key_or_group
    if override.package is not None:
        raise ConfigError(
            Problem(key, "", FROM_COMMAND_LINE, f"packages (@{override.package}) are not supported; use {key}=NAME")
        )
    if override.is_delete():
        raise ConfigError(Problem(key, "", FROM_COMMAND_LINE, "keys cannot be deleted; give it another value"))
    text = argument.partition("=")[2]
    check_key(key, text, FROM_COMMAND_LINE, groups)
    if key not in groups and key in keys() and keys()[key].branch and not isinstance(override.value(), dict):
        example = next(k for k in keys() if k.startswith(key + ".") and not keys()[k].branch)
        fix = f"is a section, not a value; set its keys, such as {example}"
        raise ConfigError(Problem(key, text, FROM_COMMAND_LINE, fix))
    return key


def _values(override: Any, argument: str, groups: Mapping[str, Sequence[str]]) -> list[Any]:
    """The values of one override: several for `a,b`, `range(..)`, `glob(..)`, and for a list given to an axis."""
    key = override.key_or_group
    if not override.is_sweep_override():
        value = override.value()
        found = list(value) if key in AXES and isinstance(value, list) else [value]
    elif override.is_discrete_sweep():
        if override.value_type.name == "GLOB_CHOICE_SWEEP":
            found = sorted(override.value().filter(list(groups.get(key, ()))))
        else:
            found = [override._convert_value(v) for v in override.sweep_iterator()]
    else:
        raise ConfigError(Problem(key, "", FROM_COMMAND_LINE, f"{argument!r} is no list of values; use {key}=a,b,c"))
    if not found:
        raise ConfigError(Problem(key, argument.partition("=")[2], FROM_COMMAND_LINE, "names no value at all"))
    if key in groups and key not in AXES and key != "sweep":
        for value in found:
            check_group(key, value, FROM_COMMAND_LINE, groups)
    return found


def _single(key: str, values: Sequence[Any]) -> Any:
    if len(values) != 1:
        text = ",".join(str(v) for v in values)
        raise ConfigError(Problem(key, text, FROM_COMMAND_LINE, "takes one value"))
    return values[0]


def _require(key: str, value: Any, known: Sequence[str]) -> None:
    if key == "sweep" and value is None:
        return
    if value not in known:
        raise ConfigError(Problem(key, str(value), FROM_COMMAND_LINE, suggest(str(value), known, "available")))


def _axis_value(key: str, value: Any, groups: Mapping[str, Sequence[str]]) -> Any:
    return value if key == "method" else axis_value(key, value, FROM_COMMAND_LINE, groups)


def axis_value(key: str, value: Any, origin: str, groups: Mapping[str, Sequence[str]]) -> Any:
    """`value` in the type of its axis. Raises ConfigError naming where it came from."""
    if key in GROUP_AXES:
        check_group(key, value, origin, groups)
        return value
    if key == "seed":
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(Problem(key, str(value), origin, "must be a whole number, 0 or more"))
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(Problem(key, str(value), origin, "must be a number above 0 and at most 1"))
    return float(value)
