"""Claims: one holder, takeover from the provably dead only, and by exactly one."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness import claim as claims
from harness.claim import acquire, inspect
from harness.files import DiskFullError, RecordError
from harness.locks import LockTimeoutError, file_lock
from harness.owner import process_start

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    folder.mkdir()
    return folder / "claim.json"


def plant(path: Path, **changes: object) -> claims.Owner:
    owner = replace(claims.current_owner(), **changes)  # type: ignore[arg-type]
    path.write_text(json.dumps(asdict(owner)))
    return owner


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_one_holder_until_it_releases(path: Path) -> None:
    assert inspect(path).status == "free"
    with acquire(path) or pytest.fail("free") as claim:
        assert claim.held()
        assert inspect(path).status == "alive"
        assert acquire(path) is None
    assert inspect(path).status == "free"
    assert [item.name for item in path.parent.iterdir()] == []


def test_release_leaves_a_claim_of_somebody_else(path: Path) -> None:
    claim = acquire(path) or pytest.fail("free")
    plant(path, token="another")
    claim.release()
    assert path.exists()


def test_release_in_a_forked_child_does_nothing(path: Path) -> None:
    claim = acquire(path) or pytest.fail("free")
    child = FORK.Process(target=claim.release)
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert claim.held()


@pytest.mark.parametrize(
    "changes",
    [{"pid": 2**22 + 1}, {"start": 1.0}, {"boot": "another boot"}, {"boot": "another boot", "namespace": "other"}],
    ids=["gone", "other start time", "rebooted", "rebooted container"],
)
def test_the_provably_dead_are_succeeded(path: Path, changes: dict[str, object]) -> None:
    old = plant(path, **changes)
    assert inspect(path).status == "dead"
    claim = acquire(path) or pytest.fail("dead")
    assert claim.owner.token != old.token
    assert claim.held()
    assert inspect(path).status == "alive"


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "elsewhere", "pid": 2**22 + 1},
        {"machine": "another installation", "boot": "another boot"},
        {"namespace": "pid:[1]", "pid": 2**22 + 1},
    ],
    ids=["other host", "other machine of the same name", "container"],
)
def test_the_unknown_are_never_succeeded(path: Path, changes: dict[str, object]) -> None:
    old = plant(path, **changes)
    assert inspect(path).status == "unknown"
    assert acquire(path) is None
    assert inspect(path).owner == old


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', "null"])
def test_an_unreadable_claim_is_unknown(path: Path, text: str) -> None:
    path.write_text(text)
    assert inspect(path).status == "unknown"
    assert acquire(path) is None
    assert path.read_text() == text


def test_a_process_hidden_from_us_is_unknown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_permitted(pid: int, number: int) -> None:
        raise PermissionError(1, "not permitted")

    plant(path, pid=2**22 + 1)
    monkeypatch.setattr(os, "kill", not_permitted)
    assert inspect(path).status == "unknown"
    assert acquire(path) is None


def test_a_zombie_is_dead(path: Path) -> None:
    code = "import sys; from pathlib import Path; from harness.claim import acquire; acquire(Path(sys.argv[1]))"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        stat = Path(f"/proc/{process.pid}/stat")
        deadline = time.monotonic() + 60
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline, "the child does not end"
            time.sleep(0.02)
        assert inspect(path).status == "dead"
        (acquire(path) or pytest.fail("a zombie holds nothing")).release()
    finally:
        process.wait()


def test_a_program_name_with_brackets_is_parsed(tmp_path: Path) -> None:
    script = tmp_path / "odd ) S (name"
    script.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(script), "60"])
    try:
        start = process_start(process.pid)
        assert start is not None and start > 1000
    finally:
        process.kill()
        process.wait()
    assert process_start(process.pid) is None


def test_nothing_is_left_when_the_disk_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFullError):
        acquire(path)
    monkeypatch.undo()
    assert list(path.parent.iterdir()) == []
    assert inspect(path).status == "free"


def _compete(path: Path, start: object, results: object, hold: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    claim = acquire(path)
    results.put(os.getpid() if claim else None)  # type: ignore[attr-defined]
    hold.wait()  # type: ignore[attr-defined]


def _winners(path: Path, number: int) -> list[int]:
    start, results, hold = FORK.Event(), FORK.Queue(), FORK.Event()
    processes = [FORK.Process(target=_compete, args=(path, start, results, hold)) for _ in range(number)]
    for process in processes:
        process.start()
    start.set()
    answers = [results.get(timeout=60) for _ in processes]
    winners = [answer for answer in answers if answer is not None]
    owner = inspect(path).owner
    assert owner is not None and [owner.pid] == winners[:1]
    hold.set()
    for process in processes:
        process.join(60)
    return winners


def test_of_many_processes_one_gets_a_free_claim(path: Path) -> None:
    for _ in range(5):
        assert len(_winners(path, 12)) == 1
        path.unlink()


def test_of_many_processes_one_takes_over(path: Path) -> None:
    # Each round the winner ends without releasing, so the next round starts from a really stale claim.
    plant(path, pid=dead_pid())
    for _ in range(6):
        assert len(_winners(path, 12)) == 1


def _work(path: Path, witness: Path, rounds: int) -> None:
    for _ in range(rounds):
        claim = None
        while claim is None:
            claim = acquire(path)
        descriptor = os.open(witness, os.O_CREAT | os.O_EXCL | os.O_WRONLY)  # fails if two hold the claim
        os.close(descriptor)
        witness.unlink()
        claim.release()


def test_holders_never_overlap(path: Path, tmp_path: Path) -> None:
    processes = [FORK.Process(target=_work, args=(path, tmp_path / "witness", 20)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0


# ---------------------------------------------------------------------------------------------------- locks
def _increment(lock: Path, counter: Path, times: int) -> None:
    for _ in range(times):
        with file_lock(lock, poll=0.001):
            counter.write_text(str(int(counter.read_text()) + 1))


def test_a_lock_excludes_other_processes(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [FORK.Process(target=_increment, args=(tmp_path / "new dir" / "lock", counter, 25)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert counter.read_text() == "100"


def test_waiting_for_a_lock_is_told_once_and_can_be_bounded(tmp_path: Path) -> None:
    told: list[int] = []
    with file_lock(tmp_path / "lock"):
        with (
            pytest.raises(LockTimeoutError, match="locked by another process"),
            file_lock(tmp_path / "lock", timeout=0.2, on_wait=lambda: told.append(1)),
        ):
            pytest.fail("two hold the lock")
        assert told == [1]
    with file_lock(tmp_path / "lock", timeout=0):
        pass


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from harness.locks import file_lock\n"
        "with file_lock(Path(sys.argv[1])): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], check=False).returncode == 9
    with file_lock(tmp_path / "lock", timeout=0):
        pass


def test_a_lock_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError), file_lock(tmp_path / "file" / "lock"):
        pytest.fail("no folder to lock in")
