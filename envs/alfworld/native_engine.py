"""`env.engine=native`: ALFWorld's game files played by the rules in `native.py`."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

from envs.alfworld.native import Game, Scene, scene_of_game
from envs.interface import EnvironmentFailure, Observation, StepResult, Task

_INSTRUCTION = re.compile(r'"rhs": "Your task is to: (.*?)\.?"\s*\}')
_HELP = re.compile(r'"help\.feedback": \[\s*\{\s*"rhs": ("(?:[^"\\]|\\.)*")')


@lru_cache(maxsize=512)
def load_scene(game_file: Path) -> tuple[Scene, str]:
    """(scene, help text) of a game file and the traj_data.json beside it."""
    try:
        game = json.loads(game_file.read_text(encoding="utf-8"))
        trajectory = json.loads((game_file.parent / "traj_data.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentFailure(f"cannot read game {game_file}: {error}") from error
    instruction, help_text = _INSTRUCTION.search(game["grammar"]), _HELP.search(game["grammar"])
    if instruction is None:
        raise EnvironmentFailure(f"game {game_file} states no task in its grammar")
    scene = scene_of_game(
        game["pddl_problem"], trajectory["task_type"], trajectory["pddl_params"], instruction.group(1)
    )
    return scene, json.loads(help_text.group(1)) if help_text else ""


class NativeAlfworld:
    """Environment over the games below `root`. An episode ends when won or after `max_steps` commands."""

    def __init__(self, root: Path, max_steps: int) -> None:
        self.root, self.max_steps = root, max_steps
        self._game: Game | None = None
        self._steps = 0

    def reset(self, task: Task) -> Observation:
        self._game = Game(*load_scene(self.root / task.location))
        self._steps = 0
        return self._observation(self._game, self._game.reset())

    def step(self, action: str) -> StepResult:
        game = self._game
        if game is None:
            raise EnvironmentFailure("step before reset")
        text, admissible = game.step(action)
        self._steps += 1
        won = game.won()
        return StepResult(
            observation=self._observation(game, text),
            reward=float(won),
            done=won or self._steps >= self.max_steps,
            success=won,
            score=float(won),
            admissible=admissible,
        )

    def close(self) -> None:
        self._game = None

    @staticmethod
    def _observation(game: Game, text: str) -> Observation:
        return Observation(text.strip(), f"{game.scene.instruction}.", tuple(game.admissible()))
