"""Each family of figures: what it draws, what it says where there is no number, and what it writes below."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from analysis.figures.sources import Sources
from analysis.figures.style import Drawn, drawing

STEPS = 12
ROWS = ({"id": "grpo", "label": "GRPO", "kind": "method"}, {"id": "opid", "label": "OPID", "kind": "method"})
FIRST = "pick_and_place_simple"  # of the fixture's task types


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with drawing():
        yield


def draw(sweep: Any, family: str) -> dict[str, Drawn]:
    made = importlib.import_module(f"analysis.figures.{family}").draw(Sources.read(sweep.out, sweep.name))
    return {each.name: each for each in made}


def words(drawn: Drawn) -> str:
    """Every text of a figure, on one line."""
    import matplotlib.text

    assert drawn.figure is not None, drawn.reason
    texts = [text.get_text() for text in drawn.figure.findobj(matplotlib.text.Text)]
    return " ".join(" ".join(texts).replace("\u00a0", " ").split())


def break_a_lot(sweep: Any) -> None:
    """A failed seed, a row that has not started, a mixed one, and one with a duplicated episode."""
    sweep.write_state("opid", 2, state="failed", last_step=7, failure_class="disk")
    sweep.write_spool("opid", 2, sweep.curve("opid", 2)[:7])
    for seed in (0, 1, 2):
        sweep.write_state("vanilla", seed, state="pending")
        (sweep.run_dir("vanilla", seed) / "episodes.parquet").unlink()
    sweep.edit_episodes(
        "grpo", 1, lambda rows: [{**r, "panel_hash": "f" * 64} if r["panel"] == "seen" else r for r in rows]
    )
    sweep.edit_episodes("opid_random", 0, lambda rows: [*rows, rows[0]])


BROKEN = (
    "OPID seed 2: failed at step 7 of 12 (disk)",
    "Vanilla seed 0, 1, 2: pending",
    "grpo on seen/off: more than one panel hash",
    "opid_random on seen/off, seed 0: duplicated",
)


def test_bars_show_every_planned_row(sweep: Any) -> None:
    said = words(draw(sweep, "overall")["overall-alfworld"])
    for label in ("Vanilla", "Vanilla + skill [skills]", "GRPO", "OPID", "OPID, random skills"):
        assert label in said
    assert "seen tasks" in said and "unseen tasks" in said and "3/3" in said
    assert "not comparable with paper numbers" in said and "no permutation test" in said
    assert "Not complete" not in said and "Warnings" not in said


def test_bars_say_what_is_missing_mixed_and_invalid(sweep: Any) -> None:
    break_a_lot(sweep)
    said = words(draw(sweep, "overall")["overall-alfworld"])
    for part in (*BROKEN, "missing, seeds: 0/3", "mixed, seeds: 3/3 !", "invalid, seeds: 3/3 !", "2/3"):
        assert part in said


def test_bars_of_one_seed_are_labelled_evaluation_only(make_sweep: Any) -> None:
    said = words(draw(make_sweep(seeds=(0,)), "overall")["overall-alfworld"])
    assert "ᵉ 1/1" in said and "evaluation-only" in said and "there is one seed" in said


def test_training_curves_show_runs_that_are_in_no_mean(sweep: Any) -> None:
    break_a_lot(sweep)
    curve = sweep.curve("opid_random", 1)
    curve[3]["train/success"] = "nan"
    sweep.write_spool("opid_random", 1, curve)
    drawn = draw(sweep, "training_curves")["training_curves-alfworld"]
    said = words(drawn)
    assert "OPID (2/3 seeds)" in said and "OPID, random skills (2/3 seeds)" in said
    assert "OPID seed 2: failed at step 7 of 12 (disk); OPID, random skills seed 1: nan curve" in said
    assert "run in no mean" in said
    assert "train/length is not recorded" in said  # the fixture records success only
    crosses = [line for line in drawn.figure.axes[0].lines if line.get_marker() == "x"]  # type: ignore[union-attr]
    assert sorted(float(line.get_xdata()[0]) for line in crosses) == [7.0, 12.0]  # type: ignore[arg-type, index]


def test_training_curves_of_a_row_without_records_say_so(sweep: Any) -> None:
    for seed in (0, 1, 2):
        (sweep.run_dir("opid", seed) / "spool.jsonl").unlink()
    assert "Nothing recorded of training yet: OPID." in words(
        draw(sweep, "training_curves")["training_curves-alfworld"]
    )


def test_many_rows_go_to_several_figures_with_the_reference_in_each(make_sweep: Any) -> None:
    rows = [{"id": name, "label": name.upper(), "kind": "method"} for name in ("grpo", "a", "b", "c", "d")]
    found = draw(make_sweep(rows=rows, panels=("seen",)), "training_curves")
    assert list(found) == ["training_curves-alfworld-1", "training_curves-alfworld-2"]
    assert all("GRPO (3/3 seeds)" in words(each) for each in found.values())
    assert "D (3/3 seeds)" in words(found["training_curves-alfworld-2"])


def test_sample_efficiency_marks_what_has_no_number(sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    half = [
        {**c, "fraction": 0.5, "fingerprint": f"h{c['fingerprint'][1:]}"} for c in sweep.cells if c["row"] == "grpo"
    ]
    for cell in half:
        cell["run_dir"] = f"runs/{cell['fingerprint']}"  # not there: nothing has been run yet
    sweep.cells += half
    sweep.write_plan()
    (drawn,) = draw(sweep, "sample_efficiency").values()
    said = words(drawn)
    assert drawn.name == "sample_efficiency-alfworld"
    assert "fraction of the training tasks" in said and "GRPO (alfworld, 50% of data) seed 0, 1, 2: pending" in said
    crosses = [line for line in drawn.figure.axes[0].lines if line.get_marker() == "x"]  # type: ignore[union-attr]
    assert len(crosses) == 1


def test_seen_and_unseen_say_why_a_row_has_no_gap(sweep: Any) -> None:
    break_a_lot(sweep)
    said = words(draw(sweep, "seen_unseen")["seen_unseen-alfworld"])
    for part in (*BROKEN, "missing (0/3 seeds)", "mixed (0/3 seeds)", "invalid (0/3 seeds)", "2/3"):
        assert part in said
    assert "nothing is paired by task" in said and "Arrows" in said  # two seeds: 12.7 standard errors


def test_held_out_types_get_a_figure_of_their_own(make_sweep: Any) -> None:
    made = draw(make_sweep(panels=("seen", "unseen", "held_out")), "seen_unseen")
    assert set(made) == {"seen_unseen-alfworld", "seen_held_out-alfworld"}
    said = words(made["seen_held_out-alfworld"])
    assert "seen − held_out, points" in said and "held_out tasks" in said and "unseen" not in said


def test_one_panel_has_no_gap(make_sweep: Any) -> None:
    (drawn,) = draw(make_sweep(panels=("seen",)), "seen_unseen").values()
    assert drawn.figure is None and "both seen and unseen" in drawn.reason


def test_ablation_names_base_and_change(teachers: Any) -> None:
    drawn = draw(teachers, "ablation")["ablation-alfworld"]
    said = words(drawn)
    assert "Skill-GRPO − GRPO" in said and "RetireOPD, fixed stop − RetireOPD" in said
    assert "stop_step: none → 8" in said and "rollout_skills_train: false → true, 1 more" in said
    assert "Skill-GRPO* [skills] − GRPO" in said and "‡" in said


def test_ablation_says_why_there_is_no_difference(teachers: Any) -> None:
    for seed in (0, 1, 2):
        teachers.write_state("retire_opd", seed, state="failed", last_step=3)
    said = words(draw(teachers, "ablation")["ablation-alfworld"])
    assert "no complete run" in said and "retire_opd has no usable evaluation here" in said


def recorded(sweep: Any, row: str, **values: Any) -> None:
    """Adds metrics to every step of every seed; a value may be a function of the step."""
    for seed in (0, 1, 2):
        curve = sweep.curve(row, seed)
        for step, metrics in enumerate(curve, 1):
            metrics |= {f"method/{name}": v(step) if callable(v) else v for name, v in values.items()}
        sweep.write_spool(row, seed, curve)


def test_critical_steps_and_parts_of_the_advantage(sweep: Any) -> None:
    fading = {"skill_abs": lambda step: max(0.0, 0.02 - 0.002 * step)}
    recorded(sweep, "opid", critical_steps=3.5, advantage_abs=0.4, **fading)
    recorded(sweep, "grpo", advantage_abs=0.4)
    assert "OPID (3/3 seeds)" in words(draw(sweep, "critical_steps")["critical_steps-alfworld"])
    said = words(draw(sweep, "advantages")["advantages-alfworld"])
    assert "outcome" in said and "skill term, weighted" in said
    assert "OPID from about step 10" in said
    assert "Rows with the outcome's part alone have no frame: GRPO." in said


def test_retirement_shows_windows_and_who_did_not_retire(teachers: Any) -> None:
    teachers.write_state("retire_opd", 2, state="failed", last_step=7)
    teachers.write_spool("retire_opd", 2, teachers.curve("retire_opd", 2)[:7])
    drawn = draw(teachers, "retirement")["retirement-alfworld"]
    said = words(drawn)
    assert "RetireOPD: not retired by the last recorded step in seed 2" in said
    assert "RetireOPD, fixed stop: no windows and no validation recorded in seed 0, 1, 2" in said
    assert said.count("▼") == 2 + 3 + 1  # seeds of both rows, and the note
    assert "RetireOPD seed 2: failed at step 7 of 12" in said


def test_profile_names_rows_that_are_not_shown(sweep: Any) -> None:
    break_a_lot(sweep)
    said = words(draw(sweep, "profile")["profile-seen"])
    for part in ("OPID: 2 seeds", "Vanilla: no usable evaluation", "GRPO: no usable evaluation", "whole runs"):
        assert part in said


def test_a_price_is_no_formula(sweep: Any) -> None:
    plan = json.loads((sweep.out / "results" / sweep.name / "plan.json").read_text())
    for row in plan["rows"]:
        row["label"] = f"{row['id']} $5^x$"
    sweep.write_plan(rows=plan["rows"])
    drawn = draw(sweep, "overall")["overall-alfworld"]
    assert drawn.figure is not None
    drawn.figure.draw_without_rendering()
    assert "grpo $5^x$" in words(drawn)


def test_the_profile_shows_what_rows_are_trained_for_and_every_panel_apart(make_sweep: Any) -> None:
    sweep = make_sweep(rows=ROWS, panels=("held_out", "seen", "unseen"))
    assert list(draw(sweep, "profile")) == ["profile-seen", "profile-unseen", "profile-held_out"]


def test_the_profile_says_which_seeds_have_no_score_somewhere(make_sweep: Any) -> None:
    sweep = make_sweep(rows=ROWS, panels=("seen",), per_type=2, seeds=(0, 1, 2, 3))
    sweep.edit_episodes(
        "opid", 3, lambda rows: [{**r, "failure": "env" if r["task_type"] == FIRST else None} for r in rows]
    )
    sweep.write_state("opid", 3, evaluations={"seen/off": {"requested": 12, "graded": 10, "excluded": 2}})
    said = words(draw(sweep, "profile")["profile-seen"])
    assert "OPID seed 3: nothing graded in a task type" in said and "OPID (3 seeds)" in said
