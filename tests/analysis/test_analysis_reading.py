"""Reading many runs at once gives what reading each by itself gives."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import reading
from analysis.collect import collect
from analysis.figures.sources import Sources
from analysis.spools import METRICS, Spool, read_spool, read_spools
from analysis.table_csv import csv_text
from analysis.tables import make_tables


def metrics(step: Any, **values: Any) -> str:
    known = {name.replace("__", "/"): value for name, value in values.items()}
    return json.dumps({"t": 1.0, "kind": "metrics", "step": step, "values": known})


def event(name: str, **data: Any) -> str:
    return json.dumps({"t": 1.0, "kind": "event", "name": name, "data": data})


PLAIN = [event("started", metrics=1), *(metrics(n, train__success=0.1 * n, other=1) for n in (1, 2, 3))]
SPOOLS = {
    "plain": PLAIN,
    "empty": [],
    "events_only": [event("retired", step=3), event("teacher_measured", success=0.5, metrics=4)],
    "event_that_speaks_of_metrics": [*PLAIN, event("retired", metrics=2, step=2)],
    "text_for_nan": [*PLAIN, metrics(4, train__success="nan", time__cpu_total_s="inf")],
    "literal_nan": [*PLAIN, '{"kind": "metrics", "step": 4, "values": {"train/success": NaN}}'],
    "null": [*PLAIN, metrics(4, train__success=None)],
    "twice": [*PLAIN, metrics(3, train__success=0.9)],
    "several_records_of_a_step": [*PLAIN, metrics(3, time__cpu_total_s=4.0)],
    "backwards": [*PLAIN, metrics(2, time__cpu_total_s=4.0)],
    "step_0": [metrics(0, train__success=0.3), *PLAIN],
    "nothing_known": [*PLAIN, metrics(4, other=3)],
    "broken_line": [*PLAIN, '{"kind": "metrics", "st', metrics(4, train__success=0.4)],
    "broken_event": [*PLAIN, '{"kind": "event", "name": "retired'],
    "two_in_one_line": [*PLAIN, metrics(4, train__success=0.4) + metrics(5, train__success=0.4)],
    "no_object": [*PLAIN, '"metrics"', '["metrics", "event", "retired"]', "7"],
    "no_step": [*PLAIN, '{"kind": "metrics", "values": {"train/success": 0.4}}'],
    "no_values": [*PLAIN, '{"kind": "metrics", "step": 4}', '{"kind": "metrics", "step": 5, "values": [1]}'],
    "no_kind": [*PLAIN, '{"metrics": 3}'],
    "odd_event": [*PLAIN, '["event", "retired"]', '{"kind": "event", "name": "retired", "data": 3}'],
    "rewound": [*PLAIN, event("retired", step=1), event("retired", step=3)[:-1] + ', "rewound": true}'],
    "clocks": [event("clock", unit="wall_s", gpus=2), *PLAIN, event("analyzer_usage", step=1, calls=3, cost=0.5)],
    "another_kind": [*PLAIN, '{"kind": "note", "text": "metrics", "about": {"metrics": 3}}'],
}


def same(first: Spool, second: Spool) -> None:
    assert first.steps.tolist() == second.steps.tolist()
    np.testing.assert_array_equal(first.values, second.values)
    assert (first.events, first.problems) == (second.events, second.problems)
    assert (first.clocks, first.usage, first.unreadable) == (second.clocks, second.usage, second.unreadable)


@pytest.fixture
def spools(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / f"{name}.jsonl" for name in SPOOLS}
    for name, path in paths.items():
        path.write_text("".join(f"{line}\n" for line in SPOOLS[name]))
    paths["cut_off"] = tmp_path / "cut_off.jsonl"
    paths["cut_off"].write_text("\n".join(PLAIN))
    paths["missing"] = tmp_path / "nowhere.jsonl"
    return paths


def test_many_spools_at_once_are_what_each_is_by_itself(spools: dict[str, Path]) -> None:
    for paths in (list(spools.values()), list(reversed(spools.values()))):
        for path, found in zip(paths, read_spools(paths), strict=True):
            same(found, read_spool(path))


@pytest.mark.parametrize("name", [*SPOOLS, "cut_off", "missing"])
def test_one_spool_read_fast_is_what_it_is_line_by_line(spools: dict[str, Path], name: str) -> None:
    same(read_spools([spools[name]])[0], read_spool(spools[name]))


def test_what_spools_say(spools: dict[str, Path]) -> None:
    found = dict(zip(spools, read_spools(list(spools.values())), strict=True))
    success = METRICS.index("train/success")
    assert found["plain"].steps.tolist() == [1, 2, 3] == found["another_kind"].steps.tolist()
    assert found["plain"].values[:, success].tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert found["cut_off"].steps.tolist() == [1, 2]
    assert math.isnan(found["text_for_nan"].values[3, success])
    assert found["events_only"].events == {
        "retired": {"step": 3},
        "teacher_measured": {"success": 0.5, "metrics": 4},
    }
    assert "more than once" in found["twice"].problems[0] and found["several_records_of_a_step"].problems == ()
    assert "1 unreadable" in found["broken_line"].problems[0] and found["missing"].steps.size == 0


def test_odd_lines_are_counted_as_broken_and_never_stop_anything(spools: dict[str, Path]) -> None:
    """As the harness reads them: harness.spool."""
    found = dict(zip(spools, read_spools(list(spools.values())), strict=True))
    broken = {"no_object": 2, "no_step": 1, "no_values": 2, "no_kind": 1, "odd_event": 1}  # 7 says nothing of metrics
    for name, count in broken.items():
        assert found[name].steps.tolist() == [1, 2, 3]
        assert found[name].problems == (f"{count} unreadable lines in spool.jsonl",), name
    assert found["odd_event"].events == {"retired": {}}


def test_what_a_resume_has_undone_did_not_happen(spools: dict[str, Path]) -> None:
    found = read_spool(spools["rewound"])
    assert found.events == {"retired": {"step": 1}}


def test_clocks_and_usage_are_read(spools: dict[str, Path]) -> None:
    found = read_spools([spools["clocks"], spools["plain"]])
    assert str(found[0].clock) == "wall s of 2 GPUs" and str(found[1].clock) == "CPU s"
    assert found[0].usage["cost/analyzer_calls"] == 3 and found[0].usage["cost/analyzer_money"] == 0.5
    assert found[1].usage == {}


def test_a_spool_that_cannot_be_read_is_a_problem_of_its_run_alone(sweep: Any) -> None:
    path = sweep.run_dir("opid", 1) / "spool.jsonl"
    path.unlink()
    path.mkdir()
    records = collect(sweep.out, "main_table")
    (warning,) = (w for w in records.warnings if w.code == "unreadable_spool")
    assert warning.message == "opid, seed 1: spool.jsonl cannot be read (Is a directory)" and warning.refuses
    tables = make_tables(records)
    states = {cell.status.value for key, cell in tables.success.items() if key[0].row == "opid"}
    assert states == {"invalid"} and "grpo" in csv_text(tables)
    assert Sources.read(sweep.out, "main_table").runs_of(3) != []


def test_the_usual_spool_takes_no_second_look(spools: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(content: bytes) -> Spool:
        raise AssertionError("read line by line")

    monkeypatch.setattr("analysis.spools.parse_spool", refuse)
    usual = (
        "plain",
        "clocks",
        "rewound",
        "empty",
        "events_only",
        "event_that_speaks_of_metrics",
        "cut_off",
        "missing",
        "another_kind",
    )
    read_spools([spools[name] for name in usual])


def test_parts_of_any_size_give_the_same_tables(sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With files that were written differently, runs without any, and one that cannot be read."""
    path = sweep.run_dir("grpo", 1) / "episodes.parquet"
    table = pq.read_table(path)
    index = table.schema.get_field_index("length")
    pq.write_table(table.set_column(index, "length", table["length"].cast(pa.int16())), path)
    (sweep.run_dir("opid", 1) / "episodes.parquet").write_bytes(b"PAR1")
    (sweep.run_dir("vanilla", 0) / "episodes.parquet").unlink()
    whole = collect(sweep.out, "main_table")
    for size in (1, 4):
        monkeypatch.setattr(reading, "PART", size)
        records = collect(sweep.out, "main_table")
        assert [w.message for w in records.warnings] == [w.message for w in whole.warnings]
        assert csv_text(make_tables(records)) == csv_text(make_tables(whole))
    assert whole.episodes["cell"].is_monotonic_increasing and whole.episodes["run"].nunique() == 13
