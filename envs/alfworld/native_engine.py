"""`env.engine=native`: ALFWorld's game files played by the rules in `native.py`."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

from envs.alfworld.episode import AlfworldEpisode, View, read_checked
from envs.alfworld.native import Game, Scene, scene_of_game
from envs.interface import EnvironmentFailure, Task

_INSTRUCTION = re.compile(r'"rhs": "Your task is to: (.*?)\.?"\s*\}')
_HELP = re.compile(r'"help\.feedback": \[\s*\{\s*"rhs": ("(?:[^"\\]|\\.)*")')
_KEPT_SCENES = 512  # parsed games kept per process


@lru_cache(maxsize=_KEPT_SCENES)
def _load(root: Path, location: str, content_hash: str) -> tuple[Scene, str]:
    """(scene, help text). The content hash is part of the key: a changed file is read, and refused, again."""
    game = read_checked(root, Task("", "", content_hash, location=location))
    path = root / location
    try:
        trajectory = json.loads((path.parent / "traj_data.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentFailure(f"cannot read traj_data.json beside {path}: {error}") from error
    instruction, help_text = _INSTRUCTION.search(game["grammar"]), _HELP.search(game["grammar"])
    if instruction is None:
        raise EnvironmentFailure(f"game {path} states no task in its grammar")
    scene = scene_of_game(
        game["pddl_problem"], trajectory["task_type"], trajectory["pddl_params"], instruction.group(1)
    )
    return scene, json.loads(help_text.group(1)) if help_text else ""


class NativeAlfworld(AlfworldEpisode):
    """Environment over the games below `root`; holds nothing but the state of one game."""

    def _begin(self, task: Task) -> View:
        self._game = Game(*_load(self.root, task.location, task.content_hash))
        return self._seen(self._game.reset())

    def _act(self, command: str) -> View:
        text, _ = self._game.step(command)
        return self._seen(text)

    def _seen(self, text: str) -> View:
        return View(text, tuple(self._game.admissible()), self._game.won())
