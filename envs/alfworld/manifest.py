"""Which games a data folder must hold: ordered ids and content hashes, kept beside the games, checked on load."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from envs.alfworld.episode import content_hash, read_game
from envs.alfworld.knobs import HELD_OUT
from envs.cache import write_atomically
from envs.interface import EnvironmentFailure, Task
from envs.panels import digest

FORMAT = 1
NAME = "manifest.json"
LAYOUT = "json_2.1.1"  # folder of the games below a data root, as in the official release
SPLITS: Mapping[str, str] = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}  # panel -> folder
VALIDATION = "validation"  # the panel that is played while training; no released split, see validation.py
# panel -> folder in the ids of its games. What is held out are games that `seen` would have, and they keep their ids.
FOLDERS: Mapping[str, str] = {**SPLITS, VALIDATION: "validation", HELD_OUT: SPLITS["seen"]}
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One game. id: split/folder/trial; location: of the game file below the data root; size: of that file in bytes."""

    id: str
    type: str
    content_hash: str
    slots: dict[str, str]
    location: str
    size: int

    def task(self) -> Task:
        return Task(self.id, self.type, self.content_hash, self.slots, self.location)


@dataclass(frozen=True)
class Manifest:
    """version: of the data, part of every panel hash; panels: name -> its games, sorted by id."""

    version: str
    panels: Mapping[str, tuple[Entry, ...]]

    def write(self, path: Path) -> None:
        body = {
            "format": FORMAT,
            "version": self.version,
            "panels": {name: [asdict(e) for e in self.panels[name]] for name in sorted(self.panels)},
        }
        body["sha256"] = digest(json.dumps(body, sort_keys=True))
        write_atomically(path, (json.dumps(body, indent=1, sort_keys=True) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Raises FileNotFoundError, or ValueError for a file that was changed or is no manifest."""
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            claimed = body.pop("sha256")
            if body["format"] != FORMAT:
                raise ValueError(f"its format {body['format']} is not {FORMAT}")
            if digest(json.dumps(body, sort_keys=True)) != claimed:
                raise ValueError("it was changed after it was written")
            panels = {name: tuple(Entry(**entry) for entry in entries) for name, entries in body["panels"].items()}
            return cls(body["version"], panels)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a usable manifest: {error}") from error


def entries_or_error(manifest: Manifest, panel: str, root: Path) -> tuple[Entry, ...]:
    """The panel's games, all of them there. Raises FileNotFoundError naming those that are missing or cut short."""
    entries = manifest.panels.get(panel)
    if entries is None:
        raise FileNotFoundError(f"{root} holds no panel {panel!r}; it holds {', '.join(sorted(manifest.panels))}")
    missing, changed = [], []
    for entry in entries:
        try:
            if (root / entry.location).stat().st_size != entry.size:
                changed.append(entry.location)
        except FileNotFoundError:
            missing.append(entry.location)
    if missing or changed:
        what = [f"{len(missing)} missing: {some(missing)}"] if missing else []
        what += [f"{len(changed)} of another size than recorded: {some(changed)}"] if changed else []
        raise FileNotFoundError(
            f"panel {panel!r} needs {len(entries)} games below {root}; {'; '.join(what)}. Restore them, or delete the "
            "folder and write it again if `python -m envs.alfworld generate` made it"
        )
    return entries


def problems(manifest: Manifest, root: Path) -> list[str]:
    """Every difference between the manifest and the files, found by reading all of them. Empty: all is well."""
    found = []
    for name in sorted(manifest.panels):
        for entry in manifest.panels[name]:
            try:
                actual = content_hash(read_game(root / entry.location))
            except EnvironmentFailure as error:
                found.append(str(error))
                continue
            if actual != entry.content_hash:
                found.append(f"{entry.location}: content hash {actual[:12]}, recorded {entry.content_hash[:12]}")
    return found


def some(names: Iterable[str]) -> str:
    """The names, or the first of them and how many there are besides."""
    listed = list(names)
    shown = ", ".join(listed[:_SHOWN])
    return shown if len(listed) <= _SHOWN else f"{shown} and {len(listed) - _SHOWN} more"
