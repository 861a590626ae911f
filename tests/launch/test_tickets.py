"""Tickets: the one that counts, all there were, and what became of their jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm

from harness.files import DiskFullError, RecordError
from harness.launch import tickets
from harness.launch.lookup import Lookup
from harness.launch.scheduler import user_name
from harness.launch.shapes import Shape
from harness.launch.tickets import Ticket


def ticket(job: str = "12_3", submitted: float = 1000.0, **changes: object) -> Ticket:
    made = Ticket(job, submitted, 1, 0, Shape(2, 8), "/x/script.sh", "/x/log", "lab", "/x/snapshots/a", "quick", "me")
    return replace(made, **changes)  # type: ignore[arg-type]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert tickets.read(tmp_path) is None
    assert tickets.history(tmp_path) == []
    tickets.write(tmp_path, ticket())
    assert tickets.read(tmp_path) == ticket()
    assert tickets.history(tmp_path) == [ticket()]


def test_the_last_one_counts_and_all_are_remembered(tmp_path: Path) -> None:
    first, second = ticket(), ticket("15_0", 2000.0, attempt=2)
    tickets.write(tmp_path, first)
    tickets.write(tmp_path, second)
    again = replace(second, requeues=1)
    tickets.write(tmp_path, again)
    assert tickets.read(tmp_path) == again
    assert tickets.history(tmp_path) == [first, again]
    tickets.clear(tmp_path)
    tickets.clear(tmp_path)
    assert tickets.read(tmp_path) is None
    assert tickets.history(tmp_path) == [first, again]


def test_a_line_cut_short_spoils_no_other(tmp_path: Path) -> None:
    tickets.write(tmp_path, ticket())
    with (tmp_path / "tickets.jsonl").open("a") as file:
        file.write('{"job_id": "13", "subm')
    assert tickets.history(tmp_path) == [ticket()]
    tickets.write(tmp_path, ticket("14", 3000.0))
    assert [found.job_id for found in tickets.history(tmp_path)] == ["12_3", "14"]


def test_a_field_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ticket.json").write_text(json.dumps({"job_id": "1", "submitted": 1.0, "colour": "green"}))
    assert tickets.read(tmp_path) == Ticket("1", 1.0)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"job_id": 4, "submitted": 1.0}', '{"job_id": "4", "submitted": "x"}']
)
def test_a_ticket_that_makes_no_sense_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "ticket.json").write_text(text)
    with pytest.raises(RecordError, match=r"ticket\.json"):
        tickets.read(tmp_path)


def test_a_full_disk_leaves_the_ticket_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    tickets.write(tmp_path, ticket())

    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFullError):
        tickets.write(tmp_path, ticket("14", 3000.0))
    monkeypatch.undo()
    assert tickets.read(tmp_path) == ticket()
    assert tickets.history(tmp_path) == [ticket()]


def test_the_state_of_its_job(slurm: FakeSlurm) -> None:
    slurm.says("scontrol", "ClusterName = lab\n")
    slurm.queue(("12_3", "RUNNING"))
    slurm.accounts()
    lookup = Lookup(slurm.client())
    own = ticket(user=user_name())
    assert tickets.state_of(own, lookup).kind == "running"
    assert tickets.state_of(replace(own, job_id="12_4"), lookup).kind == "gone"
    hidden = tickets.state_of(ticket("12_4", user="somebody else"), lookup)
    assert hidden.kind == "unknown" and "somebody else" in hidden.reason
    elsewhere = tickets.state_of(replace(own, cluster="another"), lookup)
    assert elsewhere.kind == "unknown" and "another" in elsewhere.reason


def test_many_at_once(tmp_path: Path) -> None:
    runs = [tmp_path / f"run {number}" for number in range(40)]
    for run in runs:
        run.mkdir()
    tickets.write_all({run: ticket(f"12_{number}") for number, run in enumerate(runs)})
    for number, run in enumerate(runs):
        assert tickets.read(run) == ticket(f"12_{number}")
        assert tickets.history(run) == [ticket(f"12_{number}")]
    tickets.write_all({})


def test_one_that_cannot_be_written_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(RecordError):
        tickets.write_all({tmp_path / "missing": ticket(), tmp_path / "b": ticket("13")})
    assert tickets.read(tmp_path / "b") == ticket("13")
