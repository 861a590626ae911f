"""Every check fires, says what is wrong, and takes the place of the numbers where they would mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from analysis import code as code_module
from analysis.cells import Metric, Status
from analysis.collect import DataWarning, Records, collect
from analysis.evaluations import Measurements, success_cells
from analysis.render import markdown, plain
from analysis.tables import csv_text, document, make_tables, terminal

Edit = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def status_of(records: Records, row: str, place: str) -> Status:
    cells = success_cells(records, Measurements.of(records))
    micro = [c for c in cells if c.metric == Metric.MICRO and c.place == place]
    return next(c.status for c in micro if c.line and c.line.row == row)


def only(records: Records, code: str) -> DataWarning:
    found = [w for w in records.warnings if w.code == code]
    assert len(found) == 1, [w.message for w in records.warnings]
    return found[0]


def everywhere(records: Records, warning: DataWarning) -> None:
    """The warning stands under each form of the table, and its code beside its cells in the CSV."""
    tables = make_tables(records)
    assert warning.message.split()[0] in markdown(document(tables))
    assert warning in records.warnings
    assert warning.message in document(tables).warnings and warning.message in terminal(tables).warnings
    assert "Warnings:" in plain(terminal(tables))
    if warning.place != "train":
        assert warning.code in csv_text(tables)


def on_seen(change: dict[str, Any]) -> Edit:
    return lambda rows: [{**r, **change} if r["panel"] == "seen" else r for r in rows]


# ---------------------------------------------------------------------------------------------- mixed
@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("panel_hash", "f" * 64, "more than one panel hash"),
        ("data_version", "official-1", "more than one data version"),
        (
            "prompt_protocol",
            "full/tagged",
            "compact/bare (seed 0, 2), full/tagged (seed 1)",
        ),
        ("context", "per_step", "more than one context layout"),
        ("temperature", 0.0, "more than one evaluation temperature: 0.0 (seed 1), 0.4 (seed 0, 2)"),
        ("selection", "best_on_validation", "more than one checkpoint selection rule"),
    ],
)
def test_seeds_measured_differently_are_not_averaged(sweep: Any, column: str, value: Any, words: str) -> None:
    sweep.edit_episodes("opid", 1, on_seen({column: value}))
    records = collect(sweep.out, "main_table")
    warning = only(records, f"mixed_{column}")
    assert words in warning.message and warning.message.startswith("opid on seen/off")
    assert len(warning.cells) == 3
    assert status_of(records, "opid", "seen/off") is Status.MIXED
    assert status_of(records, "opid", "unseen/off") is Status.SMALLER
    assert status_of(records, "grpo", "seen/off") is Status.SMALLER
    everywhere(records, warning)


def test_one_run_with_two_protocols_is_mixed_too(sweep: Any) -> None:
    sweep.edit_episodes("opid", 1, lambda rows: [{**rows[0], "context": "per_step"}, *rows[1:]])
    records = collect(sweep.out, "main_table")
    assert status_of(records, "opid", "seen/off") is Status.MIXED


def test_a_seed_planned_twice_is_no_replicate(sweep: Any) -> None:
    sweep.add("opid", 1)
    sweep.write_plan()
    records = collect(sweep.out, "main_table")
    warning = only(records, "seed_planned_twice")
    assert "seed 1 is planned more than once" in warning.message
    assert status_of(records, "opid", "seen/off") is status_of(records, "opid", "unseen/off") is Status.MIXED
    tables = make_tables(records)
    assert {c.status for k, c in tables.learning.items() if k[0].row == "opid"} == {Status.MIXED}
    everywhere(records, warning)


# ---------------------------------------------------------------------------------------------- invalid
@pytest.mark.parametrize(
    ("code", "edit", "words"),
    [
        ("duplicated", lambda rows: [*rows, rows[0]], "duplicated: 2 records share panel, skills, task and repeat"),
        ("foreign_run", lambda rows: [{**rows[0], "run": "0" * 16}, *rows[1:]], "1 episodes belong to another run"),
        ("nan_score", lambda rows: [{**rows[0], "score": float("nan")}, *rows[1:]], "NaN in 1 graded episodes"),
        ("nan_score", lambda rows: [{**rows[0], "success": None}, *rows[1:]], "NaN in 1 graded episodes"),
        ("undeclared", on_seen({"selection": None}), "30 episodes do not say"),
        ("undeclared", on_seen({"checkpoint_step": None}), "30 episodes do not say"),
        ("undeclared", on_seen({"prompt_protocol": None}), "30 episodes do not say"),
        ("not_the_last_checkpoint", on_seen({"checkpoint_step": 5}), "another checkpoint than the last step's"),
        ("incomplete_evaluation", lambda rows: rows[1:], "30 requested, 30 graded, 0 excluded; its records hold 29"),
        ("tasks_differ", lambda rows: rows[1:], "played 29 of the 30 tasks"),
        ("not_exactly_once", lambda rows: [*rows, {**rows[0], "repeat": 1}], "29 tasks not played exactly 2 times"),
    ],
)
def test_evaluations_that_contradict_themselves_are_refused(sweep: Any, code: str, edit: Edit, words: str) -> None:
    sweep.edit_episodes("opid", 1, edit)
    records = collect(sweep.out, "main_table")
    warning = only(records, code)
    assert words in warning.message and "seed 1" in warning.message
    assert warning.refuses == "invalid" and warning.place == "seen/off"
    assert status_of(records, "opid", "seen/off") is Status.INVALID
    assert status_of(records, "opid", "unseen/off") is Status.SMALLER
    everywhere(records, warning)


def test_a_task_replaced_by_another_is_noticed_although_the_numbers_agree(sweep: Any) -> None:
    sweep.edit_episodes("opid", 1, lambda rows: [{**rows[0], "task_id": "somewhere-else"}, *rows[1:]])
    records = collect(sweep.out, "main_table")
    assert "tasks_differ" in {w.code for w in records.warnings}
    assert status_of(records, "opid", "seen/off") is Status.INVALID


def test_requested_must_equal_graded_plus_excluded(sweep: Any) -> None:
    counts = {"requested": 31, "graded": 30, "excluded": 0}
    sweep.write_state("opid", 1, evaluations={"seen/off": counts, "unseen/off": {**counts, "requested": 30}})
    records = collect(sweep.out, "main_table")
    assert "31 requested, 30 graded" in only(records, "incomplete_evaluation").message
    assert status_of(records, "opid", "seen/off") is Status.INVALID


def test_an_evaluation_that_the_run_does_not_know_is_refused(sweep: Any) -> None:
    sweep.write_state("opid", 1, evaluations={})
    records = collect(sweep.out, "main_table")
    assert "declares nothing requested" in records.warnings[0].message
    assert status_of(records, "opid", "seen/off") is Status.INVALID


# ---------------------------------------------------------------------------------------------- shown beside
def test_excluded_episodes_are_shown_with_their_bounds_and_left_out(sweep: Any) -> None:
    def break_two(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        broken = [{**r, "failure": "engine died", "success": False, "score": float("nan")} for r in rows[:2]]
        return [*broken, *[{**r, "success": i % 2 == 0} for i, r in enumerate(rows[2:])]]

    sweep.edit_episodes("opid", 1, break_two)
    counts = {"requested": 30, "graded": 30, "excluded": 0}
    seen = {**counts, "graded": 28, "excluded": 2}
    sweep.write_state("opid", 1, evaluations={"seen/off": seen, "unseen/off": counts})
    records = collect(sweep.out, "main_table")
    warning = only(records, "excluded")
    assert "2 of 30 episodes excluded" in warning.message and "between 46.7% and 53.3%" in warning.message
    assert not warning.refuses
    assert status_of(records, "opid", "seen/off") is Status.SMALLER
    everywhere(records, warning)


def test_a_complete_run_without_episodes_is_not_counted_and_named(sweep: Any) -> None:
    (sweep.run_dir("opid", 1) / "episodes.parquet").unlink()
    records = collect(sweep.out, "main_table")
    found = [w for w in records.warnings if w.code == "no_episodes"]
    assert [w.place for w in found] == ["seen/off", "unseen/off"]
    cells = success_cells(records, Measurements.of(records))
    assert {c.n_seeds for c in cells if c.line and c.line.row == "opid"} == {2}
    everywhere(records, found[0])


def test_runs_of_two_commits_are_shown_and_named(sweep: Any) -> None:
    sweep.write_provenance("opid", 1, "beef" * 10)
    records = collect(sweep.out, "main_table")
    warning = only(records, "mixed_code")
    assert "2 versions of the code" in warning.message and "beefbeefbe: opid seed 1" in warning.message
    assert status_of(records, "opid", "seen/off") is Status.SMALLER
    everywhere(records, warning)


def test_uncommitted_code_is_shown_and_is_a_version_of_its_own(sweep: Any) -> None:
    sweep.write_provenance("opid", 1, sweep.commit, dirty=True)
    records = collect(sweep.out, "main_table")
    assert "1 of 15 runs were made by code with changes" in only(records, "dirty_code").message
    assert "with changes dddddddd" in only(records, "mixed_code").message
    everywhere(records, only(records, "dirty_code"))


def test_an_unknown_commit_is_shown(sweep: Any) -> None:
    sweep.write_provenance("opid", 1, None)
    records = collect(sweep.out, "main_table")
    everywhere(records, only(records, "unknown_code"))


OTHER = {"commit": "beef" * 10, "dirty": False, "diff_sha256": None}


def test_a_run_resumed_under_other_code_is_named(sweep: Any) -> None:
    sweep.write_attempts("opid", 1, {"outcome": "interrupted", "to_step": 5}, {"from_step": 5, "git": OTHER})
    records = collect(sweep.out, "main_table")
    warning = only(records, "code_changed")
    assert warning.message.startswith("opid seed 1: resumed under other code")
    assert "c0ffeec0ff, then beefbeefbe" in warning.message and len(warning.cells) == 1
    assert "2 versions of the code: beefbeefbe: opid seed 1; c0ffeec0ff: " in only(records, "mixed_code").message
    everywhere(records, warning)


def test_an_unfinished_attempt_under_uncommitted_code_is_noticed(sweep: Any) -> None:
    dirty = {"commit": sweep.commit, "dirty": True, "diff_sha256": "d" * 64}
    sweep.write_attempts("opid", 1, {"outcome": None, "to_step": None, "git": dirty}, {"from_step": 5})
    records = collect(sweep.out, "main_table")
    assert "then" in only(records, "code_changed").message
    assert "1 of 15 runs" in only(records, "dirty_code").message


@pytest.mark.parametrize(
    "attempts",
    [
        [{}],
        [{"outcome": "interrupted", "to_step": 5}, {"from_step": 5}],
        [{"outcome": "failed", "to_step": 0, "git": OTHER}, {}],  # it left nothing
    ],
)
def test_attempts_under_one_code_are_no_reason_to_warn(sweep: Any, attempts: list[dict[str, Any]]) -> None:
    sweep.write_provenance("opid", 1, "beef" * 10)  # where the run was planned; what ran it counts
    sweep.write_attempts("opid", 1, *attempts)
    assert collect(sweep.out, "main_table").warnings == ()


def test_an_attempt_that_may_have_evaluated_counts(sweep: Any) -> None:
    sweep.write_attempts("vanilla", 1, {"outcome": "failed", "to_step": 0, "git": OTHER}, {"to_step": 0})
    assert "vanilla seed 1" in only(collect(sweep.out, "main_table"), "code_changed").message


def test_a_record_of_changes_without_a_digest_is_no_clean_commit(sweep: Any) -> None:
    sweep.write_attempts("opid", 1, {"git": {"commit": sweep.commit, "dirty": True, "diff_sha256": None}})
    assert "with changes unknown" in only(collect(sweep.out, "main_table"), "mixed_code").message


def test_a_damaged_attempt_takes_the_place_of_the_numbers(sweep: Any) -> None:
    sweep.write_attempts("opid", 1, {})
    (sweep.run_dir("opid", 1) / "attempts" / "001.json").write_text("{")
    records = collect(sweep.out, "main_table")
    assert only(records, "unreadable_state").message.startswith("opid, seed 1")
    assert status_of(records, "opid", "seen/off") is Status.INVALID


@pytest.mark.parametrize(
    "today", [{"commit": "beef" * 10}, {"dirty": True, "diff_sha256": "e" * 64}], ids=["commit", "changes"]
)
def test_other_code_than_made_the_runs_is_told_but_not_in_the_csv(
    sweep: Any, code_of_today: dict[str, Any], today: dict[str, Any]
) -> None:
    before = csv_text(make_tables(collect(sweep.out, "main_table")))
    code_of_today.update(today)
    records = collect(sweep.out, "main_table")
    warning = only(records, "not_this_code")
    assert "15 of 15 runs were made by other code than the one here" in warning.message
    tables = make_tables(records)
    assert warning.message in document(tables).warnings and warning.message in terminal(tables).warnings
    assert csv_text(tables) == before


def test_where_the_code_of_today_is_unknown_nothing_is_said(sweep: Any, code_of_today: dict[str, Any]) -> None:
    code_of_today.update({"commit": None, "dirty": None})
    assert collect(sweep.out, "main_table").warnings == ()


def test_a_later_commit_that_changes_no_result_is_the_same_code(
    sweep: Any, code_of_today: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    code_of_today["commit"] = "beef" * 10
    monkeypatch.setattr(code_module, "equals_commit", lambda commit: commit == sweep.commit)
    assert collect(sweep.out, "main_table").warnings == ()
    sweep.write_provenance("opid", 1, sweep.commit, dirty=True)
    assert "1 of 15 runs (opid seed 1) were" in only(collect(sweep.out, "main_table"), "not_this_code").message


@pytest.mark.parametrize(
    ("column", "value"), [("panel_hash", "e" * 64), ("temperature", 1.0), ("prompt_protocol", "full/bare")]
)
def test_rows_measured_differently_stand_but_are_not_compared(sweep: Any, column: str, value: Any) -> None:
    for seed in (0, 1, 2):
        sweep.edit_episodes("opid", seed, on_seen({column: value}))
    records = collect(sweep.out, "main_table")
    warning = only(records, f"lines_differ_in_{column}")
    assert "rows differ in" in warning.message and "opid" in warning.message
    assert status_of(records, "opid", "seen/off") is Status.SMALLER
    differences = make_tables(records).versus["grpo"]
    mine = {k[1]: c for k, c in differences.items() if k[0].row == "opid" and k[2] == Metric.DIFFERENCE_MICRO}
    assert mine["seen/off"].status is Status.NOT_APPLICABLE and "measured with another" in mine["seen/off"].note
    assert mine["unseen/off"].interval is not None
    everywhere(records, warning)


# ---------------------------------------------------------------------------------------------- curves
@pytest.mark.parametrize(
    ("code", "change", "words"),
    [
        ("curve_gap", lambda curve: curve[:-1], "training metrics of 11 of 12 steps"),
        ("nan_curve", lambda curve: [{**curve[0], "train/success": "nan"}, *curve[1:]], "NaN or infinite"),
        ("nan_curve", lambda curve: [{**curve[0], "time/cpu_total_s": "inf"}, *curve[1:]], "NaN or infinite"),
        ("cpu_decreases", lambda curve: [*curve[:-1], {**curve[-1], "time/cpu_total_s": 1.0}], "decreases"),
        ("cpu_decreases", lambda curve: [{**c, "time/cpu_total_s": 0.0} for c in curve], "stays zero"),
    ],
)
def test_curves_that_cannot_be_averaged_are_left_out_and_named(sweep: Any, code: str, change: Any, words: str) -> None:
    sweep.write_spool("opid", 1, change(sweep.curve("opid", 1)))
    records = collect(sweep.out, "main_table")
    warning = only(records, code)
    assert words in warning.message and "learning curve is left out" in warning.message
    tables = make_tables(records)
    assert {c.n_seeds for k, c in tables.learning.items() if k[0].row == "opid"} == {2}
    everywhere(records, warning)


def test_incomplete_runs_are_not_checked_because_they_are_in_no_number(sweep: Any) -> None:
    sweep.edit_episodes("opid", 1, lambda rows: [*rows, rows[0]])
    sweep.write_state("opid", 1, state="failed", error="boom")
    records = collect(sweep.out, "main_table")
    assert records.warnings == ()
    assert status_of(records, "opid", "seen/off") is Status.SMALLER
