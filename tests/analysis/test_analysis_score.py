"""The graded result of environments that have one: a metric of its own, never in a column with a rate."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from analysis.cells import Metric, Status
from analysis.collect import collect
from analysis.render import plain
from analysis.table_csv import csv_text
from analysis.tables import document, make_tables
from analysis.terminal import terminal

ROWS = (
    {"id": "grpo", "label": "GRPO", "kind": "baseline"},
    {"id": "opid", "label": "OPID", "kind": "method"},
)
BASE = {"grpo": 0.3, "opid": 0.5}


@pytest.fixture
def shop(make_sweep: Callable[..., Any]) -> Any:
    """Results are graded: so much in seed 0, and 0.1 more in each further seed."""
    sweep = make_sweep(rows=ROWS, panels=("test",), per_type=2)
    for cell in sweep.cells:
        cell["env"] = "webshop"
        grade = BASE[cell["row"]] + 0.1 * cell["seed"]
        sweep.edit_episodes(cell["row"], cell["seed"], lambda rows, g=grade: [{**r, "score": g} for r in rows])
    return sweep.write_plan()


def test_the_score_is_a_mean_over_tasks_with_an_interval_over_seeds(shop: Any) -> None:
    tables = make_tables(collect(shop.out, shop.name))
    cell = next(c for k, c in tables.success.items() if k[0].row == "opid" and k[2] == Metric.SCORE)
    assert cell.interval is not None and cell.interval.value == pytest.approx(np.mean([0.5, 0.6, 0.7]))
    assert cell.interval.lo < 0.5 and cell.unit == "score" and cell.status is Status.SMALLER
    (row,) = (r for r in csv.DictReader(io.StringIO(csv_text(tables))) if (r["row"], r["metric"]) == ("opid", "score"))
    assert (row["unit"], row["value"]) == ("score", "60.000000")
    block = document(tables).blocks[0]
    assert "Score" in block.header and "Score: 0 to 100" in block.caption
    assert block.rows[1][block.header.index("Score")].text.startswith("60.0 [")
    assert "test score" in " ".join(plain(terminal(tables), width=200).split())


def test_scores_of_one_seed_have_no_interval(shop: Any) -> None:
    for seed in (1, 2):
        shop.write_state("opid", seed, state="failed")
    tables = make_tables(collect(shop.out, shop.name))
    cell = next(c for k, c in tables.success.items() if k[0].row == "opid" and k[2] == Metric.SCORE)
    assert cell.interval is not None and np.isnan(cell.interval.lo) and cell.interval.n == 1


def test_results_that_are_solved_or_not_have_no_score(sweep: Any) -> None:
    tables = make_tables(collect(sweep.out, "main_table"))
    assert not any(key[2] == Metric.SCORE for key in tables.success)
