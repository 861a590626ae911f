"""Artefacts that runs share: generated worlds and their translations, embedded backbones. Made once, before runs start.

Imports nothing heavy by itself; what has to be made decides what is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envs.cache import cache_root
from harness.config import RunConfig
from harness.locks import file_lock


def prepare(config: RunConfig, progress: Callable[[str], None] = lambda text: None) -> Path:
    """Make, or find, everything that runs of this configuration read: all its panels and its backbone.

    One process at a time prepares; the others wait and then find everything made. progress: told what is being done.
    Returns the backbone's folder. Raises what making them raises, e.g. FileNotFoundError for missing data.
    """
    from envs import registry
    from harness import backbones

    def waiting() -> None:
        progress("waiting for another process that prepares the same folder")

    with file_lock(cache_root(config.env) / "prepare.lock", on_wait=waiting):
        spec = registry.get(config.env.name)
        wanted = [*(["train"] if config.method.trains else []), *config.evaluation.panels]
        for name in dict.fromkeys(wanted):
            progress(f"tasks: {config.env.name} {name}")
            spec.load_panel(config.env, name)
        progress(f"backbone: {config.backbone.name}")
        return backbones.ensure(config.backbone, config.env, _percent(progress))


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
