"""Paired differences, and when one may be called a difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis import stats
from analysis.cells import Cell, Metric, Status
from analysis.collect import collect
from analysis.compare import difference_cells, paired
from analysis.evaluations import Measurements

MICRO, MACRO = Metric.DIFFERENCE_MICRO, Metric.DIFFERENCE_MACRO


def differences(sweep: Any, to: str = "grpo") -> dict[tuple[str, str, Metric], Cell]:
    records = collect(sweep.out, "main_table")
    cells = difference_cells(records, Measurements.of(records), to)
    return {(c.line.row, c.place, c.metric): c for c in cells if c.line}


def win(sweep: Any, row: str, share: float, jitter: bool = True) -> None:
    """Every seed solves that share of the tasks of each type; with jitter, seed n differs in its first n tasks."""
    for seed in (0, 1, 2):

        def solve(rows: list[dict[str, Any]], seed: int = seed) -> list[dict[str, Any]]:
            solved = [int(r["task_id"].rpartition("-")[2]) < share * 5 for r in rows]
            solved = [not s if jitter and i < seed else s for i, s in enumerate(solved)]
            return [{**r, "success": s, "score": float(s)} for r, s in zip(rows, solved, strict=True)]

        sweep.edit_episodes(row, seed, solve)


def test_differences_are_paired_by_seed_and_task(sweep: Any) -> None:
    cell = differences(sweep)["opid", "seen/off", MICRO]
    values = []
    for seed in (0, 1, 2):
        won = []
        for row in ("opid", "grpo"):
            rows = pq.read_table(sweep.run_dir(row, seed) / "episodes.parquet").to_pylist()
            won.append({r["task_id"]: r["success"] for r in rows if r["panel"] == "seen"})
        values.append(np.mean([float(won[0][t]) - float(won[1][t]) for t in won[0]]))
    assert cell.interval is not None and cell.interval.value == pytest.approx(np.mean(values))
    expected = stats.t_interval(values)
    assert (cell.interval.lo, cell.interval.hi) == pytest.approx((expected.lo, expected.hi))
    assert cell.p_t == pytest.approx(stats.t_test_p(values))
    assert cell.p_exact == stats.sign_flip_test(values).p and cell.p_smallest == 0.25
    assert (cell.n_tasks, cell.n_episodes, cell.reference) == (30, 90, "grpo")


def test_a_clear_difference_is_significant_in_its_direction(sweep: Any) -> None:
    win(sweep, "grpo", 0.2, jitter=False)
    win(sweep, "opid", 0.8)
    win(sweep, "opid_random", 0.0)
    found = differences(sweep)
    for row, sign in (("opid", 1), ("opid_random", -1)):
        cell = found[row, "seen/off", MICRO]
        assert cell.significant and cell.interval is not None and cell.second is not None
        assert np.sign(cell.interval.value) == sign
        assert cell.interval.excludes_zero and cell.second.excludes_zero
    assert cell.p_holm >= cell.p_t


def test_three_seeds_that_differ_much_prove_nothing_by_either_interval(sweep: Any) -> None:
    """Seeds that differ much: three of them prove nothing, however many tasks there are."""
    win(sweep, "grpo", 0.0, jitter=False)
    for seed, share in ((0, 0.2), (1, 0.2), (2, 1.0)):
        sweep.edit_episodes(
            "opid",
            seed,
            lambda rows, share=share: [
                {**r, "success": int(r["task_id"].rpartition("-")[2]) < share * 5} for r in rows
            ],
        )
    cell = differences(sweep)["opid", "seen/off", MICRO]
    assert cell.second is not None and not cell.second.excludes_zero
    assert not cell.significant


def test_equal_seeds_claim_no_certainty(sweep: Any) -> None:
    win(sweep, "grpo", 0.2, jitter=False)
    win(sweep, "opid", 0.8, jitter=False)
    cell = differences(sweep)["opid", "seen/off", MICRO]
    assert cell.interval is not None and cell.interval.kind == stats.EVALUATION_EQUAL_SEEDS
    assert cell.interval.value == pytest.approx(0.6) and cell.interval.lo < cell.interval.hi
    assert not cell.significant and np.isnan(cell.p_t)


def test_one_task_of_a_type_gives_a_difference_without_an_interval(make_sweep: Callable[..., Any]) -> None:
    cell = differences(make_sweep(seeds=(0,), per_type=1))["opid", "seen/off", MICRO]
    assert cell.interval is not None and cell.interval.kind == stats.NO_INTERVAL and np.isnan(cell.interval.lo)
    assert not cell.significant


def test_one_seed_is_never_significant(make_sweep: Callable[..., Any]) -> None:
    sweep = make_sweep(seeds=(0,))
    sweep.edit_episodes("grpo", 0, lambda rows: [{**r, "success": False} for r in rows])
    sweep.edit_episodes("opid", 0, lambda rows: [{**r, "success": True} for r in rows])
    cell = differences(sweep)["opid", "seen/off", MICRO]
    assert cell.interval is not None and cell.interval.kind == stats.NO_INTERVAL  # no task differs: no variation
    sweep.edit_episodes("opid", 0, lambda rows: [{**r, "success": i % 5 > 0} for i, r in enumerate(rows)])
    cell = differences(sweep)["opid", "seen/off", MICRO]
    assert cell.interval is not None and cell.interval.kind == stats.EVALUATION_ONE_SEED
    assert cell.second is not None and cell.second.excludes_zero
    assert not cell.significant and cell.p_smallest == 1.0


def test_micro_and_macro_differ_where_types_are_of_unequal_size(sweep: Any) -> None:
    for row in ("vanilla", "vanilla_skill", "grpo", "opid", "opid_random"):
        skills = "on" if row == "vanilla_skill" else "off"
        for seed in (0, 1, 2):
            sweep.edit_episodes(row, seed, lambda rows: [r for r in rows if not r["task_id"].endswith("simple-4")])
            counts = {"requested": 29, "graded": 29, "excluded": 0}
            evaluations = {f"seen/{skills}": counts, f"unseen/{skills}": counts}
            sweep.write_state(row, seed, evaluations=evaluations)
    found = differences(sweep)
    micro, macro = found["opid", "seen/off", MICRO].interval, found["opid", "seen/off", MACRO].interval
    assert micro is not None and macro is not None and micro.value != macro.value


def test_pairs_that_were_not_graded_are_left_out_of_both_sides(sweep: Any) -> None:
    sweep.edit_episodes("opid", 1, lambda rows: [{**rows[0], "failure": "dead"}, *rows[1:]])
    counts = {"requested": 30, "graded": 30, "excluded": 0}
    seen = {**counts, "graded": 29, "excluded": 1}
    sweep.write_state("opid", 1, evaluations={"seen/off": seen, "unseen/off": counts})
    cell = differences(sweep)["opid", "seen/off", MICRO]
    assert cell.n_episodes == 89 and cell.interval is not None


def test_without_the_reference_row_there_is_a_reason_instead_of_a_number(make_sweep: Callable[..., Any]) -> None:
    rows = [
        {"id": "vanilla", "label": "Vanilla", "kind": "baseline"},
        {"id": "opid", "label": "OPID", "kind": "method"},
    ]
    cell = differences(make_sweep(rows=rows))["opid", "seen/off", MICRO]
    assert cell.status is Status.NOT_APPLICABLE and cell.note == "no row grpo in this setting"


def test_seeds_that_only_one_side_has_are_no_pairs(sweep: Any) -> None:
    sweep.write_state("grpo", 0, state="failed")
    sweep.write_state("opid", 1, state="failed")
    assert differences(sweep)["opid", "seen/off", MICRO].n_seeds == 1
    sweep.write_state("grpo", 2, state="failed")
    cell = differences(sweep)["opid", "seen/off", MICRO]
    assert cell.status is Status.NOT_APPLICABLE and "no seed in common" in cell.note


def test_a_row_with_skills_is_set_against_the_reference_without_but_never_marked(sweep: Any) -> None:
    win(sweep, "grpo", 0.0, jitter=False)
    win(sweep, "vanilla_skill", 0.8)
    cell = differences(sweep)["vanilla_skill", "seen/on", MICRO]
    assert cell.interval is not None and cell.interval.excludes_zero
    assert cell.note == "with skills in its prompt, GRPO without" and not cell.significant


def test_other_settings_are_not_compared(sweep: Any) -> None:
    sweep.add("opid", 0, backbone="tiny-m")
    sweep.write_plan()
    records = collect(sweep.out, "main_table")
    cells = difference_cells(records, Measurements.of(records), "grpo")
    other = [c for c in cells if c.line and c.line.backbone == "tiny-m"]
    assert other and all("no row grpo in this setting" in c.note for c in other)


def test_holm_runs_over_rows_and_panels_within_a_metric(sweep: Any) -> None:
    cells = differences(sweep)
    family = [c for (_, _, metric), c in cells.items() if metric == MICRO]
    adjusted = stats.holm([c.p_t for c in family])
    assert [c.p_holm for c in family] == pytest.approx(list(adjusted), nan_ok=True)
    assert cells["opid", "seen/off", MICRO].p_holm >= cells["opid", "seen/off", MICRO].p_t


def test_paired_without_a_bootstrap_uses_the_t_interval_alone() -> None:
    found = paired(np.array([0.1, 0.11, 0.12]), None)
    assert found["significant"] and found["second"] is None
    assert paired(np.array([0.1, 0.1]), None)["interval"].kind == stats.NO_INTERVAL
