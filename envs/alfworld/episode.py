"""What both engines share: reading a task's game file, counting steps, turning what the engine says into results."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.interface import EnvironmentFailure, Observation, StepResult, Task
from envs.panels import digest

_TASK = "Your task is to: "
_PROBLEM_NAME = re.compile(r"\(problem\s+[^)\s]+\s*\)")


def lines_of(text: str) -> list[str]:
    """Lines without surrounding space, without empty lines and PDDL comments that fill a line."""
    stripped = (line.strip() for line in text.replace("\r", "\n").split("\n"))
    return [line for line in stripped if line and not line.startswith(";")]


def content_hash(game: Mapping[str, Any]) -> str:
    """sha256 over what defines a game: domain, text grammar and problem.

    Normalised so that neither the problem's name nor white space nor the order in which objects and initial facts are
    listed counts. KeyError if one of the three texts is missing.
    """
    problem = _PROBLEM_NAME.sub("(problem)", game["pddl_problem"])
    initial, _, goal = problem.partition("(:goal")
    return digest(
        "\n".join(lines_of(game["pddl_domain"])),
        "\n".join(lines_of(game["grammar"])),
        "\n".join(sorted(lines_of(initial))),
        " ".join(goal.split()),
    )


def read_game(path: Path) -> dict[str, Any]:
    """The game file. Raises EnvironmentFailure naming the file if it is missing or is no game."""
    try:
        game = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EnvironmentFailure(f"game file {path} is missing") from error
    except (OSError, ValueError) as error:
        raise EnvironmentFailure(f"game file {path} cannot be read: {error}") from error
    if not isinstance(game, dict) or not {"pddl_domain", "grammar", "pddl_problem"} <= set(game):
        raise EnvironmentFailure(f"{path} is no game file: it lacks pddl_domain, grammar or pddl_problem")
    return game


def read_checked(root: Path | None, task: Task) -> dict[str, Any]:
    """The task's game file, which must have the content that the panel promised."""
    if root is None:
        raise EnvironmentFailure(f"{task.location!r} is no generated world, and there is no data folder (env.data)")
    path = root / task.location
    game = read_game(path)
    found = content_hash(game)
    if found != task.content_hash:
        raise EnvironmentFailure(
            f"{path} has changed since the panel was made: its content hash is {found[:12]}, "
            f"the panel has {task.content_hash[:12]}; run `python -m envs.alfworld verify`"
        )
    return game


def task_text(first: str) -> str:
    """The instruction in the first observation, with its final period. Raises EnvironmentFailure if there is none."""
    before, found, after = first.partition(_TASK)
    if not found:
        raise EnvironmentFailure(f"the game does not say what the task is: {before[:200]!r}")
    return after.strip()


@dataclass(frozen=True, slots=True)
class View:
    """What an engine shows: text as the engine gives it; commands: admissible ones, sorted, each once; won."""

    text: str
    commands: tuple[str, ...]
    won: bool


class AlfworldEpisode(ABC):
    """An `envs.interface.Environment` over an engine that can begin a game and act in it.

    root: folder of game files that task locations are relative to; None: generated worlds only
    max_steps: actions after which an unsolved episode is over
    """

    def __init__(self, root: Path | None, max_steps: int) -> None:
        if max_steps < 1:
            raise ValueError(f"env.max_steps={max_steps} allows no action; give at least 1")
        self.root, self.max_steps = root, max_steps
        self._steps = 0
        self._running = False
        self._task = ""
        self._view = View("", (), False)

    @abstractmethod
    def _begin(self, task: Task) -> View: ...

    @abstractmethod
    def _act(self, command: str) -> View: ...

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Release what the engine holds."""

    def reset(self, task: Task) -> Observation:
        """Begin the task's game. Raises EnvironmentFailure if its file is missing, changed or broken."""
        self._running = False
        self._view = self._begin(task)
        if self._view.won:
            raise EnvironmentFailure(f"task {task.id} is won before the first action")
        text = self._view.text.strip()
        self._task, self._steps, self._running = task_text(text), 0, True
        return Observation(text, self._task, self._view.commands)

    def step(self, action: str) -> StepResult:
        """Send a command. One that is not admissible changes nothing. RuntimeError after the end of an episode."""
        if not self._running:
            raise RuntimeError("the episode is over or was never begun; call reset first")
        command = action.strip()
        admissible = command in self._view.commands
        self._view = self._act(command)
        self._steps += 1
        won = self._view.won
        done = won or self._steps >= self.max_steps
        self._running = not done
        observation = Observation(self._view.text.strip(), self._task, self._view.commands)
        return StepResult(observation, float(won), done, won, float(won), admissible, truncated=done and not won)
