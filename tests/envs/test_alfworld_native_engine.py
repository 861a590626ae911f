"""The native engine and the packages' own give the same texts, commands and outcomes, game by game and step by step."""

import json
import random

import pytest

from envs.alfworld import worlds
from envs.alfworld.episode import content_hash
from envs.alfworld.expert import walkthrough
from envs.alfworld.facts import TASK_TYPES
from envs.alfworld.native_engine import NativeAlfworld
from envs.interface import EnvironmentFailure, Task

GAMES_PER_TYPE = {"train": 2, "unseen": 2}
STEPS = 30


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    pytest.importorskip("textworld")
    root = tmp_path_factory.mktemp("games with space")
    found = []
    for split, per_type in GAMES_PER_TYPE.items():
        for world in worlds.draw(split, per_type, seed=11):
            solution = walkthrough(world)
            path = worlds.write(world, root / split, solution)
            game = json.loads(path.read_text())
            location = str(path.relative_to(root))
            found.append((Task(world.folder, world.spec.task_type, content_hash(game), location=location), solution))
    assert {t.type for t, _ in found} == set(TASK_TYPES)
    return root, found


def _same(one, other):
    assert one.text == other.text
    assert one.task == other.task
    assert list(one.admissible) == list(other.admissible)


def _command(mode, rng, k, solution, observation):
    if mode == "expert":
        return solution[k] if k < len(solution) else None
    if rng.random() < 0.05:
        return rng.choice(("fly to moon", "", "go to", "take mug 99 from shelf 1", "help me", "examine"))
    if rng.random() < 0.3:
        return rng.choice(solution)  # out of order: wins sometimes, mostly nothing happens
    near = [c for c in observation.admissible if not c.startswith("go to")]
    return rng.choice(near if rng.random() < 0.6 else observation.admissible)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("mode", ("expert", "adversarial"))
def test_both_engines_agree(games, mode, tmp_path):
    from envs.alfworld.textworld_engine import TextworldAlfworld

    root, found = games
    reference, native = TextworldAlfworld(root, STEPS, tmp_path), NativeAlfworld(root, STEPS)
    wins = 0
    for task, solution in found:
        rng = random.Random(task.id)
        seen, mine = reference.reset(task), native.reset(task)
        _same(mine, seen)
        for k in range(STEPS):
            command = _command(mode, rng, k, solution, seen)
            if command is None:
                break
            expected, result = reference.step(command), native.step(command)
            _same(result.observation, expected.observation)
            assert result == expected
            seen = expected.observation
            if expected.done:
                wins += expected.success
                break
    reference.close()
    native.close()
    assert wins == len(found) if mode == "expert" else True


@pytest.mark.engine
def test_a_changed_or_missing_game_is_an_environment_failure(games):
    root, found = games
    task = found[0][0]
    native = NativeAlfworld(root, STEPS)
    with pytest.raises(EnvironmentFailure, match="has changed"):
        native.reset(Task("x", task.type, "0" * 64, location=task.location))
    with pytest.raises(EnvironmentFailure, match="missing"):
        native.reset(Task("x", task.type, "1" * 64, location="nowhere/game.tw-pddl"))
