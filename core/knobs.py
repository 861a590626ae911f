"""Knobs of one method or environment: declared as a dataclass beside the code that reads them, checked while planning.

The configuration keeps them in a mapping (`method.knobs`, `env.knobs`), so that a new method or environment brings its
own settings without touching anybody else's schema. A knob that the mapping leaves out has the dataclass's default.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from core.names import unknown_name

T = TypeVar("T")


def read_knobs(declared: type[T], given: Mapping[str, Any], where: str) -> T:
    """The knobs as an instance of the dataclass `declared`.

    where: dotted key of the mapping, for errors (`method.knobs`). Whole numbers are accepted for float knobs.
    Raises ValueError naming the key for an unknown name, a wrong type, and a number that is not finite.
    """
    hints = typing.get_type_hints(declared)
    known = [item.name for item in dataclasses.fields(declared)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise ValueError(unknown_name(f"{where} key", name, known))
    values = {name: _typed(f"{where}.{name}", value, hints[name]) for name, value in given.items()}
    return declared(**values)


def resolve_knobs(declared: type[Any] | None, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Every knob with its value, defaults included, in the order of the dataclass. None declares none."""
    if declared is None:
        if given:
            raise ValueError(f"{where}={dict(given)} sets knobs, but none are declared here; drop them")
        return {}
    return dataclasses.asdict(read_knobs(declared, given, where))


def _typed(key: str, value: Any, hint: Any) -> Any:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise ValueError(f"{key}={value} must be a finite number")
            return float(value)
        if option in (int, str, bool) and type(value) is option:
            return value
        if typing.get_origin(option) in (list, tuple) and isinstance(value, (list, tuple)):
            inner = typing.get_args(option)[0]
            return typing.get_origin(option)(_typed(key, item, inner) for item in value)
    names = " or ".join("null" if o is type(None) else getattr(o, "__name__", str(o)) for o in options)
    raise ValueError(f"{key}={value!r} must be of type {names}")
