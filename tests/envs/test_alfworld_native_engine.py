"""The native engine and the packages' own give the same texts, commands and outcomes, on worlds and on game files."""

import random
from pathlib import Path

import psutil
import pytest
from stand_in_rules import STAND_IN

from envs.alfworld import generated, layout, spec, worlds
from envs.alfworld.expert import walkthrough
from envs.alfworld.native_engine import NativeAlfworld
from envs.alfworld.official import collect
from envs.interface import EnvConfig, EnvironmentFailure, Observation, StepResult, Task
from envs.pool import EnvPool

GAMES_PER_TYPE = {"train": 1, "unseen": 1}
STEPS = 30
NONSENSE = ("fly to moon", "", "go to", "take mug 99 from shelf 1", "help me", "examine")


@pytest.fixture(scope="module")
def drawn() -> list[worlds.World]:
    return [world for split, count in GAMES_PER_TYPE.items() for world in worlds.draw(split, count, seed=11)]


def _command(mode: str, rng: random.Random, k: int, solution: list[str], seen: Observation) -> str | None:
    if mode == "expert":
        return solution[k] if k < len(solution) else None
    if rng.random() < 0.05:
        return rng.choice(NONSENSE)
    if rng.random() < 0.3:
        return rng.choice(solution)  # out of order: wins sometimes, mostly nothing happens
    near = [c for c in seen.admissible if not c.startswith("go to")]
    return rng.choice(near if rng.random() < 0.6 else seen.admissible)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("mode", ("expert", "adversarial"))
def test_both_engines_agree(drawn: list[worlds.World], mode: str, tmp_path: Path) -> None:
    pytest.importorskip("textworld")
    from envs.alfworld.textworld_engine import TextworldAlfworld

    reference, native = TextworldAlfworld(None, STEPS, tmp_path), NativeAlfworld(None, STEPS)
    wins = 0
    for world in drawn:
        task, solution = generated.task_of(world, "train"), walkthrough(world)
        rng = random.Random(task.id)
        seen = reference.reset(task)
        assert native.reset(task) == seen
        for k in range(STEPS):
            command = _command(mode, rng, k, solution, seen)
            if command is None:
                break
            expected = reference.step(command)
            assert native.step(command) == expected
            seen = expected.observation
            if expected.done:
                wins += expected.success
                break
    reference.close()
    native.close()
    assert wins == len(drawn) if mode == "expert" else True


def test_a_world_and_its_file_play_alike(drawn: list[worlds.World], tmp_path: Path) -> None:
    """Without the packages: the file's domain and grammar are stand-ins, which the native engine does not play by."""
    root = tmp_path / "games with space"
    for world in drawn:
        layout.write(world, root / "json_2.1.1" / "train", walkthrough(world), STAND_IN)
    written = {entry.id: entry.task() for entry in collect(root, "train").entries}
    assert len(written) == len(drawn)
    one, other = NativeAlfworld(None, STEPS), NativeAlfworld(root, STEPS)
    for world in drawn:
        task = generated.task_of(world, "train")
        rng = random.Random(task.id)
        seen = one.reset(task)
        assert other.reset(written[task.id]) == seen
        for k in range(STEPS):
            command = _command("adversarial", rng, k, walkthrough(world), seen) or "look"
            if command == "help":  # says what the grammar of the file says
                assert "Available commands:" in one.step(command).observation.text
                assert "Ask nobody." in other.step(command).observation.text
                continue
            result = one.step(command)
            assert other.step(command) == result
            seen = result.observation
            if result.done:
                break


@pytest.mark.parametrize("root", (None, "somewhere"))
def test_a_game_that_is_not_there_is_an_environment_failure(root: str | None, tmp_path: Path) -> None:
    native = NativeAlfworld(None if root is None else tmp_path / root, STEPS)
    with pytest.raises(EnvironmentFailure, match="no data folder" if root is None else "missing"):
        native.reset(Task("x", "t", "1" * 64, location="nowhere/game.tw-pddl"))


# ------------------------------------------------------------------------------------------------------- many of them
CONFIG = EnvConfig(train_per_type=1, eval_per_type=34, max_steps=20)
BYTES = random.Random(3)
ATTACKS = (
    "".join(chr(BYTES.randrange(1, 0xD800)) for _ in range(200)),
    bytes(BYTES.randrange(256) for _ in range(500)).decode("latin-1"),
    "go to " * 20_000,
    "<action><action>go to shelf 1</action></action>",
    "<think><action>look</think></action>",
    "\u202e\u0000\ud83d\ude00 take mug 1",
    "look\nlook",
    "${HOME} {o.name} %s %n",
    "",
)


def test_200_at_once_under_oracles_idlers_and_adversaries() -> None:
    """Nothing crashes, idlers score nothing, and oracles beside adversaries still succeed."""
    tasks = dict(enumerate(spec.load_panel(CONFIG, "unseen").tasks[:200]))
    assert len(tasks) == 200
    kinds = ("oracle", "idle", "adversary", "ill-mannered")
    plans = {slot: iter(spec.walkthrough(CONFIG, task)) for slot, task in tasks.items()}
    rng = random.Random(0)
    said: dict[int, StepResult] = {}
    with EnvPool(spec.make, CONFIG, workers=2) as pool:
        first = pool.reset(tasks)
        assert all(isinstance(answer, Observation) for answer in first.values())
        running = set(tasks)
        for _ in range(CONFIG.max_steps):
            actions = {}
            for slot in sorted(running):
                kind = kinds[slot % len(kinds)]
                attack = rng.choice(ATTACKS)
                if kind == "ill-mannered":  # wins too, in twice the time
                    actions[slot] = next(plans[slot], "look") if rng.random() < 0.7 else attack
                else:
                    actions[slot] = {"oracle": next(plans[slot], "look"), "idle": "", "adversary": attack}[kind]
            for slot, answer in pool.step(actions).items():
                assert isinstance(answer, StepResult), (slot, answer)
                said[slot] = answer
                if answer.done:
                    running.discard(slot)
    scores: dict[str, list[float]] = {kind: [] for kind in kinds}
    for slot, result in said.items():
        assert result.done and result.score == float(result.success)
        scores[kinds[slot % len(kinds)]].append(result.score)
    assert all(len(values) == 50 for values in scores.values())
    assert scores["oracle"] == [1.0] * 50
    assert scores["idle"] == scores["adversary"] == [0.0] * 50
    assert sum(scores["ill-mannered"]) > 40


def test_memory_stays_flat_over_1000_resets() -> None:
    """New games all the time, in 16 slots: only the bounded memory of games fills up, and then nothing grows."""
    tasks = [generated.task_of(world, "train") for world in worlds.draw("train", 100, seed=2)]
    environments = [spec.make(CONFIG) for _ in range(16)]

    def play(count: int, begin: int) -> None:
        for k in range(begin, begin + count):
            environment = environments[k % len(environments)]
            first = environment.reset(tasks[k % len(tasks)])
            environment.step(first.admissible[k % len(first.admissible)])

    play(600, 0)
    before = psutil.Process().memory_info().rss
    play(1000, 600)
    assert psutil.Process().memory_info().rss - before < 8 * 2**20
