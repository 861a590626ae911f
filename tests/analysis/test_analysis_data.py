"""Other panels, fractions of the data, and aggregates: numbers by hand, and what is missing stays visible."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from analysis import stats
from analysis.cells import Metric, Status
from analysis.collect import collect
from analysis.render import Block, markdown, markdown_block
from analysis.table_csv import csv_text
from analysis.tables import document, make_tables

ROWS = (
    {"id": "grpo", "label": "GRPO", "kind": "baseline"},
    {"id": "opid", "label": "OPID", "kind": "method"},
)
FRACTIONS = (0.2, 0.6, 1.0)


def solve(solved: dict[str, int]) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """That many tasks of each type are solved, by panel; the fixture has five of each type."""
    return lambda rows: [
        {**r, "success": int(r["task_id"].rpartition("-")[2]) < solved[r["panel"]], "length": 9} for r in rows
    ]


def run(row: str, fraction: float, env: str = "alfworld") -> str:
    """As the fixture calls the runs of one row there."""
    return f"{row}@{fraction}@{env}"


def add(sweep: Any, row: str, seed: int, fraction: float, env: str = "alfworld") -> None:
    sweep.add(run(row, fraction, env), seed, method=row, fraction=fraction, env=env)
    sweep.cells[-1]["row"] = row


def block_of(tables: Any, start: str) -> Block:
    return next(block for block in document(tables).blocks if block.title.startswith(start))


def tables_of(sweep: Any) -> Any:
    return make_tables(collect(sweep.out, sweep.name))


# ------------------------------------------------------------------------------------------- other panels
@pytest.fixture
def ood(make_sweep: Callable[..., Any]) -> Any:
    sweep = make_sweep(rows=ROWS, panels=("seen", "unseen", "held_out"))
    for row, lost in (("grpo", (1, 2, 3)), ("opid", (1, 1, 1))):
        for seed, gap in enumerate(lost):
            sweep.edit_episodes(row, seed, solve({"seen": 4, "unseen": 4 - gap, "held_out": 0}))
    return sweep


def gap(tables: Any, row: str, other: str = "unseen") -> Any:
    return next(c for k, c in tables.gaps.items() if k[0].row == row and k[3] == other)


def test_gaps_are_paired_by_seed(ood: Any) -> None:
    tables = tables_of(ood)
    cell = gap(tables, "grpo")
    expected = stats.t_interval([0.2, 0.4, 0.6])
    assert (cell.interval.value, cell.interval.lo, cell.interval.hi) == pytest.approx(
        (expected.value, expected.lo, expected.hi)
    )
    assert cell.interval.kind == stats.T_OVER_SEEDS and cell.n_seeds == 3 and not cell.significant
    assert cell.p_smallest == 0.25 and gap(tables, "grpo", "held_out").interval.value == pytest.approx(0.8)


def test_equal_gaps_in_all_seeds_claim_nothing(ood: Any) -> None:
    cell = gap(tables_of(ood), "opid")
    assert cell.interval.value == pytest.approx(0.2) and np.isnan(cell.interval.lo) and not cell.significant


def test_the_table_of_gaps_has_all_panels_and_the_csv_too(ood: Any) -> None:
    tables = tables_of(ood)
    block = block_of(tables, "Out of distribution")
    assert block.header[3:8] == (
        "Seen, micro %",
        "Unseen, micro %",
        "Held out, micro %",
        "Seen − unseen",
        "Seen − held out",
    )
    text = "\n".join(markdown_block(block))
    assert "+40.0 [" in text and "3/3" in text
    rows = [r for r in csv.DictReader(io.StringIO(csv_text(tables))) if r["table"] == "out_of_distribution"]
    assert {(r["row"], r["column"]) for r in rows} == {
        (row, other) for row in ("grpo", "opid") for other in ("unseen", "held_out")
    }
    assert all(r["unit"] == "points" and r["metric"] == "gap_of_panels" for r in rows)


def test_a_seed_without_both_panels_is_in_no_gap(ood: Any) -> None:
    ood.edit_episodes("grpo", 2, lambda rows: [r for r in rows if r["panel"] != "unseen"])
    tables = tables_of(ood)
    assert gap(tables, "grpo").interval.value == pytest.approx(0.3) and gap(tables, "grpo").n_seeds == 2
    assert gap(tables, "grpo", "held_out").n_seeds == 3
    assert "2/3 !" in "\n".join(markdown_block(block_of(tables, "Out of distribution")))


def hotter(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**r, "temperature": 1.0} if r["panel"] == "unseen" else r for r in rows]


def test_a_refused_panel_takes_the_place_of_the_gap(ood: Any) -> None:
    ood.edit_episodes("grpo", 1, hotter)
    cell = gap(tables_of(ood), "grpo")
    assert cell.status is Status.MIXED and cell.interval is None and "mixed" in cell.note


def test_panels_played_otherwise_have_no_gap(ood: Any) -> None:
    for seed in (0, 1, 2):
        ood.edit_episodes("grpo", seed, hotter)
    cell = gap(tables_of(ood), "grpo")
    assert cell.status is Status.NOT_APPLICABLE and "another evaluation temperature" in cell.note


def test_a_row_that_has_not_run_is_a_missing_gap(ood: Any) -> None:
    for seed in (0, 1, 2):
        ood.write_state("opid", seed, state="failed")
    assert gap(tables_of(ood), "opid").status is Status.MISSING


def test_one_panel_has_no_table_of_gaps(make_sweep: Callable[..., Any]) -> None:
    tables = tables_of(make_sweep(rows=ROWS, panels=("seen",), per_type=1))
    assert not tables.gaps and not any(b.title.startswith("Out of") for b in document(tables).blocks)


# ------------------------------------------------------------------------------------------- fractions
def test_the_area_is_that_of_trapezoids_over_the_range() -> None:
    assert stats.area_by_fraction([0.2, 0.4, 0.8], [0.2, 0.6, 1.0]) == pytest.approx((0.3 * 0.4 + 0.6 * 0.4) / 0.8)
    assert stats.area_by_fraction([0.5, 0.5], [0.1, 1.0]) == pytest.approx(0.5)
    assert stats.area_by_fraction([0.0, 1.0, 1.0], [0.2, 0.4, 1.0]) == pytest.approx((0.1 + 0.6) / 0.8)


@pytest.mark.parametrize(
    ("values", "fractions"), [([0.1], [1.0]), ([0.1, 0.2], [0.5, 0.5]), ([0.1, 0.2], [1.0, 0.5]), ([0.1], [0.5, 1.0])]
)
def test_an_area_needs_two_rising_fractions(values: list[float], fractions: list[float]) -> None:
    with pytest.raises(ValueError, match="two or more rising fractions"):
        stats.area_by_fraction(values, fractions)


def test_an_area_has_no_gaps() -> None:
    with pytest.raises(ValueError, match="NaN"):
        stats.area_by_fraction([0.1, float("nan")], [0.5, 1.0])


SOLVED = {"grpo": (1, 2, 3), "opid": (2, 3, 4)}  # tasks of five, by fraction


@pytest.fixture
def efficiency(make_sweep: Callable[..., Any]) -> Any:
    """Fractions 0.2, 0.6 and 1; seed 2 solves one task more everywhere."""
    sweep = make_sweep(rows=(), panels=("seen",))
    sweep.rows = [*ROWS]
    for row in SOLVED:
        for fraction in FRACTIONS:
            for seed in (0, 1, 2):
                add(sweep, row, seed, fraction)
    sweep.write_plan()
    for row, solved in SOLVED.items():
        for fraction, tasks in zip(FRACTIONS, solved, strict=True):
            for seed in (0, 1, 2):
                sweep.edit_episodes(run(row, fraction), seed, solve({"seen": tasks + (seed == 2 and row == "opid")}))
    return sweep


def area(tables: Any, row: str, metric: Metric = Metric.AREA_FRACTIONS) -> Any:
    return next(c for k, c in tables.fractions.items() if k[0].row == row and k[2] == metric)


def test_areas_and_their_differences_are_those_of_the_seeds(efficiency: Any) -> None:
    tables = tables_of(efficiency)
    assert area(tables, "grpo").interval.value == pytest.approx(0.4)
    mine = area(tables, "opid")
    assert mine.interval.value == pytest.approx(np.mean([0.6, 0.6, 0.8])) and mine.column == "0.2-1"
    change = area(tables, "opid", Metric.DIFFERENCE_AREA_FRACTIONS)
    expected = stats.t_interval([0.2, 0.2, 0.4])
    assert (change.interval.value, change.interval.lo) == pytest.approx((expected.value, expected.lo))
    assert change.reference == "grpo" and change.unit == "points" and change.significant == (change.interval.lo > 0)


def test_the_table_of_fractions_has_a_column_each(efficiency: Any) -> None:
    tables = tables_of(efficiency)
    block = block_of(tables, "Sample efficiency")
    assert block.header[3:6] == ("20% of data", "60% of data", "100% of data")
    texts = [[entry.text for entry in row] for row in block.rows]
    assert [row[:3] for row in texts] == [["GRPO", "seen, skills off", "3/3"], ["OPID", "seen, skills off", "3/3"]]
    assert texts[0][3].startswith("20.0 [") and texts[1][5].startswith("86.7 [")
    assert texts[0][7] == "" and texts[1][7].startswith("+26.7 [")
    assert "sample_efficiency" in {r["table"] for r in csv.DictReader(io.StringIO(csv_text(tables)))}


def test_a_seed_that_misses_a_fraction_is_in_no_area(efficiency: Any) -> None:
    efficiency.write_state(run("opid", 0.6), 2, state="failed")
    tables = tables_of(efficiency)
    assert area(tables, "opid").n_seeds == 2 and area(tables, "opid").interval.value == pytest.approx(0.6)
    assert area(tables, "opid", Metric.DIFFERENCE_AREA_FRACTIONS).n_seeds == 2
    assert block_of(tables, "Sample efficiency").rows[1][2].text == "2/3"


def test_a_fraction_without_any_run_leaves_no_area(efficiency: Any) -> None:
    for seed in (0, 1, 2):
        efficiency.write_state(run("opid", 0.6), seed, state="failed")
    tables = tables_of(efficiency)
    assert area(tables, "opid").status is Status.MISSING
    assert area(tables, "opid", Metric.DIFFERENCE_AREA_FRACTIONS).status is Status.MISSING
    row = block_of(tables, "Sample efficiency").rows[1]
    assert row[4].text == "–" and row[3].text.startswith("46.7")


def test_one_fraction_has_no_table(sweep: Any) -> None:
    tables = tables_of(sweep)
    assert not tables.curves and not any(b.title.startswith("Sample") for b in document(tables).blocks)


def at_temperature(sweep: Any, row: str, fraction: float, temperature: float) -> None:
    for seed in (0, 1, 2):
        sweep.edit_episodes(run(row, fraction), seed, lambda rows: [{**r, "temperature": temperature} for r in rows])


def test_areas_measured_otherwise_are_not_compared(efficiency: Any) -> None:
    for fraction in FRACTIONS:
        at_temperature(efficiency, "opid", fraction, 1.0)
    tables = tables_of(efficiency)
    assert area(tables, "opid").interval is not None
    change = area(tables, "opid", Metric.DIFFERENCE_AREA_FRACTIONS)
    assert change.status is Status.NOT_APPLICABLE and change.interval is None
    assert change.note == "fraction 0.2: grpo was measured with another evaluation temperature"


def test_a_curve_whose_points_were_measured_otherwise_has_no_area(efficiency: Any) -> None:
    at_temperature(efficiency, "opid", 0.6, 1.0)
    tables = tables_of(efficiency)
    for metric in (Metric.AREA_FRACTIONS, Metric.DIFFERENCE_AREA_FRACTIONS):
        cell = area(tables, "opid", metric)
        assert cell.status is Status.NOT_APPLICABLE
        assert cell.note == "fractions 0.2 and 0.6 were measured with another evaluation temperature"
    assert area(tables, "grpo").interval is not None


def test_areas_over_other_fractions_are_not_compared(efficiency: Any) -> None:
    efficiency.cells = [c for c in efficiency.cells if (c["row"], c["fraction"]) != ("opid", 0.2)]
    efficiency.write_plan()
    cell = area(tables_of(efficiency), "opid", Metric.DIFFERENCE_AREA_FRACTIONS)
    assert cell.status is Status.NOT_APPLICABLE and cell.note == "grpo was run on other fractions (0.2, 0.6, 1)"


def test_fractions_of_steps_are_called_so(efficiency: Any) -> None:
    block = block_of(tables_of(efficiency), "Sample efficiency")
    assert block.title.endswith("of the training tasks") and "nested" in block.caption
    for cell in efficiency.cells:
        cell["fraction_of"] = "steps"
    efficiency.write_plan()
    tables = tables_of(efficiency)
    block = block_of(tables, "Sample efficiency")
    assert block.title.endswith("of the training steps") and "nested" not in block.caption
    assert block.header[3] == "20% of steps" and "GRPO · 20% of steps" in markdown(document(tables))
    assert not any("of data" in "".join(b.header) for b in document(tables).blocks)
