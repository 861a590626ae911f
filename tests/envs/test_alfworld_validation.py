"""The panel `validation` has games of its own, and the other panels do not notice it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envs.alfworld import spec, validation, worlds
from envs.alfworld.facts import TASK_TYPES
from envs.alfworld.manifest import Entry, Manifest
from envs.interface import EnvConfig
from envs.panels import assert_disjoint, panel_identity

World = tuple[Path, Manifest]


@pytest.fixture
def small(config: EnvConfig) -> EnvConfig:
    return replace(config, validation_per_type=2)


def test_generated_games_of_its_own(small: EnvConfig) -> None:
    before = {name: spec.load_panel(small, name) for name in ("train", "seen", "unseen")}
    panel = spec.load_panel(small, "validation")
    assert len(panel.tasks) == 12 and {t.type for t in panel.tasks} == set(TASK_TYPES)
    assert_disjoint(panel, *before.values())
    assert spec.load_panel(small, "validation") == panel
    assert {name: spec.load_panel(small, name) for name in before} == before
    environment = spec.make(small)
    assert all(environment.reset(task).task for task in panel.tasks)


def test_specifications_are_shared_with_no_other_panel() -> None:
    def specs(drawn: list[worlds.World]) -> set[tuple[int, worlds.Spec]]:
        return {(world.room, world.spec) for world in drawn}

    found = specs(worlds.draw_validation(6, 20, 0))
    assert len(found) == 36
    assert not found & specs(worlds.draw("seen", 20, 0))
    assert not found & {pair for pairs in worlds.pool("train").values() for pair in pairs}
    assert not found & {pair for pairs in worlds.pool("unseen").values() for pair in pairs}
    assert worlds.draw_validation(6, 20, 0) == worlds.draw_validation(6, 20, 0)
    assert specs(worlds.draw_validation(6, 20, 1)) != found
    with pytest.raises(ValueError, match=r"eval_per_type=79 leaves 1 of 80 .*validation_per_type=6 wants more"):
        worlds.draw_validation(6, 79, 0)


def test_identities(small: EnvConfig) -> None:
    """What the panel is made from determines its identity, and no other panel's."""
    other = replace(small, validation_per_type=3)
    assert panel_identity(small, "validation") != panel_identity(other, "validation")
    assert panel_identity(small, "validation") != panel_identity(replace(small, eval_per_type=2), "validation")
    for name in ("train", "seen", "unseen"):
        assert panel_identity(small, name) == panel_identity(other, name)
    with pytest.raises(ValueError, match=r"env\.validation_per_type=0 makes an empty panel"):
        spec.load_panel(replace(small, validation_per_type=0), "validation")


def entries(count: int, kind: str = "pick_and_place_simple") -> list[Entry]:
    return [Entry(f"train/{kind}/{i:03d}", kind, f"{kind}{i}", {}, f"{i}", 1) for i in range(count)]


def test_a_users_training_games_give_at_most_a_tenth() -> None:
    games = [*entries(100), *entries(25, "look_at_obj_in_light"), *entries(9, "pick_two_obj_and_place")]
    train, carved = validation.carve(games, 4)
    assert [e.type for e in carved] == ["pick_and_place_simple"] * 4 + ["look_at_obj_in_light"] * 2
    assert [e for e in games if e not in carved] == train
    assert validation.carve(list(reversed(games)), 4)[1] == list(reversed(carved))  # no order of folders matters
    assert {e.id for e in validation.carve(games, 3)[1]} < {e.id for e in carved}
    assert validation.carve(games, 0) == (games, [])


def test_equal_games_are_never_on_both_sides() -> None:
    games = entries(20)
    games += [replace(e, id=e.id + "-again") for e in games]
    train, carved = validation.carve(games, 4)
    assert len(carved) == 2 and len(train) == 36
    assert not {e.content_hash for e in train} & {e.content_hash for e in carved}


def test_all_runs_on_a_users_data_train_on_the_same_games(
    config: EnvConfig, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six games, one of a type: nothing to spare unless one may take every game."""
    data = EnvConfig(data=str(world[0]), cache=config.cache, validation_per_type=1)
    spec._user_panel_hash.cache_clear()
    assert len(spec.load_panel(data, "train").tasks) == 6
    with pytest.raises(ValueError, match="fewer than 10 training games of each type"):
        spec.load_panel(data, "validation")
    whole = panel_identity(data, "train")
    monkeypatch.setattr(validation, "LARGEST_SHARE", 1)
    spec._user_panel_hash.cache_clear()
    panel = spec.load_panel(data, "validation")
    assert len(panel.tasks) == 6 and panel_identity(data, "validation") == panel.hash
    untouched = replace(data, validation_per_type=0)
    assert len(spec.load_panel(untouched, "train").tasks) == 6 and panel_identity(untouched, "train") == whole
    with pytest.raises(ValueError, match=r"validation_per_type=0"):
        spec.load_panel(untouched, "validation")
    spec._user_panel_hash.cache_clear()
