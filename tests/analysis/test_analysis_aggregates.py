"""Aggregates over task types and environments: numbers by hand, what is left out, and what is never compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from analysis import stats
from analysis.aggregates import EVERYWHERE
from analysis.cells import ALL, Metric
from analysis.collect import collect
from analysis.figures.profile import interquartile_mean as of_figure
from analysis.figures.profile import resampled
from analysis.render import Block, markdown_block
from analysis.tables import document, make_tables
from analysis.terminal import terminal

ROWS = (
    {"id": "grpo", "label": "GRPO", "kind": "baseline"},
    {"id": "opid", "label": "OPID", "kind": "method"},
)


def run(row: str, env: str) -> str:
    """As the fixture calls the runs of one row there."""
    return f"{row}@{env}"


def add(sweep: Any, row: str, seed: int, env: str) -> None:
    sweep.add(run(row, env), seed, method=row, env=env)
    sweep.cells[-1]["row"] = row


def block_of(tables: Any, start: str) -> Block:
    return next(block for block in document(tables).blocks if block.title.startswith(start))


def tables_of(sweep: Any) -> Any:
    return make_tables(collect(sweep.out, sweep.name))


def test_the_interquartile_mean_is_the_figures() -> None:
    rng = np.random.default_rng(3)
    tables = [rng.random((4, 6)), rng.random((5, 3))]
    flat = np.concatenate([t.ravel() for t in tables])
    drawn = of_figure(resampled(tables))
    found = stats.iqm_of_runs(tables)
    assert found.value == pytest.approx(float(of_figure(flat[None])[0]))
    assert (found.lo, found.hi) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_a_run_is_drawn_with_all_its_types() -> None:
    """Runs that are good or bad throughout: drawing types apart would claim far more than three runs know."""
    table = np.repeat([[0.1], [0.5], [0.9]], 12, axis=1)
    whole, apart = stats.iqm_of_runs([table]), stats.iqm_interval(table)
    assert whole.hi - whole.lo > 1.5 * (apart.hi - apart.lo)


def test_improvement_by_hand_and_with_whole_runs() -> None:
    better = [np.array([[0.9, 0.5], [0.9, 0.5], [0.9, 0.5]])]
    worse = [np.array([[0.1, 0.5], [0.1, 0.5], [0.1, 0.5]])]
    found = stats.improvement_of_runs(better, worse)
    assert (found.value, found.lo, found.hi) == pytest.approx((0.75, 0.75, 0.75))
    rng = np.random.default_rng(0)
    a, b = [rng.random((5, 4)), rng.random((3, 2))], [rng.random((5, 4)), rng.random((4, 2))]
    parts = [stats.probability_of_improvement(x, y) for x, y in zip(a, b, strict=True)]
    found = stats.improvement_of_runs(a, b)
    assert found.value == pytest.approx((4 * parts[0] + 2 * parts[1]) / 6) and found.lo < found.value < found.hi
    assert stats.improvement_of_runs(a, b) == found


def test_fewer_than_three_runs_have_no_bounds() -> None:
    two = [np.array([[0.1, 0.2], [0.3, 0.4]])]
    assert np.isnan(stats.iqm_of_runs(two).lo) and np.isnan(stats.improvement_of_runs(two, two).lo)
    with pytest.raises(ValueError, match="differ in their task types"):
        stats.improvement_of_runs(two, [np.zeros((3, 3))])


def test_aggregates_of_a_sweep(sweep: Any) -> None:
    tables = tables_of(sweep)
    found = {(k[0].row, k[1], k[2]): c for k, c in tables.aggregates.items()}
    opid = [found["opid", "seen/off", metric] for metric in (Metric.IQM, Metric.IMPROVEMENT, Metric.DETECTABLE)]
    assert all(cell.n_seeds == 3 for cell in opid) and opid[0].interval.kind == stats.BOOTSTRAP_RUNS
    assert ("grpo", "seen/off", Metric.IMPROVEMENT) not in found  # against itself
    assert ("vanilla_skill", "seen/on", Metric.IMPROVEMENT) not in found  # another prompt
    difference = tables.versus["grpo"]
    line = next(k[0] for k in tables.aggregates if k[0].row == "opid")
    spread = difference[line, "seen/off", Metric.DIFFERENCE_MICRO, ALL].interval
    sd = (spread.hi - spread.value) / stats.t_quantile(2) * np.sqrt(3)
    assert opid[2].interval.value == pytest.approx(stats.minimum_detectable_effect(sd, 3, paired=True))
    text = "\n".join(markdown_block(block_of(tables, "Aggregates")))
    assert "alfworld, seen, skills off" in text and "Detectable" in text and "**" not in text


def test_two_seeds_have_no_aggregates(make_sweep: Callable[..., Any]) -> None:
    tables = tables_of(make_sweep(rows=ROWS, seeds=(0, 1), per_type=1))
    assert not tables.aggregates and not any(b.title.startswith("Aggregates") for b in document(tables).blocks)


def test_rows_of_several_environments_have_one_aggregate_over_all(make_sweep: Callable[..., Any]) -> None:
    sweep = make_sweep(rows=(), panels=("seen",))
    sweep.rows = [*ROWS]
    for row in ("grpo", "opid"):
        for env in ("alfworld", "webshop"):
            for seed in (0, 1, 2):
                add(sweep, row, seed, env)
    sweep.write_plan()
    tables = tables_of(sweep)
    whole = {k[0].row: c for k, c in tables.aggregates.items() if k[3] == EVERYWHERE and k[2] == Metric.IQM}
    assert set(whole) == {"grpo", "opid"} and whole["opid"].n_tasks == 60
    assert "all environments" in "\n".join(markdown_block(block_of(tables, "Aggregates")))
    titles = [block.title for block in terminal(tables).blocks]
    assert [t for t in titles if "success, mean" in t] == [
        f"{e}: success, mean over seeds" for e in ("alfworld", "webshop")
    ]
    success = next(block for block in terminal(tables).blocks if block.title.startswith("webshop: success"))
    assert not any("·" in row[0].text for row in success.rows)  # the title says the environment
    for seed in (0, 1, 2):
        sweep.write_state(run("opid", "webshop"), seed, state="failed")
    assert {k[0].row for k in tables_of(sweep).aggregates if k[3] == EVERYWHERE} == {"grpo"}


def test_all_environments_compare_no_row_with_skills_to_one_without(make_sweep: Callable[..., Any]) -> None:
    sweep = make_sweep(rows=(), panels=("seen",))
    sweep.rows = [{"id": "vanilla_skill", "label": "Vanilla + skill", "kind": "control"}, *ROWS]
    for row in ("vanilla_skill", "grpo", "opid"):
        for env in ("alfworld", "webshop"):
            for seed in (0, 1, 2):
                add(sweep, row, seed, env)
                if row == "vanilla_skill":
                    shown = [{**r, "skills": "on"} for r in sweep.episodes(run(row, env), seed, "seen", "on", 0)]
                    sweep.write_episodes(run(row, env), seed, shown)
                    counts = {"seen/on": {"requested": 30, "graded": 30, "excluded": 0}}
                    sweep.write_state(run(row, env), seed, evaluations=counts)
    sweep.write_plan()
    tables = tables_of(sweep)
    whole = {(k[0].row, k[2]): c for k, c in tables.aggregates.items() if k[3] == EVERYWHERE}
    assert set(whole) == {
        *((row, Metric.IQM) for row in ("vanilla_skill", "grpo", "opid")),
        ("opid", Metric.IMPROVEMENT),
    }
    assert whole["vanilla_skill", Metric.IQM].note == "alfworld: seen, skills on; webshop: seen, skills on"
    rows = [row[1].text for row in block_of(tables, "Aggregates").rows if "all environments" in row[1].text]
    assert "all environments (alfworld: seen, skills on; webshop: seen, skills on)" in rows


def ungraded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nothing of the first task type was graded."""
    return [{**r, "failure": "env" if r["task_type"] == rows[0]["task_type"] else None} for r in rows]


def test_a_seed_without_a_score_in_some_type_is_said_to_be_left_out(make_sweep: Callable[..., Any]) -> None:
    sweep = make_sweep(rows=ROWS, seeds=(0, 1, 2, 3), panels=("seen",))
    sweep.edit_episodes("opid", 3, ungraded)
    counts = {"seen/off": {"requested": 30, "graded": 25, "excluded": 5}}
    sweep.write_state("opid", 3, evaluations=counts)
    tables = tables_of(sweep)
    cell = next(c for k, c in tables.aggregates.items() if k[0].row == "opid" and k[2] == Metric.IQM)
    assert cell.n_seeds == 3 and cell.note == "without seed 3: nothing graded in a task type"
    told = [row[1].text for row in block_of(tables, "Aggregates").rows]
    assert any("without seed 3" in text for text in told)


def test_fewer_than_four_scores_have_no_quarters() -> None:
    assert stats.iqm_of_runs([np.array([[0.0], [0.3], [0.9]])]).value == pytest.approx(0.4)


def test_the_smallest_p_is_that_of_what_is_compared(teachers: Any) -> None:
    """Neither of a row that is compared with nothing nor of teachers that are no row."""
    for seed in (1, 2):
        for row in ("retire_opd", "retire_opd_fixed"):
            teachers.write_state(row, seed, state="failed")
    for cell in teachers.cells:
        cell["stage"] = cell["row"] == "skill_grpo"
    teachers.rows = [row for row in teachers.rows if row["id"] != "skill_grpo"]
    teachers.write_plan()
    note = document(tables_of(teachers)).notes[3]
    assert note.startswith("With 1 seed, ") and "is 1 when seeds are paired" in note
    teachers.write_state("retire_opd", 1, state="complete")
    note = document(tables_of(teachers)).notes[3]
    assert note.startswith("With 2 seeds, ") and "others rest on 1, and find less" in note


def test_a_type_with_one_task_is_said_to_forbid_bold(make_sweep: Callable[..., Any]) -> None:
    tables = tables_of(make_sweep(rows=ROWS, panels=("seen",), per_type=1))
    cell = next(c for k, c in tables.versus["grpo"].items() if k[2] == Metric.DIFFERENCE_MICRO)
    assert "one task here" in cell.note and not cell.significant
    assert "one task of some type" in document(tables).notes[2]
    assert "one task here" in block_of(tables, "Paired differences").rows[0][-1].text
