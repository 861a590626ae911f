"""The Slurm client against clients that say what they are told to: every word, every way to write an array."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm

from harness.launch.jobids import base_of, bases, expand
from harness.launch.jobstates import WORDS, JobState, failure_of, kind_of, never_starts
from harness.launch.scheduler import SchedulerError, Slurm, user_name
from harness.states import FAILURE_CLASSES

# Every word of squeue(1), sacct(1) and job_state_codes.html -> kind if squeue lists the job, kind if only sacct does.
KINDS = {
    "PENDING": ("queued", "unknown"),
    "CONFIGURING": ("queued", "unknown"),
    "REQUEUE_HOLD": ("queued", "unknown"),
    "REQUEUE_FED": ("queued", "unknown"),
    "RESV_DEL_HOLD": ("queued", "unknown"),
    "SPECIAL_EXIT": ("queued", "unknown"),
    "POWER_UP_NODE": ("queued", "unknown"),
    "EXPEDITING": ("queued", "unknown"),
    "RUNNING": ("running", "unknown"),
    "COMPLETING": ("running", "unknown"),
    "SUSPENDED": ("running", "unknown"),
    "STOPPED": ("running", "unknown"),
    "RESIZING": ("running", "unknown"),
    "SIGNALING": ("running", "unknown"),
    "STAGE_OUT": ("running", "unknown"),
    "UPDATE_DB": ("running", "unknown"),
    "REQUEUED": ("requeued", "unknown"),
    "PREEMPTED": ("requeued", "ended"),
    "NODE_FAIL": ("requeued", "ended"),
    "LAUNCH_FAILED": ("requeued", "ended"),
    "RECONFIG_FAIL": ("requeued", "ended"),
    "COMPLETED": ("ended", "ended"),
    "FAILED": ("ended", "ended"),
    "CANCELLED": ("ended", "ended"),
    "TIMEOUT": ("ended", "ended"),
    "OUT_OF_MEMORY": ("ended", "ended"),
    "BOOT_FAIL": ("ended", "ended"),
    "DEADLINE": ("ended", "ended"),
    "REVOKED": ("ended", "ended"),
    "TELEPORTED": ("unknown", "unknown"),  # no Slurm says so yet
    "": ("unknown", "unknown"),
}


def test_every_word_is_listed() -> None:
    assert set(KINDS) - {"TELEPORTED", ""} == WORDS


@pytest.mark.parametrize("word", [word for word in KINDS if word])
def test_a_word_of_squeue(slurm: FakeSlurm, word: str) -> None:
    slurm.queue(("7_3", word, "2", "9", "Priority"))
    assert slurm.client().states(["7_3"]) == {"7_3": JobState("7_3", word, KINDS[word][0], "Priority", "0:9", 2)}
    assert slurm.calls("sacct") == []


@pytest.mark.parametrize("word", list(KINDS))
def test_a_word_of_sacct(slurm: FakeSlurm, word: str) -> None:
    slurm.accounts(("7_3", word, "1:0"))
    state = slurm.client().states(["7_3"])["7_3"]
    assert (state.id, state.word, state.kind, state.exit_code) == ("7_3", word, KINDS[word][1], "1:0")
    if state.kind == "unknown":
        assert state.live
        assert "the controller does not know the job" in state.reason


def test_sacct_says_who_cancelled_and_cuts_words_off(slurm: FakeSlurm) -> None:
    slurm.accounts(("1", f"CANCELLED by {os.getuid()}"), ("2", "CANCELLED by 4000000000"), ("3", "CANCELLED+"))
    found = slurm.client().states(["1", "2", "3"])
    assert {state.word for state in found.values()} == {"CANCELLED"}
    assert [found[job].reason for job in "123"] == [f"cancelled by {user_name()}", "cancelled by 4000000000", ""]


# ------------------------------------------------------------------------------------------------------ job ids
@pytest.mark.parametrize(
    ("text", "ids", "partial"),
    [
        ("123", ["123"], False),
        ("123_4", ["123_4"], False),
        ("123_[4]", ["123_4"], False),
        ("123_[4-7]", ["123_4", "123_5", "123_6", "123_7"], False),
        ("123_[4-6%2]", ["123_4", "123_5", "123_6"], False),
        ("123_[1,3,5-7]", ["123_1", "123_3", "123_5", "123_6", "123_7"], False),
        ("123_[1,3,5-7%10]", ["123_1", "123_3", "123_5", "123_6", "123_7"], False),
        ("123_[0-12:4]", ["123_0", "123_4", "123_8", "123_12"], False),
        ("123_[0-12:4,20%1]", ["123_0", "123_4", "123_8", "123_12", "123_20"], False),
        (" 123_[2-3]\n", ["123_2", "123_3"], False),
        ("123_[1,3,...]", ["123_1", "123_3"], True),
        ("123_[1-3,5...", ["123_1", "123_2", "123_3"], True),
        ("123_[1-3,5,73", ["123_1", "123_2", "123_3", "123_5"], True),
        ("123_[1-3,7...]", ["123_1", "123_2", "123_3"], True),
        ("123_[1-3,...%4]", ["123_1", "123_2", "123_3"], True),
        ("123_[]", [], True),
        ("123_*", [], True),
        ("123+1", ["123+1"], False),
    ],
)
def test_array_syntax(text: str, ids: list[str], partial: bool) -> None:
    found = expand(text)
    assert found is not None
    assert (list(found.ids), found.partial) == (ids, partial)
    assert found.base == base_of(text) == text.strip().partition("_")[0]


@pytest.mark.parametrize(
    "text", ["", "123.batch", "123_4.0", "123_4.extern", "abc", "_4", "123_", "123_x", "1_[0-9999999]", "CLUSTER: lab"]
)
def test_what_is_no_job_id(text: str) -> None:
    assert expand(text) is None


def test_bases_are_numbers_in_order() -> None:
    assert bases(["100_1", "9", "20_[1-4]", "100_2"]) == ["9", "20", "100"]
    with pytest.raises(ValueError, match=r"'12\.batch' is not a Slurm job id"):
        bases(["12.batch"])


def test_an_array_that_never_started_is_one_row_of_sacct(slurm: FakeSlurm) -> None:
    slurm.accounts(("50_[4-6%2]", "CANCELLED by 0"), ("50_1", "COMPLETED"), ("50_1.batch", "FAILED"))
    found = slurm.client().states(["50_1", "50_4", "50_6", "51_7"])
    assert {job: state.word for job, state in found.items()} == {
        "50_1": "COMPLETED",
        "50_4": "CANCELLED",
        "50_6": "CANCELLED",
        "51_7": "",
    }
    assert found["51_7"].kind == "gone"


def test_an_element_cancelled_while_it_waited_leaves_no_trace_but_its_array(slurm: FakeSlurm) -> None:
    slurm.queue(("50_1", "PENDING"))
    slurm.accounts(("50_[1]", "PENDING"))
    state = slurm.client().states(["50_0"])["50_0"]
    assert (state.kind, state.word, state.reason) == ("ended", "CANCELLED", "cancelled before it started")
    assert not failure_of(state).retry
    slurm.says("sacct", error="Slurm accounting storage is disabled", status=1)
    assert slurm.client().states(["50_0"])["50_0"].kind == "gone"  # it may as well have ended long ago


@pytest.mark.parametrize(("word", "kind"), [("CANCELLED by 0", "ended"), ("PENDING", "unknown")])
def test_an_array_named_as_a_whole_speaks_for_its_elements(slurm: FakeSlurm, word: str, kind: str) -> None:
    slurm.accounts(("50", word), ("50_1", "COMPLETED"))
    found = slurm.client().states(["50_1", "50_2"])
    assert [state.kind for state in found.values()] == ["ended", kind]
    assert found["50_1"].word == "COMPLETED"


def test_the_element_that_squeue_forgets_is_found(slurm: FakeSlurm) -> None:
    """squeue -r leaves out the last one of `50_[1-10:3]` (Slurm 22.05)."""
    slurm.queue(("50_1", "PENDING", "1"), ("50_4", "PENDING"), ("50_7", "PENDING"), ("51_0", "PENDING"))
    slurm.says("squeue.-o", "50_[1-10:3]|PENDING|Resources\n")
    found = slurm.client().states(["50_1", "50_10", "51_0"])
    assert [state.kind for state in found.values()] == ["queued"] * 3
    assert found["50_10"].reason == "Resources" and found["50_1"].restarts == 1
    assert slurm.client().queued() == 5
    assert slurm.calls("squeue -h -t all -o")[0][-2:] == ["-j", "50"]


@pytest.mark.parametrize("elements", [(), (0,), (0, 1, 2), (0, 1, 3, 4), (5,)])
def test_usual_arrays_are_asked_for_once(slurm: FakeSlurm, elements: tuple[int, ...]) -> None:
    slurm.queue(*((f"50_{element}", "PENDING") for element in elements))
    slurm.client().my_jobs()
    assert len(slurm.calls("squeue")) == 1


@pytest.mark.parametrize("client", ["queue", "accounts"])
def test_an_element_that_a_cut_off_list_may_mean_is_unknown(slurm: FakeSlurm, client: str) -> None:
    getattr(slurm, client)(("50_[1-2,4...]", "CANCELLED"))
    found = slurm.client().states(["50_1", "50_400"])
    assert [state.kind for state in found.values()] == ["ended", "unknown"]
    assert "cut off" in found["50_400"].reason


@pytest.mark.parametrize("listed", ["60_0", "60+0"])
def test_an_id_without_its_element_is_unknown(slurm: FakeSlurm, listed: str) -> None:
    slurm.queue((listed, "RUNNING"))
    assert slurm.client().states(["60"])["60"].kind == "unknown"


# ------------------------------------------------------------------------------------------------------ who is asked
def test_squeue_first_then_sacct_for_the_rest(slurm: FakeSlurm) -> None:
    slurm.queue(("8_0", "RUNNING"), ("9", "PENDING", "0", "0", "Resources"))
    slurm.accounts(("8_0", "FAILED"), ("8_1", "OUT_OF_MEMORY", "0:125"))
    found = slurm.client().states(["8_0", "8_1", "9", "8_0"])
    assert {job: (state.kind, state.word) for job, state in found.items()} == {
        "8_0": ("running", "RUNNING"),
        "8_1": ("ended", "OUT_OF_MEMORY"),
        "9": ("queued", "PENDING"),
    }
    (queue,), (accounting,) = slurm.calls("squeue"), slurm.calls("sacct")
    assert queue[queue.index("-j") + 1] == "8,9"
    assert accounting[accounting.index("-j") + 1] == "8"


def test_nothing_is_asked_for_nothing(slurm: FakeSlurm) -> None:
    assert slurm.client().states([]) == {}
    assert slurm.calls() == []


def test_many_jobs_are_asked_for_in_parts(slurm: FakeSlurm) -> None:
    slurm.queue(*((str(job), "RUNNING") for job in range(1, 1202)))
    found = slurm.client().states(str(job) for job in range(1, 1202))
    assert len(found) == 1201 and all(state.kind == "running" for state in found.values())
    assert len(slurm.calls("squeue")) == 3


def test_gone_when_both_answer_and_neither_knows(slurm: FakeSlurm) -> None:
    slurm.says("squeue", error="slurm_load_jobs error: Invalid job id specified", status=1)
    slurm.accounts()
    assert slurm.client().states(["5"])["5"].kind == "gone"


def test_without_accounting_the_controller_alone_counts(slurm: FakeSlurm) -> None:
    slurm.queue(("5_0", "FAILED", "0", "1"))
    found = slurm.client().states(["5_0", "5_1"])
    assert [state.kind for state in found.values()] == ["ended", "gone"]


def test_no_answer_of_squeue_leaves_everything_unknown(slurm: FakeSlurm) -> None:
    slurm.says("squeue", error="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", status=1)
    slurm.accounts(("5", "FAILED"))
    state = slurm.client().states(["5"])["5"]
    assert state.kind == "unknown" and state.live
    assert "Unable to contact slurm controller" in state.reason and "scontrol ping" in state.reason
    assert slurm.calls("sacct") == []


def test_no_answer_of_sacct_leaves_the_rest_unknown(slurm: FakeSlurm) -> None:
    slurm.queue(("5", "RUNNING"))
    slurm.says("sacct", error="sacct: error: slurm_persist_conn_open_without_init: failed to open", status=1)
    found = slurm.client().states(["5", "6"])
    assert [state.kind for state in found.values()] == ["running", "unknown"]
    assert "failed to open" in found["6"].reason


def test_a_client_that_hangs_is_not_waited_for(slurm: FakeSlurm) -> None:
    slurm.hangs("squeue")
    client = slurm.client(seconds=0.3)
    assert "did not answer within 0.3 s" in client.states(["5"])["5"].reason
    with pytest.raises(SchedulerError, match="did not answer"):
        client.my_jobs()


def test_a_machine_without_slurm(tmp_path: Path) -> None:
    client = Slurm((str(tmp_path / "nothing"),))
    assert client.states(["5"])["5"].kind == "unknown"
    with pytest.raises(SchedulerError, match="is this a machine with Slurm's clients on PATH"):
        client.queued()


def test_settings_of_the_user_cannot_hide_jobs(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQUEUE_PARTITION", "SQUEUE_FORMAT", "SACCT_FORMAT", "SCANCEL_STATE", "LC_ALL"):
        monkeypatch.setenv(name, "something")
    monkeypatch.setenv("SLURM_CONF", "/somewhere/slurm.conf")
    slurm.queue(("5", "RUNNING"))
    assert slurm.client().states(["5"])["5"].kind == "running"
    seen = slurm.environment()
    assert not [name for name in seen if name.startswith(("SQUEUE_", "SACCT_", "SCANCEL_"))]
    assert (seen["SLURM_CONF"], seen["LC_ALL"], seen["SLURM_BITSTR_LEN"]) == ("/somewhere/slurm.conf", "C", "0")


def test_headings_of_several_clusters_are_no_jobs(slurm: FakeSlurm) -> None:
    slurm.queue(("5", "RUNNING"))
    text = (slurm.folder / "squeue.out").read_text()
    slurm.says("squeue", f"CLUSTER: lab\n\n{text}")
    assert list(slurm.client().my_jobs()) == ["5"]


def test_own_jobs_and_how_many_count(slurm: FakeSlurm) -> None:
    slurm.queue(("5_0", "RUNNING"), ("5_1", "PENDING"), ("4", "COMPLETED"), ("3", "NODE_FAIL"), ("2", "TELEPORTED"))
    client = slurm.client()
    assert {job: state.kind for job, state in client.my_jobs().items()}["4"] == "ended"
    assert client.queued() == 4
    assert slurm.calls("squeue")[0][-2:] == ["-u", user_name()]
    slurm.says("squeue", error="slurm_load_jobs error: Unable to contact slurm controller", status=1)
    with pytest.raises(SchedulerError, match="Unable to contact"):
        client.queued()


def test_an_error_shows_no_secret(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-planted-0123456789")
    slurm.says("scontrol", error="bad plugin: token sk-planted-0123456789", status=1)
    with pytest.raises(SchedulerError) as caught:
        slurm.client().cluster()
    assert "sk-planted" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------ orders
def test_cancel_asks_once_for_each(slurm: FakeSlurm) -> None:
    slurm.client().cancel(["5_1", "5_0", "5_1"])
    assert slurm.calls("scancel") == [["scancel", "5_0", "5_1"]]
    slurm.client().cancel([])
    assert len(slurm.calls("scancel")) == 1


@pytest.mark.parametrize(
    ("complaint", "harmless"),
    [
        ("scancel: error: Kill job error on job id 5: Invalid job id specified", True),
        ("scancel: error: Kill job error on job id 5: Job/step already completing or completed", True),
        ("scancel: error: Kill job error on job id 5: Access/permission denied", False),
        (
            "scancel: error: Kill job error on job id 5: Invalid job id specified\n"
            "scancel: error: Kill job error on job id 6: Access/permission denied",
            False,
        ),
        ("", False),
    ],
)
def test_cancelling_what_has_ended_is_no_error(slurm: FakeSlurm, complaint: str, harmless: bool) -> None:
    slurm.says("scancel", error=complaint, status=1)
    if harmless:
        slurm.client().cancel(["5", "6"])
    else:
        with pytest.raises(SchedulerError, match="repeat the command"):
            slurm.client().cancel(["5", "6"])


def test_requeue_that_slurm_did_already_is_ignored(slurm: FakeSlurm) -> None:
    client = slurm.client()
    assert client.requeue("5_1")
    assert slurm.calls("scontrol") == [["scontrol", "requeue", "5_1"]]
    slurm.says("scontrol", error="Job is pending execution for job 5_1", status=1)
    assert not client.requeue("5_1")
    slurm.says("scontrol", error="Requested operation is presently disabled for job 5_1", status=1)
    with pytest.raises(SchedulerError, match="allow requeueing"):
        client.requeue("5_1")


# ------------------------------------------------------------------------------------------------------ what ends mean
@pytest.mark.parametrize(
    ("word", "exit_code", "failure_class", "retry", "words"),
    [
        ("COMPLETED", "0:0", "incomplete", True, "recorded no outcome"),
        ("FAILED", "0:9", "crash", True, "killed by SIGKILL, perhaps for want of memory"),
        ("FAILED", "0:11", "crash", True, "killed by SIGSEGV"),
        ("FAILED", "137:0", "crash", True, "killed by SIGKILL"),
        ("FAILED", "140:0", "infra", True, "before it could listen"),
        ("FAILED", "0:12", "infra", True, "before it could listen"),
        ("FAILED", "0:99", "crash", True, "killed by signal 99"),
        ("FAILED", "0:53", "infra", False, "could not be opened on the node"),
        ("FAILED", "1:0", "crash", False, "exit status 1"),
        ("FAILED", None, "crash", True, "before its run could record why"),
        ("CANCELLED", "0:0", "infra", False, "ended as CANCELLED: cancelled by somebody"),
        ("TIMEOUT", "0:0", "incomplete", True, "launcher.signal_seconds"),
        ("NODE_FAIL", "0:0", "infra", True, "its node failed"),
        ("OUT_OF_MEMORY", "0:125", "oom", False, "backbone.resources.mem_gb"),
        ("PREEMPTED", "0:0", "infra", True, "higher priority"),
        ("BOOT_FAIL", "0:0", "infra", True, "could not be started"),
        ("LAUNCH_FAILED", "0:0", "infra", True, "could not be launched"),
        ("RECONFIG_FAIL", "0:0", "infra", True, "could not be configured"),
        ("DEADLINE", "0:0", "infra", False, "deadline"),
        ("REVOKED", "0:0", "infra", False, "federation"),
    ],
)
def test_what_an_end_means(word: str, exit_code: str | None, failure_class: str, retry: bool, words: str) -> None:
    state = JobState("5_1", word, "ended", "cancelled by somebody" if word == "CANCELLED" else "", exit_code)
    found = failure_of(state)
    assert (found.failure_class, found.retry) == (failure_class, retry)
    assert failure_class in FAILURE_CLASSES
    assert words in found.words and "5_1" in found.words


def test_every_end_means_something() -> None:
    for word in WORDS:
        if kind_of(word, in_queue=False) == "ended":
            assert failure_of(JobState("5", word, "ended")).words
    assert failure_of(JobState("5", "", "gone")).retry


@pytest.mark.parametrize("kind", ["queued", "running", "requeued", "unknown"])
def test_what_has_not_ended_has_no_end(kind: str) -> None:
    with pytest.raises(ValueError, match="has not ended"):
        failure_of(JobState("5", "RUNNING", kind))


def test_jobs_that_never_start_are_told() -> None:
    def waiting(reason: str, kind: str = "queued") -> str | None:
        return never_starts(JobState("5_2", "PENDING", kind, reason))

    assert waiting("DependencyNeverSatisfied") == "it waits for a job that ended without success"
    assert waiting("(DependencyNeverSatisfied)") is not None
    assert waiting("JobHeldUser") == "it is held; `scontrol release 5_2` lets it go"
    for reason in ("Dependency", "Priority", "Resources", "BeginTime", "QOSMaxJobsPerUserLimit", ""):
        assert waiting(reason) is None
    assert waiting("DependencyNeverSatisfied", "ended") is None
