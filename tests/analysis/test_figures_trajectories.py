"""Two trajectories of one task: which two, what of them is shown, and what happens to files that are broken."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import zstandard

from analysis.figures import trajectories
from analysis.figures.pairs import NAME, Search, read
from analysis.figures.sources import Sources
from analysis.figures.style import Drawn, drawing


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with drawing():
        yield


def turn(action: str = "go to shelf 1", **changes: Any) -> dict[str, Any]:
    return {
        **{"observation": "You are in a room.", "response": action, "action": action, "valid": True},
        **{"invalid_reason": None, "admissible": True, "reward": 0.0},
        **changes,
    }


def item(success: bool, turns: int | list[dict[str, Any]] = 2, **changes: Any) -> dict[str, Any]:
    played = [turn() for _ in range(turns)] if isinstance(turns, int) else turns
    return {
        **{"phase": "train", "step": 3, "task_id": "t", "task_type": "x", "task": "put a mug in shelf.", "group": 0},
        **{"sample": int(success), "success": success, "score": float(success), "failure": None, "skill": None},
        **{"termination": "success" if success else "max_steps", "turns": played},
        **changes,
    }


def keep(sweep: Any, row: str, seed: int, *items: dict[str, Any]) -> None:
    lines = "".join(json.dumps(each) + "\n" for each in items)
    (sweep.run_dir(row, seed) / NAME).write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))


def draw(sweep: Any) -> dict[str, Drawn]:
    return {each.name: each for each in trajectories.draw(Sources.read(sweep.out, sweep.name))}


def words(drawn: Drawn) -> str:
    import matplotlib.text

    assert drawn.figure is not None, drawn.reason
    return " ".join(" ".join(text.get_text().split()) for text in drawn.figure.findobj(matplotlib.text.Text))


def search(sweep: Any) -> Search:
    return Search(Sources.read(sweep.out, sweep.name))


# ------------------------------------------------------------------------------------------- which two
def test_one_group_with_both_ends_comes_before_two_training_steps(sweep: Any) -> None:
    short = item(True, 1, step=1, group=5, task_id="u"), item(False, 1, step=2, group=6, task_id="u")
    keep(sweep, "grpo", 0, *short, item(False, 4), item(True, 3))
    pair = search(sweep).rollouts()
    assert pair is not None and pair.kind == "two rollouts of one policy"
    assert [len(each["turns"]) for each in pair.items] == [4, 3]
    assert pair.titles == ("GRPO, seed 0, training step 3, sample 0", "GRPO, seed 0, training step 3, sample 1")


def test_without_such_a_group_two_steps_of_one_run(sweep: Any) -> None:
    keep(sweep, "grpo", 1, item(False, step=1), item(True, step=9, group=7))
    pair = search(sweep).rollouts()
    assert pair is not None and pair.kind == "one run at two training steps"


def test_rows_with_a_skill_term_come_first_and_recorded_advantages_before_short_ones(sweep: Any) -> None:
    curve = [{**metrics, "method/skill_abs": 0.1} for metrics in sweep.curve("opid", 0)]
    sweep.write_spool("opid", 0, curve)
    keep(sweep, "grpo", 0, item(False, 1), item(True, 1))
    scored = [turn(tokens=["go to", "shelf 1"], skill_advantage=[0.1, -0.2])] * 3
    keep(sweep, "opid", 0, item(False, 1), item(True, 1), item(False, step=4, turns=scored), item(True, step=4))
    pair = search(sweep).rollouts()
    assert pair is not None and pair.titles[0].startswith("OPID, seed 0, training step 4")


def test_rows_are_compared_on_one_task_of_one_panel(sweep: Any) -> None:
    about = {"phase": "evaluation", "panel": "seen", "step": None}
    keep(sweep, "grpo", 0, item(True, **about), item(True, task_id="u", **about, turns=5))
    keep(sweep, "vanilla", 0, item(True, **{**about, "panel": "unseen"}))
    keep(sweep, "opid", 0, item(True, **about), item(False, task_id="u", **{**about, "sample": 1}))
    pair = search(sweep).rows()
    assert pair is not None and pair.kind == "two rows on one task of the panel seen"
    assert pair.titles == ("GRPO, seed 0, evaluation", "OPID, seed 0, evaluation")
    assert [each["task_id"] for each in pair.items] == ["u", "u"]  # ends differ there


@pytest.mark.parametrize(
    "items",
    [
        (),
        (item(True), item(True, step=4)),
        (item(True), item(False, failure="engine died")),
        (item(True), item(False, turns=0)),
        (item(True), item(False, task_id="u")),
    ],
)
def test_nothing_to_show_is_a_reason(sweep: Any, items: tuple[dict[str, Any], ...]) -> None:
    keep(sweep, "grpo", 0, *items)
    drawn = draw(sweep)["trajectories-rollouts"]
    assert drawn.figure is None and "ended differently" in drawn.reason


def test_runs_that_are_not_complete_are_not_looked_into(sweep: Any) -> None:
    keep(sweep, "grpo", 0, item(True), item(False))
    sweep.write_state("grpo", 0, state="failed")
    assert draw(sweep)["trajectories-rollouts"].figure is None


# ------------------------------------------------------------------------------------------- broken files
def test_a_broken_file_is_named_and_what_came_before_is_used(sweep: Any) -> None:
    keep(sweep, "grpo", 0, item(True), item(False))
    path = sweep.run_dir("grpo", 0) / NAME
    path.write_bytes(path.read_bytes() + b"no frame at all")
    said = words(draw(sweep)["trajectories-rollouts"])
    assert "GRPO, seed 0: trajectories.jsonl.zst cannot be read to its end" in said.replace("  ", " ")


def test_a_file_that_is_no_archive_is_in_the_reason(sweep: Any) -> None:
    (sweep.run_dir("grpo", 0) / NAME).write_bytes(b"text")
    assert "GRPO, seed 0: trajectories.jsonl.zst cannot be read" in draw(sweep)["trajectories-rollouts"].reason


def test_no_file_is_nothing_wrong(sweep: Any) -> None:
    assert read(sweep.run_dir("grpo", 0) / NAME) == ([], "")


# ------------------------------------------------------------------------------------------- what is shown
def test_actions_flags_skills_and_what_is_not_recorded(sweep: Any) -> None:
    turns = [
        turn("open safe 1", admissible=False, skill="Look on shelves before you open anything."),
        turn("jump", valid=False, invalid_reason="no <action> tag", observation="The price is $5 or $6."),
    ]
    keep(sweep, "opid", 0, item(False, turns=turns, skill="Find it, take it."), item(True, turns=30))
    said = words(draw(sweep)["trajectories-rollouts"])
    for part in (
        *("open safe 1", "✗ the environment refused this action", "✗ malformed: no <action> tag"),
        *("→ The price is $5 or $6.", "skill: Look on shelves", "skill in the prompt: Find it, take it."),
        *("not solved (max_steps) after 2 steps", "… 6 more steps; solved after 30 steps"),
        "Not in these records, so not shown: skill advantages of tokens",
    ):
        assert part in said
    assert "skills of single steps" not in said


def test_tokens_are_coloured_by_their_advantage(sweep: Any) -> None:
    from matplotlib.patches import Rectangle

    scored = [turn(tokens=["go to", "shelf 1"], skill_advantage=[0.1, -0.2])]
    keep(sweep, "opid", 0, item(False, turns=scored), item(True))
    drawn = draw(sweep)["trajectories-rollouts"]
    assert "Σ −0.1" in words(drawn) and "full colour at ±0.2" in words(drawn)
    assert drawn.figure is not None
    boxes = [box for box in drawn.figure.axes[0].patches if isinstance(box, Rectangle)]
    faces = [box.get_facecolor()[:3] for box in boxes]
    assert faces == [trajectories.shade(0.1, 0.2), trajectories.shade(-0.2, 0.2)]


def test_shades_are_white_at_zero_and_full_at_the_scale() -> None:
    assert trajectories.shade(0.0, 1.0) == (1.0, 1.0, 1.0)
    assert trajectories.shade(5.0, 1.0) == trajectories.shade(1.0, 1.0)
    assert trajectories.shade(1.0, 1.0)[2] > trajectories.shade(1.0, 1.0)[0]  # blue
    assert trajectories.shade(-1.0, 1.0)[0] > trajectories.shade(-1.0, 1.0)[2]  # red


@pytest.mark.parametrize(
    ("tokens", "values"),
    [(["a"], [0.1, 0.2]), (None, [0.1]), (["a"], None), (["a"], [math.nan]), (["a"], ["x"]), ("a", [0.1])],
)
def test_advantages_that_do_not_fit_their_tokens_are_not_shown(sweep: Any, tokens: Any, values: Any) -> None:
    keep(sweep, "opid", 0, item(False, turns=[turn(tokens=tokens, skill_advantage=values)]), item(True))
    assert "Not in these records, so not shown: skill advantages" in words(draw(sweep)["trajectories-rollouts"])


def test_long_responses_and_odd_letters_stay_within_their_column(sweep: Any) -> None:
    many = [turn(tokens=["x" * 90, "買", *(["word"] * 100)], skill_advantage=[0.1] * 102)]
    keep(sweep, "opid", 0, item(False, turns=many), item(True))
    drawn = draw(sweep)["trajectories-rollouts"]
    assert "first 48 of 102 tokens" in words(drawn) and "買" not in words(drawn)
    assert drawn.figure is not None
    ends = [box.get_x() + box.get_width() for box in drawn.figure.axes[0].patches]
    assert max(ends) < trajectories.COLUMN
