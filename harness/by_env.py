"""What a scale or a backbone sets in one environment only: `by_env: {ENV: {KEY: VALUE}}` in their files.

Precedence: config < scale < its by_env < protocol < sweep.set < row.set < command line. A scale may set how a cell
trains and is judged; a backbone only how its work is spread (sections `verl` and `backbone.resources`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.config import CommandConfig
from harness.errors import ConfigError, Problem, describe, suggest
from harness.schema import exists, keys, nearest_key
from harness.typed import checked

KEY = "by_env"
OF_SCALE = ("training", "evaluation", "env", "verl")
OF_BACKBONE = ("verl", "backbone.resources")
_IDENTITIES = ("env.name", "verl.extra")


def values(
    config: CommandConfig, env: str, envs: Sequence[str] = (), origin: Callable[[str], str] = str
) -> Mapping[str, Any]:
    """Dotted key -> typed value of everything that the scale, and after it the backbone, set in environment file `env`.

    envs: names of environment files, to find misspelt ones; empty: any name is taken. origin: who says what is at a
    dotted key. Raises ConfigError.
    """
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for told, table, sections in _tables(config):
        for name, entries in table.items():
            where = f"{told}.{name}"
            if envs and name not in envs:
                problems.append(Problem(where, "", origin(told), suggest(str(name), envs, "environments")))
            elif not isinstance(entries, Mapping):
                fix = "must be a mapping of keys and values"
                problems.append(Problem(where, describe(entries), origin(told), fix))
            else:
                for key, given in entries.items():
                    typed, faults = checked(str(key), given)
                    problem = _wrong(str(key), sections) or (faults[0].fix if faults and name == env else None)
                    if problem:
                        problems.append(Problem(f"{where}: {key}", describe(given), origin(told), problem))
                    elif name == env:
                        found[str(key)] = typed
    if problems:
        raise ConfigError(problems)
    return found


def source(config: CommandConfig, env: str, key: str) -> str | None:
    """Which key, `by_env` or `backbone.by_env`, sets a dotted key in an environment; None if neither does."""
    for name, table, _ in reversed(_tables(config)):
        if key in (table.get(env) or {}):
            return str(name)
    return None


def _tables(config: CommandConfig) -> tuple[tuple[str, Mapping[str, Any], Sequence[str]], ...]:
    return ((KEY, config.by_env, OF_SCALE), (f"backbone.{KEY}", config.backbone.by_env, OF_BACKBONE))


def _wrong(key: str, sections: Sequence[str]) -> str | None:
    known = keys().get(key)
    if not exists(key):
        near = nearest_key(key)
        return "there is no such key" + (f"; did you mean {near}?" if near else "")
    if not any(key.startswith(f"{section}.") for section in sections) or key.startswith(_IDENTITIES):
        return f"cannot be set here; keys of {', '.join(sections)} can"
    if known is not None and (known.branch or known.mapping):
        return "is a section, not a value; set its keys"
    return None
