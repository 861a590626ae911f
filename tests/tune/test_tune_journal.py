"""The journal of a study: readable whatever happened to whoever wrote to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.files import DiskFullError, RecordError
from harness.tune.journal import Journal


def entries(path: Path) -> list[int]:
    return [entry["op"] for entry in Journal(path).read_logs(0)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "a study.journal"
    Journal(made).append_logs([{"op": 1}, {"op": 2}])
    return made


@pytest.mark.parametrize("torn", [b'{"op":3,"tor', b'{"op":3}', b"x" * 200_000])
def test_a_line_torn_while_others_write_is_cut_off_and_nothing_is_glued_to_it(path: Path, torn: bytes) -> None:
    other = Journal(path)  # opened before the line was torn: nothing is mended by opening
    with path.open("ab") as file:
        file.write(torn)
    assert entries(path) == [1, 2]
    other.append_logs([{"op": 4}])
    other.append_logs([{"op": 5}])
    assert entries(path) == [1, 2, 4, 5] and list(other.read_logs(3)) == [{"op": 5}]


def test_a_journal_that_holds_nothing_but_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "new.journal"
    path.write_bytes(b'{"op"')
    Journal(path).append_logs([{"op": 1}])
    assert entries(path) == [1]


def test_a_full_disk_leaves_what_was_there_and_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, bytes(data)[:7])

    journal = Journal(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(DiskFullError, match=r"a study\.journal"):
            journal.append_logs([{"op": 3, "more": "x"}])
    assert path.read_bytes() == before
    journal.append_logs([{"op": 4}])  # the lock was given back
    assert entries(path) == [1, 2, 4]


def test_a_file_that_is_gone_is_an_error_that_names_it(path: Path) -> None:
    journal = Journal(path)
    path.unlink()
    with pytest.raises(RecordError, match=r"a study\.journal"):
        journal.append_logs([{"op": 3}])
    with pytest.raises(RecordError, match="cannot read"):
        list(journal.read_logs(0))


def test_a_line_in_the_middle_that_is_no_entry_is_an_error_that_names_the_file(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"op":3,"tor{"op":4}\n{"op":5}\n')
    with pytest.raises(RecordError, match=r"a study\.journal holds a line that is no entry"):
        entries(path)
