"""What training cost, recomputed by hand from the records."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from analysis import stats
from analysis.cells import ALL, Cell, Metric, Status
from analysis.collect import collect
from analysis.costs import TIME_ITEMS, WORK_ITEMS
from analysis.render import Block
from analysis.tables import document, make_tables


def costs(sweep: Any) -> dict[tuple[str, Metric, str], Cell]:
    cells = make_tables(collect(sweep.out, sweep.name)).costs
    return {(k[0].row, k[2], k[3]): c for k, c in cells.items()}


def value(cell: Cell) -> float:
    assert cell.interval is not None
    return cell.interval.value


def block(sweep: Any, start: str) -> Block:
    page = document(make_tables(collect(sweep.out, sweep.name)))
    return next(b for b in page.blocks if b.title.startswith(start))


def entry(block: Block, row: str, column: str) -> str:
    found = next(r for r in block.rows if r[0].text == row)
    return found[block.header.index(column)].text


def test_rows_that_do_not_train_have_no_cost(sweep: Any) -> None:
    assert {row for row, *_ in costs(sweep)} == {"grpo", "opid", "opid_random"}


def test_costs_are_means_per_step_of_complete_runs_with_their_range(sweep: Any) -> None:
    found = costs(sweep)
    per_step = [sweep.curve("opid", seed)[-1]["time/cpu_total_s"] / 12 for seed in (0, 1, 2)]
    interval = found["opid", Metric.COST_STEP, "time_total"].interval
    assert interval is not None and interval.kind == stats.RANGE
    expected = np.mean(per_step), min(per_step), max(per_step)
    assert (interval.value, interval.lo, interval.hi) == pytest.approx(expected)
    by_hand = {
        "time_rollout": 1.5,
        "time_environment": 0.5,
        "time_teacher": 1.8,
        "time_analyzer": 0.2,
        "time_update": 1.0,
        "time_reference": 0.25,
        "time_validation": 0.0,
        "rollout_tokens": 20_000,
        "update_tokens": 20_000,
        "reference_tokens": 20_000,
        "teacher_tokens": 20_000,
        "teacher_rows": 32,
        "tokens_rescored": 1600,
        "analyzer_calls": 16,
        "analyzer_cached": 4,
        "analyzer_retries": 0,
        "analyzer_repairs": 1 / 12,
        "analyzer_tokens": 6400,
        "analyzer_money": 0.016,
        "analyzer_wall": 0.2,
    }
    assert {item.column for item in (*TIME_ITEMS, *WORK_ITEMS)} == {"time_total", *by_hand}
    for column, expected_value in by_hand.items():
        assert value(found["opid", Metric.COST_STEP, column]) == pytest.approx(expected_value), column
    assert value(found["grpo", Metric.COST_STEP, "tokens_rescored"]) == 0


def test_the_ratio_to_grpo_is_taken_seed_by_seed(sweep: Any) -> None:
    found = costs(sweep)
    totals = {r: [sweep.curve(r, s)[-1]["time/cpu_total_s"] for s in (0, 1, 2)] for r in ("opid", "grpo")}
    assert value(found["opid", Metric.COST_RATIO, ALL]) == pytest.approx(np.mean(np.divide(*totals.values())))
    assert value(found["grpo", Metric.COST_RATIO, ALL]) == 1.0
    for seed in (0, 1, 2):
        sweep.write_state("grpo", seed, state="failed")
    cell = costs(sweep)["opid", Metric.COST_RATIO, ALL]
    assert cell.status is Status.NOT_APPLICABLE and "no seed in common with grpo" in cell.note


def test_a_row_whose_runs_all_failed_keeps_its_place(sweep: Any) -> None:
    for seed in (0, 1, 2):
        sweep.write_state("opid", seed, state="failed")
    found = costs(sweep)
    assert {c.status for (row, *_), c in found.items() if row == "opid"} == {Status.MISSING}


def test_a_cost_that_is_not_recorded_in_every_step_is_not_averaged(sweep: Any) -> None:
    curve = sweep.curve("opid", 1)
    del curve[3]["tokens/teacher"]
    sweep.write_spool("opid", 1, curve)
    cell = costs(sweep)["opid", Metric.COST_STEP, "teacher_tokens"]
    assert cell.status is Status.NOT_APPLICABLE and "tokens/teacher is not recorded in every step" in cell.note
    assert value(costs(sweep)["opid", Metric.TIME, ALL]) > 0


def test_the_table_stands_beside_the_score(sweep: Any) -> None:
    cost = block(sweep, "Cost of training")
    success = block(sweep, "alfworld: success on seen")
    opid = next(r for r in success.rows if r[0].text.startswith("OPID ["))
    assert entry(cost, "OPID", "seen, micro %") == opid[success.header.index("Micro %")].text
    assert entry(cost, "GRPO", "× GRPO") == "1.00 [1.00–1.00]"
    assert "analyzer" in cost.header and "Analyzer money" in block(sweep, "Work per").header


# ---------------------------------------------------------------------------------------------- teachers
def test_the_run_of_a_teacher_is_added_to_that_of_its_student(teachers: Any) -> None:
    found = costs(teachers)
    own = {r: [teachers.curve(r, s)[-1]["time/cpu_total_s"] for s in (0, 1, 2)] for r in ("retire_opd", "skill_grpo")}
    assert value(found["retire_opd", Metric.TIME, ALL]) == pytest.approx(np.mean(own["retire_opd"]))
    both = np.add(*own.values())
    assert value(found["retire_opd", Metric.TIME_WITH_TEACHER, ALL]) == pytest.approx(np.mean(both))
    assert value(found["grpo", Metric.TIME_WITH_TEACHER, ALL]) == value(found["grpo", Metric.TIME, ALL])


def as_stage(teachers: Any) -> None:
    """The teacher is no row of the table any more."""
    teachers.rows = [row for row in teachers.rows if row["id"] != "skill_grpo"]
    for cell in teachers.cells:
        cell["stage"] = cell["row"] == "skill_grpo"
    teachers.write_plan()


def test_a_teacher_that_is_no_row_stands_in_cost_and_completeness_only(teachers: Any) -> None:
    before = costs(teachers)["retire_opd", Metric.TIME_WITH_TEACHER, ALL]
    as_stage(teachers)
    tables = make_tables(collect(teachers.out, teachers.name))
    assert value(costs(teachers)["retire_opd", Metric.TIME_WITH_TEACHER, ALL]) == value(before)
    assert entry(block(teachers, "Cost of"), "skill_grpo · teacher, no row", "seen, micro %") == ""
    for cells in (tables.success, tables.versus["grpo"], tables.versus_base, tables.learning):
        assert "skill_grpo" not in {key[0].row for key in cells}
    teachers.write_state("skill_grpo", 1, state="failed", error="out of memory")
    missing = block(teachers, "Not complete: 1 of 12")
    assert missing.rows[0][0].text == "skill_grpo · teacher, no row" and missing.rows[0][5].text == "out of memory"
    cell = costs(teachers)["retire_opd", Metric.TIME_WITH_TEACHER, ALL]
    assert cell.status is Status.NOT_APPLICABLE and "teacher's run is not known" in cell.note


def test_a_teacher_that_is_not_in_the_plan_makes_the_total_unknown(teachers: Any) -> None:
    for cell in teachers.cells:
        if cell["requires"]:
            cell["requires"] = ["0" * 16]
    teachers.write_plan()
    assert costs(teachers)["retire_opd", Metric.TIME_WITH_TEACHER, ALL].status is Status.NOT_APPLICABLE


def test_a_teacher_trained_otherwise_than_a_row_of_the_same_name_is_not_that_row(teachers: Any) -> None:
    """A stage cell never joins the line of a row, whatever it is called."""
    cell = next(c for c in teachers.cells if c["row"] == "skill_grpo")
    teachers.cells.append({**cell, "stage": True, "run_dir": "runs/elsewhere", "fingerprint": "f" * 16})
    teachers.write_plan()
    records = collect(teachers.out, teachers.name)
    assert [line.stage for line in records.lines if line.row == "skill_grpo"] == [False, True]
    assert not any(w.code == "seed_planned_twice" for w in records.warnings)


def test_a_step_may_say_what_it_measured_in_several_records(teachers: Any) -> None:
    path = teachers.run_dir("grpo", 0) / "spool.jsonl"
    late = {"kind": "metrics", "step": 3, "values": {"validation/success": 0.25}}
    path.write_text(path.read_text() + json.dumps(late) + "\n")
    records = collect(teachers.out, teachers.name)
    assert records.warnings == ()
    cell = next(i for i, c in enumerate(teachers.cells) if (c["row"], c["seed"]) == ("grpo", 0))
    assert 0.25 in records.spools[cell].values[2]
