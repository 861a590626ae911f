"""Rows with two evaluations, rows against their bases, and what must be said of a method."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis import footnotes as feet
from analysis.blocks_methods import SHOWN, changes_of
from analysis.cells import ALL, Metric
from analysis.collect import collect
from analysis.page import html
from analysis.plan import BY_SEED
from analysis.render import Block, markdown, plain
from analysis.table_csv import csv_text
from analysis.tables import document, make_tables
from analysis.terminal import terminal
from methods import registry


def block(sweep: Any, start: str) -> Block:
    page = document(make_tables(collect(sweep.out, sweep.name)))
    return next(b for b in page.blocks if b.title.startswith(start))


def columns(block: Block, name: str) -> list[str]:
    return [row[block.header.index(name)].text for row in block.rows]


# ---------------------------------------------------------------------------------------------- two rows of one run
def test_one_run_evaluated_without_and_with_skills_is_two_rows(teachers: Any) -> None:
    found = block(teachers, "alfworld: success on seen")
    labels = [row[0].text.partition(" [")[0] for row in found.rows]
    assert labels == ["GRPO", "Skill-GRPO", "Skill-GRPO*", "RetireOPD", "RetireOPD, fixed stop"]
    prompts = columns(found, "Prompt")
    assert prompts[1].startswith("skills off") and prompts[2].startswith("skills on")
    micro = columns(found, "Micro %")
    for position, skills in ((1, "off"), (2, "on")):
        rows = [
            r
            for seed in (0, 1, 2)
            for r in pq.read_table(teachers.run_dir("skill_grpo", seed) / "episodes.parquet").to_pylist()
            if r["skills"] == skills
        ]
        assert micro[position].startswith(f"{100 * np.mean([r['success'] for r in rows]):.1f} ")
    short = plain(terminal(make_tables(collect(teachers.out, teachers.name))))
    assert "Skill-GRPO* " in short and "Skill-GRPO  " in short
    names = {
        r["label"] for r in csv.DictReader(io.StringIO(csv_text(make_tables(collect(teachers.out, teachers.name)))))
    }
    assert {"Skill-GRPO", "Skill-GRPO*"} <= names


def test_a_row_that_is_only_evaluated_with_skills_keeps_its_name(sweep: Any) -> None:
    labels = [row[0].text for row in block(sweep, "alfworld: success on seen").rows]
    assert any(label.startswith("Vanilla + skill") for label in labels) and not any("*" in label for label in labels)


def test_the_starred_row_is_compared_but_never_called_better(teachers: Any) -> None:
    for seed in (0, 1, 2):
        teachers.edit_episodes(
            "skill_grpo",
            seed,
            lambda rows: [{**r, "success": r["skills"] == "on" and i % 9 > 0} for i, r in enumerate(rows)],
        )
        teachers.edit_episodes("grpo", seed, lambda rows: [{**r, "success": False} for r in rows])
    differences = make_tables(collect(teachers.out, teachers.name)).versus["grpo"]
    cell = next(c for k, c in differences.items() if k[0].row == "skill_grpo" and k[1] == "seen/on")
    assert cell.interval is not None and cell.interval.value > 0.8 and not cell.significant and "without" in cell.note


# ---------------------------------------------------------------------------------------------- rows and their bases
def test_each_row_is_shown_against_its_own_base_with_what_it_changes(teachers: Any) -> None:
    found = block(teachers, "Each row against its base")
    assert columns(found, "Base") == ["GRPO", "GRPO", "GRPO", "RetireOPD"]
    told = columns(found, "Changed: base → here")
    assert told[0] == "method.rollout_skills_train: false → true; method.skill.source: none → library"
    assert told[2] == (
        "method.coef: 0.0 → 0.25; method.teacher.run: none → skill_grpo; training.kl_coef: 0.01 → 0.0 (protocol)"
    )
    assert told[3] == "method.knobs.stop_step: none → 8"
    tables = make_tables(collect(teachers.out, teachers.name))
    cell = next(
        c for k, c in tables.versus_base.items() if k[0].row == "retire_opd_fixed" and k[2] == Metric.DIFFERENCE_MICRO
    )
    by_seed = []
    for seed in (0, 1, 2):
        won = [
            [r["success"] for r in pq.read_table(teachers.run_dir(row, seed) / "episodes.parquet").to_pylist()]
            for row in ("retire_opd_fixed", "retire_opd")
        ]
        by_seed.append(np.mean(won[0]) - np.mean(won[1]))
    assert cell.interval is not None and cell.interval.value == pytest.approx(np.mean(by_seed))
    assert cell.reference == "retire_opd"


def test_the_csv_holds_all_changes(teachers: Any) -> None:
    keys = {f"method.knobs.k{i}": [0, i] for i in range(SHOWN + 3)}
    for cell in teachers.cells:
        if cell["row"] == "retire_opd":
            cell["changed"] = keys
    teachers.write_plan()
    tables = make_tables(collect(teachers.out, teachers.name))
    rows = [r for r in csv.DictReader(io.StringIO(csv_text(tables))) if r["table"] == "ablation"]
    note = next(r["note"] for r in rows if r["row"] == "retire_opd")
    assert all(key in note for key in keys)
    told = block(teachers, "Each row against its base").rows[2][3]
    assert told.text.endswith("; and 3 more") and "method.knobs.k8: 0 → 8" in told.hint


def test_a_key_that_differs_by_seed_says_so(teachers: Any) -> None:
    for cell in teachers.cells:
        if cell["row"] == "retire_opd_fixed":
            cell["changed"] = {"method.teacher.source": [None, str(cell["seed"])]}
    teachers.write_plan()
    line = next(x for x in collect(teachers.out, teachers.name).lines if x.row == "retire_opd_fixed")
    assert changes_of(line) == [f"method.teacher.source: none → {BY_SEED}"]


def test_a_plan_without_bases_has_no_such_table(sweep: Any) -> None:
    sweep.write_plan(version=1)
    page = document(make_tables(collect(sweep.out, "main_table")))
    assert not any(b.title.startswith("Each row against") for b in page.blocks)


def test_a_base_that_is_not_in_the_table_leaves_the_row_visible(teachers: Any) -> None:
    teachers.rows = [{**row, "base": "gone"} if row["id"] == "retire_opd" else row for row in teachers.rows]
    teachers.write_plan()
    found = block(teachers, "Each row against its base")
    row = next(r for r in found.rows if r[0].text.startswith("RetireOPD ["))
    assert row[found.header.index("Δ micro")].text == "n/a" and "no row gone" in row[-1].text


# ---------------------------------------------------------------------------------------------- footnotes
def test_deviations_of_every_method_are_footnotes(sweep: Any) -> None:
    page = document(make_tables(collect(sweep.out, "main_table")))
    text = " ".join(page.footnotes)
    for method in ("grpo", "opid"):
        spec = registry.get(method)
        assert spec.deviations
        for deviation in spec.deviations:
            assert deviation.topic in text and deviation.ours in text and deviation.source in text
    found = next(b for b in page.blocks if b.title.startswith("alfworld: success on seen"))
    marks = {row[0].text.rpartition(" [")[0]: row[0].text[-2] for row in found.rows if row[0].text.endswith("]")}
    assert marks["OPID"] == marks["OPID, random skills"] != marks["GRPO"]
    assert any(note.startswith(f"[{marks['OPID']}] opid (arXiv:2606.26790): ") for note in page.footnotes)
    assert "## Footnotes" in markdown(page) and '<ul class="feet">' in html(page)


def test_what_several_methods_share_is_told_once(teachers: Any) -> None:
    lines = collect(teachers.out, teachers.name).lines
    shared = set(registry.get("grpo").deviations) & set(registry.get("retire_opd").deviations)
    assert shared
    found = feet.footnotes(lines)
    text = next(t for t in found.texts if "retire_opd (" in t)
    for deviation in shared:
        assert sum(deviation.paper in t and deviation.ours in t for t in found.texts) == 1
        assert deviation.topic in text.partition("As in [a]: ")[2]


def test_a_teacher_that_cancels_is_marked_everywhere(teachers: Any) -> None:
    teachers.rows = [{**row, "teacher_cancels": row["id"] == "skill_grpo"} for row in teachers.rows]
    teachers.write_plan()
    tables = make_tables(collect(teachers.out, teachers.name))
    page = document(tables)
    assert page.footnotes[0].startswith("†") or any(n.startswith("† The teacher") for n in page.footnotes)
    for made in page.blocks:
        for row in made.rows:
            if row[0].text.startswith("Skill-GRPO"):
                assert "†" in row[0].text, made.title
    assert "†" in plain(terminal(tables)) and "cancels out of its gradient" in plain(terminal(tables))


def test_the_registry_alone_can_say_that_a_teacher_cancels(teachers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    cancelling = dataclasses.replace(registry.get("grpo"), teacher_cancels=True)
    monkeypatch.setattr(feet.registry, "get", lambda name: cancelling)
    lines = collect(teachers.out, teachers.name).lines
    assert all(mark.startswith("†") for mark in feet.footnotes(lines).marks.values())


def test_a_method_that_is_not_installed_here_is_named(teachers: Any) -> None:
    for cell in teachers.cells:
        if cell["row"] == "skill_grpo":
            cell["method"] = "somebody.elses:SPEC"
    teachers.write_plan()
    page = document(make_tables(collect(teachers.out, teachers.name)))
    assert any("somebody.elses:SPEC: this method is not installed here" in note for note in page.footnotes)


def test_remarks_of_the_plan_are_footnotes_too_and_shared(teachers: Any) -> None:
    teachers.rows = [{**row, "footnotes": ["Both were trained on a Tuesday."]} for row in teachers.rows]
    teachers.write_plan()
    tables = make_tables(collect(teachers.out, teachers.name))
    assert sum("Tuesday" in note for note in tables.footnotes.texts) == 1
    assert len({marks.split()[-1] for marks in tables.footnotes.marks.values()}) == 1


def test_letters_go_on_after_z() -> None:
    assert [feet._letter(n) for n in (0, 25, 26, 27, 52)] == ["a", "z", "aa", "ab", "ba"]


def test_tables_of_teachers_are_the_same_twice(teachers: Any) -> None:
    def made() -> tuple[str, str, str]:
        tables = make_tables(collect(teachers.out, teachers.name))
        return csv_text(tables), markdown(document(tables)), html(document(tables))

    assert made() == made()
    assert all(key[3] == ALL for key in make_tables(collect(teachers.out, teachers.name)).versus_base)
