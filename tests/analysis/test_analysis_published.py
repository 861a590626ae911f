"""Published numbers: what is quoted, what is imported, what is derived, and that none is taken for ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from analysis.cells import ALL, Metric, Status
from analysis.collect import collect
from analysis.plan import Line
from analysis.published import (
    BESIDE,
    NOT_UNIQUE,
    OTHER_LOSS,
    PAPER,
    TYPES,
    PublishedRow,
    alfworld_rows,
    average_kind,
    published_numbers,
    published_rows,
    why_not_comparable,
)
from analysis.tables import document, make_tables
from methods import registry

QWEN = "Qwen2.5-3B-Instruct"


def line(row: str, env: str = "alfworld") -> Line:
    return Line(
        row=row,
        backbone="tiny-s",
        env=env,
        fraction=1.0,
        scale="local",
        protocol="fair",
        label=row,
        kind="method",
        method=row,
    )


def rows() -> dict[tuple[str, str, str], PublishedRow]:
    found = alfworld_rows([line(row) for row in BESIDE])
    return {(r.method, r.backbone, r.table): r for r in found}


def number(row: PublishedRow, metric: Metric) -> tuple[float, Status]:
    cell = row.cell(metric)
    assert cell is not None and cell.interval is not None
    return round(100 * cell.interval.value, 1), cell.status


def test_the_baseline_rows_are_imported_and_their_average_is_micro() -> None:
    grpo = rows()["GRPO", "Qwen2.5-3B-Instruct", "Table 1"]
    assert number(grpo, Metric.MICRO) == (75.0, Status.IMPORTED)
    assert number(grpo, Metric.MACRO) == (70.7, Status.DERIVED)
    assert "arXiv:2605.15155" in grpo.provenance


def test_the_papers_own_row_is_quoted_and_its_average_is_macro() -> None:
    opid = rows()["OPID", "Qwen2.5-3B-Instruct", "Table 1"]
    assert number(opid, Metric.MACRO) == (84.3, Status.QUOTED)
    assert number(opid, Metric.MICRO) == (85.9, Status.DERIVED)
    micro = opid.cell(Metric.MICRO)
    assert micro is not None and "most likely of several" in micro.note and micro.source.startswith("derived from")


def test_what_cannot_be_derived_is_absent() -> None:
    assert rows()["OPID", "Qwen2.5-7B-Instruct", "Table 1"].cell(Metric.MICRO) is None


def test_the_unseen_split_has_its_own_table() -> None:
    opid = rows()["OPID", "Qwen2.5-3B-Instruct", "Table 8"]
    assert opid.panel == "unseen" and number(opid, Metric.MACRO) == (78.6, Status.QUOTED)
    assert number(opid, Metric.MICRO) == (79.1, Status.DERIVED)


def test_every_published_cell_cites_its_table_and_none_is_measured() -> None:
    cells = [cell for row in rows().values() for cell in row.cells]
    assert len(cells) > 100
    for cell in cells:
        assert cell.line is None and "Table" in cell.source and PAPER in cell.source
        assert cell.status in (Status.QUOTED, Status.IMPORTED, Status.DERIVED)


def test_skills_stand_in_the_prompt_of_the_skill_row_only() -> None:
    starred = {(r.beside, r.method) for r in rows().values() if r.skills == "on"}
    assert starred == {("vanilla_skill", "Skill-Prompt*"), ("skill_grpo", "Skill-GRPO*")}


def test_ablations_come_from_their_tables_and_nothing_is_quoted_twice() -> None:
    found = alfworld_rows([line(row) for row in BESIDE])
    where = {r.beside: r.table for r in found if r.method.startswith("w/o")}
    assert where == {"opid_no_episode": "Table 2", "opid_no_step": "Table 2", "opid_additive": "Table 3"}
    assert len({(r.beside, r.method, r.backbone, r.panel) for r in found}) == len(found)
    routing = rows()["w/o Routing", "Qwen2.5-3B-Instruct", "Table 3"]
    assert number(routing, Metric.MACRO) == (77.5, Status.QUOTED)
    assert number(routing, Metric.MICRO) == (82.8, Status.DERIVED)


def test_rows_that_nobody_published_and_other_environments_have_nothing_beside_them() -> None:
    assert alfworld_rows([line("opid_random")]) == []
    assert alfworld_rows([line("grpo", env="webshop")]) == []


def test_which_average_a_row_prints_agrees_with_what_is_known_of_each_row() -> None:
    checked = 0
    by_row: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for n in published_numbers():
        if n["env"] == "ALFWorld" and n["table"].startswith("Table") and n["metric"] == "success_rate":
            by_row.setdefault((n["paper"], n["table"], n["method"], n["backbone"]), {})[n["column"]] = dict(n)
    for columns in by_row.values():
        note = columns.get("Avg", {}).get("note", "")
        if {*TYPES, "Avg"} <= set(columns) and "macro" in note:
            kind = average_kind([float(columns[t]["value"]) for t in TYPES], float(columns["Avg"]["value"]))
            assert kind is (Metric.MACRO if "equals macro" in note else Metric.MICRO), note
            checked += 1
    assert checked >= 30


def test_the_reason_for_no_difference_is_that_of_the_line() -> None:
    mine = line("grpo")
    assert why_not_comparable(mine, QWEN, "generated-0") == "other scale (local), tiny model (tiny-s), generated tasks"
    device = replace(mine, scale="device", backbone="qwen2.5-0.5b", embedded=False)
    assert why_not_comparable(device, QWEN, "official-1") == "other scale (device), another model (qwen2.5-0.5b)"
    paper = replace(mine, scale="paper", backbone="qwen2.5-3b", embedded=False)
    assert why_not_comparable(paper, QWEN, "official-1") == ""
    assert why_not_comparable(paper, QWEN, "") == "not measured"
    assert why_not_comparable(paper, "Qwen3-1.7B", "generated-0") == "another model (qwen2.5-3b), generated tasks"


def test_rows_of_every_environment_are_quoted() -> None:
    found = published_rows([line("opid", env) for env in ("alfworld", "webshop", "search_qa")])
    of_env = {r.env: r for r in found if r.backbone == QWEN and r.table == "Table 1"}
    assert set(of_env) == {"alfworld", "webshop", "search_qa"}
    shop, search = of_env["webshop"], of_env["search_qa"]
    assert number(shop, Metric.SCORE) == (85.0, Status.QUOTED) and number(shop, Metric.MICRO) == (74.2, Status.QUOTED)
    assert number(search, Metric.MACRO) == (45.0, Status.QUOTED) and search.cell(Metric.SUCCESS, "nq") is not None
    assert "Bamboogle pooled: 32.8" in search.provenance
    cell = shop.cell(Metric.SCORE)
    assert cell is not None and cell.unit == "score"


def test_what_only_all_rows_of_a_table_fix_is_marked() -> None:
    for method in ("GRPO", "OPID"):
        micro = rows()[method, QWEN, "Table 8"].cell(Metric.MICRO)
        assert micro is not None and micro.note.startswith(NOT_UNIQUE) and "played the same games" in micro.note


def test_runs_like_the_papers_have_a_difference_with_their_interval(make_sweep: Callable[..., Any]) -> None:
    sweep = make_sweep(
        rows=[{"id": "grpo", "label": "GRPO", "kind": "method"}], panels=("seen",), per_type=2, scale="paper"
    )
    for cell in sweep.cells:
        cell |= {"backbone": "qwen2.5-3b", "embedded": False, "protocol": "paper"}
        sweep.edit_episodes("grpo", cell["seed"], lambda rows: [{**r, "data_version": "official-1"} for r in rows])
    tables = make_tables(collect(sweep.write_plan().out, sweep.name))
    block = document(tables).blocks[-1]
    assert block.title == "Published numbers, alfworld: beside ours, under other rules of evaluation"
    delta = {
        (r[2].text, r[block.header.index("Split")].text): r[block.header.index("Δ ours − theirs")] for r in block.rows
    }
    micro = next(c for k, c in tables.success.items() if k[2] == Metric.MICRO).interval
    assert micro is not None
    expected = f"micro {100 * (micro.value - 0.75):+.1f} [".replace("-", "−")
    assert delta[QWEN, "seen"].text.startswith(expected) and "macro" not in delta[QWEN, "seen"].text  # derived
    assert delta["Qwen3-1.7B", "seen"].text == "n/a" and "another model" in delta["Qwen3-1.7B", "seen"].hint
    assert "whether an interval covers a paper's number is not said" in block.caption


@pytest.mark.parametrize("column", TYPES)
def test_type_cells_are_shares(column: str) -> None:
    for row in rows().values():
        cell = row.cell(Metric.SUCCESS, column)
        assert cell is not None and cell.interval is not None and 0 <= cell.interval.value <= 1
    assert ALL not in TYPES


def test_numbers_of_another_loss_say_whose_they_are() -> None:
    """The released OPSD and GRPO+OPSD made the published cells; the faithful rows have other losses."""
    for row, theirs in OTHER_LOSS.items():
        assert BESIDE[row] == BESIDE[theirs]
        ours, released = ([r.provenance for r in alfworld_rows([line(name)])] for name in (row, theirs))
        assert ours and all(told.startswith("not comparable") and theirs in told for told in ours)
        assert released and not any("not comparable" in told for told in released)
        assert "loss" in {deviation.topic for deviation in registry.get(row).deviations}
