"""Numbers in cells, recomputed by hand from the records; and what a cell may not claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis import stats
from analysis.cells import (
    ALL,
    Cell,
    Metric,
    Status,
    bounds_over_planned,
    ordered_types,
    short_type,
)
from analysis.collect import collect
from analysis.evaluations import Measurements, success_cells
from analysis.plan import Line

LINE = Line(
    row="grpo",
    backbone="tiny-s",
    env="alfworld",
    fraction=1.0,
    scale="local",
    protocol="fair",
    label="GRPO",
    kind="method",
    method="grpo",
)
ONE = stats.Interval(0.5, math.nan, math.nan, stats.NO_INTERVAL, 1)


def cells_of(sweep: Any, row: str) -> dict[tuple[str, Metric, str], Cell]:
    records = collect(sweep.out, "main_table")
    cells = success_cells(records, Measurements.of(records))
    return {(c.place, c.metric, c.column): c for c in cells if c.line and c.line.row == row}


def rows_of(sweep: Any, row: str, seed: int, panel: str = "seen") -> list[dict[str, Any]]:
    rows = pq.read_table(sweep.run_dir(row, seed) / "episodes.parquet").to_pylist()
    return [r for r in rows if r["panel"] == panel]


def test_every_number_equals_a_recomputation_by_hand(sweep: Any) -> None:
    for seed in (0, 1, 2):  # types of unequal size, so that micro and macro differ
        sweep.edit_episodes("opid", seed, lambda rows: [r for r in rows if not r["task_id"].endswith("simple-4")])
        counts = {"requested": 29, "graded": 29, "excluded": 0}
        sweep.write_state("opid", seed, evaluations={"seen/off": counts, "unseen/off": counts})
        for other in ("vanilla", "vanilla_skill", "grpo", "opid_random"):
            sweep.edit_episodes(other, seed, lambda rows: [{**r, "panel_hash": "0" * 64} for r in rows])
    found = cells_of(sweep, "opid")
    runs = [rows_of(sweep, "opid", seed) for seed in (0, 1, 2)]
    types = sorted({r["task_type"] for r in runs[0]})

    def by_type(run: list[dict[str, Any]], kind: str) -> float:
        return float(np.mean([r["success"] for r in run if r["task_type"] == kind]))

    expected = {
        (Metric.MICRO, ALL): [np.mean([r["success"] for r in run]) for run in runs],
        (Metric.MACRO, ALL): [np.mean([by_type(run, kind) for kind in types]) for run in runs],
        (Metric.LENGTH, ALL): [np.mean([r["length"] for r in run]) for run in runs],
        **{
            (metric, ALL): [sum(r[name] for r in run) / sum(r["length"] for r in run) for run in runs]
            for metric, name in ((Metric.MALFORMED, "malformed"), (Metric.INADMISSIBLE, "inadmissible"))
        },
        **{(Metric.SUCCESS, kind): [by_type(run, kind) for run in runs] for kind in types},
    }
    for (metric, column), seeds in expected.items():
        interval = found["seen/off", metric, column].interval
        assert interval is not None and interval.n == 3
        assert interval.value == pytest.approx(np.mean(seeds)), metric
        if np.ptp(seeds) > 1e-9:
            half = stats.t_quantile(2) * np.std(seeds, ddof=1) / math.sqrt(3)
            assert interval.hi == pytest.approx(
                min(1.0, np.mean(seeds) + half) if metric != Metric.LENGTH else np.mean(seeds) + half
            )
    assert found["seen/off", Metric.MICRO, ALL].interval != found["seen/off", Metric.MACRO, ALL].interval


def test_a_cell_carries_what_is_needed_to_judge_it(sweep: Any) -> None:
    cell = cells_of(sweep, "opid")["seen/off", Metric.MICRO, ALL]
    assert (cell.n_seeds, cell.n_planned, cell.n_tasks, cell.n_episodes) == (3, 3, 30, 90)
    assert cell.protocol["prompt_protocol"] == "compact/bare" and cell.protocol["temperature"] == "0.4"
    assert cell.status is Status.SMALLER and cell.source == "records"
    assert cells_of(sweep, "opid")["seen/off", Metric.SUCCESS, "look_at_obj_in_light"].n_episodes == 15


def test_failed_and_missing_seeds_leave_the_rest_and_are_counted(sweep: Any) -> None:
    sweep.write_state("opid", 1, state="failed", error="out of memory")
    cell = cells_of(sweep, "opid")["seen/off", Metric.MICRO, ALL]
    assert (cell.n_seeds, cell.n_planned) == (2, 3)
    assert cell.interval is not None
    lo, hi = bounds_over_planned(cell) or (math.nan, math.nan)
    assert (lo, hi) == pytest.approx((cell.interval.value * 2 / 3, (cell.interval.value * 2 + 1) / 3))
    assert cell.note == f"over all planned seeds between {lo:.1%} and {hi:.1%}"
    assert bounds_over_planned(cells_of(sweep, "grpo")["seen/off", Metric.MICRO, ALL]) is None


def test_a_row_without_any_complete_run_stays_visible(sweep: Any) -> None:
    for seed in (0, 1, 2):
        sweep.write_state("opid", seed, state="failed", evaluations={})
        (sweep.run_dir("opid", seed) / "episodes.parquet").unlink()
    found = cells_of(sweep, "opid")
    assert {place for place, _, _ in found} == {"seen/off", "unseen/off"}
    assert {c.status for c in found.values()} == {Status.MISSING}


def test_evaluations_owed_are_places_before_they_are_played(sweep: Any) -> None:
    for seed in (0, 1, 2):
        (sweep.run_dir("opid", seed) / "episodes.parquet").unlink()
        sweep.write_state("opid", seed, state="running", evaluations={}, declared=["seen/off", "seen/on"])
    assert {place for place, _, _ in cells_of(sweep, "opid")} == {"seen/off", "seen/on"}


def test_one_seed_gives_an_evaluation_only_interval(make_sweep: Callable[..., Any]) -> None:
    sweep = make_sweep(seeds=(0,))
    found = cells_of(sweep, "opid")
    micro = found["seen/off", Metric.MICRO, ALL].interval
    assert micro is not None and micro.kind == stats.EVALUATION_ONE_SEED
    assert (micro.lo, micro.hi) == pytest.approx(stats.wilson(micro.value, 30))
    length = found["seen/off", Metric.LENGTH, ALL].interval
    assert length is not None and length.kind == stats.NO_INTERVAL and math.isnan(length.lo)


def test_repeats_are_averaged_within_tasks_and_do_not_count_as_tasks(make_sweep: Callable[..., Any]) -> None:
    sweep = make_sweep(seeds=(0,))
    sweep.edit_episodes("opid", 0, lambda rows: [{**r, "repeat": k, "success": k == 0} for r in rows for k in range(4)])
    counts = {"requested": 120, "graded": 120, "excluded": 0}
    sweep.write_state("opid", 0, evaluations={"seen/off": counts, "unseen/off": counts})
    cell = cells_of(sweep, "opid")["seen/off", Metric.MICRO, ALL]
    assert cell.interval is not None and cell.interval.value == pytest.approx(0.25)
    assert (cell.n_tasks, cell.n_episodes) == (30, 120)
    assert cell.interval.hi == pytest.approx(stats.wilson(0.25, 30)[1])


def test_a_type_without_a_graded_episode_has_no_macro_but_a_micro(sweep: Any) -> None:
    kind = "look_at_obj_in_light"
    sweep.edit_episodes(
        "opid", 1, lambda rows: [{**r, "failure": "dead" if r["task_type"] == kind else None} for r in rows]
    )
    counts = {"requested": 30, "graded": 25, "excluded": 5}
    sweep.write_state("opid", 1, evaluations={"seen/off": counts, "unseen/off": counts})
    found = cells_of(sweep, "opid")
    for metric, column in ((Metric.MACRO, ALL), (Metric.SUCCESS, kind)):
        assert found["seen/off", metric, column].status is Status.INVALID
        assert found["seen/off", metric, column].note == "nothing graded in seed 1"
    assert found["seen/off", Metric.MICRO, ALL].interval is not None


def test_only_the_papers_scale_is_called_measured_without_a_word(make_sweep: Callable[..., Any]) -> None:
    found = cells_of(make_sweep(scale="paper", seeds=(0,)), "opid")
    assert found["seen/off", Metric.MICRO, ALL].status is Status.MEASURED


# ---------------------------------------------------------------------------------------------- what a cell may claim
def make_cell(**changes: Any) -> Cell:
    values = {"line": LINE, "place": "seen/off", "metric": Metric.MICRO, "column": ALL, "unit": "%"}
    return Cell(**{**values, "interval": ONE, "status": Status.MEASURED, **changes})


@pytest.mark.parametrize("status", [Status.MEASURED, Status.SMALLER])
@pytest.mark.parametrize("change", [{"source": "arXiv:2606.26790, Table 1"}, {"line": None}])
def test_a_quoted_number_cannot_be_shown_as_measured(status: Status, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="may not be shown as"):
        make_cell(status=status, **change)


@pytest.mark.parametrize("status", [Status.QUOTED, Status.IMPORTED, Status.DERIVED])
@pytest.mark.parametrize("source", ["records", "arXiv:2606.26790", "Table 1"])
def test_a_number_of_other_people_needs_a_citation_with_its_table(status: Status, source: str) -> None:
    with pytest.raises(ValueError, match="needs a citation with its table"):
        make_cell(line=None, status=status, source=source)


def test_a_status_must_fit_its_number() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        make_cell(status=Status.MIXED)
    with pytest.raises(ValueError, match="does not fit"):
        make_cell(interval=None)


def test_every_metric_says_what_it_is_and_score_is_not_success() -> None:
    names = [metric.value for metric in Metric]
    assert len(set(names)) == len(names) and [name for name in names if "score" in name] == ["score"]


def test_types_are_called_as_in_the_papers_and_in_their_order() -> None:
    names = ["zzz", "pick_two_obj_and_place", "look_at_obj_in_light", "pick_and_place_simple", "aaa"]
    assert [short_type(t) for t in ordered_types(names)] == ["Pick", "Look", "Pick2", "aaa", "zzz"]
