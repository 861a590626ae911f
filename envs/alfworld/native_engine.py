"""`env.engine=native`: generated worlds and ALFWorld's game files, played by the rules in `native.py`."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

from envs.alfworld import generated
from envs.alfworld.episode import AlfworldEpisode, View, read_checked
from envs.alfworld.facts import facts
from envs.alfworld.layout import help_text
from envs.alfworld.native import Game, Scene
from envs.alfworld.problem import scene_of_game
from envs.alfworld.worlds import is_location
from envs.interface import EnvironmentFailure, Task

_INSTRUCTION = re.compile(r'"rhs": "Your task is to: (.*?)\.?"\s*\}')
_KEPT_SCENES = 256  # games kept per process, some 0.1 MB each


@lru_cache(maxsize=_KEPT_SCENES)
def _load(root: Path | None, location: str, content_hash: str) -> tuple[Scene, str]:
    """(scene, help text). The content hash is part of the key: a changed file is read, and refused, again."""
    if is_location(location):
        return generated.scene_at(location, content_hash)[1], facts().help
    game = read_checked(root, Task("", "", content_hash, location=location))
    path = (root or Path()) / location
    try:
        trajectory = json.loads((path.parent / "traj_data.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentFailure(f"cannot read traj_data.json beside {path}: {error}") from error
    instruction = _INSTRUCTION.search(game["grammar"])
    if instruction is None:
        raise EnvironmentFailure(f"game {path} states no task in its grammar")
    scene = scene_of_game(
        game["pddl_problem"], trajectory["task_type"], trajectory["pddl_params"], instruction.group(1), f"game {path}"
    )
    return scene, help_text(game["grammar"])


def why_not(root: Path, task: Task) -> str | None:
    """None if the native engine can play a game below `root`, else the reason."""
    try:
        _load.__wrapped__(root, task.location, task.content_hash)
    except EnvironmentFailure as error:
        return str(error)
    return None


class NativeAlfworld(AlfworldEpisode):
    """Environment over generated worlds and the games below `root`; holds nothing but the state of one game."""

    def _begin(self, task: Task) -> View:
        self._game = Game(*_load(self.root, task.location, task.content_hash))
        return self._seen(self._game.reset())

    def _act(self, command: str) -> View:
        text, _ = self._game.step(command)
        return self._seen(text)

    def _seen(self, text: str) -> View:
        return View(text, tuple(self._game.admissible()), self._game.won())
