"""The dotted keys of the configuration, read off the dataclasses. Needs neither Hydra nor OmegaConf."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from harness.config import CommandConfig, RunConfig
from harness.errors import nearest


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """One dotted key. type: its annotation; branch: it holds further keys; open: what lies below it is free (a mapping
    or a list)."""

    name: str
    type: Any
    branch: bool
    open: bool

    @property
    def mapping(self) -> bool:
        return typing.get_origin(self.type) is dict


def dataclass_in(annotation: Any) -> Any | None:
    """The dataclass that an annotation names, also inside `X | None`."""
    if dataclasses.is_dataclass(annotation):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((a for a in typing.get_args(annotation) if dataclasses.is_dataclass(a)), None)
    return None


@cache
def keys(root: type = CommandConfig) -> dict[str, Key]:
    """Dotted key -> Key, branches before their leaves, in the order of the dataclasses."""
    found: dict[str, Key] = {}

    def walk(node: Any, prefix: str) -> None:
        hints = typing.get_type_hints(node)
        for item in dataclasses.fields(node):
            name, annotation = prefix + item.name, hints[item.name]
            below = dataclass_in(annotation)
            is_open = below is None and typing.get_origin(annotation) in (dict, list)
            found[name] = Key(name, annotation, below is not None, is_open)
            if below is not None:
                walk(below, name + ".")

    walk(root, "")
    return found


@cache
def leaves(root: type = RunConfig) -> tuple[str, ...]:
    """Dotted names of everything that holds a value."""
    return tuple(name for name, key in keys(root).items() if not key.branch)


def exists(name: str, root: type = CommandConfig) -> bool:
    """Whether the dotted key is in the schema, or lies in a mapping or list of it."""
    known = keys(root)
    if name in known:
        return True
    parts = name.split(".")
    return any((parent := known.get(".".join(parts[:i]))) is not None and parent.open for i in range(1, len(parts)))


def nearest_key(name: str, extra: tuple[str, ...] = ()) -> str | None:
    """The schema key most like a misspelt one: by its last part if that exists (`lr` -> `training.lr`), else by all."""
    known = (*keys(), *extra)
    if exact := [k for k in known if k.rpartition(".")[2] == name.rpartition(".")[2]]:
        return nearest(name, exact) or exact[0]
    if found := nearest(name, known):
        return found
    by_last = {k.rpartition(".")[2]: k for k in reversed(known)}
    last = nearest(name.rpartition(".")[2], by_last)
    return by_last[last] if last else None


def value(config: object, name: str) -> Any:
    """The value at a dotted key of a configuration object; None for a knob that it does not have."""
    for part in name.split("."):
        config = config.get(part) if isinstance(config, Mapping) else getattr(config, part)
    return config
