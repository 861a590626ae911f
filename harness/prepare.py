"""Artefacts that runs share: generated worlds and their translations, embedded backbones. Made once, before runs start.

Here, too, it is checked that a backbone is fit for rows that use skills.

Imports nothing heavy by itself; what has to be made decides what is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envs.cache import VARIABLE, cache_root
from harness.config import RunConfig
from harness.errors import ConfigError, Problem
from harness.folders import check_writable
from harness.locks import file_lock
from harness.panels import used_panels


def uses_skills(config: RunConfig) -> bool:
    """Whether a run learns from skills, or has them in the policy's prompt."""
    return config.method.skill.source != "none"


def check_cache(config: RunConfig) -> None:
    """Raise ConfigError unless the cache folder can take what runs share."""
    source = f"env.cache, ${VARIABLE} or the user's cache folder"
    check_writable(cache_root(config.env), "env.cache", source, config.runtime.min_free_gb)


def prepare(config: RunConfig, progress: Callable[[str], None] = lambda text: None) -> Path:
    """Make, or find, everything that runs of this configuration read: all its panels and its backbone.

    One process at a time prepares; the others wait and then find everything made. progress: told what is being done.
    Returns the backbone's folder. Raises what making them raises, e.g. FileNotFoundError for missing data, and
    ConfigError if the run uses skills and the backbone fails the gate.
    """
    from envs import registry
    from harness import backbones

    def waiting() -> None:
        progress("waiting for another process that prepares the same folder")

    with file_lock(cache_root(config.env) / "prepare.lock", on_wait=waiting):
        spec = registry.get(config.env.name)
        for name in used_panels(config):
            progress(f"tasks: {config.env.name} {name} (made the first time)")
            spec.load_panel(config.env, name)
        progress(f"backbone: {config.backbone.name}")
        folder = backbones.ensure(config.backbone, config.env, _percent(progress))
        if uses_skills(config):
            from harness.backbones.fitness import UnfitError, require_fit

            try:
                require_fit(config.backbone, config.env, progress)
            except UnfitError as error:
                raise ConfigError(Problem("backbone", config.backbone.name, "", str(error))) from error
        return folder


def _percent(progress: Callable[[str], None]) -> Callable[[str, int, int], None]:
    """Reports of (what, done, total), told onwards once per percent."""
    last = -1

    def report(what: str, done: int, total: int) -> None:
        nonlocal last
        percent = 100 * done // max(total, 1)
        if percent != last:
            last = percent
            progress(f"{what}: {percent} %")

    return report
