"""What a scale or a backbone sets in one environment only: `by_env: {ENV: {KEY: VALUE}}` in their files.

Precedence: config < scale < its by_env < protocol < sweep.set < row.set < command line. A scale may set how a cell
trains and is judged; a backbone only how its work is spread (sections `verl` and `backbone.resources`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from harness.config import CommandConfig
from harness.errors import ConfigError, Problem, suggest
from harness.schema import exists, keys, nearest_key

KEY = "by_env"
OF_SCALE = ("training", "evaluation", "env", "verl")
OF_BACKBONE = ("verl", "backbone.resources")
_IDENTITIES = ("env.name", "verl.extra")


def values(config: CommandConfig, env: str, envs: Sequence[str] = ()) -> Mapping[str, Any]:
    """Dotted key -> typed value of everything that the scale, and after it the backbone, set in environment file `env`.

    envs: names of environment files, to find misspelt ones; empty: any name is taken. Raises ConfigError.
    """
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for table, sections, origin in _tables(config):
        for name, entries in table.items():
            where = f"{KEY}.{name}"
            if envs and name not in envs:
                problems.append(Problem(where, "", origin, suggest(str(name), envs, "environments")))
            elif not isinstance(entries, Mapping):
                problems.append(Problem(where, str(entries), origin, "must be a mapping of keys and values"))
            else:
                for key, given in entries.items():
                    if problem := _wrong(str(key), sections):
                        problems.append(Problem(f"{where}: {key}", str(given), origin, problem))
                    elif name == env:
                        typed, problem = _typed(str(key), given)
                        found[str(key)] = typed
                        problems += [Problem(f"{where}: {key}", str(given), origin, problem)] if problem else []
    if problems:
        raise ConfigError(problems)
    return found


def origin(config: CommandConfig, env: str, key: str) -> str | None:
    """Which file sets a key in an environment; None if none does."""
    for table, _, place in reversed(_tables(config)):
        if key in (table.get(env) or {}):
            return f"{place}, {KEY}.{env}"
    return None


def _tables(config: CommandConfig) -> tuple[tuple[Mapping[str, Any], Sequence[str], str], ...]:
    return (
        (config.by_env, OF_SCALE, f"sweeps/scale/{config.scale}.yaml"),
        (config.backbone.by_env, OF_BACKBONE, f"sweeps/backbone/{config.backbone.name}.yaml"),
    )


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


def _typed(key: str, given: Any) -> tuple[Any, str | None]:
    """A value in the type of its key, or what is wrong with it. Knobs have types that only their owner knows."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if keys().get(key) is None:
        return given, None
    probe = _probe()
    try:
        OmegaConf.update(probe, key, given)
        typed = OmegaConf.select(probe, key)
    except OmegaConfBaseException as error:
        return given, f"has the wrong type ({str(error).splitlines()[0].strip()})"
    return (OmegaConf.to_object(typed) if OmegaConf.is_config(typed) else typed), None


@lru_cache(maxsize=1)
def _probe() -> Any:
    """A configuration to try values in."""
    from omegaconf import OmegaConf

    return OmegaConf.structured(CommandConfig)
