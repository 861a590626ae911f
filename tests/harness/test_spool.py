"""The spool: whole lines whatever happens, rewinding, numbers that are none."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.files import DiskFullError, RecordError
from harness.spool import Spool


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "a b" / "spool.jsonl") if (tmp_path / "a b").mkdir() is None else pytest.fail("never")


def kinds(spool: Spool) -> list[Any]:
    return [entry.get("step", entry.get("name")) for entry in spool.read()]


def test_lines_come_back_in_order_with_times(spool: Spool) -> None:
    assert list(spool.read()) == []
    spool.event("started", host="h", path=Path("x"), numbers=(1, 2))
    spool.metrics(0, {"loss": 0.1 + 0.2, "count": 3})
    first, second = spool.read()
    assert first["data"] == {"host": "h", "path": "x", "numbers": [1, 2]}
    assert second["values"] == {"loss": 0.1 + 0.2, "count": 3.0}
    assert (first["kind"], second["kind"], second["step"]) == ("event", "metrics", 0)
    assert first["t"] <= second["t"]


def test_numbers_that_are_none_become_words_and_an_event(spool: Spool) -> None:
    spool.metrics(4, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0})
    metrics, event = spool.read()
    assert metrics["values"] == {"a": "nan", "b": "inf", "c": "-inf", "d": 1.0}
    assert math.isnan(float(metrics["values"]["a"])) and float(metrics["values"]["c"]) == -math.inf
    assert event["name"] == "non_finite_metric"
    assert event["data"] == {"step": 4, "values": {"a": "nan", "b": "inf", "c": "-inf"}}
    spool.event("strange", value=math.nan)
    for line in spool.path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(("step", "values"), [(-1, {"a": 1.0}), (0, {"": 1.0}), (0, {"a": "many"}), (0, {"a": None})])
def test_wrong_metrics_are_refused_and_not_written(spool: Spool, step: int, values: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        spool.metrics(step, values)
    with pytest.raises(TypeError):
        spool.metrics(1.5, {"a": 1.0})  # type: ignore[arg-type]
    assert not spool.path.exists()


def test_a_torn_last_line_is_left_out_and_later_lines_are_whole(spool: Spool) -> None:
    spool.metrics(1, {"a": 1.0})
    spool.close()
    with spool.path.open("ab") as file:
        file.write(b'{"t": 1.0, "kind": "metr')
    assert kinds(spool) == [1]
    fresh = Spool(spool.path)
    fresh.metrics(2, {"a": 2.0})
    assert kinds(fresh) == [1, 2]
    assert kinds(spool) == [1, 2]
    assert [entry["step"] for entry in spool.tail()] == [1, 2]


@pytest.mark.parametrize("junk", [b"\x00\xff\xfe\n", b"[1]\n", b"3\n", b'{"no": "kind"}\n', b"\n"])
def test_foreign_lines_are_left_out(spool: Spool, junk: bytes) -> None:
    spool.path.write_bytes(junk)
    spool.metrics(1, {"a": 1.0})
    assert kinds(spool) == [1]


def test_the_tail_is_short_and_whole(spool: Spool) -> None:
    assert spool.tail() == []
    for step in range(200):
        spool.metrics(step, {"a": float(step)})
    steps = [entry["step"] for entry in spool.tail(size=1000)]
    assert steps == list(range(200))[-len(steps) :]
    assert 3 < len(steps) < 30


def test_rewinding_forgets_later_metrics_and_keeps_events(spool: Spool) -> None:
    spool.event("attempt_started")
    for step in (1, 2, 3, 4):
        spool.metrics(step, {"a": float(step)})
        spool.event(f"after {step}")
    assert spool.truncate_after(2) == 2
    assert kinds(spool) == ["attempt_started", 1, "after 1", 2, "after 2", "after 3", "after 4", "spool_truncated"]
    entries = list(spool.read())
    assert [entry["name"] for entry in entries if entry.get("rewound")] == ["after 3", "after 4"]
    assert entries[-1]["data"] == {"after": 2, "dropped": 2}
    before = spool.path.read_bytes()
    assert spool.truncate_after(2) == 0
    assert spool.path.read_bytes() == before
    spool.metrics(3, {"a": 30.0})
    assert kinds(spool)[-1] == 3


def test_rewinding_removes_torn_lines_and_needs_no_file(spool: Spool) -> None:
    assert spool.truncate_after(5) == 0
    assert not spool.path.exists()
    spool.metrics(1, {"a": 1.0})
    spool.close()
    with spool.path.open("ab") as file:
        file.write(b'{"torn')
    assert spool.truncate_after(5) == 0
    assert spool.path.read_bytes().endswith(b"}\n")


def test_a_rewind_that_fails_changes_nothing(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    spool.metrics(1, {"a": 1.0})
    spool.metrics(2, {"a": 1.0})
    before = spool.path.read_bytes()

    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFullError):
        spool.truncate_after(1)
    monkeypatch.undo()
    assert spool.path.read_bytes() == before
    assert [path.name for path in spool.path.parent.iterdir()] == ["spool.jsonl"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "spool.jsonl").symlink_to("/dev/full")
    with pytest.raises(DiskFullError, match=r"no room to write .*spool\.jsonl.*free space"):
        Spool(tmp_path / "spool.jsonl").metrics(1, {"a": 1.0})


def test_a_disk_that_fills_up_in_mid_line_leaves_whole_lines(tmp_path: Path) -> None:
    # A limit on the file's size behaves like a disk that fills up: a part is written, then nothing.
    code = """
import resource, sys
from pathlib import Path
from harness.files import DiskFullError
from harness.spool import Spool
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
spool = Spool(Path(sys.argv[1]))
for step in range(100):
    try:
        spool.metrics(step, {"value": 1.0})
    except DiskFullError:
        print(step)
        break
"""
    path = tmp_path / "spool.jsonl"
    finished = subprocess.run(
        [sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True, timeout=60
    )
    written = int(finished.stdout)
    assert 5 < written < 30
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert [json.loads(line)["step"] for line in lines] == list(range(written))
    Spool(path).metrics(written, {"value": 2.0})
    assert kinds(Spool(path)) == list(range(written + 1))


def test_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot write"):
        Spool(tmp_path / "gone" / "spool.jsonl").event("x")


def test_writers_of_several_processes_never_mix_lines(spool: Spool) -> None:
    code = """
import sys
from pathlib import Path
from harness.spool import Spool
spool = Spool(Path(sys.argv[1]))
for step in range(200):
    spool.event("e" + sys.argv[2], filler="x" * 300, step=step)
"""
    command = [sys.executable, "-c", code, str(spool.path)]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    entries = list(spool.read())
    assert len(entries) == 600
    for number in range(3):
        assert [e["data"]["step"] for e in entries if e["name"] == f"e{number}"] == list(range(200))
