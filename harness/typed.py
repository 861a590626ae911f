"""Values against the types of the schema: the value in the type of its key, or what is wrong with it in plain words.

Hydra and OmegaConf check types, too, but what they say of a wrong one depends on where they met it and often names
neither key nor value. Conversion is theirs, so that both always agree.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from harness.config import AxesConfig
from harness.errors import describe, nearest
from harness.schema import dataclass_in, keys, nearest_key

_AXES = frozenset(item.name for item in dataclasses.fields(AxesConfig))
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a value. key: dotted key, with [i] for an entry of a list; value: as in a file, empty if the
    key itself is wrong; fix: what is wrong and what to do about it."""

    key: str
    value: str
    fix: str


def checked(key: str, given: Any) -> tuple[Any, list[Fault]]:
    """The value of a dotted key in its type, and everything wrong with it. A key that the schema does not name itself,
    such as a knob, has no type here: its value is returned as it is."""
    found: list[Fault] = []
    known = keys().get(key)
    return (given if known is None else _value(key, known.type, given, found)), found


def entries(prefix: str, node: Any, content: Any) -> list[Fault]:
    """Everything wrong with what a file says of a section. prefix: its dotted key, empty for the whole configuration;
    node: its dataclass."""
    found: list[Fault] = []
    _section(prefix, node, content, found)
    return found


def _value(key: str, annotation: Any, given: Any, found: list[Fault]) -> Any:
    """`given` converted to an annotation; appends to `found` what is wrong."""
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    kind = next(option for option in options if option is not types.NoneType)
    if given is None and types.NoneType in options:
        return None
    if kind is Any or _refers(given):
        return given
    if (section := dataclass_in(kind)) is not None:
        return _section(key, section, given, found)
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is list and isinstance(given, (list, tuple)):
        return [_value(f"{key}[{i}]", inside[0], item, found) for i, item in enumerate(given)]
    if origin is dict and isinstance(given, Mapping):
        return {name: _value(f"{key}.{name}", inside[1], item, found) for name, item in given.items()}
    if origin is None:
        try:
            return _leaf(kind, given)
        except ValueError:
            pass
    found.append(Fault(key, describe(given), _must_be(kind, given)))
    return given


def _section(key: str, node: Any, given: Any, found: list[Fault]) -> Any:
    hints = typing.get_type_hints(node)
    if not isinstance(given, Mapping):
        kind = "a list" if isinstance(given, (list, tuple)) else "a value"
        found.append(
            Fault(
                key, describe(given), f"must be a mapping of keys and values, such as {next(iter(hints))}, not {kind}"
            )
        )
        return given
    for name, below in ((str(name), below) for name, below in given.items()):
        place = f"{key}.{name}" if key else name
        if name in hints:
            _value(place, hints[name], below, found)
        elif "[" in key:  # an entry of a list, whose keys are none of the configuration's
            near = (
                f"axes: {{{name}: [{describe(below)}]}}" if name in _AXES and "axes" in hints else nearest(name, hints)
            )
            meant = f"did you mean {near}? " if near else ""
            found.append(Fault(place, describe(below), f"there is no such key here; {meant}keys: {', '.join(hints)}"))
        else:
            near = nearest_key(place)
            fix = "there is no such key" + (f"; did you mean {near}?" if near else "")
            found.append(Fault(place, describe(below), fix))
    return given


def _leaf(kind: type[Any], given: Any) -> Any:
    """Raises ValueError if the value cannot be had in this type."""
    from omegaconf import BooleanNode, FloatNode, IntegerNode, StringNode
    from omegaconf.errors import ValidationError

    nodes: dict[type[Any], Any] = {int: IntegerNode, float: FloatNode, bool: BooleanNode, str: StringNode}
    if given is None:
        raise ValueError("null")
    try:
        return nodes[kind](given)._value()
    except ValidationError as error:
        raise ValueError(str(error)) from error


def _must_be(kind: Any, given: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is list:
        words = "a list" if given is None or isinstance(given, Mapping) else f"a list: [{describe(given)}]"
    elif origin is dict:
        words = "a mapping of names and values, such as {NAME: VALUE}"
    else:
        words = _WORDS[kind]
    return f"cannot be null; it must be {words}" if given is None else f"must be {words}"


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _refers(given: Any) -> bool:
    """Whether a value stands for another one (`${seed}`), or is to be given later."""
    return isinstance(given, str) and ("${" in given or given == "???")
