"""The cached engine against the packages' own, and what it must leave alone."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from envs.alfworld import ahead, generated, spec, translation
from envs.alfworld.episode import read_game, task_text
from envs.alfworld.manifest import Manifest
from envs.alfworld.translation import Translation, Translations, translate
from envs.interface import EnvConfig, Environment, EnvironmentFailure, Observation, StepResult, Task
from envs.pool import EnvPool

pytestmark = pytest.mark.engine
pytest.importorskip("textworld")

World = tuple[Path, Manifest]


@pytest.fixture(scope="module")
def world(config: EnvConfig, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Files with the package's own domain, grammar and goals."""
    root = tmp_path_factory.mktemp("package games")
    return root, generated.write_games(config, root)


@pytest.fixture(scope="module")
def textworld_config(config: EnvConfig, world: World) -> EnvConfig:
    return replace(config, engine="textworld", data=str(world[0]))


@pytest.fixture
def environment(textworld_config: EnvConfig) -> Environment:
    return spec.make(textworld_config)


def tasks_of(world: World, panel: str = "unseen") -> list[Task]:
    return [entry.task() for entry in world[1].panels[panel]]


def script(kind: str, walkthrough: list[str], first: Observation) -> Callable[[int, Observation], str | None]:
    """What to do at step k, or None to stop."""
    rng = random.Random(f"{kind}|{first.text}")
    if kind == "expert":
        return lambda k, seen: walkthrough[k] if k < len(walkthrough) else None

    def wander(k: int, seen: Observation) -> str | None:
        if k >= 10:
            return None
        if rng.random() < 0.2:
            return rng.choice(("fly to moon", "", "take", " look ", "go to nowhere 1", "LOOK", "{o.name}", "help"))
        near = [c for c in seen.admissible if not c.startswith("go to")]
        return rng.choice(near if rng.random() < 0.6 else list(seen.admissible))

    return wander


@pytest.mark.slow
def test_equal_to_the_packages_own_engine(environment: Environment, world: World, tmp_path: Path) -> None:
    """Every text, command list, reward and end, over expert play, wandering and nonsense, and again after a reset."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
    from textworld.envs import PddlEnv

    request = textworld.EnvInfos(admissible_commands=True, won=True, extras=["gamefile"])
    stock = AlfredInfos(AlfredDemangler(PddlEnv(request)))
    kinds = compared = won = 0
    for task in tasks_of(world)[::3] + tasks_of(world, "train")[1::3]:
        path = world[0] / task.location
        stock.load(str(path))
        for kind in ("expert", "wander"):
            theirs, mine = stock.reset(), environment.reset(task)
            assert theirs.feedback.strip() == mine.text
            assert tuple(theirs["admissible_commands"]) == mine.admissible
            act, k, seen = script(kind, read_game(path)["walkthrough"], mine), 0, mine
            while (command := act(k, seen)) is not None:
                theirs, reward, done = stock.step(command)
                result = environment.step(command)
                admissible = command.strip() in seen.admissible
                seen = result.observation
                assert (theirs.feedback.strip(), tuple(theirs["admissible_commands"]), float(reward), done) == (
                    seen.text,
                    seen.admissible,
                    result.reward,
                    result.done,
                ), f"{task.id}: {command!r}"
                assert result.success is theirs["won"] and result.admissible is admissible
                k, compared, won = k + 1, compared + 1, won + result.success
                if done:
                    break
            kinds += 1
    assert kinds == 8 and compared >= 50 and won >= 4


def test_every_generated_game_is_won_by_its_walkthrough(environment: Environment, config: EnvConfig) -> None:
    """Drawn from their locations, for which the engine needs no file either."""
    for panel in ("train", "seen", "unseen"):
        for task in spec.load_panel(config, panel).tasks:
            environment.reset(task)
            results = [environment.step(command) for command in spec.walkthrough(config, task)]
            assert all(r.admissible for r in results), task.id
            assert [r.done for r in results] == [False] * (len(results) - 1) + [True]
            assert results[-1] == replace(results[-1], reward=1.0, success=True, score=1.0)
            assert sum(r.reward for r in results) == 1.0


def test_observations_keep_the_text_and_the_period(environment: Environment, world: World) -> None:
    first = environment.reset(tasks_of(world)[0])
    assert first.text.startswith("-= Welcome to TextWorld, ALFRED! =-") and first.text == first.text.strip()
    assert first.task.endswith(".") and first.text.endswith(f"Your task is to: {first.task}")
    assert list(first.admissible) == sorted(set(first.admissible)) and "look" in first.admissible
    with pytest.raises(EnvironmentFailure, match="does not say what the task is"):
        task_text("You are in a room.")


def test_an_episode_ends_at_max_steps_and_nonsense_changes_nothing(textworld_config: EnvConfig, world: World) -> None:
    short = spec.make(replace(textworld_config, max_steps=3))
    first = short.reset(tasks_of(world)[0])
    results = [short.step("fly to moon") for _ in range(3)]
    assert [r.done for r in results] == [False, False, True]
    assert all(r.observation.text == "Nothing happens." and not r.admissible and r.reward == 0 for r in results)
    assert all(r.observation.admissible == first.admissible for r in results)
    with pytest.raises(RuntimeError, match="call reset first"):
        short.step("look")
    with pytest.raises(ValueError, match=r"env\.max_steps=0"):
        spec.make(replace(textworld_config, max_steps=0))


def test_environments_do_not_disturb_each_other(textworld_config: EnvConfig, world: World) -> None:
    """Two slots on one game and one on another, interleaved, play as if alone."""
    one, other = tasks_of(world)[:2]

    def alone(task: Task, commands: list[str]) -> list[str]:
        environment = spec.make(textworld_config)
        environment.reset(task)
        return [environment.step(c).observation.text for c in commands]

    plans = [(one, "go"), (other, "take"), (one, "open")]
    slots = [spec.make(textworld_config) for _ in plans]
    first = [slot.reset(task) for slot, (task, _) in zip(slots, plans, strict=True)]
    commands = [[c for c in o.admissible if c.startswith("go to")][k : k + 4] for k, o in enumerate(first)]
    together = [[slot.step(commands[s][k]).observation.text for s, slot in enumerate(slots)] for k in range(4)]
    for s, (task, _) in enumerate(plans):
        assert [texts[s] for texts in together] == alone(task, commands[s])


# ------------------------------------------------------------------------------------------------------- translations
def problem_of(world: World) -> tuple[str, str]:
    game = read_game(world[0] / tasks_of(world)[0].location)
    return game["pddl_domain"], game["pddl_problem"]


def test_translating_leaves_argv_and_stdout_alone_also_when_it_fails(world: World) -> None:
    domain, problem = problem_of(world)
    before = (sys.argv, list(sys.argv), sys.stdout)
    translate(domain, problem)
    with pytest.raises(EnvironmentFailure, match="cannot be translated"):
        translate(domain, problem.replace("(:init", "(:init (= (distance a b) x)", 1))
    with pytest.raises(EnvironmentFailure, match="cannot be translated"):
        translate(domain, "(define")
    assert (sys.argv, list(sys.argv), sys.stdout) == before


def test_translations_are_kept_and_read_back(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain, problem = problem_of(world)
    kept = Translations(tmp_path)
    calls: list[int] = []
    real = translation.translate

    def counted(*args: str) -> Translation:
        calls.append(1)
        return real(*args)

    monkeypatch.setattr(translation, "translate", counted)
    made = kept.get(domain, problem)
    assert kept.get(domain, problem) == Translations(tmp_path).get(domain, problem) == made
    assert len(calls) == 1
    path = kept.path(domain, problem)
    assert path.stat().st_size < 100_000 and kept.path(domain, problem + " ") != path
    for damage in (b"", b"junk", path.read_bytes()[:100], translation.zlib.compress(b'{"format": 0}')):
        path.write_bytes(damage)
        assert kept.get(domain, problem) == made
    assert len(calls) == 5


def test_a_folder_that_cannot_be_written_costs_time_only(world: World, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    domain, problem = problem_of(world)
    assert Translations(in_the_way / "below").get(domain, problem).sas.startswith("begin_version")


@pytest.mark.slow
def test_loading_a_panel_translates_it_once(config: EnvConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh = replace(config, cache=str(tmp_path), engine="textworld")
    panel = spec.load_panel(fresh, "seen")
    assert panel == spec.load_panel(config, "seen")
    assert len(list((tmp_path / "translations").glob("*/*.sas.zz"))) == 6
    monkeypatch.setattr(ahead, "_translate_all", lambda *a: pytest.fail("translated again"))
    spec.load_panel(fresh, "seen")
    monkeypatch.setattr(translation, "translate", lambda *a: pytest.fail("not the game that was translated"))
    assert spec.make(fresh).reset(panel.tasks[0]) == spec.make(config).reset(panel.tasks[0])


@pytest.mark.slow
def test_the_packages_own_environment_reads_written_games(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's loader finds every game in every split, and its environment plays one."""
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    monkeypatch.setenv("ALFWORLD_DATA", str(world[0]))
    paths = {name: f"$ALFWORLD_DATA/json_2.1.1/{name}" for name in ("train", "valid_seen", "valid_unseen")}
    settings = {
        "dataset": {
            "data_path": paths["train"],
            "eval_id_data_path": paths["valid_seen"],
            "eval_ood_data_path": paths["valid_unseen"],
            "num_train_games": -1,
            "num_eval_games": -1,
        },
        "env": {
            "task_types": [1, 2, 3, 4, 5, 6],
            "goal_desc_human_anns_prob": 0,
            "domain_randomization": False,
            "regen_game_files": False,
            "expert_type": "handcoded",
        },
        "general": {"training_method": "dqn"},
        "rl": {"training": {"max_nb_steps_per_episode": 50}},
        "dagger": {"training": {"max_nb_steps_per_episode": 50}},
        "logic": {},
    }
    panels = {"train": "train", "eval_in_distribution": "seen", "eval_out_of_distribution": "unseen"}
    for theirs, ours in panels.items():
        loaded = AlfredTWEnv(settings, train_eval=theirs)
        found = {str(Path(name).relative_to(world[0])) for name in loaded.game_files}
        assert found == {entry.location for entry in world[1].panels[ours]}
    playing = loaded.init_env(batch_size=1)
    try:
        first, info = playing.reset()
        played = Path(info["extra.gamefile"][0]).relative_to(world[0])
        task = next(task for task in tasks_of(world) if task.location == str(played))
        mine = spec.make(EnvConfig(data=str(world[0]))).reset(task)
        assert first[0].strip() == mine.text and tuple(info["admissible_commands"][0]) == mine.admissible
    finally:
        playing.close()


def test_a_failing_translator_only_costs_time(
    config: EnvConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ahead.sys, "executable", shutil.which("false"))
    ahead.ensure_translations(replace(config, cache=str(tmp_path)), spec.load_panel(config, "seen").tasks, workers=1)
    assert "translating ahead failed with status 1" in caplog.text
    assert not list((tmp_path / "translations").glob("*.done"))


@pytest.mark.slow
def test_play_does_not_depend_on_the_hash_seed(textworld_config: EnvConfig, world: World, tmp_path: Path) -> None:
    task = tasks_of(world)[3]
    code = f"""
import random
from envs.alfworld import spec
from envs.interface import EnvConfig, Task
import sys
config = EnvConfig(engine="textworld", data={str(world[0])!r}, cache=sys.argv[1], max_steps=40)
environment = spec.make(config)
seen = environment.reset(Task("x", "t", {task.content_hash!r}, location={task.location!r}))
rng = random.Random(5)
for _ in range(25):
    print(seen.text, seen.admissible)
    result = environment.step(rng.choice(seen.admissible))
    if result.done: break
    seen = result.observation
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed, "ALFWORLD_DATA": str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "7")
    ]
    assert said[0] == said[1] and len(said[0]) > 2000


def test_expressions_in_a_grammar_cannot_run_code() -> None:
    from envs.alfworld.grammar import compile_expression

    thing = SimpleNamespace(name="mug 1", indefinite="a", id="mug_bar_1", nothing=None)
    assert compile_expression("o.indefinite + ' ' + o.name")({"o": thing}) == "a mug 1"
    assert compile_expression("o.nothing or o.id")({"o": thing}) == "mug_bar_1"
    for text in ("__import__('os').getcwd()", "o.__class__", "open('/etc/passwd')", "1", "o.name[0]", "o.name; o", ""):
        with pytest.raises(EnvironmentFailure, match="text grammar has the expression"):
            compile_expression(text)


def test_the_home_folder_stays_empty(home: Path, tmp_path: Path, world: World) -> None:
    data, cache = world[0], tmp_path / "elsewhere"
    task = tasks_of(world)[0]
    code = (
        "from envs.alfworld import spec; from envs.interface import EnvConfig, Task\n"
        f"e = spec.make(EnvConfig(engine='textworld', data={str(data)!r}, cache={str(cache)!r}))\n"
        f"e.reset(Task('x', 't', {task.content_hash!r}, location={task.location!r}))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
    assert sorted(p.name for p in home.iterdir()) == ["elsewhere"]


# ------------------------------------------------------------------------------------------------------- pool, memory
@pytest.mark.slow
def test_the_pool_gives_the_same_whatever_its_workers(textworld_config: EnvConfig, world: World) -> None:
    tasks = tasks_of(world)[:3]

    def play(workers: int) -> list[Any]:
        said: list[Any] = []
        with EnvPool(spec.make, textworld_config, workers=workers) as pool:
            seen: dict[int, Any] = dict(pool.reset({slot: tasks[slot // 2] for slot in range(6)}))
            for step in range(5):
                said.append(seen)
                actions = {s: o.admissible[(7 * s + 3 * step) % len(o.admissible)] for s, o in seen.items()}
                results = pool.step(actions)
                assert all(isinstance(r, StepResult) for r in results.values()), results
                seen = {s: r.observation for s, r in results.items() if isinstance(r, StepResult) and not r.done}
        return said

    assert play(0) == play(2)


@pytest.mark.slow
def test_memory_stays_flat_over_many_resets(
    textworld_config: EnvConfig, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New games, new environments and closed ones: nothing accumulates. A leaked library alone would be 30 MB each."""
    from envs.alfworld import textworld_engine

    monkeypatch.setattr(textworld_engine, "_KEPT_GAMES", 2)  # so that games are parsed again and again
    tasks = tasks_of(world)

    def round_() -> None:
        environment = spec.make(textworld_config)
        for task in tasks:
            first = environment.reset(task)
            environment.step(first.admissible[0])
        environment.close()

    for _ in range(3):
        round_()
    before = psutil.Process().memory_info().rss
    for _ in range(12):
        round_()
    assert psutil.Process().memory_info().rss - before < 25 * 2**20
