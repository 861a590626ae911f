"""Learning curves at equal steps and equal cost, recomputed by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from analysis import stats
from analysis.cells import Cell, Metric, Status
from analysis.collect import collect
from analysis.tables import make_tables


def learning(sweep: Any) -> dict[tuple[str, Metric], Cell]:
    return {(k[0].row, k[2]): c for k, c in make_tables(collect(sweep.out, "main_table")).learning.items()}


def value(cell: Cell) -> float:
    assert cell.interval is not None
    return cell.interval.value


def test_means_and_areas_equal_a_recomputation_by_hand(sweep: Any) -> None:
    found = learning(sweep)
    curves = {
        row: [
            (np.array([v["train/success"] for v in c]), np.array([v["time/cpu_total_s"] for v in c]))
            for c in (sweep.curve(row, seed) for seed in (0, 1, 2))
        ]
        for row in ("grpo", "opid", "opid_random")
    }
    budget = min(cpu[-1] for runs in curves.values() for _, cpu in runs)
    by_cpu = {row: [stats.area_by_cost(s, cpu, budget) for s, cpu in runs] for row, runs in curves.items()}
    assert value(found["opid", Metric.TRAIN_FIRST]) == pytest.approx(np.mean([s[:5] for s, _ in curves["opid"]]))
    assert value(found["opid", Metric.TRAIN_LAST]) == pytest.approx(np.mean([s[-5:] for s, _ in curves["opid"]]))
    assert value(found["opid", Metric.AREA_STEPS]) == pytest.approx(np.mean([s for s, _ in curves["opid"]]))
    assert value(found["opid", Metric.AREA_TIME]) == pytest.approx(np.mean(by_cpu["opid"]))
    difference = np.subtract(by_cpu["opid"], by_cpu["grpo"])
    cell = found["opid", Metric.DIFFERENCE_AREA_TIME]
    expected = stats.t_interval(difference)
    assert cell.interval is not None
    assert (cell.interval.lo, cell.interval.hi) == pytest.approx((expected.lo, expected.hi))
    assert cell.interval.value < 0, "the dearer method must lose at equal CPU time when the curves are alike"


def test_the_shortest_curve_sets_the_number_of_steps(sweep: Any) -> None:
    for seed in (0, 1, 2):
        sweep.write_spool("grpo", seed, sweep.curve("grpo", seed)[:6])
        sweep.write_state("grpo", seed, last_step=6, planned_steps=6)
        sweep.edit_episodes("grpo", seed, lambda rows: [{**r, "checkpoint_step": 6} for r in rows])
    tables = make_tables(collect(sweep.out, "main_table"))
    assert [b.steps for b in tables.budgets.values()] == [6]
    cell = learning(sweep)["opid", Metric.AREA_STEPS]
    expected = np.mean([[v["train/success"] for v in sweep.curve("opid", s)[:6]] for s in (0, 1, 2)])
    assert value(cell) == pytest.approx(expected)


def test_rows_that_do_not_train_have_no_curve(sweep: Any) -> None:
    assert {row for row, _ in learning(sweep)} == {"grpo", "opid", "opid_random"}


def test_a_row_whose_runs_all_failed_keeps_its_place(sweep: Any) -> None:
    for seed in (0, 1, 2):
        sweep.write_state("opid", seed, state="failed")
    found = learning(sweep)
    assert found["opid", Metric.AREA_STEPS].status is Status.MISSING
    assert found["opid", Metric.DIFFERENCE_AREA_STEPS].status is Status.MISSING


def test_without_a_common_seed_there_is_no_difference(sweep: Any) -> None:
    for seed in (0, 1, 2):
        sweep.write_state("grpo", seed, state="failed")
    cell = learning(sweep)["opid", Metric.DIFFERENCE_AREA_TIME]
    assert cell.status is Status.NOT_APPLICABLE and "no seed in common with grpo" in cell.note


def test_one_seed_has_a_curve_without_an_interval(make_sweep: Callable[..., Any]) -> None:
    cell = learning(make_sweep(seeds=(0,)))["opid", Metric.AREA_STEPS]
    assert cell.interval is not None and cell.interval.kind == stats.NO_INTERVAL
