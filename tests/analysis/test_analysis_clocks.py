"""Seconds of training: whose clock, how many GPUs, and that two kinds are never compared."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from analysis import clocks, stats
from analysis.cells import ALL, Cell, Metric, Status
from analysis.clocks import CPU, WALL, Clock
from analysis.collect import collect
from analysis.render import Block, plain
from analysis.table_csv import csv_text
from analysis.tables import document, make_tables
from analysis.terminal import terminal

ROWS = (
    {"id": "grpo", "label": "GRPO", "kind": "baseline"},
    {"id": "opid", "label": "OPID", "kind": "method"},
)
ON_GPUS = {"unit": "wall_s", "gpus": 8}


@pytest.fixture
def two(make_sweep: Callable[..., Any]) -> Any:
    return make_sweep(rows=ROWS, panels=("seen",), per_type=2)


def measured_with(sweep: Any, row: str, *attempts: dict[str, Any], seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    for seed in seeds:
        sweep.write_spool(row, seed, sweep.curve(row, seed), [("clock", data) for data in attempts])


def tables_of(sweep: Any) -> Any:
    return make_tables(collect(sweep.out, sweep.name))


def cell(cells: Any, row: str, metric: Metric, column: str = ALL) -> Cell:
    found: Cell = next(c for k, c in cells.items() if (k[0].row, k[2], k[3]) == (row, metric, column))
    return found


def blocks(tables: Any, start: str) -> list[Block]:
    return [block for block in document(tables).blocks if block.title.startswith(start)]


def value(cell: Cell) -> float:
    assert cell.interval is not None, cell.note
    return cell.interval.value


def test_runs_on_gpus_are_told_in_wall_seconds_and_gpu_hours(two: Any) -> None:
    for row in ("grpo", "opid"):
        measured_with(two, row, ON_GPUS)
    tables = tables_of(two)
    total = np.mean([two.curve("opid", seed)[-1]["time/cpu_total_s"] for seed in (0, 1, 2)])
    assert value(cell(tables.costs, "opid", Metric.GPU_HOURS)) == pytest.approx(total * 8 / 3600)
    assert cell(tables.costs, "opid", Metric.TIME).unit == "wall s"
    (block,) = blocks(tables, "Cost of training")
    assert "wall seconds per step" in block.title and "wall s" in block.header and "GPU h, run" in block.header
    everything = plain(terminal(tables)) + str(document(tables)).replace("equal CPU time", "")
    assert "CPU" not in everything and "GPU h" in plain(terminal(tables))
    units = {row["unit"] for row in csv.DictReader(io.StringIO(csv_text(tables))) if row["metric"] == "time_total"}
    assert units == {"wall s"} and value(cell(tables.learning, "opid", Metric.AREA_TIME)) > 0
    assert "Area, equal wall time %" in blocks(tables, "Learning")[0].header


def test_older_records_without_the_event_are_cpu_seconds(two: Any) -> None:
    tables = tables_of(two)
    assert set(tables.clocks.values()) == {Clock(CPU, 0)} and tables.seconds == "CPU"
    assert not any(key[2] == Metric.GPU_HOURS for key in tables.costs)
    assert "Area, equal CPU time %" in blocks(tables, "Learning")[0].header


@pytest.mark.parametrize("other", [ON_GPUS, {"unit": "wall_s", "gpus": 0}])
def test_seconds_of_two_kinds_are_never_compared(two: Any, other: dict[str, Any]) -> None:
    measured_with(two, "opid", other)
    tables = tables_of(two)
    refused = [
        cell(tables.costs, "opid", Metric.COST_RATIO),
        *(cell(tables.learning, row, Metric.AREA_TIME) for row in ("grpo", "opid")),
        cell(tables.learning, "opid", Metric.DIFFERENCE_AREA_TIME),
    ]
    assert {c.status for c in refused} == {Status.NOT_APPLICABLE}
    assert all("time was not measured alike: CPU s, wall s" in c.note for c in refused)
    assert value(cell(tables.learning, "opid", Metric.DIFFERENCE_AREA_STEPS)) is not None
    assert [b.title for b in blocks(tables, "Cost of")] == [
        f"Cost of training: {kind} seconds per step, beside the score" for kind in ("CPU", "wall")
    ]
    assert "clocks_differ" in [w.code for w in tables.records.warnings]
    text = plain(terminal(tables))
    assert " CPU s" in text and " wall s" in text and "time not measured" not in text
    assert not tables.warned(cell(tables.costs, "opid", Metric.TIME))


def test_wall_seconds_of_other_numbers_of_gpus_are_not_compared(two: Any) -> None:
    measured_with(two, "grpo", ON_GPUS)
    measured_with(two, "opid", {"unit": "wall_s", "gpus": 1})
    tables = tables_of(two)
    assert "wall s of 1 GPU, wall s of 8 GPUs" in cell(tables.costs, "opid", Metric.COST_RATIO).note
    assert value(cell(tables.costs, "opid", Metric.GPU_HOURS)) < value(cell(tables.costs, "grpo", Metric.GPU_HOURS))


def test_seeds_of_a_row_with_two_clocks_have_no_mean(two: Any) -> None:
    measured_with(two, "opid", ON_GPUS, seeds=(1,))
    tables = tables_of(two)
    for metric, column in ((Metric.TIME, ALL), (Metric.COST_STEP, "time_total"), (Metric.COST_STEP, "time_update")):
        assert cell(tables.costs, "opid", metric, column).status is Status.NOT_APPLICABLE
    assert value(cell(tables.costs, "opid", Metric.COST_STEP, "rollout_tokens")) > 0
    (line,) = (line for line in tables.clocks if line.row == "opid")
    assert tables.clocks[line] is None


@pytest.mark.parametrize("bad", [{"unit": "sundial", "gpus": 0}, {"unit": "cpu_s"}, {"unit": "wall_s", "gpus": -1}])
def test_a_clock_that_cannot_be_understood_is_not_taken_for_another(bad: dict[str, Any]) -> None:
    assert clocks.of_events([bad]) is None and clocks.of_events([]) == Clock()
    assert clocks.of_events([ON_GPUS, ON_GPUS]) == Clock(WALL, 8)
    assert clocks.of_events([ON_GPUS, {"unit": "cpu_s", "gpus": 0}]) is None


def test_a_teacher_of_another_clock_is_not_added(teachers: Any) -> None:
    measured_with(teachers, "skill_grpo", ON_GPUS)
    found = tables_of(teachers).costs
    assert "not measured alike" in cell(found, "retire_opd", Metric.TIME_WITH_TEACHER).note
    hours = np.mean([teachers.curve("skill_grpo", s)[-1]["time/cpu_total_s"] for s in (0, 1, 2)]) * 8 / 3600
    assert value(cell(found, "retire_opd", Metric.GPU_HOURS)) == 0
    assert value(cell(found, "retire_opd", Metric.GPU_HOURS_WITH_TEACHER)) == pytest.approx(hours)


def words(sweep: Any) -> str:
    import matplotlib.text

    from analysis.figures.sources import Sources
    from analysis.figures.style import drawing

    with drawing():
        module = importlib.import_module("analysis.figures.training_curves")
        (drawn,) = module.draw(Sources.read(sweep.out, sweep.name))
        return " ".join(t.get_text() for t in drawn.figure.findobj(matplotlib.text.Text))


def test_the_axis_of_time_says_whose_seconds(two: Any) -> None:
    assert "CPU seconds of training" in words(two)
    for row in ("grpo", "opid"):
        measured_with(two, row, ON_GPUS)
    assert "wall seconds of training" in words(two)
    measured_with(two, "opid", {"unit": "cpu_s", "gpus": 0})
    told = words(two)
    assert "not measured with one clock" in told and "seconds of training" not in told


# ---------------------------------------------------------------------------------------------- analyzer
def test_an_analyzer_is_paid_for_in_steps_that_failed_or_were_done_again_too(two: Any) -> None:
    spent = [{"step": 1, "calls": 16, "prompt_tokens": 100, "completion_tokens": 20, "cost": 0.5}] * 3
    two.write_spool("opid", 0, two.curve("opid", 0), [("analyzer_usage", data) for data in spent])
    path = two.run_dir("opid", 0) / "spool.jsonl"
    again = {"t": 3.0, "kind": "event", "name": "analyzer_usage", "data": spent[0], "rewound": True}
    path.write_text(path.read_text() + json.dumps(again) + "\n")
    records = collect(two.out, two.name)
    number = next(i for i, c in enumerate(two.cells) if (c["row"], c["seed"]) == ("opid", 0))
    assert records.spools[number].usage["cost/analyzer_calls"] == 64
    found = make_tables(records).costs
    calls = [64 / 12, 16, 16]  # the other seeds have no such event: their metrics count
    assert value(cell(found, "opid", Metric.COST_STEP, "analyzer_calls")) == pytest.approx(np.mean(calls))
    money = stats.range_interval([2.0 / 12, 0.016, 0.016])
    assert value(cell(found, "opid", Metric.COST_STEP, "analyzer_money")) == pytest.approx(money.value)


def test_training_episodes_that_broke_are_told(two: Any) -> None:
    curve = two.curve("opid", 1)
    curve[3]["train/excluded"] = 0.25
    two.write_spool("opid", 1, [{"train/excluded": 0.0, **values} for values in curve])
    tables = tables_of(two)
    (warning,) = (w for w in tables.records.warnings if w.code == "excluded_in_training")
    assert (
        "opid: training episodes left out" in warning.message and "seed 1: 2.1%, in one step 25.0%" in warning.message
    )
    assert cell(tables.learning, "opid", Metric.AREA_STEPS).n_seeds == 3
