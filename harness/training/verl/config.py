"""verl's configuration of one run: verl's own files with the table of `settings` laid over them.

Composing needs hydra and the YAML files of the installed verl, and imports nothing of it: importing verl takes ten
seconds and brings Ray and torch.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.errors import ConfigError, Problem, nearest
from harness.training.verl.settings import Setting, default_backend, settings_of
from harness.training.verl.sizes import Sizes, sizes_of

PRIMARY = "ppo_trainer"


class VerlMissingError(ImportError):
    """verl is not installed here."""

    failure_class = "config"


def compose(config: RunConfig, run_dir: Path, backend: str | None = None) -> Any:
    """verl's whole configuration for a run, as an OmegaConf node with verl's own interpolations.

    run_dir: the run's folder. backend: verl's rollout engine; None: vllm on GPUs, hf_cpu on a CPU.
    Raises VerlMissingError, and ConfigError for what `verl.extra` may not set and for a key that this verl lacks.
    """
    from omegaconf import OmegaConf, open_dict

    node = copy.deepcopy(defaults())
    table = table_of(config, run_dir, backend)
    _check_known(table)
    with open_dict(node):
        for setting in table:
            OmegaConf.update(node, setting.key, setting.value, merge=True, force_add=True)
    return node


def table_of(config: RunConfig, run_dir: Path, backend: str | None = None) -> tuple[Setting, ...]:
    """Every value that is not verl's default, with its source; needs no verl. Raises ConfigError for verl.extra."""
    from harness.record import planned_steps

    table = settings_of(config, run_dir, backend or default_backend(config), sizes_of(config), planned_steps(config))
    decided = {setting.key: setting for setting in table}
    extra = tuple(_extra(config.verl.extra))
    problems = []
    for setting in extra:
        clash = next((k for k in decided if _within(setting.key, k) or _within(k, setting.key)), None)
        if clash is not None:
            fix = f"is decided by the harness ({decided[clash].source}); change it there"
            problems.append(Problem(f"verl.extra.{setting.key}", str(setting.value), "", fix))
    if problems:
        raise ConfigError(problems)
    return (*table, *extra)


def sizes(config: RunConfig) -> Sizes:
    """As harness.training.verl.sizes.sizes_of."""
    return sizes_of(config)


def verl_folder() -> Path:
    """The installed verl, found without importing it. Raises VerlMissingError."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise VerlMissingError("engine=verl needs the package verl: pip install -e '.[gpu]' (or [verl]) in the clone")
    return Path(next(iter(spec.submodule_search_locations)))


def verl_version() -> str:
    """Version of the installed verl. Raises VerlMissingError."""
    from importlib import metadata

    verl_folder()
    try:
        return metadata.version("verl")
    except metadata.PackageNotFoundError:
        return "unknown"


def defaults() -> Any:
    """verl's configuration as it is shipped, composed once per process; do not change it. Raises VerlMissingError."""
    return _composed_defaults(str(verl_folder() / "trainer" / "config"))


@lru_cache(maxsize=2)
def _composed_defaults(folder: str) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.singleton import Singleton

    state = Singleton.get_state()  # a Hydra application may be running around us, which allows no second one
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=folder, version_base="1.3"):
            return hydra_compose(PRIMARY)
    finally:
        Singleton.set_state(state)


# --------------------------------------------------------------------------------------------------------------- checks
def _within(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.")


def _extra(given: Mapping[str, Any], prefix: str = "") -> Iterator[Setting]:
    """Leaves of verl.extra, whose keys may be dotted, nested, or both."""
    for key in sorted(given, key=str):
        value = given[key]
        if isinstance(value, Mapping) and value:
            yield from _extra(value, f"{prefix}{key}.")
        else:
            yield Setting(f"{prefix}{key}", value, "verl.extra")


def _check_known(table: tuple[Setting, ...]) -> None:
    """Raise ConfigError for keys that the installed verl lacks. A misspelt or renamed key must not be silent."""
    from omegaconf import OmegaConf

    known = OmegaConf.to_container(defaults(), resolve=False)
    names = _leaves(known, "")
    problems = []
    for setting in table:
        if setting.new or _has(known, setting.key):
            continue
        near = nearest(setting.key, names)
        fix = f"verl {verl_version()} has no such key" + (f"; did you mean {near}?" if near else "")
        where = f"verl.extra.{setting.key}" if setting.source == "verl.extra" else setting.key
        problems.append(Problem(where, str(setting.value), "", fix))
    if problems:
        raise ConfigError(problems)


def _leaves(node: Any, prefix: str) -> list[str]:
    if not isinstance(node, Mapping):
        return [prefix.rstrip(".")]
    return [leaf for key, below in node.items() for leaf in _leaves(below, f"{prefix}{key}.")]


def _has(node: Any, key: str) -> bool:
    """Whether a dotted key is there, whatever its value."""
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True
