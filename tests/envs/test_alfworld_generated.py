"""Panels of generated games: no files, no packages; the same whoever asks, and different for what differs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envs.alfworld import generated, spec, worlds
from envs.alfworld.facts import TASK_TYPES, UNSEEN_ROOMS
from envs.alfworld.native import scene_of_world
from envs.interface import EnvConfig, EnvironmentFailure, Task
from envs.panels import assert_disjoint, digest, panel_identity

EVALUATED = ("seen", "unseen", "validation")
CONFIG = EnvConfig(train_per_type=3, eval_per_type=2, validation_per_type=1)
DEFAULT = {  # digests of the ids of the default panels, which hold what was drawn
    "train": "41844529dbede8c8",
    "seen": "18b73957431e5e76",
    "unseen": "07388d56df76d747",
    "validation": "f0f1c0cd845a6d58",
}


# ------------------------------------------------------------------------------------------------------------- panels
def test_generated_panels() -> None:
    panels = {name: spec.load_panel(CONFIG, name) for name in ("train", *EVALUATED)}
    assert_disjoint(panels["train"], *(panels[name] for name in EVALUATED))
    assert [len(panel.tasks) for panel in panels.values()] == [18, 12, 12, 6]
    for panel in panels.values():
        assert {t.type for t in panel.tasks} == set(TASK_TYPES)
        assert panel.data_version == generated.data_version(CONFIG)
        for task in panel.tasks:
            assert set(task.slots) == ({"object", "lamp"} if task.type.startswith("look") else {"object", "target"})
            assert all(value == value.lower() for value in task.slots.values())
    rooms = {name: {int(t.id.split("/")[1].rsplit("-", 1)[1]) for t in p.tasks} for name, p in panels.items()}
    assert rooms["unseen"] <= set(UNSEEN_ROOMS)
    assert not (rooms["train"] | rooms["seen"] | rooms["validation"]) & set(UNSEEN_ROOMS)
    assert len({p.hash for p in panels.values()}) == 4


@pytest.mark.parametrize("panel", sorted(DEFAULT))
def test_the_default_panels_are_the_ones_of_earlier_versions(panel: str) -> None:
    """Whoever has to change a digest here has changed the games: raise GENERATOR_VERSION."""
    ids = [task.id for task in spec.load_panel(EnvConfig(), panel).tasks]
    assert digest(*ids)[:16] == DEFAULT[panel]


def test_what_determines_a_panel_determines_its_identity() -> None:
    def identities(config: EnvConfig) -> list[str]:
        return [panel_identity(config, name) for name in ("train", *EVALUATED)]

    same = identities(CONFIG)
    assert len(set(same)) == 4
    assert same == identities(replace(CONFIG, max_steps=3, engine="textworld", prompt="full", cache="/x"))
    for change, touched in (
        ({"world_seed": 1}, ("train", *EVALUATED)),
        ({"train_per_type": 4}, ("train",)),
        ({"eval_per_type": 3}, EVALUATED),
        ({"validation_per_type": 2}, ("validation",)),
    ):
        other = identities(replace(CONFIG, **change))
        assert {n for n, a, b in zip(("train", *EVALUATED), same, other, strict=True) if a != b} == set(touched)


@pytest.mark.parametrize(("name", "panel"), [("train", "train"), ("eval", "seen"), ("validation", "validation")])
def test_an_empty_panel_is_an_error(name: str, panel: str) -> None:
    config = replace(CONFIG, **{f"{name}_per_type": 0})
    for ask in (panel_identity, spec.load_panel):
        with pytest.raises(ValueError, match=rf"env\.{name}_per_type=0 makes an empty panel '{panel}'"):
            ask(config, panel)


def test_unknown_panels_and_engines() -> None:
    with pytest.raises(ValueError, match="no panel 'valid'; it has train, seen, unseen"):
        spec.load_panel(CONFIG, "valid")
    for ask in (spec.make, lambda config: spec.load_panel(config, "seen")):
        with pytest.raises(ValueError, match=r"env\.engine='thor' is not one of native, textworld"):
            ask(replace(CONFIG, engine="thor"))


@pytest.mark.engine
def test_the_engine_changes_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textworld")
    from envs.alfworld import ahead

    monkeypatch.setattr(ahead, "ensure_translations", lambda config, tasks: None)
    for name in ("train", *EVALUATED):
        assert spec.load_panel(replace(CONFIG, engine="textworld"), name) == spec.load_panel(CONFIG, name)


# ---------------------------------------------------------------------------------------------------------- locations
def test_a_location_gives_the_world_again() -> None:
    drawn = [*worlds.draw("train", 2, 5), *worlds.draw("unseen", 2, -3), *worlds.draw_validation(1, 1, 0)]
    for world in drawn:
        assert worlds.at_location(world.location) == world
    assert len({world.location for world in drawn}) == len(drawn)


@pytest.mark.parametrize(
    "location",
    [
        "",
        "world:",
        "json_2.1.1/train/x/game.tw-pddl",
        "world:pick_and_place_simple-Mug-None-Shelf-7",  # no seed
        "world:pick_and_place_simple-Mug-None-Shelf-7:",
        "world:pick_and_place_simple-Mug-None-Shelf-31:0|train|0",  # no such room
        "world:pick_and_place_simple-Mug-Plate-Shelf-7:0|train|0",
        "world:other-Mug-None-Shelf-7:0|train|0",
        "world:pick_and_place_simple-Mug-None-Shelf-seven:0|train|0",
    ],
)
def test_what_is_no_location(location: str) -> None:
    with pytest.raises(ValueError, match="no location of a generated world"):
        worlds.at_location(location)


def test_a_world_that_no_seed_gives_has_no_location() -> None:
    with pytest.raises(ValueError, match="was not drawn from a seed"):
        _ = replace(worlds.draw("train", 1, 0)[0], seed="").location


def test_every_specification_of_every_room_has_a_key_that_gives_it_back() -> None:
    for split in ("train", "unseen"):
        for pairs in worlds.pool(split).values():
            assert all(worlds.Spec.of_key(task.key) == task for _, task in pairs)


def test_a_task_that_another_version_made_is_an_environment_failure() -> None:
    task = spec.load_panel(CONFIG, "seen").tasks[0]
    environment = spec.make(CONFIG)
    assert environment.reset(task).task
    with pytest.raises(EnvironmentFailure, match="has changed since the panel was made"):
        environment.reset(replace(task, content_hash="0" * 64))
    with pytest.raises(EnvironmentFailure, match="no world can be drawn at 'world:nonsense'"):
        environment.reset(Task("x", "t", "0" * 64, location="world:nonsense"))
    with pytest.raises(EnvironmentFailure, match="has changed"):  # a task that the room cannot pose
        environment.reset(Task("x", "t", task.content_hash, location="world:pick_two_obj_and_place-Egg-None-Bed-301:1"))


def test_the_content_hash_covers_all_that_is_played() -> None:
    (world,) = worlds.draw("train", 1, 0)[:1]
    base = generated.content_hash(scene_of_world(world))
    assert generated.content_hash(scene_of_world(replace(world, seed="other", room=2))) == base
    thing, (kind, where) = next((i, o) for i, o in world.objects.items() if o[0] == world.spec.object)
    elsewhere = next(i for i, (k, _) in world.receptacles.items() if i != where and k != world.spec.target)
    place, (place_kind, pose) = next(iter(world.receptacles.items()))
    changed = [
        replace(world, objects={**world.objects, thing: (kind, elsewhere)}),
        replace(world, objects={i: o for i, o in world.objects.items() if i != thing}),
        replace(world, start=(world.start[0] + 1, *world.start[1:])),
        replace(world, instruction=world.instruction + " please"),
        replace(world, spec=replace(world.spec, target="Elsewhere")),
        replace(world, spec=replace(world.spec, task_type="pick_two_obj_and_place")),
        replace(world, receptacles={**world.receptacles, place: (place_kind, (*pose[:3], pose[3] + 15))}),
    ]
    hashes = {generated.content_hash(scene_of_world(other)) for other in changed}
    assert len(hashes) == len(changed) and base not in hashes
    scene = scene_of_world(world)
    scene.properties["sliceable"].add("knife")
    assert generated.content_hash(scene) != base


def test_a_game_without_a_solution_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = worlds.draw

    def draw(split: str, per_type: int, seed: int) -> list[worlds.World]:
        world = real(split, per_type, seed)[0]
        return [replace(world, objects={i: o for i, o in world.objects.items() if o[0] != world.spec.object})]

    monkeypatch.setattr(worlds, "draw", draw)
    with pytest.raises(ValueError, match="no solution found"):
        spec.load_panel(replace(CONFIG, world_seed=99), "seen")


# ---------------------------------------------------------------------------------------------- types that are held out
def held(*types: str, **changes: object) -> EnvConfig:
    return replace(CONFIG, knobs={"held_out_types": list(types)}, **changes)


HELD = ("pick_heat_then_place_in_recep", "look_at_obj_in_light")


def test_held_out_types_leave_every_panel_but_their_own() -> None:
    others = set(TASK_TYPES) - set(HELD)
    panels = {name: spec.load_panel(held(*HELD), name) for name in spec.PANELS}
    for name, panel in panels.items():
        assert {task.type for task in panel.tasks} == (set(HELD) if name == "held_out" else others)
        if name != "held_out":  # the games of the other types are those of the whole panel
            assert panel.tasks == tuple(t for t in spec.load_panel(CONFIG, name).tasks if t.type in others)
    seen = spec.load_panel(CONFIG, "seen")
    assert panels["held_out"].tasks == tuple(task for task in seen.tasks if task.type in HELD)
    assert_disjoint(panels["train"], *(panel for name, panel in panels.items() if name != "train"))
    assert len({panel.hash for panel in panels.values()}) == len(panels)


def test_identities_know_what_is_held_out() -> None:
    configs = (held(), held(HELD[0]), held(*HELD))
    for name in ("train", *EVALUATED):
        assert len({panel_identity(config, name) for config in configs}) == 3
        assert panel_identity(held(), name) == panel_identity(CONFIG, name)
        assert panel_identity(held(*HELD), name) == panel_identity(held(*reversed(HELD)), name)
        assert spec.load_panel(held(), name) == spec.load_panel(CONFIG, name)
    assert panel_identity(held(HELD[0]), "held_out") != panel_identity(held(*HELD), "held_out")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (held("pick_heat_then_place"), "did you mean 'pick_heat_then_place_in_recep'?"),
        (held(HELD[0], HELD[0]), "names a type twice"),
        (held(*TASK_TYPES), "leaves no type to train on"),
        (replace(CONFIG, knobs={"held_out_type": []}), "did you mean 'held_out_types'?"),
        (replace(CONFIG, knobs={"held_out_types": "all"}), "must be of type"),
    ],
)
def test_wrong_types_are_errors(config: EnvConfig, said: str) -> None:
    for ask in (
        lambda: panel_identity(config, "train"),
        lambda: spec.load_panel(config, "seen"),
        lambda: spec.make(config),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            ask()


def test_the_panel_held_out_needs_types() -> None:
    for ask in (panel_identity, spec.load_panel):
        with pytest.raises(ValueError, match=r"env\.knobs\.held_out_types=\[\] leaves out none; name one of pick_and"):
            ask(CONFIG, "held_out")


def test_held_out_types_of_a_users_data(world: tuple[Path, object], config: EnvConfig) -> None:
    data = replace(held(*HELD), data=str(world[0]), cache=config.cache)
    spec._user_panel_hash.cache_clear()
    whole = replace(data, knobs={})
    for name in ("train", "seen", "unseen", "held_out"):
        panel = spec.load_panel(data, name)
        assert len(panel.tasks) == (2 if name == "held_out" else 4)
        assert {task.type in HELD for task in panel.tasks} == {name == "held_out"}
        assert panel_identity(data, name) == panel.hash
    assert panel_identity(whole, "train") == spec.load_panel(whole, "train").hash != panel_identity(data, "train")


# ---------------------------------------------------------------------------------------------- order changes nothing
def test_order_and_hash_seed_change_nothing() -> None:
    code = (
        "from envs.alfworld import spec; from envs.interface import EnvConfig; import random\n"
        "c = EnvConfig(train_per_type=3, eval_per_type=2, validation_per_type=1)\n"
        "names = ['train', 'seen', 'unseen', 'validation']; random.Random(0).shuffle(names)\n"
        "print(sorted((n, spec.load_panel(c, n).hash) for n in names))\n"
        "e = spec.make(c); rng = random.Random(1)\n"
        "for task in spec.load_panel(c, 'seen').tasks:\n"
        "    seen = e.reset(task)\n"
        "    for _ in range(10):\n"
        "        print(seen); seen = e.step(rng.choice(seen.admissible)).observation\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "7")
    ]
    assert said[0] == said[1] and len(said[0]) > 10_000
