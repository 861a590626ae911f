"""The launcher of jobs: arrays, waves, attaching, teachers and students, submissions cut short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import FakeCluster, option, pickled, settings_of
from launch_runs import begins, completes, fails, make_run, make_tasks, stops

from harness.config import LauncherConfig
from harness.files import DiskFullError
from harness.launch import batches, slurm, tickets
from harness.launch.shapes import Shape
from harness.launch.slurm import Dispatcher
from harness.launch.tasks import Report, Task
from harness.record import RunDirectory

Step = Callable[..., Report]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster(tmp_path / "clients")
    monkeypatch.setenv("PATH", f"{made.folder / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "FILE_SYSTEM_SECONDS", 0.0)
    monkeypatch.setattr(slurm, "snapshot", lambda out: out / "snapshots" / "abc")
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out folder"
    folder.mkdir()
    return folder


@pytest.fixture
def dispatcher(out: Path, cluster: FakeCluster) -> Callable[..., Dispatcher]:
    def make(tasks: list[Task], launcher: LauncherConfig | None = None, **options: Any) -> Dispatcher:
        return Dispatcher(tasks, launcher or LauncherConfig(name="slurm"), out, "table", **options)

    return make


def name(number: int) -> str:
    return f"{number:016x}"


def status(report: Report) -> list[str]:
    return [task.status for task in report.tasks.values()]


def run_of(tasks: list[Task], number: int) -> RunDirectory:
    return next(task.run for task in tasks if task.run.fingerprint == name(number))


def ticket_of(task: Task) -> tickets.Ticket:
    found = tickets.read(task.run.path)
    assert found is not None
    return found


# ------------------------------------------------------------------------------------- arrays
def test_one_array_per_shape_with_tickets_and_small_pickles(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    large = Shape(nodes=2, gpus_per_node=8, cpus_per_node=16, mem_gb=100.0, minutes=90)
    tasks = make_tasks(out, 3)
    tasks += [Task(make_run(out / "runs", seed), large) for seed in (3, 4)]
    report = dispatcher(tasks).step()
    assert (report.submitted, report.arrays, report.problem) == (5, ("100", "101"), None)
    assert status(report) == ["submitted"] * 5
    first, second = cluster.scripts().values()
    assert option(first, "array") == "0-2%3" and option(second, "array") == "0-1%2"
    asked = [option(second, key) for key in ("nodes", "gpus-per-node", "cpus-per-task", "mem", "time", "requeue")]
    assert asked == ["2", "8", "16", "100GB", "90", ""]
    assert option(first, "gpus-per-node") is None
    for number, task in enumerate(tasks):
        ticket = ticket_of(task)
        assert ticket.job_id == (f"100_{number}" if number < 3 else f"101_{number - 3}")
        assert (ticket.attempt, ticket.cluster, ticket.sweep) == (1, "fake", "table")
        assert ticket.shape == task.shape
        assert Path(ticket.script).read_text() == cluster.scripts()[int(ticket.job_id.partition("_")[0])]
        job = pickled(ticket)
        assert (job.run_dir, job.retry_after) == (str(task.run.path), None)
        pickle = Path(ticket.script).parent / f"{ticket.job_id}_submitted.pkl"
        assert pickle.stat().st_size < 1000


def test_the_same_command_again_attaches(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 2)
    first = dispatcher(tasks)
    first.step()
    assert first.step().submitted == 0
    again = dispatcher(tasks).step()
    assert (again.submitted, status(again)) == (0, ["submitted", "submitted"])
    assert len(cluster.calls("sbatch")) == 1
    completes(tasks[0].run)
    cluster.set("100_1", "RUNNING")
    report = first.step()
    assert status(report) == ["complete", "running"] and report.open
    completes(tasks[1].run)
    assert not first.step().open


def test_submitters_at_once_submit_each_run_once(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 6)
    reports: list[Report] = []
    threads = [threading.Thread(target=lambda: reports.append(dispatcher(tasks).step())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.submitted for report in reports) == [0, 0, 0, 6]
    assert all(status(report) == ["submitted"] * 6 for report in reports)
    assert len(cluster.scripts()) == 1


def test_arrays_are_no_longer_than_site_and_user_allow(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    cluster.configure(MaxArraySize=4)
    report = dispatcher(make_tasks(out, 9)).step()
    assert [option(text, "array") for text in cluster.scripts().values()] == ["0-3%4", "0-3%4", None]
    assert report.submitted == 9
    more = [Task(make_run(out / "runs", seed), Shape()) for seed in range(20, 24)]
    dispatcher(more, LauncherConfig(name="slurm", max_array=2, parallel=1)).step()
    assert [option(text, "array") for text in list(cluster.scripts().values())[3:]] == ["0-1%1", "0-1%1"]


def test_waves_stay_below_the_limit_and_go_on(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 5)
    cluster.set("7", "RUNNING")  # another job of this user
    launcher = LauncherConfig(name="slurm", max_submitted=4)
    first = dispatcher(tasks, launcher)
    report = first.step()
    assert report.submitted == 3 and status(report) == ["submitted"] * 3 + ["waiting"] * 2
    assert report.problem is not None and "2 runs are not submitted yet" in report.problem
    assert report.tasks[name(4)].note == "waits for room in the queue" and report.open
    assert first.step().submitted == 0
    for number in (0, 1):
        completes(tasks[number].run)
        cluster.set(f"100_{number}", "COMPLETED")
    assert dispatcher(tasks[3:4], launcher).step().submitted == 1  # another command may submit the rest as well
    report = first.step()
    assert (report.submitted, report.problem) == (1, None)
    assert status(report) == ["complete"] * 2 + ["submitted"] * 3


def test_a_full_queue_is_not_a_failure(out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]) -> None:
    tasks = make_tasks(out, 2)
    first = dispatcher(tasks)
    cluster.set("7", "RUNNING")  # another job of this user
    cluster.fails("sbatch", "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed")
    report = first.step()
    assert (report.submitted, status(report)) == (0, ["waiting", "waiting"])
    assert report.problem is not None and "QOSMaxSubmitJobPerUserLimit" in report.problem
    assert not any((out / "slurm").iterdir())  # nothing is left of what was not taken
    cluster.fails("sbatch", None)
    assert first.step().submitted == 2


# Refuses what would make more than `most` jobs in the queue, in the words of Slurm.
LIMIT = """
top=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
if [ $((${{top:-0}} + 1 + $(grep -c PENDING "$here/queue"))) -gt {most} ]; then
    echo "sbatch: error: QOSGrpSubmitJobsLimit" >&2
    echo "sbatch: error: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)" >&2
    exit 1
fi
"""


def test_a_limit_that_cannot_be_looked_up_is_found_by_halving(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    cluster.hook("sbatch", LIMIT.format(most=5))
    tasks = make_tasks(out, 11)
    first = dispatcher(tasks)
    report = first.step()
    assert (report.submitted, len(cluster.waiting())) == (5, 5)
    assert report.problem is not None and "6 runs are not submitted yet" in report.problem
    assert "QOSGrpSubmitJobsLimit" in report.problem and "launcher.max_submitted" in report.problem
    asked = len(cluster.calls("sbatch"))
    assert first.step().submitted == 0 and len(cluster.calls("sbatch")) == asked + 1  # one job is tried, no array
    cluster.hook("sbatch", None)
    assert first.step().submitted == 6


@pytest.mark.parametrize("busy", [False, True])
def test_a_limit_that_lets_nothing_through_is_a_refusal_only_in_an_empty_queue(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher], busy: bool
) -> None:
    cluster.hook("sbatch", LIMIT.format(most=0))
    if busy:
        cluster.set("7", "RUNNING")  # another job of this user
    report = dispatcher(make_tasks(out, 3)).step()
    assert status(report) == ["waiting" if busy else "pending"] * 3 and report.open == busy
    if not busy:
        assert "sbatch refused" in report.tasks[name(2)].note and "launcher.max_submitted" in report.tasks[name(2)].note


def test_jobs_taken_just_now_count_as_ours(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    cluster.hook("sbatch", LIMIT.format(most=2))
    tasks = [Task(make_run(out / "runs", seed), Shape(minutes=10 + seed)) for seed in range(3)]
    assert status(dispatcher(tasks).step()) == ["submitted", "submitted", "waiting"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("AssocMaxSubmitJobLimit; Job violates accounting/QOS policy (job submit limit, user's size)", "full"),
        ("QOSMaxSubmitJobPerUserLimit", "full"),
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size)", "full"),
        ("QOSMaxGRESPerJob; Job violates accounting/QOS policy (job submit limit, user's size)", "never"),
        ("AssocGrpCpuLimit; Job violates accounting/QOS policy (job submit limit, user's size and/or time)", "never"),
        ("Slurm temporarily unable to accept job, sleeping and retrying", "away"),
        ("Unable to contact slurm controller (connect failure)", "away"),
        ("invalid partition specified: gpus", "never"),
    ],
)  # fmt: skip
def test_what_a_refusal_means(said: str, kind: str) -> None:
    assert batches.refusal(said) == kind


@pytest.mark.parametrize("taken", [False, True])
def test_a_disk_without_room_is_no_refusal_of_sbatch(
    out: Path,
    cluster: FakeCluster,
    dispatcher: Callable[..., Dispatcher],
    monkeypatch: pytest.MonkeyPatch,
    taken: bool,
) -> None:
    from submitit.core import utils

    def full(*given: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    broken = (utils.JobPaths, "move_temporary_file") if taken else (utils.DelayedSubmission, "dump")
    move = utils.JobPaths.move_temporary_file

    def pickles_fail(self: Any, path: Any, name: str, keep_as_symlink: bool = False) -> None:
        full() if name == "submitted_pickle" else move(self, path, name, keep_as_symlink)

    tasks = make_tasks(out, 2)
    with monkeypatch.context() as patch:
        patch.setattr(*broken, pickles_fail if taken else full)
        with pytest.raises(DiskFullError, match="no room to write") as raised:
            dispatcher(tasks).step()
    assert "sbatch" not in str(raised.value) and len(cluster.calls("sbatch")) == taken
    assert cluster.calls("scancel") == (["100"] if taken else [])
    assert not any((out / "slurm").iterdir())
    for element in (0, 1):
        cluster.set(f"100_{element}", "CANCELLED")
    assert dispatcher(tasks).step().submitted == 2


def test_a_run_that_met_a_full_disk_is_tried_by_a_new_command_and_not_before(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 1)
    first = dispatcher(tasks)
    first.step()
    fails(tasks[0].run, "100", "no room", "disk")
    cluster.set("100", "FAILED", exit_code="3:0")
    assert status(first.step()) == ["failed"] and status(dispatcher(tasks).step()) == ["submitted"]


def test_what_sbatch_refuses_for_good_stays_pending_and_the_rest_goes_on(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 1)
    tasks.append(Task(make_run(out / "runs", 1), Shape(gpus_per_node=99)))
    cluster.hook("sbatch", 'if grep -q gpus-per-node=99 "$1"; then echo "sbatch: error: Invalid gres" >&2; exit 1; fi')
    report = dispatcher(tasks).step()
    assert status(report) == ["submitted", "pending"]
    assert "sbatch refused" in report.tasks[name(1)].note and "Invalid gres" in report.tasks[name(1)].note


def test_without_an_answer_nothing_is_submitted(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    cluster.fails("scontrol", "slurm_load_ctl_conf error: Unable to contact slurm controller")
    report = dispatcher(make_tasks(out, 1)).step()
    assert (report.submitted, status(report)) == (0, ["waiting"])
    assert report.problem is not None and "Unable to contact" in report.problem
    assert not cluster.calls("sbatch")


def test_preparation_comes_before_and_covers_what_waits_for_room(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    asked: list[list[str]] = []

    def before(names: list[str]) -> None:
        assert not cluster.scripts()
        asked.append(list(names))

    tasks = make_tasks(out, 3)
    completes(tasks[0].run)
    first = dispatcher(tasks, LauncherConfig(name="slurm", max_submitted=1), before=before)
    first.step()
    completes(tasks[1].run)
    cluster.set("100", "COMPLETED")
    first.step()
    assert asked == [[name(1), name(2)]]

    def broken(names: list[str]) -> None:
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        dispatcher(make_tasks(out, 5), before=broken).step()


# ------------------------------------------------------------------------------------- others work on it
def test_a_claimed_run_is_not_submitted(out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]) -> None:
    tasks = make_tasks(out, 2)
    first = dispatcher(tasks)
    claim = tasks[0].run.claim()
    assert claim is not None
    report = first.step()
    assert status(report) == ["elsewhere", "submitted"] and "is working on it" in report.tasks[name(0)].note
    claim.release()
    assert status(first.step()) == ["submitted", "submitted"]


@pytest.mark.parametrize("word", ["", "SOMETHING_NEW"])
def test_an_unknown_state_is_never_resubmitted(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher], word: str
) -> None:
    tasks = make_tasks(out, 2)
    dispatcher(tasks).step()
    if word:
        cluster.set("100_0", word)
    else:
        cluster.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    for _ in range(2):
        report = dispatcher(tasks, retry_failed=True).step()
        assert report.tasks[name(0)].status == "unknown" and report.open
        assert report.submitted == 0
    assert len(cluster.calls("sbatch")) == 1


def test_a_claim_that_nobody_can_judge_says_what_to_delete(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    import json
    from dataclasses import asdict

    from harness.owner import current_owner

    tasks = make_tasks(out, 1)
    path = tasks[0].run.claim_path
    path.write_text(json.dumps(asdict(replace(current_owner(), host="login2", machine="another"))))
    first = dispatcher(tasks)
    report = first.step()
    assert status(report) == ["elsewhere"] and f"delete {path}" in report.tasks[name(0)].note
    tickets.write(tasks[0].run.path, tickets.Ticket("7", 1.0, cluster="fake"))  # of a job that has ended
    report = first.step()
    assert status(report) == ["elsewhere"] and f"delete {path}" in report.tasks[name(0)].note


def test_a_job_of_another_cluster_is_unknown(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 1)
    dispatcher(tasks).step()
    cluster.configure(ClusterName="elsewhere")
    cluster.set("100", None)
    report = dispatcher(tasks).step()
    assert status(report) == ["unknown"] and report.submitted == 0
    assert f"delete {tasks[0].run.path / 'ticket.json'}" in report.tasks[name(0)].note


# ------------------------------------------------------------------------------------- teachers and students
def school(out: Path) -> list[Task]:
    """0, 1: students of 4; 2: student of 5; 3: needs nobody; 6: student of 0."""
    runs = {seed: make_run(out / "runs", seed) for seed in range(7)}
    requires = {0: (4,), 1: (4,), 2: (5,), 6: (0,)}
    return [Task(runs[n], Shape(), tuple(name(m) for m in requires.get(n, ()))) for n in (6, 0, 1, 2, 3, 4, 5)]


def test_students_wait_for_exactly_their_teachers(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = school(out)
    report = dispatcher(tasks).step()
    assert report.submitted == 7 and set(status(report)) == {"submitted"}
    jobs = {task.run.fingerprint: ticket_of(task).job_id for task in tasks}
    scripts = cluster.scripts()
    for task in tasks:
        script = scripts[int(jobs[task.run.fingerprint].partition("_")[0])]
        wanted = ":".join(jobs[other] for other in task.requires)
        assert option(script, "dependency") == (f"afterok:{wanted}" if wanted else None)
        assert option(script, "kill-on-invalid-dep") == ("yes" if wanted else None)
    assert jobs[name(0)].partition("_")[0] == jobs[name(1)].partition("_")[0]  # one array: the same teacher
    assert len(scripts) == 4


def test_a_complete_teacher_is_not_waited_for(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = school(out)
    completes(run_of(tasks, 4))
    dispatcher([task for task in tasks if task.run.fingerprint in (name(0), name(1))]).step()
    (script,) = cluster.scripts().values()
    assert option(script, "dependency") is None


def test_without_its_teacher_a_student_stays_pending_and_says_why(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = school(out)
    first = dispatcher(tasks)
    first.step()
    jobs = {task.run.fingerprint: ticket_of(task).job_id for task in tasks}
    fails(run_of(tasks, 4), jobs[name(4)])
    cluster.set(jobs[name(4)], "FAILED", exit_code="3:0")
    for number in (0, 1, 6):  # as Slurm does with --kill-on-invalid-dep
        cluster.set(jobs[name(number)], "CANCELLED", "Dependency")
    report = first.step()
    found = {key: task.status for key, task in report.tasks.items()}
    assert found[name(4)] == "failed" and "do=retry" in report.tasks[name(4)].note
    assert [found[name(n)] for n in (0, 1, 6)] == ["pending"] * 3
    assert f"it needs the weights of {name(4)}, which is failed" in report.tasks[name(0)].note
    assert report.submitted == 0
    assert run_of(tasks, 0).state().state == "pending"  # nothing happened to it
    # Another command leaves it so; do=retry tries the teacher again, and then its students.
    assert dispatcher(tasks).step().submitted == 0
    again = dispatcher(tasks, retry_failed=True).step()
    assert again.submitted == 4 and again.tasks[name(0)].status == "submitted"
    new = next(task for task in tasks if task.run.fingerprint == name(4))
    assert pickled(ticket_of(new)).retry_after == 1


def test_a_student_waits_while_its_teacher_runs_elsewhere(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = [task for task in school(out) if task.run.fingerprint in (name(0), name(4))]
    claim = run_of(tasks, 4).claim()
    assert claim is not None
    first = dispatcher(tasks)
    report = first.step()
    assert report.submitted == 0 and report.tasks[name(0)].status == "waiting"
    claim.release()
    completes(run_of(tasks, 4))
    assert first.step().submitted == 1


# ------------------------------------------------------------------------------------- submissions cut short
def test_a_submitter_killed_before_its_tickets_were_written_loses_no_job(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = make_tasks(out, 3)

    def killed(*arguments: object) -> list[tickets.Ticket]:
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(batches, "_write_tickets", killed)
        dispatcher(tasks).step()
    assert not any((task.run.path / "ticket.json").exists() for task in tasks)
    said: list[str] = []
    report = dispatcher(tasks, say=said.append).step()
    assert (report.submitted, status(report)) == (0, ["submitted"] * 3)
    assert [ticket_of(task).job_id for task in tasks] == ["100_0", "100_1", "100_2"]
    assert "3 jobs of a submission that was cut short" in said[0]
    assert dispatcher(tasks, say=said.append).step().submitted == 0 and len(said) == 1


def test_jobs_that_lack_their_pickle_are_cancelled_and_submitted_again(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 3)
    dispatcher(tasks).step()
    (folder,) = (out / "slurm").iterdir()
    (folder / "ticketed").unlink()
    for task in tasks:
        (task.run.path / "ticket.json").unlink()
    (folder / "100_2_submitted.pkl").rename(folder / "0123.pkl")  # Submitit was killed before it moved the last one
    report = dispatcher(tasks).step()
    assert report.submitted == 1 and cluster.calls("scancel") == ["100_2"]
    assert [ticket_of(task).job_id for task in tasks] == ["100_0", "100_1", "101"]


def test_a_submitter_killed_before_sbatch_answered_submits_again(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 2)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):

        def killed(*arguments: object) -> object:
            raise SystemExit

        patch.setattr(batches, "executor", killed)
        dispatcher(tasks).step()
    assert dispatcher(tasks).step().submitted == 2


def test_ctrl_c_during_a_submission_waits_for_the_tickets(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 2)
    cluster.hook("sbatch", 'kill -INT $PPID; grep SigBlk /proc/$PPID/status > "$here/blocked"')
    with pytest.raises(KeyboardInterrupt):
        dispatcher(tasks).step()
    assert [ticket_of(task).job_id for task in tasks] == ["100_0", "100_1"]
    # Blocked signals are inherited: sbatch itself does not see the terminal's Ctrl-C either (dash would clear that).
    assert int((cluster.folder / "blocked").read_text().split()[1], 16) & 1 << (signal.SIGINT - 1)


# ------------------------------------------------------------------------------------- ends of jobs
def end(
    cluster: FakeCluster, dispatcher: Callable[..., Dispatcher], tasks: list[Task], word: str | None, **more: Any
) -> Report:
    """The report of a waiting command after the job of the first task ended so."""
    first = more.pop("first", None) or dispatcher(tasks)
    if not tasks[0].run.path.joinpath("ticket.json").exists():
        first.step()
    cluster.set(ticket_of(tasks[0]).job_id, word, **more)
    return first.step()


NEVER_BEGAN = [
    # word, exit code, status afterwards, recorded state, failure class, submitted again
    ("COMPLETED", "0:0", "submitted", "interrupted", None, True),
    ("FAILED", "1:0", "failed", "failed", "crash", False),
    ("FAILED", "0:9", "submitted", "failed", "crash", True),
    ("FAILED", "137:0", "submitted", "failed", "crash", True),
    ("FAILED", "5:0", "submitted", "pending", None, True),  # somebody else held it
    ("CANCELLED", "0:0", "interrupted", "interrupted", None, False),
    ("TIMEOUT", "0:0", "submitted", "interrupted", None, True),
    ("OUT_OF_MEMORY", "0:125", "failed", "failed", "oom", False),
    ("NODE_FAIL", None, "submitted", "interrupted", None, True),
    ("BOOT_FAIL", "0:0", "submitted", "interrupted", None, True),
    ("PREEMPTED", None, "submitted", "interrupted", None, True),
    ("DEADLINE", "0:0", "failed", "failed", "infra", False),
    (None, None, "submitted", "failed", "crash", True),  # forgotten
]


@pytest.mark.parametrize(("word", "code", "then", "recorded", "failure_class", "again"), NEVER_BEGAN)
def test_a_job_that_ended_without_a_word_is_recorded_and_tried_again_where_that_helps(
    out: Path,
    cluster: FakeCluster,
    dispatcher: Callable[..., Dispatcher],
    word: str | None,
    code: str | None,
    then: str,
    recorded: str,
    failure_class: str | None,
    again: bool,
) -> None:
    tasks = make_tasks(out, 1)
    first = dispatcher(tasks)
    first.step()
    if word in ("NODE_FAIL", "PREEMPTED"):  # while squeue lists it, it may come back
        cluster.set("100", word)
        assert status(first.step()) == ["submitted"]
        cluster.fails("sacct", None)
        cluster.hook("sacct", f"echo '100|{word}|0:0'; exit 0")
        cluster.set("100", None)
    else:
        cluster.set("100", word, exit_code=code or "0:0")
    report = first.step()
    assert status(report) == [then] and (report.submitted == 1) is again
    state = tasks[0].run.state()
    assert (state.state, state.failure_class) == (recorded, failure_class)
    if recorded != "pending":
        assert state.error is not None and "job 100" in state.error
    assert (tasks[0].run.path / "ticket.json").exists() is again


def test_the_log_of_a_job_that_never_began_is_quoted(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 1)
    first = dispatcher(tasks)
    first.step()
    Path(ticket_of(tasks[0]).log).write_text("Traceback\nModuleNotFoundError: No module named 'submitit'\nsrun: gone\n")
    report = end(cluster, dispatcher, tasks, "FAILED", exit_code="1:0", first=first)
    assert "No module named 'submitit'" in report.tasks[name(0)].note


def test_a_killed_run_is_tried_once_more_and_then_failed(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 1)
    first = dispatcher(tasks)
    first.step()
    for job, then in (("100", "submitted"), ("101", "failed")):
        begins(tasks[0].run, job)
        assert status(end(cluster, dispatcher, tasks, "FAILED", exit_code="0:9", first=first)) == [then]
    assert ticketless(tasks[0]) and "killed by SIGKILL" in (tasks[0].run.state().error or "")
    assert [a.content["outcome"] for a in _attempts(tasks[0])] == ["failed", "failed"]  # no third
    assert pickled(tickets.history(tasks[0].run.path)[1]).retry_after == 1


def test_lost_nodes_count_against_the_budget(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 1)
    first = dispatcher(tasks, LauncherConfig(name="slurm", requeues=2))
    first.step()
    for then in ("submitted", "submitted", "interrupted"):
        assert status(end(cluster, dispatcher, tasks, "BOOT_FAIL", first=first)) == [then]
    assert len(cluster.calls("sbatch")) == 3
    assert status(dispatcher(tasks).step()) == ["submitted"]  # whoever asks again gets another


def test_a_time_limit_without_progress_is_final(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 2)
    first = dispatcher(tasks)
    first.step()
    begins(tasks[0].run, "100_0", step=0)
    begins(tasks[1].run, "100_1", step=2)
    cluster.set("100_0", "TIMEOUT")
    cluster.set("100_1", "TIMEOUT")
    assert status(first.step()) == ["failed", "submitted"]
    assert tasks[0].run.state().failure_class == "incomplete"


def test_what_a_run_recorded_itself_is_not_overwritten(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 2)
    first = dispatcher(tasks)
    first.step()
    fails(tasks[0].run, "100_0", "ValueError: no")
    fails(tasks[1].run, "100_1", "OSError: stale file handle", "infra")
    for job in ("100_0", "100_1"):
        cluster.set(job, "FAILED", exit_code="3:0")
    report = first.step()
    assert status(report) == ["failed", "submitted"]  # the machine's fault is worth another try
    assert report.tasks[name(0)].note == "ValueError: no; do=retry submits it again"
    assert tasks[0].run.state().error == "ValueError: no"


@pytest.mark.parametrize(
    ("word", "error", "then"),
    [
        ("CANCELLED", "stopped at a step boundary: SIGTERM", "interrupted"),
        ("PREEMPTED", "stopped at a step boundary: SIGTERM", "submitted"),
        ("FAILED", "job 100 was in the queue 4 times (launcher.requeues=3)", "interrupted"),
        ("FAILED", "job 100 stopped in time, but could not go back to the queue: no", "submitted"),
        ("FAILED", "stopped at a step boundary: somebody asked", "interrupted"),
    ],
)
def test_a_stopped_run_goes_on_unless_somebody_wanted_it_to_stop(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher], word: str, error: str, then: str
) -> None:
    tasks = make_tasks(out, 1)
    first = dispatcher(tasks)
    first.step()
    stops(tasks[0].run, "100", error)
    if word == "PREEMPTED":
        cluster.fails("sacct", None)
        cluster.hook("sacct", f"echo '100|{word}|0:0'; exit 0")
    report = end(cluster, dispatcher, tasks, None if word == "PREEMPTED" else word, exit_code="4:0", first=first)
    assert status(report) == [then]
    if word == "CANCELLED":  # the run only knew that it was sent a signal
        recorded = tasks[0].run.state().error or ""
        assert recorded.startswith("job 100 ended as CANCELLED") and recorded.endswith(f"; it {error}")
    if then == "interrupted":
        assert not report.open and status(dispatcher(tasks).step()) == ["submitted"]


# ------------------------------------------------------------------------------------- failures of before
def test_only_retry_submits_what_failed_by_itself(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 1)
    fails(tasks[0].run, "")
    assert status(dispatcher(tasks).step()) == ["failed"] and not cluster.calls("sbatch")
    report = dispatcher(tasks, retry_failed=True).step()
    assert status(report) == ["submitted"] and pickled(ticket_of(tasks[0])).retry_after == 1


def test_out_of_memory_is_not_tried_with_the_same_memory(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher]
) -> None:
    tasks = make_tasks(out, 1)
    dispatcher(tasks).step()
    cluster.set("100", "OUT_OF_MEMORY", exit_code="0:125")
    report = dispatcher(tasks).step()
    assert status(report) == ["failed"] and "mem_gb" in report.tasks[name(0)].note
    assert status(dispatcher(tasks).step()) == ["failed"]
    more = [replace(task, shape=replace(task.shape, mem_gb=6.0)) for task in tasks]
    assert status(dispatcher(more).step()) == ["submitted"]


def ticketless(task: Task) -> bool:
    return not (task.run.path / "ticket.json").exists()


def _attempts(task: Task) -> list[Any]:
    from harness import attempts

    return attempts.all_attempts(task.run.path)


def test_the_environment_of_jobs(
    out: Path, cluster: FakeCluster, dispatcher: Callable[..., Dispatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("SLURM_JOB_ID", "5")  # this command runs in a job itself
    monkeypatch.setenv("SLURM_CONF", "/some/slurm.conf")
    cluster.hook("sbatch", 'env | grep "^SLURM_" > "$here/seen"')
    dispatcher([replace(task, threads=2) for task in make_tasks(out, 1)]).step()
    assert (cluster.folder / "seen").read_text() == "SLURM_CONF=/some/slurm.conf\n"
    given = settings_of(cluster.scripts()[100])
    assert given["PYTHONPATH"].strip("'") == f"{out / 'snapshots' / 'abc'}:/mine:{Path.cwd()}"
    assert (given["PYTHONSAFEPATH"], given["OMP_NUM_THREADS"], given["MKL_NUM_THREADS"]) == ("1", "2", "2")
