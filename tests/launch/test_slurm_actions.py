"""The command line with launcher=slurm: submit and return, stay, look, watch, cancel, retry."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import FakeCluster
from launch_runs import completes, fails

from harness import actions_slurm, cli
from harness.compose import Composer, composer
from harness.launch import cancelling, slurm, tickets
from harness.record import RunDirectory

CELLS = ["method=grpo", "env=alfworld", "backbone=tiny-s", "scale=test", "seed=0,1"]
POLL = 0.0123  # seconds; no one else sleeps so


@pytest.fixture(scope="module")
def shared_composer() -> Composer:
    return composer()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_composer: Composer) -> FakeCluster:
    import harness.preflight
    import harness.prepare

    made = FakeCluster(tmp_path / "clients")
    monkeypatch.setenv("PATH", f"{made.folder / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "FILE_SYSTEM_SECONDS", 0.0)
    monkeypatch.setattr(slurm, "snapshot", lambda out: out / "snapshots" / "abc")
    monkeypatch.setattr(harness.prepare, "prepare", lambda config, progress: None)
    monkeypatch.setattr(harness.preflight, "check", lambda plan: [])
    monkeypatch.setattr("harness.compose.composer", lambda *given: shared_composer)
    return made


Command = Callable[..., int]


@pytest.fixture
def command(tmp_path: Path, cluster: FakeCluster) -> Command:
    """`python -m harness` with these cells, and with a test's own arguments in the place of ours of the same key."""

    def make(*arguments: str) -> int:
        common = [*CELLS, f"out={tmp_path}", "launcher=slurm", "tracking=none", f"launcher.poll_seconds={POLL}"]
        own = {argument.partition("=")[0] for argument in arguments}
        return cli.main([*(a for a in common if a.partition("=")[0] not in own), *arguments])

    return make


def runs(tmp_path: Path) -> list[RunDirectory]:
    found = [RunDirectory(path) for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]
    return sorted(found, key=lambda run: run.load_config().seed)


def job(run: RunDirectory) -> str:
    found = tickets.read(run.path)
    assert found is not None
    return found.job_id


def plays(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, moves: Sequence[Callable[[], None]]) -> None:
    """Something happens each time the command waits."""
    left = list(moves)

    def sleep(seconds: float) -> None:
        if seconds == POLL and left:
            left.pop(0)()

    monkeypatch.setattr(actions_slurm.time, "sleep", sleep)


# ------------------------------------------------------------------------------------- plan
def test_plan_shows_scripts_and_gpu_hours_and_submits_nothing(
    command: Command, cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-planted-1a2b3c4d")
    assert command("do=plan", "launcher.partition=gpu", "launcher.resources={tiny-s: {minutes: 30}}") == 0
    printed = capsys.readouterr().out
    assert "jobs: 2 in 1 array" in printed and "GPU hours: none" in printed
    for line in ("#SBATCH --array=0-1%2", "#SBATCH --partition=gpu", "#SBATCH --time=30", "export PYTHONSAFEPATH=1"):
        assert f"    {line}" in printed
    assert "sk-planted" not in printed
    assert not (cluster.folder / "calls").exists()


def test_plan_counts_gpu_hours_by_shape(
    command: Command, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["runtime.device=cuda", "backbone.resources.gpus_per_node=1", "launcher.budget_gpu_hours=1"]
    assert command("do=plan", *more) == 0
    printed = capsys.readouterr().out
    assert "at most 2.00 GPU hours if every job uses its whole time limit once (each may come back 3 times" in printed
    assert "budget 1 (launcher.budget_gpu_hours), exceeded" in printed
    assert re.search(r"1 node x 1 GPU, .* 60 min +2 +2\.00", printed)


def test_settings_that_make_no_script_are_errors_before_anything_happens(
    command: Command, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for what in ("do=plan", "do=run"):
        assert command(what, "+launcher.sbatch.array=1-3") == 2
        assert "launcher.sbatch.array" in capsys.readouterr().err
        assert command(what, "+launcher.resources.tiny-s={minute: 3}") == 2
        assert "launcher.resources.tiny-s.minute=3" in (said := capsys.readouterr().err) and "'minutes'" in said
    assert not cluster.calls("sbatch")


# ------------------------------------------------------------------------------------- run
def test_run_returns_at_once_and_the_same_command_attaches(
    command: Command, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 0
    assert "2 jobs submitted in 1 arrays: 100" in capsys.readouterr().err
    assert [job(run) for run in runs(tmp_path)] == ["100_0", "100_1"]
    assert command() == 0
    said = capsys.readouterr().err
    assert "submitted" not in said and "2 in the queue" in said
    for run in runs(tmp_path):
        completes(run, job(run))
    assert command() == 0
    printed = capsys.readouterr()
    assert "nothing to run" in printed.err and "GRPO" in printed.out  # the table
    assert len(cluster.calls("sbatch")) == 1


def test_a_failed_cell_gives_status_3_and_is_named(
    command: Command, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command()
    fails(runs(tmp_path)[0], "100_0", "ValueError: no")
    cluster.set("100_0", "FAILED", exit_code="3:0")
    assert command() == 3
    assert "failed: GRPO seed 0: ValueError: no; do=retry submits it again" in capsys.readouterr().err
    assert len(cluster.calls("sbatch")) == 1
    assert command("do=retry") == 0
    assert [job(run) for run in runs(tmp_path)] == ["101", "100_1"]


def test_staying_sees_every_cell_through(
    command: Command,
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose_a_node() -> None:
        cluster.set("100_0", "BOOT_FAIL")
        cluster.set("100_1", "RUNNING")

    def end() -> None:
        for run in runs(tmp_path):
            completes(run, job(run))

    plays(cluster, monkeypatch, [lose_a_node, lambda: None, end])
    assert command("wait=true") == 0
    printed = capsys.readouterr()
    assert "2 in the queue" in printed.err and "is submitted again" in printed.err and "1 running" in printed.err
    assert "GRPO" in printed.out and len(cluster.calls("sbatch")) == 2


def test_ctrl_c_while_staying_leaves_the_jobs_alone(
    command: Command, cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    plays(cluster, monkeypatch, [interrupt])
    assert command("wait=true") == 130
    assert "the jobs go on" in capsys.readouterr().err
    assert not cluster.calls("scancel") and cluster.waiting() == ["100_0", "100_1"]


def test_what_cannot_be_prepared_is_not_submitted(
    command: Command, cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import harness.preflight
    import harness.prepare
    from harness.preflight.findings import Finding

    def broken(config: Any, progress: Any) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(harness.prepare, "prepare", broken)
        assert command() == 3
        assert "no room" in capsys.readouterr().err
    finding = Finding("problem", "launcher.partition", "gpu", "command line", "there is no such partition", "main")
    with monkeypatch.context() as patch:
        patch.setattr(harness.preflight, "check", lambda plan: [finding])
        assert command() == 3
        assert "there is no such partition" in capsys.readouterr().err
    assert not cluster.calls("sbatch")


# ------------------------------------------------------------------------------------- looking
def test_status_says_what_the_scheduler_says(
    command: Command, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command()
    cluster.set("100_0", "RUNNING")
    cluster.set("100_1", "PENDING", "QOSMaxJobsPerUserLimit")
    capsys.readouterr()
    assert command("do=status") == 3
    printed = capsys.readouterr().out
    assert re.search(r"grpo .* running .* 100_0 RUNNING", printed)
    assert re.search(r"grpo .* submitted .* 100_1 PENDING", printed)
    assert "GRPO seed 1: job 100_1 waits (QOSMaxJobsPerUserLimit)" in printed
    cluster.set("100_0", "NODE_FAIL")
    cluster.set("100_1", None)
    assert command("do=status") == 3
    printed = capsys.readouterr().out
    assert "job 100_0 goes back to the queue (NODE_FAIL)" in printed
    assert "job 100_1 is no longer known to the scheduler; the same command with do=run" in printed
    cluster.fails("squeue", "Unable to contact slurm controller")
    assert command("do=status") == 3
    printed = capsys.readouterr().out
    assert "100_0 unknown" in printed and "its state is not known" in printed and "Unable to contact" in printed
    assert not (runs(tmp_path)[0].path / "spool.jsonl").exists()  # nothing was written


def test_watching_ends_when_nothing_is_under_way(
    command: Command,
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command()

    def end() -> None:
        completes(runs(tmp_path)[0], "100_0")
        cluster.set("100_0", "COMPLETED")
        cluster.set("100_1", "CANCELLED")

    plays(cluster, monkeypatch, [end, *[lambda: None] * 1000])
    assert command("do=watch") == 3
    assert "nothing works on these cells" in capsys.readouterr().err
    assert len(cluster.calls("sbatch")) == 1 and runs(tmp_path)[1].state().state == "pending"


# ------------------------------------------------------------------------------------- cancelling
def test_cancel_ends_what_waits_and_what_runs_and_says_who(
    command: Command,
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cancelling, "POLL_SECONDS", 0.01)
    command()
    cluster.set("100_0", "RUNNING")
    assert command("do=cancel", "seed=1") == 0
    assert cluster.calls("scancel") == ["100_1"]
    assert command("do=cancel") == 0
    assert cluster.calls("scancel") == ["100_1", "100_0"]
    for run in runs(tmp_path):
        state = run.state()
        assert state.state == "interrupted" and "cancelled by" in (state.error or "")
        assert not (run.path / "ticket.json").exists()
    capsys.readouterr()
    assert command("do=cancel") == 0
    assert "0 jobs cancelled, nothing else has one" in capsys.readouterr().err
    assert command() == 0 and len(cluster.waiting()) == 2  # asked for again, they go on


def test_cancel_leaves_alone_what_it_does_not_know(
    command: Command, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command()
    cluster.set("100_0", "SOMETHING_NEW")
    assert command("do=cancel") == 3
    assert cluster.calls("scancel") == ["100_1"]
    assert "SOMETHING_NEW" in capsys.readouterr().err and (runs(tmp_path)[0].path / "ticket.json").exists()
    cluster.set("100_0", "RUNNING")
    cluster.fails("scancel", "slurm_kill_job error: Unable to contact slurm controller")
    assert command("do=cancel") == 3
    assert "Unable to contact" in capsys.readouterr().err


def test_a_job_that_does_not_end_is_named(
    command: Command, cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(cancelling, "POLL_SECONDS", 0.01)
    command()
    cluster.hook("scancel", "exit 0")
    assert command("do=cancel") == 3
    assert "job 100_0 waits; it was told to end, and has not" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- beside the local launcher
def test_the_local_launcher_does_not_start_a_cell_with_a_live_job(
    command: Command, cluster: FakeCluster, tmp_path: Path
) -> None:
    import io

    from rich.console import Console

    from harness.launch import local
    from harness.progress import Progress

    command()
    (first, second) = runs(tmp_path)
    cluster.set("100_0", "CANCELLED")
    launcher = local.Launcher([first, second], 1, Progress(console=Console(file=io.StringIO())), False, "x:y", {})
    for run in (first, second):
        launcher._settled(launcher.cell(run.fingerprint))
    assert launcher.cell(first.fingerprint).status == "waiting"  # its job has ended: it may start
    held = launcher.cell(second.fingerprint)
    assert held.status == "elsewhere" and "job 100_1 waits; do=cancel frees the run" in held.note
    cluster.fails("squeue", "Unable to contact slurm controller")
    silent = local.Launcher([second], 1, Progress(console=Console(file=io.StringIO())), False, "x:y", {})
    silent._settled(silent.cell(second.fingerprint))
    note = silent.cell(second.fingerprint).note  # do=cancel would leave such a job alone
    assert f"delete {second.path / 'ticket.json'}" in note and "do=cancel" not in note


def test_a_local_command_leaves_the_settings_of_a_job_that_waits_alone(
    command: Command, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.launch import local

    command()
    cluster.set("100_0", "CANCELLED")
    (first, second) = runs(tmp_path)
    started: list[str] = []

    def spawn(self: local.Launcher, cell: local.Cell) -> None:
        started.append(cell.run.fingerprint)
        os.kill(os.getpid(), signal.SIGINT)
        raise OSError("no worker in this test")

    monkeypatch.setattr(local.Launcher, "_spawn", spawn)
    before = (second.path / "config.yaml").read_bytes()
    assert command("launcher=local", "runtime.log_level=ERROR") == 130
    assert started == [first.fingerprint] and "log_level: ERROR" in (first.path / "config.yaml").read_text()
    assert (second.path / "config.yaml").read_bytes() == before


def test_a_ticket_that_cannot_be_read_is_told_and_stops_no_other_cell(
    command: Command, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command()
    ticket = runs(tmp_path)[0].path / "ticket.json"
    ticket.write_text("{")
    cluster.set("100_1", "CANCELLED")
    capsys.readouterr()
    assert command("do=status") == 3 and f"delete {ticket}" in capsys.readouterr().out
    assert command() == 0 and len(cluster.waiting()) == 2  # the other one again, beside the job of the first
    assert "unknown: GRPO seed 0: its job is not known" in capsys.readouterr().err
    assert command("do=cancel") == 3 and ticket.exists()


def test_records_that_cannot_be_written_are_an_error_without_a_traceback(
    command: Command, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = tmp_path / "slurm" / "cut short"
    batch.mkdir(parents=True)
    (batch / "batch.json").write_text("[]")
    assert command() == 3
    assert f"error: {batch / 'batch.json'}" in (said := capsys.readouterr().err) and "Traceback" not in said


def test_who_works_on_a_cell_elsewhere_is_told_with_the_way_on(
    command: Command, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json
    from dataclasses import asdict, replace

    from harness.owner import current_owner

    command("seed=0")
    cluster.set("100", "CANCELLED")
    (run,) = runs(tmp_path)
    run.claim_path.write_text(json.dumps(asdict(replace(current_owner(), host="login2", machine="another"))))
    command("seed=0")
    told = capsys.readouterr().err
    assert "elsewhere: GRPO seed 0: process" in told and f"delete {run.claim_path}" in told
