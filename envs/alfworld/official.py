"""ALFWorld's released games, taken as they are: which of them count, how many there must be, where they come from.

The rules are those of the release's own loader: a trial counts if it has traj_data.json, one of the six task types, no
`movable` or `Sliced` in its path, and a game.tw-pddl that is marked solvable. Unlike that loader nothing is left out
silently: fewer games than released is an error that names the trials.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envs.alfworld.episode import content_hash, read_game
from envs.alfworld.facts import TASK_TYPES
from envs.alfworld.manifest import FOLDERS, LAYOUT, NAME, SPLITS, Entry, Manifest, entries_or_error, some
from envs.cache import write_atomically
from envs.interface import EnvironmentFailure
from envs.panels import digest

log = logging.getLogger(__name__)

VERSION = f"official-{LAYOUT}"
COUNTS: Mapping[str, int] = {"train": 3553, "seen": 140, "unseen": 134}  # as released, all six types
_INDEX_FORMAT = 1


@dataclass
class Collected:
    """entries: usable games, sorted by id; without_game, unsolvable, broken: trials that would count but for that."""

    entries: list[Entry] = field(default_factory=list)
    without_game: list[str] = field(default_factory=list)
    unsolvable: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def excuses(self) -> str:
        """What is known of the trials that do not count, each named."""
        parts = [
            f"{len(trials)} {what}: {some(trials)}"
            for what, trials in (
                ("without game.tw-pddl", self.without_game),
                ("not marked solvable", self.unsolvable),
                ("unreadable", self.broken),
            )
            if trials
        ]
        return "; ".join(parts) or "no trial without a usable game was found, so whole trials are missing"


def trial_folders(split_folder: Path) -> list[Path]:
    """Folders with a traj_data.json that the release's rules do not skip by name, sorted."""
    found = []
    for folder, names, files in os.walk(split_folder):
        names.sort()
        relative = Path(folder).relative_to(split_folder).as_posix()
        if "traj_data.json" in files and "movable" not in relative and "Sliced" not in relative:
            found.append(Path(folder))
    return sorted(found)


def slots_of(trajectory: Mapping[str, Any]) -> dict[str, str]:
    """What the instruction is about, lower-case: object, target and lamp, those that the task has."""
    parameters = trajectory["pddl_params"]
    named = (("object", "object_target"), ("target", "parent_target"), ("lamp", "toggle_target"))
    return {slot: parameters[key].lower() for slot, key in named if parameters.get(key)}


def collect(root: Path, panel: str) -> Collected:
    """Reads every trial of a panel's split below `root`."""
    out = Collected()
    split = FOLDERS[panel]
    split_folder = root / LAYOUT / split
    for folder in trial_folders(split_folder):
        trial = f"{split}/{folder.relative_to(split_folder).as_posix()}"
        try:
            trajectory = json.loads((folder / "traj_data.json").read_text(encoding="utf-8"))
            if trajectory["task_type"] not in TASK_TYPES:
                continue
            path = folder / "game.tw-pddl"
            if not path.exists():
                out.without_game.append(trial)
                continue
            game = read_game(path)
            if not game.get("solvable"):
                out.unsolvable.append(trial)
                continue
            out.entries.append(
                Entry(
                    id=trial,
                    type=trajectory["task_type"],
                    content_hash=content_hash(game),
                    slots=slots_of(trajectory),
                    location=path.relative_to(root).as_posix(),
                    size=path.stat().st_size,
                )
            )
        except (EnvironmentFailure, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            out.broken.append(f"{trial} ({error})")
    out.entries.sort(key=lambda entry: entry.id)
    return out


def panel_entries(root: Path, panel: str, cache: Path, counts: Mapping[str, int] = COUNTS) -> tuple[str, list[Entry]]:
    """(data version, games) of a panel in the user's data folder.

    A folder with a manifest.json must hold exactly the games named there; any other folder must be the official data.
    Raises FileNotFoundError naming every game that is missing, ValueError if there are more than were released.
    """
    if (root / NAME).exists():
        manifest = Manifest.read(root / NAME)
        return manifest.version, list(entries_or_error(manifest, panel, root))
    split_folder = root / LAYOUT / SPLITS[panel]
    if not split_folder.is_dir():
        raise FileNotFoundError(
            f"env.data={str(root)!r} has no folder {LAYOUT}/{SPLITS[panel]}; give the folder that contains {LAYOUT}, "
            "get the data with `python -m envs.alfworld fetch`, or leave env.data empty for generated games"
        )
    index = cache / "official" / f"{digest(str(root.resolve()))[:16]}-{panel}.json"
    state = _state_of(split_folder)
    known = _read_index(index, state)
    if known is not None:
        return VERSION, known
    log.info("reading the games of panel %s below %s", panel, root)
    collected = collect(root, panel)
    found, expected = len(collected.entries), counts[panel]
    if found < expected:
        raise FileNotFoundError(
            f"panel {panel!r} has {expected} games in the official data, but {split_folder} has {found} that can be "
            f"played ({expected - found} missing): {collected.excuses()}"
        )
    if found > expected:
        raise ValueError(
            f"{split_folder} has {found} games and the official data has {expected}; if these are your own games, "
            f"declare them with `python -m envs.alfworld verify --data {root} --write-manifest`"
        )
    try:
        body = {"format": _INDEX_FORMAT, "state": state, "entries": [asdict(e) for e in collected.entries]}
        write_atomically(index, json.dumps(body).encode())
    except OSError as error:
        log.warning("the index of %s cannot be kept (%s); it is read again each time", root, error)
    return VERSION, collected.entries


def _state_of(split_folder: Path) -> str:
    """Changes whenever a game file is added, removed or written: paths, sizes and times, without reading them."""
    parts = []
    for folder in trial_folders(split_folder):
        path = folder / "game.tw-pddl"
        try:
            status = path.stat()
            parts.append(f"{path.relative_to(split_folder)} {status.st_size} {status.st_mtime_ns}")
        except FileNotFoundError:
            parts.append(f"{path.relative_to(split_folder)} missing")
    return digest(*parts)


def _read_index(path: Path, state: str) -> list[Entry] | None:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] == _INDEX_FORMAT and body["state"] == state:
            return [Entry(**entry) for entry in body["entries"]]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("index %s is unreadable (%s); reading the games again", path, error)
    return None
