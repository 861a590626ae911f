"""Tickets: the one that counts, all there were, and what became of their jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm

from harness.files import DiskFullError, RecordError
from harness.launch import tickets
from harness.launch.queue import Queue
from harness.launch.scheduler import user_name
from harness.launch.shapes import Shape
from harness.launch.tickets import Ticket
from harness.record import RunDirectory


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
    with pytest.raises(RecordError, match=r"ticket\.json.* tickets\.jsonl beside it names the run's jobs; delete"):
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


# ------------------------------------------------------------------------------------- what the scheduler says of them
def test_a_ticket_that_cannot_be_read_is_a_job_of_unknown_state_and_stops_no_other(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.says("scontrol", "ClusterName = lab\n")
    slurm.queue(("12_3", "RUNNING"))
    runs = [RunDirectory(tmp_path / name) for name in "ab"]
    for run in runs:
        run.path.mkdir()
    tickets.write(runs[0].path, ticket(user=user_name()))
    (runs[1].path / "ticket.json").write_text('{"job_id": "1')
    queue = Queue(slurm.client())
    found = queue.look(runs)
    assert (found["a"].state.kind, found["b"].state.kind) == ("running", "unknown")
    assert found["b"].live and queue.holds(runs[1]) == found["b"]
    told = found["b"].told(runs[1])
    assert told.startswith("its job is not known: ") and "tickets.jsonl" in told and "move it away" not in told


def test_a_job_that_may_be_hidden_is_not_gone(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.says("scontrol", "ClusterName = lab\n")
    slurm.queue()
    slurm.accounts()
    run = RunDirectory(tmp_path)
    for user, kind in ((user_name(), "gone"), ("somebody else", "unknown")):
        tickets.write(run.path, ticket(user=user))
        (held,) = Queue(slurm.client()).look([run]).values()
        assert held.state.kind == kind
    assert "somebody else" in held.state.reason
    assert f"if you know that it is gone, delete {tmp_path / 'ticket.json'}" in held.told(run)


def test_a_runaway_job_is_named_with_what_ends_its_record(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.says("scontrol", "ClusterName = lab\n")
    slurm.queue()
    slurm.accounts(("12_3", "RUNNING"))
    tickets.write(tmp_path, ticket(user=user_name()))
    (held,) = Queue(slurm.client()).look([RunDirectory(tmp_path)]).values()
    assert held.live and "sacctmgr show runawayjobs" in held.told(RunDirectory(tmp_path))
