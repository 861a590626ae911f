"""Three hundred games through both engines: every observation, command list, reward and ending must be equal.

Half of the games are in rooms of training, half in rooms that training never has; all six task types; a third each is
played by the expert, at random, and by an adversary; half are read from files in the official layout, half are drawn
from their locations. With ALFRED_PACK=FILE (see alfred_pack.py) a hundred more games are rebuilt from real task
specifications.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from alfred_pack import rebuilt

from envs.alfworld import generated, layout, worlds
from envs.alfworld.episode import content_hash, read_game
from envs.alfworld.expert import walkthrough
from envs.alfworld.facts import TASK_TYPES
from envs.alfworld.native_engine import NativeAlfworld
from envs.interface import Environment, Observation, Task

PER_TYPE = 25  # games of each type in each kind of room: 2 x 6 x 25 = 300
FROM_PACK = 100
STEPS = 40
MODES = ("expert", "random", "adversarial")
PACK = os.environ.get("ALFRED_PACK")

Found = list[tuple[Task, list[str]]]


def _written(root: Path, given: list[worlds.World]) -> Found:
    """Every other world as a file; those that no seed gives all as files."""
    rules = layout.package_rules()
    found = []
    for number, world in enumerate(given):
        solution = walkthrough(world)
        if world.seed and number % 2:
            found.append((generated.task_of(world, "train"), solution))
            continue
        path = layout.write(world, root, solution, rules)
        content = content_hash(read_game(path))
        location = str(path.relative_to(root))
        found.append((Task(world.folder, world.spec.task_type, content, location=location), solution))
    return found


def _command(mode: str, rng: random.Random, k: int, solution: list[str], seen: Observation) -> str | None:
    if mode == "expert":
        return solution[k] if k < len(solution) else None
    if mode == "random":
        return rng.choice(seen.admissible)
    draw = rng.random()
    if draw < 0.1:
        return rng.choice(
            (
                "",
                " ",
                "go to",
                "go to  shelf 1",
                "GO TO SHELF 1",
                "take mug 99 from shelf 1",
                "help",
                "look around",
                "é" * 300,
            )
        )
    if draw < 0.3:
        return rng.choice(solution)  # out of order: wins sometimes, mostly nothing happens
    words = rng.choice(seen.admissible).split()
    if draw < 0.4:
        rng.shuffle(words)
        return " ".join(words)
    near = [command for command in seen.admissible if not command.startswith("go to")]
    return rng.choice(near if near and draw < 0.8 else seen.admissible)


def _equal(reference: Environment, native: Environment, task: Task, solution: list[str], mode: str) -> tuple[int, bool]:
    """Steps compared, and whether the game was won."""
    rng = random.Random(f"{mode}|{task.id}")
    seen = reference.reset(task)
    assert native.reset(task) == seen, (task.id, mode)
    done: list[str] = []
    for k in range(STEPS):
        command = _command(mode, rng, k, solution, seen)
        if command is None:
            break
        done.append(command)
        expected = reference.step(command)
        assert native.step(command) == expected, (task.id, mode, done)
        seen = expected.observation
        if expected.done:
            return len(done), expected.success
    return len(done), False


def _replay(found: Found, root: Path, cache: Path) -> tuple[Counter[str], Counter[str]]:
    from envs.alfworld.textworld_engine import TextworldAlfworld

    reference, native = TextworldAlfworld(root, STEPS, cache), NativeAlfworld(root, STEPS)
    games: Counter[str] = Counter()
    wins: Counter[str] = Counter()
    try:
        for number, (task, solution) in enumerate(found):
            mode = MODES[number % len(MODES)]
            steps, won = _equal(reference, native, task, solution, mode)
            assert steps > 0
            games[mode] += 1
            wins[mode] += won
    finally:
        reference.close()
        native.close()
    return games, wins


def _solvable(world: worlds.World) -> bool:
    try:
        return bool(walkthrough(world))
    except ValueError:
        return False


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("split", ("train", "unseen"))
def test_both_engines_play_150_games_of_a_split_alike(split: str, tmp_path: Path) -> None:
    pytest.importorskip("textworld")
    found = _written(tmp_path / "games", worlds.draw(split, PER_TYPE, seed=7))
    assert Counter(task.type for task, _ in found) == dict.fromkeys(TASK_TYPES, PER_TYPE)
    games, wins = _replay(found, tmp_path / "games", tmp_path / "cache")
    assert games == dict.fromkeys(MODES, 2 * PER_TYPE)
    assert wins["expert"] == games["expert"]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.skipif(PACK is None, reason="ALFRED_PACK names no pack of task specifications")
def test_both_engines_play_games_rebuilt_from_real_specifications_alike(tmp_path: Path) -> None:
    pytest.importorskip("textworld")
    found = _written(tmp_path / "games", [w for w in rebuilt(Path(str(PACK)), FROM_PACK, seed=1) if _solvable(w)])
    assert len(found) > 0.9 * FROM_PACK  # a few rooms lack the device that the task needs
    games, wins = _replay(found, tmp_path / "games", tmp_path / "cache")
    assert sum(games.values()) == len(found)
    assert wins["expert"] == games["expert"]
