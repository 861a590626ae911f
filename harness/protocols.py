"""`protocol=NAME`: what papers print or their authors' scripts ran, laid over the configuration of each cell.

A file sweeps/protocol/NAME.yaml holds dotted keys and values:

    envs:    {ENV: {KEY: VALUE}}                            for every method in that environment
    methods: {METHOD: {any: {KEY: VALUE}, ENV: {...}}}      for that file of sweeps/method/, in every or one environment

Values of methods come over those of environments. A method (or environment) file that is not listed takes the entry of
the nearest file that it inherits from, but for keys that it, or a file in between, sets itself: an ablation keeps what
makes it one. For the same reason keys `method.*` of an environment yield to what a method's file sets, if that inherits
from another. Precedence: config < scale < protocol < sweep.set < row.set < command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.compose import PROTOCOL, Composer
from harness.config import CommandConfig
from harness.errors import ConfigError, Problem, describe, suggest
from harness.schema import exists, keys, nearest_key
from harness.typed import checked

FAIR = "fair"
ANY = "any"
# What a protocol may decide: how a cell trains and is judged, never which cell it is or where it runs.
SECTIONS = ("analyzer", "env", "evaluation", "method", "training")
_NOT = ("method.id", "method.name", "method.label", "method.teacher.source", "env.name", "env.data", "env.cache")

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Protocol:
    """One file. envs: environment file -> values; methods: method file -> `any` or environment file -> values."""

    name: str
    origin: str
    envs: Mapping[str, Values]
    methods: Mapping[str, Mapping[str, Values]]


class Protocols:
    """The protocols that a Composer can see, each read and checked once."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        self._read: dict[str, Protocol] = {}
        self._found: dict[tuple[str, str, str], Values] = {}

    def names(self) -> tuple[str, ...]:
        return tuple(sorted({FAIR, *self._composer.names(PROTOCOL)}))

    def get(self, name: str, origin: Callable[[], str] = str) -> Protocol:
        """Raises ConfigError for an unknown name (origin: who gave it), and for everything wrong in the file."""
        if name not in self._read:
            if name not in self.names():
                raise ConfigError(Problem(PROTOCOL, name, origin(), suggest(name, self.names(), "available")))
            # What is fair needs no file: one setting for every row, that of the scale.
            content = self._composer.file(PROTOCOL, name)[0] if name in self._composer.names(PROTOCOL) else {}
            where = self._composer.where(PROTOCOL, name)
            self._read[name] = _parsed(name, where, content, self._composer.groups())
        return self._read[name]

    def values(self, name: str, method: str, env: str, origin: Callable[[], str] = str) -> Values:
        """Dotted key -> value of a protocol for two files of the groups `method` and `env`."""
        key = (name, method, env)
        if key not in self._found:
            protocol = self.get(name, origin)
            # What an environment says of methods is for all of them: it yields to what sets one apart.
            apart = [self._composer.file("method", file)[0] for file in self._ancestry("method", method)[:-1]]
            of_env = self._nearest("env", env, protocol.envs)
            found = {k: v for k, v in of_env.items() if not any(_sets(c, "method", k) for c in apart)}
            places = self._ancestry("env", env)
            entries = {file: _of_environment(entry, places) for file, entry in protocol.methods.items()}
            found.update(self._nearest("method", method, entries))
            self._found[key] = found
        return self._found[key]

    def origin(self, name: str) -> str:
        """Where a protocol that was read comes from, to be shown."""
        return self.get(name).origin

    def says(self, group: str, file: str, key: str) -> bool:
        """Whether a file of a group, or one that it inherits from, sets a dotted key."""
        contents = (self._composer.file(group, name)[0] for name in self._ancestry(group, file))
        # A file with `@package _global_` holds its section under the group's name.
        return any(_sets(content, group, key) or _sets(content.get(group, {}), group, key) for content in contents)

    def sets_apart(self, method: str, other: str, key: str) -> bool:
        """Whether a file of `method`'s that is none of `other`'s, both of the group `method`, sets a dotted key."""
        shared = self._ancestry("method", other)
        files = (file for file in self._ancestry("method", method) if file not in shared)
        return any(_sets(self._composer.file("method", file)[0], "method", key) for file in files)

    def _nearest(self, group: str, file: str, listed: Mapping[str, Values]) -> Values:
        """The entry of a file, or of the nearest one that it inherits from, without what is set on the way there."""
        set_before: list[Mapping[str, Any]] = []
        for name in self._ancestry(group, file):
            if name in listed:
                return {k: v for k, v in listed[name].items() if not any(_sets(c, group, k) for c in set_before)}
            set_before.append(self._composer.file(group, name)[0])
        return {}

    def _ancestry(self, group: str, file: str) -> list[str]:
        """The file and those of its group that it inherits from, nearest first."""
        found = [file]
        for name in found:  # grows while it is read
            found += [parent for parent in self._composer.file(group, name)[1] if parent not in found]
        return found


def apply(config: CommandConfig, values: Values) -> CommandConfig:
    """`config` with typed values at dotted keys."""
    for key, given in values.items():
        config = _with(config, key.split("."), given)
    return config


def _with(node: Any, parts: Sequence[str], given: Any) -> Any:
    head, *rest = parts
    if isinstance(node, Mapping):
        return {**node, head: _with(node.get(head, {}), rest, given) if rest else given}
    return dataclasses.replace(node, **{head: _with(getattr(node, head), rest, given) if rest else given})


def _of_environment(entry: Mapping[str, Values], environments: Sequence[str]) -> Values:
    """What a method's entry says for the first of these environment files that it names."""
    special = next((entry[env] for env in environments if env in entry), {})
    return {**entry.get(ANY, {}), **special}


def _sets(content: Mapping[str, Any], group: str, key: str) -> bool:
    """Whether a file of `group` sets a dotted key itself."""
    head, *parts = key.split(".")
    node: Any = content
    if head != group:
        return False
    for part in parts:
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


# ------------------------------------------------------------------------------------------------------- reading files
def _parsed(name: str, origin: str, content: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> Protocol:
    problems: list[Problem] = []

    def sub(node: Any, where: str) -> Mapping[str, Any]:
        if node is None or isinstance(node, Mapping):
            return node or {}
        problems.append(Problem(where, str(node), origin, "must be a mapping"))
        return {}

    def named(node: Any, where: str, known: Sequence[str]) -> Iterator[tuple[str, Any]]:
        for key, below in sub(node, where).items():
            if key in known:
                yield str(key), below
            else:
                place = f"{where}.{key}" if where else str(key)
                problems.append(Problem(place, "", origin, suggest(str(key), known, "known")))

    def read(node: Any, where: str) -> Values:
        found: dict[str, Any] = {}
        for key, given in sub(node, where).items():
            try:
                found[str(key)] = _typed(str(key), given)
            except ValueError as error:
                problems.append(Problem(str(key), describe(given), f"{origin}, {where}", str(error)))
        return found

    parts = dict(named(content, "", ("envs", "methods")))
    envs = {env: read(node, f"envs.{env}") for env, node in named(parts.get("envs"), "envs", groups["env"])}
    methods = {
        method: {
            env: read(below, f"methods.{method}.{env}")
            for env, below in named(node, f"methods.{method}", (ANY, *groups["env"]))
        }
        for method, node in named(parts.get("methods"), "methods", groups["method"])
    }
    if problems:
        raise ConfigError(problems)
    return Protocol(name, origin, envs, methods)


def _typed(key: str, given: Any) -> Any:
    """A value in the type of its key. Raises ValueError saying what is wrong with either."""
    known = keys().get(key)
    if not exists(key):
        near = nearest_key(key)
        raise ValueError("there is no such key" + (f"; did you mean {near}?" if near else ""))
    if key.partition(".")[0] not in SECTIONS or key in _NOT:
        raise ValueError(f"is not for a protocol to decide; it may set keys of {', '.join(SECTIONS)}")
    if known is not None and (known.branch or known.mapping):
        raise ValueError("is a section, not a value; set its keys")
    typed, faults = checked(key, given)
    if faults:
        raise ValueError(faults[0].fix)
    return typed
