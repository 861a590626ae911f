"""Searches whose runs are jobs: started once, stopped, left behind and taken up again, on a fake cluster."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import FakeCluster, option
from fake_jobs import Nodes
from tune_helpers import ENTRY

from harness.actions_common import PreparationError
from harness.cli import INCOMPLETE, INTERRUPTED, OK
from harness.errors import ConfigError
from harness.launch import cancelling, slurm, tickets
from harness.launch.shapes import Shape
from harness.owner import current_owner
from harness.tune import actions, loop
from harness.tune.study import Study
from harness.tune.upcoming import left

POLL = 0.0123  # seconds; no one else sleeps so
NO_PRUNER = "sweep.tune.pruner=none"
Asks = Callable[..., Any]
Search = Callable[..., tuple[int, Study]]


@pytest.fixture
def cluster(tmp_path: Path, fakes: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster(tmp_path / "clients")
    monkeypatch.setenv("PATH", f"{made.folder / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "FILE_SYSTEM_SECONDS", 0.0)
    monkeypatch.setattr(slurm, "snapshot", lambda out: out / "snapshots" / "abc")
    monkeypatch.setattr(cancelling, "POLL_SECONDS", 0.01)
    monkeypatch.setattr("harness.preflight.check", lambda plan: [])
    return made


@pytest.fixture
def nodes(cluster: FakeCluster, tmp_path: Path) -> Nodes:
    return Nodes(cluster, tmp_path / "runs")


@pytest.fixture
def moves(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], None]]:
    """Look -> what happens then, after the nodes have moved on."""
    found: dict[int, Callable[[], None]] = {}
    looks = Counter[str]()

    def sleep(seconds: float) -> None:
        if seconds == POLL:
            looks["all"] += 1
            assert looks["all"] < 400, "it does not end"
            nodes.play()
            found.pop(looks["all"], lambda: None)()

    monkeypatch.setattr(loop.time, "sleep", sleep)
    return found


@pytest.fixture
def search(asking: Asks, tmp_path: Path, moves: object) -> Search:
    def do(*arguments: str, what: str = "run") -> tuple[int, Study]:
        ask = asking(
            "method=opid", f"out={tmp_path}", "tracking=none", "launcher=slurm", f"launcher.poll_seconds={POLL}",
            "sweep.tune.space={training.lr: null}", f"do={what}", *arguments,
        )  # fmt: skip
        code = actions.act(ask.plan, ask.tune, ask.composer, ask.command, entry=ENTRY)
        (found,) = ask.searches()
        return code, Study(found, ask.tune, ask.plan.results / "studies")

    return do


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def jobs(nodes: Nodes) -> list[int]:
    """How many jobs each run ever had."""
    return [len(tickets.history(run.path)) for run in nodes.runs()]


def states(study: Study) -> list[str]:
    return [entry.state for entry in study.entries()]


# ------------------------------------------------------------------------------------- fair weather
def test_each_trial_is_jobs_once_and_as_many_at_a_time_as_were_asked_for(
    search: Search, nodes: Nodes, cluster: FakeCluster, moves: dict[int, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    most: list[int] = []
    moves.update({look: lambda: most.append(len(nodes.runs())) for look in range(1, 4)})
    three = ("sweep.tune.trials=3", "sweep.axes.seed=[0,1]", NO_PRUNER)
    code, study = search("sweep.tune.parallel=2", *three)
    assert code == OK and states(study) == ["COMPLETE"] * 3
    assert most == [4, 4, 4] and jobs(nodes) == [1] * 6
    assert max(Counter(nodes.steps).values()) == 1 and len(nodes.steps) == 18
    first = cluster.scripts()[100]
    assert option(first, "array") == "0-3%4"  # both seeds of both trials
    said = capsys.readouterr()
    assert "jobs: 4 in the queue" in said.err and "4 jobs submitted: 100" in said.err and "| complete" in said.out
    assert search(*three)[0] == OK and jobs(nodes) == [1] * 6
    assert not cluster.calls("scancel")


def test_a_run_that_fails_fails_its_trial_with_its_own_words(search: Search, nodes: Nodes) -> None:
    space = "sweep.tune.rows.opid={method.coef: {choices: [0.95, 0.25], low: null, high: null, log: null}}"
    code, study = search(space, "sweep.tune.trials=4", NO_PRUNER)
    failed = [entry for entry in study.entries() if entry.state == "FAIL"]
    assert code == INCOMPLETE and failed and len(states(study)) == 4
    for entry in failed:  # what cannot be done is not advised
        assert entry.reason.endswith("failed: ValueError: coef is too much") and entry.fingerprints[0] in entry.reason
    assert jobs(nodes) == [1, 1]  # settings that were asked for twice are the same runs


def test_what_the_scheduler_does_not_say_is_waited_for(
    search: Search, nodes: Nodes, cluster: FakeCluster, moves: dict[int, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    moves[2] = lambda: cluster.fails("squeue", "Unable to contact slurm controller")
    moves[9] = lambda: cluster.fails("squeue", None)
    code, study = search("sweep.tune.trials=2", NO_PRUNER)
    assert code == OK and states(study) == ["COMPLETE"] * 2 and jobs(nodes) == [1, 1]
    assert "unknown" in capsys.readouterr().err


def test_a_job_that_is_lost_with_its_node_is_submitted_again(
    search: Search, nodes: Nodes, cluster: FakeCluster, moves: dict[int, Any]
) -> None:
    moves[3] = lambda: cluster.set("100", "BOOT_FAIL")
    code, study = search("sweep.tune.trials=1", NO_PRUNER)
    assert code == OK and states(study) == ["COMPLETE"] and jobs(nodes) == [2]
    assert max(Counter(nodes.steps).values()) == 1


def test_time_limits_are_no_stops_by_somebody_else(search: Search, nodes: Nodes) -> None:
    nodes.short = True
    steps = ("training.steps=8", "sweep.tune.trials=1", "sweep.axes.seed=[0,1]", NO_PRUNER)
    code, study = search(*steps)
    assert code == OK and states(study) == ["COMPLETE"] and jobs(nodes) == [8, 8]
    assert max(Counter(nodes.steps).values()) == 1


def test_a_run_that_somebody_else_stops_again_and_again_fails_its_trial(
    search: Search, nodes: Nodes, cluster: FakeCluster, moves: dict[int, Any]
) -> None:
    def cancel() -> None:
        for job in cluster.waiting():
            cluster.set(job, "CANCELLED")

    nodes.holds = lambda config: True
    moves.update(dict.fromkeys(range(1, 400), cancel))
    code, study = search("sweep.tune.trials=1", NO_PRUNER)
    assert code == INCOMPLETE and states(study) == ["FAIL"] and jobs(nodes) == [4]
    assert "was stopped 3 times by somebody else" in study.entries()[0].reason


# ------------------------------------------------------------------------------------- trouble that is nobody's fault
@pytest.mark.parametrize("kind", ["disk", "infra", "analyzer"])
def test_a_search_ends_where_no_setting_is_to_blame_and_goes_on_with_what_it_had(
    kind: str, search: Search, nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.breaks = lambda config: ("it is away", kind)
    arguments = ("sweep.tune.trials=3", "sweep.tune.parallel=1", "launcher.requeues=1", NO_PRUNER)
    arguments += ("analyzer=openai", "analyzer.model=m", "analyzer.base_url=http://127.0.0.1:9/v1")
    code, study = search(*arguments)
    assert code == INCOMPLETE and states(study) == ["RUNNING"]
    said = capsys.readouterr().err
    assert f"failed ({kind}): it is away" in said and "No setting is to blame" in said
    assert f"then {'do=retry' if kind == 'analyzer' else 'the same command'} goes on" in said
    if kind == "analyzer":  # which the same command does not try again
        assert search(*arguments)[0] == INCOMPLETE and states(study) == ["RUNNING"]
    nodes.breaks = lambda config: None
    code, study = search(*arguments, what="retry" if kind == "analyzer" else "run")
    assert code == OK and states(study) == ["COMPLETE"] * 3


def test_an_analyzer_that_asks_no_endpoint_fails_by_what_its_trial_did(search: Search, nodes: Nodes) -> None:
    nodes.breaks = lambda config: ("too many answers were of no use", "analyzer")
    code, study = search("sweep.tune.trials=2", NO_PRUNER)
    assert code == INCOMPLETE and states(study) == ["FAIL"] * 2


@pytest.fixture
def students(asking: Asks, nodes: Nodes, tmp_path: Path, moves: object) -> Search:
    """A search among students, whose teachers break."""
    nodes.breaks = lambda config: ("ValueError: no", "crash") if config.method.name != "grpo_opd" else None

    def do(space: str, what: str = "run") -> tuple[int, Study]:
        ask = asking(
            "method=grpo_opd", f"out={tmp_path}", "tracking=none", "launcher=slurm", f"launcher.poll_seconds={POLL}",
            "sweep.tune.trials=3", "sweep.tune.parallel=2", NO_PRUNER, f"do={what}", f"+sweep.tune.space={space}",
        )  # fmt: skip
        code = actions.act(ask.plan, ask.tune, ask.composer, ask.command, entry=ENTRY)
        (found,) = ask.searches()
        return code, Study(found, ask.tune, ask.plan.results / "studies")

    return do


def test_a_teacher_of_all_trials_that_failed_is_told_and_tried_again_by_retry(
    students: Search, nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    space = "{training.lr: null, method.coef: {low: 0.01, high: 0.9}}"
    for _ in range(2):  # none of them fails for it, at no command
        code, study = students(space)
        said = capsys.readouterr().err
        assert code == INCOMPLETE and set(states(study)) == {"RUNNING"}
        assert "the teacher" in said and "failed (crash): ValueError: no" in said and "then do=retry goes on" in said
    nodes.breaks = lambda config: None
    code, study = students(space, what="retry")
    assert code == OK and states(study) == ["COMPLETE"] * 3


def test_a_teacher_that_is_made_with_the_trials_settings_fails_its_trial(students: Search) -> None:
    code, study = students("{training.lr: {low: 1.0e-4, high: 1.0e-3}}")
    assert code == INCOMPLETE and states(study) == ["FAIL"] * 3
    assert all("the teacher" in entry.reason and "ValueError: no" in entry.reason for entry in study.entries())


def test_retry_does_failed_trials_once_more_with_the_same_settings(
    search: Search, nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.breaks = lambda config: ("RuntimeError: a bug, since mended", "crash")
    arguments = ("sweep.tune.trials=2", NO_PRUNER)
    code, study = search(*arguments)
    assert code == INCOMPLETE and states(study) == ["FAIL"] * 2
    nodes.breaks = lambda config: None
    assert search(*arguments)[0] == INCOMPLETE and states(study) == ["FAIL"] * 2  # nobody asked for it
    code, study = search(*arguments, what="retry")
    entries = study.entries()
    assert code == OK and states(study) == ["FAIL", "FAIL", "COMPLETE", "COMPLETE"]
    assert [entry.retried for entry in entries] == [True, True, False, False]
    assert [entry.params for entry in entries[2:]] == [entry.params for entry in entries[:2]]
    assert [entry.fingerprints for entry in entries[2:]] == [entry.fingerprints for entry in entries[:2]]
    assert "2 trials: 2 complete, 0 to begin (2 more failed, and others are in their place)" in capsys.readouterr().out
    before = jobs(nodes)
    assert search(*arguments, what="retry")[0] == OK and jobs(nodes) == before == [2, 2]


def test_a_search_that_waits_for_another_machine_says_for_whom(
    search: Search, nodes: Nodes, moves: dict[int, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("sweep.tune.trials=1", NO_PRUNER)
    moves[2] = interrupt
    code, study = search(*arguments)
    assert code == INTERRUPTED
    claim = study.journal.with_suffix(".trial-0.claim")
    claim.write_text(json.dumps(asdict(replace(current_owner(), host="login2", machine="another"))))
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.time, "sleep", lambda seconds: interrupt())
        assert search(*arguments)[0] == INTERRUPTED
    said = capsys.readouterr().err
    assert "another command works on the last 1 trial(s)" in said
    assert "trial 0: process" in said and "login2 is on another machine" in said and f"delete {claim}" in said


# ------------------------------------------------------------------------------------- stopping
# The row's own coefficient comes first; what the sampler draws next is worse, and pruned at its first look.
FIRST = 0.25
PRUNING = ("training.steps=8", "sweep.tune.trials=2", "sweep.tune.startup=1", "sweep.tune.parallel=1")


def test_a_pruned_trial_leaves_at_a_step_boundary_and_gives_its_waiting_jobs_back(
    search: Search, nodes: Nodes, cluster: FakeCluster
) -> None:
    nodes.holds = lambda config: config.seed == 1 and config.method.coef != FIRST
    code, study = search(*PRUNING, "sweep.axes.seed=[0,1]")
    entries = study.entries()
    assert code == OK and states(study) == ["COMPLETE", "PRUNED"]
    told = f"pruned: trial 1 of {study.search.name}"
    runs = {run.fingerprint: run for run in nodes.runs()}
    ran, waited = (runs[name] for name in entries[1].fingerprints)
    assert ran.state().state == waited.state().state == "interrupted"
    assert 1 <= ran.state().last_step < 8 and waited.state().last_step == 0
    assert told in (ran.state().error or "") and told in (waited.state().error or "")
    (cancelled,) = cluster.calls("scancel")
    assert cancelled == tickets.history(waited.path)[0].job_id
    assert jobs(nodes) == [1] * 4
    assert tickets.read(ran.path) is None and tickets.read(waited.path) is None


def test_a_decision_to_prune_outlives_the_command(
    search: Search, nodes: Nodes, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up = loop.Loop._give_up

    def and_then_it_is_interrupted(*given: Any) -> None:
        give_up(*given)
        interrupt()

    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "_give_up", and_then_it_is_interrupted)
        code, study = search(*PRUNING)
    assert code == INTERRUPTED and states(study) == ["COMPLETE", "RUNNING"]
    (name,) = study.entries()[1].fingerprints
    nodes.play()  # the job sees the request, and leaves
    code, study = search(*PRUNING)
    assert code == OK and states(study) == ["COMPLETE", "PRUNED"]
    assert "the pruner gave it up" in study.entries()[1].reason
    assert jobs(nodes) == [1, 1] and nodes.steps.count((name, 1)) == 1 and nodes.starts.count(name) == 1


@pytest.mark.parametrize("warned", [False, True])
def test_a_job_whose_run_is_unwanted_does_not_go_back_to_the_queue(
    warned: bool, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its time limit comes near at the same moment."""
    from launch_runs import make_run

    from harness.launch import job
    from harness.stopping import request_stop

    run = make_run(tmp_path / "runs")
    request_stop(run.path, "pruned: trial 7 of a search")
    stop = job.JobStop()
    if warned:
        stop.received["SIGUSR2"] = 1.0
    back: list[Any] = []
    monkeypatch.setattr(job, "go_back", lambda *given: back.append(given))
    monkeypatch.setattr(job.Job, "_serve", lambda self, run, stop: job.EXIT_INTERRUPTED)
    place = job.Place(job="100_0", restarts=0, end=None, rank=0)
    work = job.Job(str(run.path))
    assert work._lead(run, place, stop) == job.EXIT_INTERRUPTED and not back
    if warned:  # but for the request it would
        (run.path / "stop.txt").unlink()
        assert work._lead(run, place, stop) == job.EXIT_INTERRUPTED and len(back) == 1


# ------------------------------------------------------------------------------------- leaving and coming back
def test_ctrl_c_leaves_the_jobs_alone_and_the_same_command_takes_them_up(
    search: Search, nodes: Nodes, cluster: FakeCluster, moves: dict[int, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("sweep.tune.trials=3", "sweep.tune.parallel=2", NO_PRUNER)
    moves[4] = interrupt
    code, study = search(*arguments)
    assert code == INTERRUPTED and states(study) == ["RUNNING"] * 2 and "RUNNING" in nodes.word("100_0")
    said = capsys.readouterr().err
    assert "stopped; the jobs go on" in said and "do=cancel" in said
    assert not cluster.calls("scancel") and not any((run.path / "stop.txt").exists() for run in nodes.runs())
    assert search(*arguments, what="status")[0] == INCOMPLETE
    assert "OPID (trial 1) seed 0: job 100_1 RUNNING" in capsys.readouterr().out
    nodes.play()  # one job goes on
    code, study = search(*arguments)
    assert code == OK and states(study) == ["COMPLETE"] * 3
    assert jobs(nodes) == [1] * 3 and max(Counter(nodes.steps).values()) == 1
    assert len(nodes.starts) == len(set(nodes.starts)) == 3


def test_a_second_ctrl_c_does_not_wait(
    search: Search, nodes: Nodes, cluster: FakeCluster, moves: dict[int, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    left_at_once: list[bool] = []

    def twice() -> None:
        interrupt()
        try:
            interrupt()
        except KeyboardInterrupt:
            left_at_once.append(True)
            raise

    moves[2] = twice
    code, study = search("sweep.tune.trials=1", NO_PRUNER)
    assert code == INTERRUPTED and left_at_once and states(study) == ["RUNNING"]
    assert "the jobs go on" in capsys.readouterr().err and not cluster.calls("scancel")
    assert study.ask() is not None  # nobody holds the trial any more


def test_runs_that_ended_meanwhile_are_not_started_again(
    search: Search, nodes: Nodes, cluster: FakeCluster, moves: dict[int, Any]
) -> None:
    space = "sweep.tune.rows.opid={method.coef: {choices: [0.25, 0.95], low: null, high: null, log: null}}"
    arguments = (space, "sweep.tune.trials=2", "sweep.tune.parallel=2", "sweep.tune.sampler=random", NO_PRUNER)
    moves[1] = interrupt
    assert search(*arguments)[0] == INTERRUPTED
    for _ in range(6):
        nodes.play()
    code, study = search(*arguments)
    assert set(states(study)) <= {"COMPLETE", "FAIL"} and set(jobs(nodes)) == {1}
    assert max(Counter(nodes.starts).values()) == 1 and code == (INCOMPLETE if "FAIL" in states(study) else OK)


def test_cancel_ends_the_jobs_of_trials_under_way_which_then_go_on(
    search: Search, nodes: Nodes, cluster: FakeCluster, moves: dict[int, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("sweep.tune.trials=2", "sweep.tune.parallel=2", NO_PRUNER)
    moves[3] = interrupt
    assert search(*arguments)[0] == INTERRUPTED
    assert search(*arguments, what="cancel")[0] == OK
    assert "2 jobs cancelled" in capsys.readouterr().err and cluster.calls("scancel") == ["100_0 100_1"]
    assert all("cancelled by" in (run.state().error or "") for run in nodes.runs())
    code, study = search(*arguments)
    assert code == OK and states(study) == ["COMPLETE"] * 2
    assert jobs(nodes) == [2, 2] and max(Counter(nodes.steps).values()) == 1


# ------------------------------------------------------------------------------------- before the start
def test_a_site_that_refuses_jobs_stops_the_search_and_fails_no_trial(
    search: Search, nodes: Nodes, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.fails("sbatch", "sbatch: error: invalid partition specified: gpus")
    code, study = search("sweep.tune.trials=2", NO_PRUNER)
    assert code == INCOMPLETE and set(states(study)) == {"RUNNING"}
    assert "not submitted: sbatch refused" in (said := capsys.readouterr().err) and "invalid partition" in said
    cluster.fails("sbatch", None)
    code, study = search("sweep.tune.trials=2", NO_PRUNER)
    assert code == OK and states(study) == ["COMPLETE"] * 2 and jobs(nodes) == [1, 1]


def test_all_that_is_left_is_checked_before_the_first_job(
    search: Search, nodes: Nodes, cluster: FakeCluster, moves: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []

    def check(plan: Any, cells: Any, gpus: bool) -> None:
        names = {cell.fingerprint for cell in cells}
        assert names == {cell.fingerprint for cell in plan.selected}
        seen.append((len(names), gpus))
        if gpus:
            raise PreparationError("that is more than launcher.budget_gpu_hours")

    monkeypatch.setattr(actions, "check_before_submitting", check)
    arguments = ("sweep.tune.trials=4", "sweep.tune.parallel=1", "sweep.axes.seed=[0,1]", NO_PRUNER)
    monkeypatch.setattr(actions, "shape_of", lambda config: Shape(gpus_per_node=1))
    assert search(*arguments)[0] == INCOMPLETE and not cluster.calls("sbatch")
    monkeypatch.setattr(actions, "shape_of", lambda config: Shape())
    wanted = [4, 0]  # runs at which each command is interrupted: one trial is done, another under way; at once

    def leave() -> None:
        if wanted and len(nodes.runs()) >= wanted[0]:
            wanted.pop(0)
            interrupt()

    moves.update(dict.fromkeys(range(1, 100), leave))
    code, study = search(*arguments)
    assert code == INTERRUPTED and states(study) == ["COMPLETE", "RUNNING"]
    search(*arguments)
    assert seen == [(8, True), (8, False), (6, False)]


def test_the_budget_is_that_of_the_whole_search(asking: Asks, tmp_path: Path) -> None:
    from harness.preflight import scope_of
    from harness.preflight.money import budget

    gpus = ("runtime.device=cuda", "backbone.resources.gpus_per_node=1", "launcher.budget_gpu_hours=0.001")
    ask = asking("method=opid", f"out={tmp_path}", "launcher=slurm", "sweep.tune.trials=8", *gpus)
    studies = [Study(found, ask.tune, tmp_path / "studies") for found in ask.searches()]
    (finding,) = budget(scope_of(left(ask.plan, studies, ask.trials), print))
    assert finding.status == "problem" and "8 cells take at most" in finding.said


def test_plan_shows_jobs_and_settings_that_make_none_are_errors(
    search: Search, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search("sweep.tune.trials=7", what="plan")[0] == OK
    said = capsys.readouterr().out
    assert "jobs: 7 in 1 array" in said and "GPU hours: none" in said and "#SBATCH --array=0-6" in said
    for what in ("plan", "run"):
        with pytest.raises(ConfigError, match="array"):
            search("+launcher.sbatch.array=1-3", what=what)
    assert not (cluster.folder / "calls").exists()
