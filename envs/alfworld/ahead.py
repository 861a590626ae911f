"""Translation of generated games ahead of time, for the packages' engine: once per panel, on several cores."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from envs.alfworld import layout
from envs.alfworld.translation import FORMAT, Translations, home_for_packages
from envs.alfworld.worlds import at_location
from envs.cache import cache_root, file_lock, write_atomically
from envs.interface import EnvConfig, Task
from envs.panels import digest

log = logging.getLogger(__name__)

_AT_ONCE = 4  # processes that translate at once, at most


def ensure_translations(config: EnvConfig, tasks: Sequence[Task], workers: int | None = None) -> None:
    """Translates the games of a panel now, so that no run pays for it and all runs cost the same.

    Done once per panel; a note in the cache says so. workers: None for the cores there are. If it fails nothing is
    lost: games are translated when they are first played. Raises ValueError without the packages.
    """
    layout.require_package()
    folder = cache_root(config) / "translations"
    name = f"generated-{digest(f'translation {FORMAT}', *(task.content_hash for task in tasks))[:16]}"
    done = folder / f"{name}.done"
    if done.exists():
        return
    try:
        with file_lock(folder / f"{name}.lock"):
            if done.exists():
                return
            log.info("translating %d games", len(tasks))
            if _translate_all(tasks, folder, workers or min(len(os.sched_getaffinity(0)), _AT_ONCE)):
                write_atomically(done, b"")
    except OSError as error:
        log.warning("translations cannot be kept in %s (%s); games are translated when they are played", folder, error)


def _translate_all(tasks: Sequence[Task], folder: Path, workers: int) -> bool:
    """One process per share, told its locations on standard input. True if all went well."""
    package_parent = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package_parent, *filter(None, [os.environ.get("PYTHONPATH")])])
    running: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as shares:
        try:
            for i in range(workers):
                share = shares.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
                share.writelines(f"{task.location}\n" for task in tasks[i::workers])
                share.seek(0)
                process = subprocess.Popen(
                    [sys.executable, "-m", "envs.alfworld", "translate", "--folder", str(folder)],
                    env={**os.environ, "PYTHONPATH": path},
                    stdin=share,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                running.append(process)
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


def translate(locations: Iterable[str], folder: Path) -> int:
    """Translate the worlds at these locations, in this process; returns how many. ValueError for no location."""
    home_for_packages(folder.parent / "alfworld-package")
    rules, kept, count = layout.package_rules(), Translations(folder), 0
    for location in locations:
        game = layout.game_of(at_location(location), rules)
        kept.get(game["pddl_domain"], game["pddl_problem"])
        count += 1
    return count
