"""Games generated from a seed, made once per cache folder however many processes ask for them at the same time."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from envs.alfworld.manifest import FOLDERS, LAYOUT, NAME, SPLITS, Entry, Manifest, entries_or_error
from envs.alfworld.translation import Translations, home_for_packages
from envs.cache import cache_root, file_lock, write_atomically
from envs.interface import EnvConfig
from envs.panels import assert_disjoint, build_panel, digest

if TYPE_CHECKING:
    from envs.alfworld.worlds import World

log = logging.getLogger(__name__)

_TRANSLATORS = 4  # processes that translate at once, at most


def data_version(config: EnvConfig) -> str:
    """Names the generated data by everything that determines the games. ValueError without the packages."""
    from envs.alfworld.worlds import GENERATOR_VERSION

    for key, value in (("train_per_type", config.train_per_type), ("eval_per_type", config.eval_per_type)):
        if value < 1:
            raise ValueError(f"env.{key}={value} makes an empty panel; give at least 1")
    parts = {
        "generator": GENERATOR_VERSION,
        "package": package_version(),
        "world_seed": config.world_seed,
        "train_per_type": config.train_per_type,
        "eval_per_type": config.eval_per_type,
    }
    return f"generated-{digest(json.dumps(parts, sort_keys=True))[:16]}"


def package_version() -> str:
    """Of alfworld: games carry its PDDL domain and its text grammar. Raises ValueError without it."""
    try:
        return version("alfworld")
    except PackageNotFoundError as error:
        raise ValueError(
            "env.name='alfworld' needs the packages alfworld and textworld; install agentic-rl-harness[alfworld]"
        ) from error


def root_of(config: EnvConfig) -> Path:
    """Data root of the configuration's generated games; it need not exist."""
    return cache_root(config) / "worlds" / data_version(config)


def ensure(config: EnvConfig) -> tuple[Path, Manifest]:
    """(data root, manifest) of the generated games, made now if they are not there.

    Two processes that ask at once make them once: one holds a lock, works in a folder of its own and renames it.
    """
    root = root_of(config)
    return root, made_once(root, lambda folder: write_games(config, folder))


def made_once(root: Path, write: Callable[[Path], Manifest]) -> Manifest:
    """The manifest of the folder `root`, made now by `write` in a folder of its own if it is not there."""
    with contextlib.suppress(FileNotFoundError):
        return Manifest.read(root / NAME)
    with file_lock(root.parent / f"{root.name}.lock"):
        if not (root / NAME).exists():
            for left in sorted(root.parent.glob(f".{root.name}.*")):  # of a maker that was killed
                shutil.rmtree(left)
            temporary = root.parent / f".{root.name}.{os.getpid()}"
            started = time.monotonic()
            try:
                write(temporary)
                if root.exists():  # without a manifest: not made by us as a whole
                    shutil.rmtree(root)
                temporary.rename(root)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            log.info("generated the games of %s in %.1f s", root, time.monotonic() - started)
    return Manifest.read(root / NAME)


def write_games(config: EnvConfig, root: Path) -> Manifest:
    """Writes the three panels below `root` in the official layout, with a manifest.

    Raises PanelError if an evaluation game were also a training game, ValueError if a game had no solution.
    """
    from envs.alfworld import worlds

    name = data_version(config)
    panels = {
        panel: write_panel(
            config,
            root,
            panel,
            worlds.draw(panel, config.train_per_type if panel == "train" else config.eval_per_type, config.world_seed),
        )
        for panel in SPLITS
    }
    manifest = Manifest(name, panels)
    built = {p: build_panel("alfworld", name, p, [e.task() for e in panels[p]]) for p in panels}
    assert_disjoint(built["train"], built["seen"], built["unseen"])
    manifest.write(root / NAME)
    return manifest


def write_panel(config: EnvConfig, root: Path, panel: str, drawn: Sequence[World]) -> tuple[Entry, ...]:
    """Writes the worlds of one panel below `root`. Raises ValueError if a game had no solution."""
    from envs.alfworld import official, worlds
    from envs.alfworld.expert import walkthrough

    home_for_packages(cache_root(config) / "alfworld-package")
    for world in drawn:
        worlds.write(world, root / LAYOUT / FOLDERS[panel], walkthrough(world))
    collected = official.collect(root, panel)
    if len(collected.entries) != len(drawn):
        raise ValueError(f"{len(drawn)} games were generated for panel {panel!r} but {collected.excuses()}")
    return tuple(collected.entries)


def panel_entries(config: EnvConfig, panel: str) -> tuple[Path, str, tuple[Entry, ...]]:
    """(data root, data version, games) of a panel, ready to be played by the configured engine."""
    root, manifest = ensure(config)
    entries = entries_or_error(manifest, panel, root)
    if config.engine == "textworld":
        ensure_translations(config, root, manifest.version, panel, entries)
    return root, manifest.version, entries


# ------------------------------------------------------------------------------------------------------- translations
def ensure_translations(
    config: EnvConfig, root: Path, name: str, panel: str, entries: Sequence[Entry], workers: int | None = None
) -> None:
    """Translates the panel's games now, on several cores, so that no run pays for it and all runs cost the same.

    Done once per panel; a note in the cache says so. workers: None for the cores there are. If it fails nothing is
    lost: games are translated when they are first played.
    """
    folder = cache_root(config) / "translations"
    done = folder / f"{name}-{panel}.done"
    if done.exists():
        return
    try:
        with file_lock(folder / f"{name}-{panel}.lock"):
            if done.exists():
                return
            log.info("translating the %d games of panel %s", len(entries), panel)
            if _translate_all(root, panel, folder, workers or min(len(os.sched_getaffinity(0)), _TRANSLATORS)):
                write_atomically(done, b"")
    except OSError as error:
        log.warning("translations cannot be kept in %s (%s); games are translated when they are played", folder, error)


def _translate_all(root: Path, panel: str, folder: Path, workers: int) -> bool:
    """One process per share. True if all went well."""
    package_parent = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package_parent, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "envs.alfworld", "translate", "--data", str(root), "--panel", panel]
    running = [
        subprocess.Popen(
            [*command, "--folder", str(folder), "--share", f"{i}/{workers}"],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(workers)
    ]
    try:
        endings = [(process, process.communicate()[1]) for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, errors in endings:
        if process.returncode != 0:
            log.warning("translating ahead failed with status %d: %s", process.returncode, errors.strip()[-500:])
    return all(process.returncode == 0 for process, _ in endings)


def translate_share(root: Path, panel: str, folder: Path, share: int, shares: int) -> int:
    """Translate every `shares`-th game of a panel, beginning with number `share`; returns how many."""
    from envs.alfworld.episode import read_game

    manifest = Manifest.read(root / NAME)
    kept = Translations(folder)
    mine = manifest.panels[panel][share::shares]
    for entry in mine:
        game = read_game(root / entry.location)
        kept.get(game["pddl_domain"], game["pddl_problem"])
    return len(mine)
