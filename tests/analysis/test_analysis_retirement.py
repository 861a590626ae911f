"""When runs parted from their teachers, and whether they left them alone afterwards."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from analysis.cells import Metric
from analysis.collect import collect
from analysis.render import Block
from analysis.retirement import Retirement, course_text, retirements
from analysis.tables import document, make_tables


def runs(sweep: Any) -> dict[tuple[str, int], Retirement]:
    records = collect(sweep.out, sweep.name)
    return {(records.lines[line].row, run.seed): run for line, found in retirements(records).items() for run in found}


def block(sweep: Any) -> Block:
    page = document(make_tables(collect(sweep.out, sweep.name)))
    return next(b for b in page.blocks if b.title.startswith("Retirement"))


def texts(block: Block, row: str, seed: str) -> dict[str, str]:
    found = next(r for r in block.rows if r[0].text == row and r[1].text == seed)
    return {header: entry.text for header, entry in zip(block.header, found, strict=True)}


def test_a_retirement_is_told_with_everything_that_decided_it(teachers: Any) -> None:
    run = runs(teachers)["retire_opd", 1]
    assert (run.step, run.last, run.teacher, run.rows_after, run.touched) == (8, 12, 0.5, 0.0, ())
    assert (run.success, run.window_gap, run.progress, run.competence) == pytest.approx((0.48, 0.45, -0.02, 0.95))
    assert run.course == ((1, 0.25), (9, 0.0)) and course_text(run) == "0.25 from step 1, 0 from step 9"
    told = texts(block(teachers), "RetireOPD", "1")
    assert (told["Retired after step"], told["Teacher %"], told["Policy then %"]) == ("8", "50.0", "48.0")
    assert (told["Teacher rows after"], told["K, last window"], told["Competence"]) == ("0", "0.45", "0.95")


def test_a_fixed_stop_says_so_by_its_metrics_alone(teachers: Any) -> None:
    """It has no validation and no event; its first step without a teacher is the one after the stop."""
    run = runs(teachers)["retire_opd_fixed", 0]
    assert (run.step, run.rows_after) == (8, 0.0)
    assert math.isnan(run.teacher) and math.isnan(run.success) and math.isnan(run.competence)


def test_a_retirement_that_a_resume_has_undone_is_none(teachers: Any) -> None:
    """Retired after step 8, killed, resumed from step 6, and not retired the second time."""
    curve = [{**v, "method/coef": 0.25, "method/retired": 0.0} for v in teachers.curve("retire_opd", 1)]
    for values in curve:
        values["cost/teacher_rows"] = 32.0
    teachers.write_spool("retire_opd", 1, curve, teachers.events("retire_opd")[:1])
    path = teachers.run_dir("retire_opd", 1) / "spool.jsonl"
    undone = {"t": 2.5, "kind": "event", "name": "retired", "data": {"step": 8}, "rewound": True}
    path.write_text(path.read_text() + json.dumps(undone) + "\n")
    assert runs(teachers)["retire_opd", 1].step is None
    assert texts(block(teachers), "RetireOPD", "1")["Retired after step"] == "never (of 12)"
    codes = [warning.code for warning in collect(teachers.out, teachers.name).warnings]
    assert "teacher_after_retirement" not in codes


def test_rows_without_a_teacher_of_their_own_are_not_in_the_table(teachers: Any, sweep: Any) -> None:
    assert {row for row, _ in runs(teachers)} == {"retire_opd", "retire_opd_fixed"}
    assert retirements(collect(sweep.out, "main_table")) == {}
    page = document(make_tables(collect(sweep.out, "main_table")))
    assert not any(b.title.startswith("Retirement") for b in page.blocks)


def test_a_teacher_that_never_retires_is_shown_as_such(teachers: Any) -> None:
    curve = [{**v, "method/coef": 0.25, "method/retired": 0.0} for v in teachers.curve("retire_opd", 0)]
    teachers.write_spool("retire_opd", 0, curve, teachers.events("retire_opd")[:1])
    told = texts(block(teachers), "RetireOPD", "0")
    assert told["Retired after step"] == "never (of 12)" and told["Teacher rows after"] == "–"
    assert told["Weight of its term"] == "0.25 from step 1"


def test_a_teacher_that_is_used_after_its_retirement_is_flagged(teachers: Any) -> None:
    curve = teachers.curve("retire_opd", 2)
    curve[10]["cost/teacher_rows"] = 4.0
    teachers.write_spool("retire_opd", 2, curve, teachers.events("retire_opd"))
    entry = next(r for r in block(teachers).rows if r[0].text == "RetireOPD" and r[1].text == "2")[6]
    assert entry.text == "4 ▲" and entry.strong and entry.hint == "cost/teacher_rows"
    warning = next(w for w in collect(teachers.out, teachers.name).warnings if w.code == "teacher_after_retirement")
    assert "retire_opd, seed 2: retired at step 8, but cost/teacher_rows after it is not zero" in warning.message


def test_what_nobody_recorded_is_not_taken_for_zero(teachers: Any) -> None:
    curve = teachers.curve("retire_opd", 0)
    del curve[11]["cost/teacher_rows"]
    teachers.write_spool("retire_opd", 0, curve, teachers.events("retire_opd"))
    assert texts(block(teachers), "RetireOPD", "0")["Teacher rows after"] == "not recorded"


def test_a_run_that_is_not_complete_is_shown_but_gives_no_number(teachers: Any) -> None:
    teachers.write_state("retire_opd", 0, state="interrupted")
    assert texts(block(teachers), "RetireOPD", "0 (not complete)")["Retired after step"] == "8"
    cells = make_tables(collect(teachers.out, teachers.name)).retirement
    assert {
        c.column for c in cells if c.column.startswith("retired_step") and c.line and c.line.row == "retire_opd"
    } == {
        "retired_step, seed 1",
        "retired_step, seed 2",
    }
    assert {c.metric for c in cells} == {Metric.RETIREMENT}


def test_a_weight_that_changes_all_the_time_is_told_by_its_ends(teachers: Any) -> None:
    curve = [{**v, "method/coef": 0.2 - 0.01 * i} for i, v in enumerate(teachers.curve("retire_opd", 0))]
    teachers.write_spool("retire_opd", 0, curve, teachers.events("retire_opd")[:1])
    assert course_text(runs(teachers)["retire_opd", 0]) == "0.2 (step 1) to 0.09 (step 12), 12 values"


def test_an_event_without_a_usable_step_leaves_it_to_the_metrics(teachers: Any) -> None:
    teachers.write_spool("retire_opd", 0, teachers.curve("retire_opd", 0), [("retired", {"step": None})])
    assert runs(teachers)["retire_opd", 0].step == 8
