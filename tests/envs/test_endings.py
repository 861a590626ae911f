"""How episodes end, and what is recorded of it: by what was done, or for want of further actions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from envs import registry
from envs.alfworld.expert import walkthrough
from envs.alfworld.worlds import at_location
from envs.interface import EnvConfig, Observation, ParsedAction, StepResult, Task
from harness.training.episode import Director, Episode, RolloutSettings
from methods.interface import Trajectory

SEEN = Observation("there", "the task", ())
SETTINGS = RolloutSettings("growing", 100, 10, max_steps=2, history=2)


def ended(*results: StepResult) -> str:
    director = Director(None, None, SETTINGS)  # type: ignore[arg-type]
    episode = Episode(0, Trajectory(0, 0, 0, "t", "kind", ""), np.random.default_rng(0), SEEN, SEEN)
    for number, result in enumerate(results, 1):
        assert director.record(episode, ParsedAction("act", True), result) == (number < len(results))
    return episode.trajectory.termination


@pytest.mark.parametrize(
    ("steps", "done", "success", "truncated", "termination"),
    [
        (1, True, True, False, "success"),
        (2, True, True, False, "success"),
        (1, True, False, False, "done"),
        (2, True, False, False, "done"),  # a wrong answer with the last action allowed is an answer
        (2, True, False, True, "max_steps"),
        (2, False, False, False, "max_steps"),  # an environment that would go on
    ],
)
def test_what_is_recorded(steps: int, done: bool, success: bool, truncated: bool, termination: str) -> None:
    going = StepResult(SEEN, 0.0, False, False, 0.0, True)
    last = StepResult(SEEN, float(success), done, success, float(success), True, truncated)
    assert ended(*[going] * (steps - 1), last) == termination


CONFIGS = {
    "alfworld": EnvConfig(train_per_type=1, eval_per_type=1, max_steps=30),
    "search_qa": EnvConfig(name="search_qa", train_per_type=2, eval_per_type=1, max_steps=2, prompt="full"),
    "webshop": EnvConfig(name="webshop", train_per_type=1, eval_per_type=1, max_steps=2, knobs={"products": 300}),
}


def play(name: str, actions: list[str], **changes: Any) -> StepResult:
    config = dataclasses.replace(CONFIGS[name], **changes)
    spec = registry.get(name)
    environment = spec.make(config)
    task = first_task(name)
    environment.reset(task)
    results = [environment.step(action) for action in actions]
    assert not any(result.done or result.truncated for result in results[:-1])
    return results[-1]


def first_task(name: str) -> Task:
    return registry.get(name).load_panel(CONFIGS[name], "train").tasks[0]


def test_idling_is_cut_off_everywhere() -> None:
    for name in CONFIGS:
        result = play(name, ["look", "look"], max_steps=2)
        assert (result.done, result.success, result.truncated) == (True, False, True)


def test_an_answer_or_a_purchase_is_no_cut_even_with_the_last_action() -> None:
    wrong = play("search_qa", ["search[Paris]", "answer[no such answer]"])
    assert (wrong.done, wrong.success, wrong.truncated) == (True, False, False)


def test_a_game_won_with_the_last_action_is_no_cut() -> None:
    solution = walkthrough(at_location(first_task("alfworld").location))
    won = play("alfworld", solution, max_steps=len(solution))
    assert (won.done, won.success, won.truncated) == (True, True, False)


@pytest.mark.parametrize("name", ("alfworld", "search_qa"))
def test_no_validation_tasks_leave_the_other_panels_and_are_refused_by_name(name: str) -> None:
    """WebShop's is in test_webshop_data."""
    config = dataclasses.replace(CONFIGS[name], validation_per_type=0)
    assert registry.get(name).load_panel(config, "train").tasks
    with pytest.raises(ValueError, match=r"env\.validation_per_type=0 makes an empty panel"):
        registry.get(name).load_panel(config, "validation")
