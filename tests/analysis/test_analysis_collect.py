"""What is read, and what happens to a plan or a run that cannot be read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import methods
from analysis.collect import collect
from analysis.plan import plan_path
from analysis.runfiles import EPISODE_SCHEMA
from analysis.spools import EVENTS, METRICS
from harness import training as harness_training
from harness.claim import acquire
from harness.errors import ConfigError
from harness.states import derive_state


def codes(records: Any) -> list[str]:
    return [warning.code for warning in records.warnings]


def test_a_clean_sweep_gives_every_cell_episode_and_step_and_no_warning(sweep: Any) -> None:
    records = collect(sweep.out, "main_table")
    assert [line.row for line in records.lines] == ["vanilla", "vanilla_skill", "grpo", "opid", "opid_random"]
    assert records.cells["complete"].all() and len(records.cells) == 15
    assert len(records.episodes) == 15 * 2 * 30
    assert sum(len(spool.steps) for spool in records.spools) == 9 * 12
    assert records.warnings == ()


def test_lines_follow_the_rows_of_the_plan_whatever_the_order_of_its_cells(sweep: Any) -> None:
    sweep.cells.reverse()
    sweep.write_plan()
    records = collect(sweep.out, "main_table")
    assert [line.row for line in records.lines] == ["vanilla", "vanilla_skill", "grpo", "opid", "opid_random"]


def test_other_backbones_fractions_and_protocols_are_lines_of_their_own(make_sweep: Callable[..., Any]) -> None:
    sweep = make_sweep(seeds=(0, 1))
    for change in ({"backbone": "tiny-m"}, {"fraction": 0.5}, {"protocol": "paper"}, {"scale": "test"}):
        sweep.add("grpo", 0, **change)
    sweep.write_plan()
    lines = [line for line in collect(sweep.out, "main_table").lines if line.row == "grpo"]
    assert len(lines) == 5 and len({line.setting for line in lines}) == 5


@pytest.mark.parametrize("state", ["failed", "interrupted", "submitted"])
def test_the_run_directory_is_the_truth_about_states(sweep: Any, state: str) -> None:
    sweep.write_state("opid", 1, state=state, error="killed", last_step=4)
    records = collect(sweep.out, "main_table")
    row = records.cells[(records.cells["row"] == "opid") & (records.cells["seed"] == 1)].iloc[0]
    assert (row["state"], row["complete"], row["error"], row["last_step"]) == (state, False, "killed", 4)


def state_of(sweep: Any, row: str, seed: int) -> tuple[str, str]:
    cells = collect(sweep.out, "main_table").cells
    found = cells[(cells["row"] == row) & (cells["seed"] == seed)].iloc[0]
    return found["state"], found["error"]


def test_a_run_is_running_only_while_somebody_works_on_it(sweep: Any) -> None:
    """As do=status judges: a run that was killed is interrupted, however its state was left."""
    sweep.write_state("opid", 1, state="running", last_step=4)
    path = sweep.run_dir("opid", 1) / "claim.json"
    assert state_of(sweep, "opid", 1) == ("interrupted", "left unfinished: nobody works on it")
    with acquire(path) or pytest.fail("not claimed"):
        assert state_of(sweep, "opid", 1) == ("running", "")
    path.write_text("{}")  # names nobody, as the claim of another machine names nobody here
    assert state_of(sweep, "opid", 1) == ("recorded as running", "")
    assert derive_state(sweep.run_dir("opid", 1)).state == "running"


def test_a_run_that_lacks_something_is_not_complete_whatever_it_says(sweep: Any) -> None:
    sweep.write_state("opid", 1, last_step=11)
    state, error = state_of(sweep, "opid", 1)
    assert state == "failed" and "11 of 12 training steps done" in error
    sweep.write_state("opid", 1, last_step=12, declared=["seen/off", "unseen/off", "held_out/off"])
    assert "evaluation held_out/off not done" in state_of(sweep, "opid", 1)[1]


def test_a_run_that_never_started_is_pending_and_stays_in_the_records(sweep: Any) -> None:
    shutil.rmtree(sweep.run_dir("opid", 1))
    records = collect(sweep.out, "main_table")
    assert records.cells["state"].tolist().count("pending") == 1
    assert len(records.cells) == 15


# ---------------------------------------------------------------------------------------------- the plan
def test_an_unknown_sweep_names_the_nearest_one(sweep: Any) -> None:
    with pytest.raises(ConfigError, match="did you mean 'main_table'") as error:
        collect(sweep.out, "main_tabel")
    assert "do=plan" in str(error.value) and "sweep=main_tabel" in str(error.value)


def test_a_folder_without_any_plan_says_so(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="planned here: none"):
        collect(tmp_path, "main_table")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "version is 3, this code reads version 2"),
        ({"cells": []}, "must not be empty"),
        ({"rows": "x"}, "must be lists"),
        ({"cells": [{"row": "grpo"}]}, r"cells\[0\] has no fingerprint, method, seed"),
        ({"rows": []}, r"cells\[0\].row is 'vanilla', which is not among `rows`"),
    ],
)
def test_a_plan_that_cannot_be_understood_is_refused(sweep: Any, change: dict[str, Any], message: str) -> None:
    sweep.write_plan(**change)
    with pytest.raises(ConfigError, match=message):
        collect(sweep.out, "main_table")


def test_a_plan_that_is_no_json_is_refused(sweep: Any) -> None:
    plan_path(sweep.out, "main_table").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        collect(sweep.out, "main_table")


# ---------------------------------------------------------------------------------------------- one run
def test_a_spool_cut_off_in_its_last_line_is_normal(sweep: Any) -> None:
    path = sweep.run_dir("grpo", 0) / "spool.jsonl"
    path.write_text(path.read_text() + '{"t": 3.0, "kind": "metrics", "st')
    assert collect(sweep.out, "main_table").warnings == ()


def test_a_spool_broken_inside_is_shown(sweep: Any) -> None:
    path = sweep.run_dir("grpo", 0) / "spool.jsonl"
    path.write_text(path.read_text() + '{"kind": "metrics", "st\n')
    records = collect(sweep.out, "main_table")
    assert codes(records) == ["spool"] and "1 unreadable lines" in records.warnings[0].message


def test_a_step_recorded_twice_counts_once_with_its_last_record(sweep: Any) -> None:
    path = sweep.run_dir("grpo", 0) / "spool.jsonl"
    values = {**sweep.curve("grpo", 0)[11], "train/success": 1.0}
    path.write_text(path.read_text() + json.dumps({"kind": "metrics", "step": 12, "values": values}) + "\n")
    records = collect(sweep.out, "main_table")
    cell = next(w.cells[0] for w in records.warnings if w.code == "spool")
    steps, numbers = records.spools[cell].steps, records.spools[cell].values
    assert steps.tolist() == list(range(1, 13)) and numbers[-1, 0] == 1.0
    assert "recorded more than once" in records.warnings[0].message


def test_an_unreadable_episode_file_refuses_the_row(sweep: Any) -> None:
    (sweep.run_dir("grpo", 0) / "episodes.parquet").write_bytes(b"PAR1 this is not parquet")
    records = collect(sweep.out, "main_table")
    warning = next(w for w in records.warnings if w.code == "unreadable_episodes")
    assert warning.refuses == "invalid" and "cannot be read" in warning.message


def test_a_missing_column_is_named(sweep: Any) -> None:
    path = sweep.run_dir("grpo", 0) / "episodes.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["selection", "context"]), path)
    records = collect(sweep.out, "main_table")
    assert "no column context, selection" in next(w for w in records.warnings if w.refuses).message


def test_a_column_of_another_type_is_refused(sweep: Any) -> None:
    path = sweep.run_dir("grpo", 0) / "episodes.parquet"
    table = pq.read_table(path)
    index = table.schema.get_field_index("length")
    pq.write_table(table.set_column(index, "length", pa.array(["long"] * table.num_rows)), path)
    records = collect(sweep.out, "main_table")
    warning = next(w for w in records.warnings if w.code == "unreadable_episodes")
    assert warning.refuses == "invalid" and "another type" in warning.message and "grpo, seed 0" in warning.message


def test_a_state_that_is_no_json_is_not_complete(sweep: Any) -> None:
    (sweep.run_dir("grpo", 0) / "state.json").write_text('{"state": "comp')
    records = collect(sweep.out, "main_table")
    assert records.cells["state"].tolist().count("unreadable") == 1
    assert "unreadable_state" in codes(records)


def test_types_written_differently_are_read_alike(sweep: Any) -> None:
    """Dictionaries, narrow integers and columns that hold only nulls are all how someone may write them."""
    path = sweep.run_dir("grpo", 0) / "episodes.parquet"
    table = pq.read_table(path)
    assert pa.types.is_null(table.schema.field("failure").type)
    for name, value in (
        ("panel", table["panel"].dictionary_encode()),
        ("length", table["length"].cast(pa.int16())),
        ("failure", pa.nulls(table.num_rows, pa.large_string())),
    ):
        table = table.set_column(table.schema.get_field_index(name), name, value)
    before = collect(sweep.out, "main_table").episodes
    pq.write_table(table, path)
    records = collect(sweep.out, "main_table")
    assert records.warnings == () and len(records.episodes) == len(before)
    key = ["cell", "panel", "task_id"]
    mine = records.episodes.astype({"panel": str, "task_id": str}).sort_values(key)
    theirs = before.astype({"panel": str, "task_id": str}).sort_values(key)
    assert mine["length"].tolist() == theirs["length"].tolist()


def test_an_empty_failure_text_is_no_failure(sweep: Any) -> None:
    sweep.edit_episodes("grpo", 0, lambda rows: [{**r, "failure": ""} for r in rows])
    assert collect(sweep.out, "main_table").warnings == ()


def test_what_is_read_is_what_runs_write() -> None:
    """The columns and metric names of this module are those of the code that records them."""
    pytest.importorskip("torch")
    from harness.evaluation import SCHEMA

    assert set(EPISODE_SCHEMA.names) <= set(SCHEMA.names)
    engine = "".join(path.read_text() for path in sorted(Path(harness_training.__path__[0]).glob("*.py")))
    method = "".join(path.read_text() for path in sorted(Path(methods.__path__[0]).glob("*.py")))
    for name in METRICS:
        group, _, short = name.partition("/")
        if group == "method":
            assert f'"{short}"' in method, name
        else:
            assert f'"{name}"' in engine or (group == "time" and f'"{short.removesuffix("_s")}"' in engine), name
    run = (Path(harness_training.__path__[0]).parent / "run.py").read_text()
    assert all(f'"{event}"' in run for event in EVENTS)
