"""Claims of jobs: judged by the scheduler where the machine cannot know, and taken over by exactly one machine."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness import claim as claims
from harness.claim import Owner, acquire, inspect, judge
from harness.files import DiskFullError
from harness.launch import lookup
from harness.launch.jobstates import JobState
from harness.owner import job_of_process

FORK = multiprocessing.get_context("fork")
GONE_PID = 2**22 + 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    folder.mkdir()
    return folder / "claim.json"


def says(kind: str, restarts: int | None = 0, word: str = "") -> claims.AskJob:
    return lambda job, cluster: JobState(job, word, kind, restarts=restarts)


def never(job: str, cluster: str) -> JobState:
    raise AssertionError("the scheduler was asked")


def owner(**changes: object) -> Owner:
    """A process of a job on another machine."""
    made = replace(claims.current_owner(), host="node7", pid=GONE_PID, job="12_3", cluster="lab", restarts=0)
    return replace(made, **changes)  # type: ignore[arg-type]


def plant(path: Path, who: Owner) -> Owner:
    path.write_text(json.dumps(asdict(who)))
    return who


def successor(path: Path, token: str) -> Path:
    return path.with_name(f".{path.name}.{token}.next")


def leftovers(path: Path) -> list[str]:
    return sorted(item.name for item in path.parent.iterdir())


# ---------------------------------------------------------------------------------------------------- whose job
@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, {}),
        ({"SLURM_JOB_ID": "12"}, {"job": "12", "restarts": 0, "cluster": ""}),
        (
            {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "2"},
            {"job": "12_3", "restarts": 2, "cluster": ""},
        ),
        (
            {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "lab", "SLURM_RESTART_COUNT": "x"},
            {"job": "12", "restarts": 0, "cluster": "lab"},
        ),
    ],
)
def test_the_job_of_a_process(variables: dict[str, str], found: dict[str, object]) -> None:
    assert job_of_process(variables) == found


def test_a_claim_in_a_job_names_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "lab", "SLURM_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    with acquire(path) or pytest.fail("free") as claim:
        assert (claim.owner.job, claim.owner.restarts, claim.owner.cluster) == ("12", 1, "lab")
        assert claim.owner.uid == os.getuid()
        assert inspect(path, never).status == "alive"


def test_a_claim_of_an_earlier_version_is_read(path: Path) -> None:
    content = asdict(claims.current_owner())
    for name in ("job", "restarts", "cluster", "uid"):
        del content[name]
    path.write_text(json.dumps(content))
    assert inspect(path, never).status == "alive"


# ---------------------------------------------------------------------------------------------------- judging
@pytest.mark.parametrize(
    ("state", "status"),
    [
        (("running", 0, "RUNNING"), "alive"),
        (("running", None, "COMPLETING"), "alive"),
        (("running", 1, "RUNNING"), "dead"),  # it was started again, so this start of it has ended
        (("queued", 1, "PENDING"), "dead"),
        (("queued", 0, "PENDING"), "dead"),
        (("ended", 0, "FAILED"), "dead"),
        (("ended", None, "COMPLETED"), "dead"),
        (("gone", None, ""), "dead"),
        (("requeued", 0, "REQUEUED"), "unknown"),  # its processes may not have ended yet
        (("requeued", 0, "NODE_FAIL"), "unknown"),
        (("unknown", None, "TELEPORTED"), "unknown"),
        (("unknown", None, ""), "unknown"),
    ],
)
def test_what_the_scheduler_says_of_a_job_elsewhere(
    path: Path, state: tuple[str, int | None, str], status: str
) -> None:
    planted = plant(path, owner())
    ask = says(*state)
    found = inspect(path, ask)
    assert (found.status, found.owner) == (status, planted)
    assert "12_3" in found.reason
    claim = acquire(path, ask)
    assert (claim is not None) == (status == "dead")
    assert leftovers(path) == ["claim.json"]
    if claim is not None:
        assert claim.held()
        claim.release()
        assert leftovers(path) == []


def test_the_scheduler_is_told_job_and_cluster() -> None:
    asked: list[tuple[str, str]] = []

    def ask(job: str, cluster: str) -> JobState:
        asked.append((job, cluster))
        return JobState(job, "RUNNING", "running", restarts=0)

    assert judge(owner(), ask).status == "alive"
    assert asked == [("12_3", "lab")]


def test_the_scheduler_of_this_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "default_lookup", lambda: says("ended"))
    assert judge(owner()).status == "dead"


def test_claims_without_a_job_are_never_asked_about() -> None:
    assert judge(owner(job=""), never).status == "unknown"


def test_what_this_machine_knows_counts_more() -> None:
    mine = replace(claims.current_owner(), job="12_3")
    assert judge(mine, never).status == "alive"
    assert judge(replace(mine, pid=GONE_PID), never).status == "dead"
    assert judge(replace(mine, boot="another"), never).status == "dead"
    contained = replace(mine, namespace="pid:[1]")
    assert [judge(contained, says(kind)).status for kind in ("running", "ended")] == ["alive", "dead"]


def test_a_restarted_job_succeeds_its_own_earlier_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "lab")
    assert judge(owner(), never).status == "dead"  # no scheduler is needed for that
    assert judge(owner(restarts=1), says("running", 1)).status == "alive"
    assert judge(owner(cluster="another"), says("unknown")).status == "unknown"
    assert judge(owner(job="12_4"), says("unknown")).status == "unknown"


def test_a_job_that_may_be_hidden_is_unknown() -> None:
    other = owner(uid=os.getuid() + 1)
    assert judge(other, says("gone")).status == "unknown"
    assert judge(other, says("ended")).status == "dead"


# ---------------------------------------------------------------------------------------------------- elections
def test_a_successor_that_died_early_is_succeeded(path: Path) -> None:
    """Elected, but gone before its claim was in place: the links lead to it, and on from it."""
    first, second = owner(token="a"), owner(token="b", job="13")
    plant(path, first)
    plant(successor(path, "a"), second)
    found = inspect(path, says("running"))
    assert (found.status, found.owner) == ("alive", second)
    assert acquire(path, says("running")) is None
    claim = acquire(path, says("ended")) or pytest.fail("both are dead")
    assert claim.held()
    assert leftovers(path) == ["claim.json"]


@pytest.mark.parametrize("freed", [False, True])
def test_an_election_that_comes_late_is_void(path: Path, freed: bool) -> None:
    """A process that judged the owner dead long ago, and goes on after another one has taken over (and ended)."""
    dead = plant(path, owner())
    claim = acquire(path, says("ended")) or pytest.fail("dead")
    if freed:
        claim.release()
    late = claims.current_owner()
    assert not claims._succeed(path, dead, late, claims.json_bytes(asdict(late)))
    assert claim.held() is not freed
    assert leftovers(path) == ([] if freed else ["claim.json"])


def test_one_who_was_succeeded_knows_it_and_touches_nothing(path: Path) -> None:
    claim = acquire(path) or pytest.fail("free")
    other = plant(successor(path, claim.owner.token), owner())
    assert not claim.held()
    assert claim.successor() == other
    claim.release()
    assert inspect(path, says("running")).owner == other


def test_who_has_no_successor(path: Path) -> None:
    claim = acquire(path) or pytest.fail("free")
    assert claim.successor() is None
    path.unlink()  # by hand: nobody else works on the run
    assert claim.successor() is None and not claim.held()
    path.write_text("{")
    assert claim.successor() is None


def test_a_claim_that_changes_hands_while_it_is_judged(path: Path) -> None:
    plant(path, owner())
    taken: list[claims.Claim] = []

    def slow(job: str, cluster: str) -> JobState:
        if not taken:
            taken.append(acquire(path, says("ended")) or pytest.fail("dead"))
        return JobState(job, "FAILED", "ended")

    found = inspect(path, slow)
    assert (found.status, found.owner) == ("alive", taken[0].owner)
    taken[0].release()
    assert acquire(path, slow) is not None


def test_a_claim_freed_while_it_is_judged_can_be_had(path: Path) -> None:
    plant(path, owner())

    def slow(job: str, cluster: str) -> JobState:
        path.unlink(missing_ok=True)
        return JobState(job, "FAILED", "ended")

    assert (acquire(path, slow) or pytest.fail("free")).held()


def test_an_unreadable_successor_is_unknown(path: Path) -> None:
    dead = plant(path, owner())
    successor(path, dead.token).write_text("{")
    assert inspect(path, says("ended")).status == "unknown"
    assert acquire(path, says("ended")) is None


def test_a_link_whose_answer_was_lost_is_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system carries the order out, loses the answer, repeats the order, and reports that it exists."""
    real = os.link

    def twice(source: Path, target: Path) -> None:
        real(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", twice)
    with acquire(path) or pytest.fail("free") as claim:
        assert claim.held()
        assert leftovers(path) == ["claim.json"]


def test_a_full_disk_elects_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = plant(path, owner())

    def full(target: Path, data: bytes) -> None:
        raise DiskFullError("no room")

    monkeypatch.setattr(claims, "atomic_write", full)
    with pytest.raises(DiskFullError):
        acquire(path, says("ended"))
    monkeypatch.undo()
    assert inspect(path, says("ended")).owner == dead
    assert leftovers(path) == ["claim.json"]
    assert acquire(path, says("ended")) is not None


# ---------------------------------------------------------------------------------------------------- many machines
def _become(machine: str) -> None:
    """Let this process be on a machine of its own, in the job of the same name."""
    socket.gethostname = lambda: machine
    os.environ.update(SLURM_JOB_ID=machine.removeprefix("node"), SLURM_CLUSTER_NAME="lab")


def _scheduler(running: Path) -> Callable[[str, str], JobState]:
    """A scheduler that knows of a job as long as there is a file with its number."""
    return lambda job, cluster: JobState(job, "", "running" if (running / job).exists() else "ended", restarts=0)


def _compete(path: Path, running: Path, number: int, start: object, results: object, hold: object) -> None:
    _become(f"node{number}")
    start.wait()  # type: ignore[attr-defined]
    claim = acquire(path, _scheduler(running))
    results.put(number if claim else None)  # type: ignore[attr-defined]
    hold.wait()  # type: ignore[attr-defined]
    (running / str(number)).unlink()  # the job ends; the claim is left behind


def test_of_many_machines_one_takes_over(path: Path, tmp_path: Path) -> None:
    running = tmp_path / "running"
    running.mkdir()
    plant(path, owner(job="1"))
    for turn in range(5):
        numbers = range(100 * turn + 100, 100 * turn + 112)
        start, results, hold = FORK.Event(), FORK.Queue(), FORK.Event()
        processes = [FORK.Process(target=_compete, args=(path, running, n, start, results, hold)) for n in numbers]
        for number, process in zip(numbers, processes, strict=True):
            (running / str(number)).touch()
            process.start()
        start.set()
        winners = [answer for answer in (results.get(timeout=60) for _ in numbers) if answer is not None]
        assert len(winners) == 1
        assert leftovers(path) == ["claim.json"]
        found = inspect(path, _scheduler(running)).owner
        assert found is not None and found.job == str(winners[0])
        hold.set()
        for process in processes:
            process.join(60)


def _work(path: Path, running: Path, witness: Path, number: int, dies: bool) -> None:
    _become(f"node{number}")
    while (claim := acquire(path, _scheduler(running))) is None:
        time.sleep(0.005)
    descriptor = os.open(witness, os.O_CREAT | os.O_EXCL | os.O_WRONLY)  # fails if two hold the claim
    os.close(descriptor)
    witness.unlink()
    if dies:
        (running / str(number)).unlink()
        os._exit(0)
    claim.release()


def test_holders_on_many_machines_never_overlap(path: Path, tmp_path: Path) -> None:
    """Some end properly, some die with the claim in hand; each gets it once, and no two at a time."""
    running = tmp_path / "running"
    running.mkdir()
    for turn in range(4):
        processes = []
        for number in range(100 * turn + 100, 100 * turn + 110):
            (running / str(number)).touch()
            arguments = (path, running, tmp_path / "witness", number, number % 3 != 0)
            processes.append(FORK.Process(target=_work, args=arguments))
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            assert process.exitcode == 0
    shutil.rmtree(running)
