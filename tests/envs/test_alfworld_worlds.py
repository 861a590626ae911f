"""Generated worlds, the native rules, the expert and hindsight, all from text and facts."""

import json
import random
import re

import pytest

from envs.alfworld import facts, worlds
from envs.alfworld.demos import demonstration
from envs.alfworld.expert import Expert, walkthrough
from envs.alfworld.hindsight import caution, episode_skill, hindsight, workflow
from envs.alfworld.library import skill_for
from envs.alfworld.native import NOTHING, Game, display_names, listing, scene_of_world
from envs.alfworld.tracker import Aim, Tracker, entities, read_instruction
from envs.interface import Task

SPLITS = ("train", "seen", "unseen")


@pytest.mark.engine
def test_the_shipped_table_is_what_the_package_says():
    pytest.importorskip("alfworld")
    assert json.loads(facts.table_path().read_text()) == json.loads(facts.render(facts.derive()))


def test_rooms_of_the_splits():
    assert len(facts.facts().rooms) == 120
    assert len(facts.train_rooms()) == 108
    assert not set(facts.train_rooms()) & set(facts.UNSEEN_ROOMS + facts.TEST_UNSEEN_ROOMS)


def test_splits_share_no_specification_and_unseen_shares_no_room():
    pools = {s: {(n, spec) for found in worlds.pool(s).values() for n, spec in found} for s in SPLITS}
    assert not pools["train"] & pools["seen"]
    assert {n for n, _ in pools["unseen"]} == set(facts.UNSEEN_ROOMS)
    assert {n for n, _ in pools["seen"]} <= set(facts.train_rooms())
    assert all(worlds.pool(s)[t] for s in SPLITS for t in facts.TASK_TYPES)
    with pytest.raises(ValueError, match="split='test'"):
        worlds.pool("test")


def test_a_draw_is_a_prefix_of_a_longer_one_and_repeats():
    short, long = worlds.draw("seen", 2, 0), worlds.draw("seen", 4, 0)
    by_type = {t: [w.folder for w in long if w.spec.task_type == t] for t in facts.TASK_TYPES}
    for t in facts.TASK_TYPES:
        assert [w.folder for w in short if w.spec.task_type == t] == by_type[t][:2]
    assert [w.folder for w in worlds.draw("seen", 2, 1)] != [w.folder for w in short]
    assert len({w.folder for w in worlds.draw("unseen", 20, 0)}) == 120  # 14 look specs: placements differ


@pytest.mark.parametrize("split", SPLITS)
def test_every_world_is_solved_by_its_walkthrough_and_is_not_solved_at_the_start(split):
    for world in worlds.draw(split, 5, 3):
        game = Game(scene_of_world(world))
        assert not game.won()
        for command in walkthrough(world):
            assert command in game.admissible()
            game.step(command)
        assert game.won(), world.folder


def test_names_count_down_in_the_order_of_the_ids():
    scene = scene_of_world(worlds.draw("train", 1, 0)[0])
    names = display_names(scene)
    for kind in set(scene.receptacle_type.values()):
        numbers = [int(names[r].split()[-1]) for r in sorted(scene.receptacle_type) if names[r].startswith(kind + " ")]
        assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize(
    ("names", "text"), [([], "nothing"), (["mug 1"], "a mug 1"), (["mug 1", "pan 2"], "a mug 1, and a pan 2")]
)
def test_listing(names, text):
    assert listing(names) == text


def test_nonsense_changes_nothing():
    game = Game(scene_of_world(worlds.draw("train", 1, 0)[0]))
    game.reset()
    before = game.admissible()
    for command in ("fly to moon", "", "GO TO cabinet 1", "take mug 99 from shelf 1", "\x00" * 100):
        assert game.step(command) == (NOTHING, False)
    assert game.admissible() == before


# ------------------------------------------------------------------------------------------------ goals and experts
@pytest.mark.parametrize("task_type", facts.TASK_TYPES)
@pytest.mark.parametrize("wording", (0, 1))
def test_instructions_are_read_back(task_type, wording):
    text = facts.facts().instructions[task_type][wording].format(obj="mug", recep="shelf", toggle="desklamp")
    aim = read_instruction(f"{text}.")
    look = task_type == "look_at_obj_in_light"
    assert aim == Aim(task_type, "mug", "" if look else "shelf", "desklamp" if look else "")


def test_a_sentence_in_other_words_is_an_error():
    with pytest.raises(ValueError, match="goal unknown"):
        read_instruction("please tidy up the kitchen.")


def test_entities():
    assert entities("On the shelf 1, you see a mug 2, and a pan 1.") == ["shelf 1", "mug 2", "pan 1"]


def _play(world, expert_steps=20, naive=False):
    game = Game(scene_of_world(world))
    seen, rng = Tracker(), random.Random(world.folder)
    seen.begin(game.reset())
    expert = Expert(read_instruction(world.instruction), rng, naive)
    for _ in range(expert_steps):
        decision = expert.decide(seen)
        if game.won() or decision is None:
            break
        text, _ = game.step(decision.command)
        seen.update(decision.command, text)
    return game.won()


def test_the_honest_expert_solves_nearly_everything_in_time_and_a_naive_one_nothing_that_needs_a_device():
    drawn = worlds.draw("unseen", 10, 5)
    assert sum(_play(w) for w in drawn) >= 0.9 * len(drawn)
    devices = [w for w in drawn if w.spec.task_type in facts.DEVICES]
    assert sum(_play(w, naive=True) for w in devices) == 0


# ------------------------------------------------------------------------------------------------ skills
def test_workflow_and_caution_name_what_the_task_needs():
    aim = Aim("pick_heat_then_place_in_recep", "egg", "table", "")
    assert workflow(aim) == "find egg, take egg, heat egg with microwave, move egg to table"
    assert "before you heat it" in caution(aim)
    assert episode_skill(aim, True) == workflow(aim)
    assert episode_skill(aim, False).startswith(workflow(aim) + "; ")


def test_library_skill_and_its_error():
    task = Task("t", "pick_and_place_simple", "h", {"object": "mug", "target": "shelf"})
    assert skill_for(task) == "find mug, take mug, move mug to shelf"
    with pytest.raises(KeyError, match="task t: slot"):
        skill_for(Task("t", "pick_and_place_simple", "h", {}))


def test_hindsight_finds_the_missed_and_the_taken_steps():
    intro = (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
    )
    intro += "a fridge 1, a shelf 1, and a sinkbasin 1.\n\nYour task is to: put a clean mug in fridge."
    steps = [
        (intro, "go to shelf 1", True),
        ("You arrive at shelf 1. On the shelf 1, you see a mug 1.", "go to fridge 1", True),  # missed the mug
        ("You arrive at fridge 1. The fridge 1 is closed.", "go to shelf 1", True),
        ("You arrive at shelf 1. On the shelf 1, you see a mug 1.", "take mug 1 from shelf 1", True),
        ("You pick up the mug 1 from the shelf 1.", "go to fridge 1", True),  # skips the sink
    ]
    skill, critical = hindsight("put a clean mug in fridge.", steps, False, 5)
    assert skill.startswith("find mug, take mug, clean mug with sinkbasin, move mug to fridge; ")
    assert critical == {
        1: "take mug 1 from shelf 1",
        2: "go to shelf 1",
        3: "take mug 1 from shelf 1",
        4: "go to sinkbasin 1",
    }
    _, fewer = hindsight("put a clean mug in fridge.", steps, False, 2)
    assert sorted(fewer) == [1, 4]  # deviations first


def test_hindsight_accepts_what_is_as_good_as_its_own_choice():
    intro = "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, "
    intro += "you see a drawer 2, a drawer 1, a shelf 2, and a shelf 1.\n\nYour task is to: put some mug on drawer."
    steps = [
        (intro, "go to shelf 1", True),
        ("You arrive at shelf 1. On the shelf 1, you see a mug 2, and a mug 1.", "take mug 2 from shelf 1", True),
        ("You pick up the mug 2 from the shelf 1.", "go to drawer 2", True),  # any drawer will do
        ("You arrive at drawer 2. The drawer 2 is closed.", "go to drawer 1", True),  # but not one after the other
        ("You arrive at drawer 1. The drawer 1 is closed.", "open drawer 1", True),
    ]
    _, critical = hindsight("put some mug on drawer.", steps, True, 9)
    assert critical == {
        1: "take mug 2 from shelf 1",
        2: "go to drawer 2",
        3: "open drawer 2",
        4: "open drawer 1",
    }


# ------------------------------------------------------------------------------------------------ demonstrations
def test_demonstrations_repeat_and_differ():
    assert demonstration(0, 7) == demonstration(0, 7)
    assert demonstration(0, 7) != demonstration(1, 7)


def test_demonstrations_carry_skills_in_about_half_and_imitate_only_what_worked():
    drawn = [demonstration(0, i) for i in range(300)]
    hinted = [d for d in drawn if d.episode_skill or any(t.step_skill for t in d.turns)]
    assert 0.4 < len(hinted) / len(drawn) < 0.6
    answers = [(t, n) for d in drawn for t, n in zip(d.turns, d.turns[1:], strict=False)]
    failed = [t for t, n in answers if n.prompt.text == NOTHING]
    assert failed and not any(t.imitate for t in failed)
    assert all(t.step_skill in (None, t.action) for d in drawn for t in d.turns)


def test_unhinted_experts_mostly_skip_the_device_and_hinted_ones_never():
    def uses_device(d):
        return any(re.match("(clean|heat|cool) ", t.action) for t in d.turns)

    drawn = [demonstration(0, i) for i in range(600)]
    needs = [d for d in drawn if re.search("clean|hot|heat|cool", d.turns[0].prompt.task)]
    plain = [d for d in needs if not d.episode_skill and not any(t.step_skill for t in d.turns)]
    told = [d for d in needs if d.episode_skill and re.search("move|use", d.turns[-1].action)]
    assert sum(map(uses_device, plain)) < 0.4 * len(plain)
    assert sum(map(uses_device, told)) > 0.9 * len(told)
