"""Many questions about jobs, few questions to the scheduler."""

from __future__ import annotations

import pytest
from fake_slurm import FakeSlurm

from harness.launch.lookup import FRESH_SECONDS, SILENT_SECONDS, Lookup


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lookup(slurm: FakeSlurm, clock: Clock) -> Lookup:
    slurm.says("scontrol", "ClusterName = lab\n")
    slurm.accounts(("4", "FAILED"))
    return Lookup(slurm.client(), clock=clock)


def test_a_thousand_running_jobs_are_one_question(slurm: FakeSlurm, lookup: Lookup, clock: Clock) -> None:
    slurm.queue(*((f"9_{element}", "RUNNING") for element in range(1000)))
    assert {lookup(f"9_{element}", "lab").kind for element in range(1000)} == {"running"}
    assert len(slurm.calls("squeue")) == 1
    clock.now += FRESH_SECONDS
    slurm.queue()
    slurm.accounts(*((f"9_{element}", "FAILED") for element in range(1000)))
    assert {lookup(f"9_{element}", "lab").kind for element in range(1000)} == {"ended"}
    assert len(slurm.calls("squeue")) == 3  # one's own queue, and the jobs that are no longer in it
    assert len(slurm.calls("sacct")) == 1


def test_expected_jobs_are_asked_for_together(slurm: FakeSlurm, lookup: Lookup) -> None:
    slurm.queue()
    lookup.expect(["4", "5", "6"])
    assert [lookup(job).kind for job in ("4", "5", "6")] == ["ended", "gone", "gone"]
    assert len(slurm.calls("sacct")) == 1


def test_an_answer_is_kept_for_a_while(slurm: FakeSlurm, lookup: Lookup, clock: Clock) -> None:
    slurm.queue(("9", "PENDING"))
    assert lookup("9").kind == "queued"
    slurm.queue(("9", "RUNNING"))
    clock.now += FRESH_SECONDS - 0.1
    assert lookup("9").kind == "queued"
    clock.now += 0.2
    assert lookup("9").kind == "running"
    slurm.queue(("9", "COMPLETING"))
    lookup.expect([])
    assert lookup("9").word == "COMPLETING"


def test_a_silent_scheduler_is_left_alone_for_longer(slurm: FakeSlurm, lookup: Lookup, clock: Clock) -> None:
    slurm.says("squeue", error="slurm_load_jobs error: Unable to contact slurm controller", status=1)
    assert "Unable to contact" in lookup("9").reason
    asked = len(slurm.calls())
    clock.now += SILENT_SECONDS - 0.1
    assert [lookup(job).kind for job in ("9", "10", "11")] == ["unknown"] * 3
    assert len(slurm.calls()) == asked
    clock.now += 0.2
    slurm.queue(("9", "RUNNING"))
    assert lookup("9").kind == "running"


def test_jobs_of_another_cluster_are_unknown(slurm: FakeSlurm, lookup: Lookup) -> None:
    slurm.queue(("9", "RUNNING"))
    assert lookup("9", "lab").kind == "running"
    other = lookup("9", "elsewhere")
    assert other.kind == "unknown" and "cluster elsewhere" in other.reason and "cluster lab" in other.reason


@pytest.mark.parametrize("job", ["", "12.batch", "12_[1-3]", "12_*", "local-4"])
def test_what_is_not_one_job_is_unknown(slurm: FakeSlurm, lookup: Lookup, job: str) -> None:
    assert lookup(job).kind == "unknown"
    assert slurm.calls() == []
