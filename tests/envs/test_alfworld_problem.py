"""Game files read for the native engine: the scene of the world that was written, or a refusal that names the fact."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from stand_in_rules import STAND_IN

from envs.alfworld import layout, worlds
from envs.alfworld.__main__ import main
from envs.alfworld.episode import read_game
from envs.alfworld.manifest import LAYOUT, NAME, Manifest
from envs.alfworld.native import Game, Scene, goal_of_task, scene_of_world
from envs.alfworld.problem import _INERT, scene_of_game
from envs.interface import EnvironmentFailure

WORLDS = worlds.draw("train", 1, 0)


def problem(world: worlds.World) -> str:
    return layout.problem(world, STAND_IN.goals[world.spec.task_type])


def read(world: worlds.World, text: str, **params: str) -> Scene:
    spec = world.spec
    told = {"object_target": spec.object, "parent_target": spec.target, "toggle_target": spec.toggle, **params}
    return scene_of_game(text, spec.task_type, told, world.instruction, "game x/game.tw-pddl")


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.spec.task_type)
def test_world_and_game_file_give_the_same_scene(world: worlds.World) -> None:
    assert read(world, problem(world)).goal == scene_of_world(world).goal
    again, drawn = Game(read(world, problem(world))), Game(scene_of_world(world))
    assert again.reset() == drawn.reset()
    rng = random.Random(0)
    for _ in range(60):
        assert again.admissible() == drawn.admissible()
        command = rng.choice(again.admissible())
        assert again.step(command) == drawn.step(command)
        assert again.won() == drawn.won()


def test_how_it_is_written_does_not_matter() -> None:
    world = WORLDS[0]
    text = problem(world)
    loose = text.replace(" ", "  \n").replace("(inReceptacle", "; a comment (isHot x)\n ( INRECEPTACLE")
    assert read(world, loose) == read(world, text)
    more = text.replace("(:init", "(:init (= (total-cost) 0) (= (distance a b) 3) (checked x) (wasInReceptacle x y)")
    assert read(world, more) == read(world, text)


@pytest.mark.engine
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.spec.task_type)
def test_goals_of_the_package_are_understood(world: worlds.World) -> None:
    pytest.importorskip("alfworld")
    spec = world.spec
    text = layout.problem(world, layout.package_rules().goals[spec.task_type])
    assert read(world, text).goal == goal_of_task(spec.task_type, spec.object, spec.target, spec.toggle)


def entities(world: worlds.World) -> tuple[str, str, str]:
    """(an object, where it is, another receptacle), in PDDL."""
    thing, (_, place) = next(iter(world.objects.items()))
    other = next(name for name in world.receptacles if name != place)
    return worlds.mangle(thing), worlds.mangle(place), worlds.mangle(other)


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        ("(inReceptacle {o} {other})", r"begins with both \(inreceptacle .*\) and \(inreceptacle"),
        ("(inReceptacleObject {o} {place})", r"begins with the fact \(inreceptacleobject "),
        ("(isClean {o})", r"begins with the fact \(isclean "),
        ("(isToggled {o})", r"begins with the fact \(istoggled "),
        ("(holds agent1 {o})", r"begins with the fact \(holds agent1 "),
        ("(receptacleAtLocation {place} loc_bar_9)", r"begins with both \(receptacleatlocation "),
        ("(receptacleAtLocation nowhere loc_bar_9)", r"has a receptacle without a type \(nowhere\)"),
        ("(receptacleType nowhere CabinetType)", r"has a receptacle without a place \(nowhere\)"),
        ("(inReceptacle nothing {place})", r"has an object without a type \(nothing\)"),
        ("(pickupable {o} {place})", r"begins with the fact \(pickupable "),
        ("(not (openable {place}))", r"begins with the fact \(not \(openable "),
    ],
)
def test_a_fact_that_is_not_modelled_is_named(fact: str, said: str) -> None:
    world = WORLDS[0]
    thing, place, other = entities(world)
    more = fact.format(o=thing, place=place, other=other)
    with pytest.raises(EnvironmentFailure, match=rf"game x/game.tw-pddl {said}.*use env.engine=textworld"):
        read(world, problem(world).replace("(:init", f"(:init {more}", 1))


@pytest.mark.parametrize(
    "goal",
    [
        "(forall (?o - object) (isClean ?o))",
        "(or (isClean x) (isHot x))",
        "(exists (?o - object ?r - receptacle) (and (objectType ?o MugType) (isSliced ?o) (inReceptacle ?o ?r)))",
        "(exists (?o - object) (and (objectType ?o MugType) (isHot ?o)))",
        "(not (holds agent1 x))",
    ],
)
def test_a_goal_of_another_form_is_named(goal: str) -> None:
    head = problem(WORLDS[0]).partition("(:goal")[0]
    with pytest.raises(EnvironmentFailure, match=r"goal.*use env\.engine=textworld"):
        read(WORLDS[0], f"{head}(:goal (and {goal}))")


def test_a_goal_that_is_not_the_one_of_the_trajectory_is_refused() -> None:
    """What wins is what the content hash covers, not what lies beside it."""
    world = WORLDS[0]
    with pytest.raises(EnvironmentFailure, match=r"is won by Goal\(.*traj_data\.json beside it tells of Goal\(.*spoon"):
        read(world, problem(world), object_target="Spoon")
    clean = next(w for w in WORLDS if w.spec.task_type.startswith("pick_clean"))
    with pytest.raises(EnvironmentFailure, match="traj_data"):
        read(clean, problem(clean).replace("isClean", "isHot"))


@pytest.mark.parametrize("cut", ["(:init", "(:goal", "\n"])
def test_a_problem_that_is_cut_short_is_refused(cut: str) -> None:
    text = problem(WORLDS[0])
    short = text[: text.rindex(cut)] if cut != "\n" else text.partition("(:goal")[0].rstrip().rstrip(")")
    with pytest.raises(EnvironmentFailure, match=r"has no complete section \(:(init|goal)"):
        read(WORLDS[0], short)


@pytest.mark.engine
def test_nothing_asks_for_the_facts_that_are_passed_over() -> None:
    """In no precondition, no condition of an effect, and no text of the package."""
    pytest.importorskip("alfworld")
    rules = layout.package_rules()
    domain = re.sub(r";.*", "", rules.domain).lower()
    actions = domain[domain.index("(:action") :]
    for name in _INERT:
        asked = [part for part in actions.split("(:action") if f"({name} " in part.partition(":effect")[0]]
        conditions = re.findall(rf"\(when\s+\(?(?:and|or|not)?\s*\({name} ", actions)
        assert not asked and not re.search(rf"\b{name}\b", rules.grammar.lower())
        assert not conditions or name == "ison"  # which turns itself off and on, and nothing else


def test_verify_says_how_many_games_the_default_engine_plays(
    world: tuple[Path, Manifest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    shutil.copytree(world[0], root, ignore=shutil.ignore_patterns(NAME))
    path = next((root / LAYOUT / "valid_seen").rglob("game.tw-pddl"))
    game: dict[str, Any] = read_game(path)
    game["pddl_problem"] = game["pddl_problem"].replace("(:init", "(:init\n(isOn x)\n(isHot nothing)")
    path.write_text(json.dumps(game))
    assert main(["verify", "--data", str(root), "--write-manifest"]) == 0
    said = capsys.readouterr().out
    assert "env.engine=native can play 17 of 18 games" in said
    assert f"game {path} begins with the fact (ishot nothing)" in said
