"""The parent's side of engine=verl: outcomes, stop requests, processes left behind, checkpoints and exports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import verl_helpers as helpers

from envs.interface import EnvironmentFailure
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.states import COMPLETE, FAILED, INTERRUPTED, Interrupted
from harness.training.checkpoint import MANIFEST, STATE, CheckpointError
from harness.training.verl import engine, store
from harness.training.verl.outcome import Outcome, VerlError, failure_class, judge, outcome_of
from harness.training.verl.session import VerlSession
from methods.skills.analyzer import AnalyzerFailure


# ------------------------------------------------------------------------------------------------------------ outcomes
def ended(tmp_path, outcome=None, status=0, log="the last words"):
    (tmp_path / "log.txt").write_text(log)
    if outcome is not None:
        outcome.write(tmp_path / "outcome.json")
    judge(tmp_path / "outcome.json", status, tmp_path / "log.txt")


def test_a_complete_run_is_complete(tmp_path):
    ended(tmp_path, Outcome(COMPLETE))


def test_a_stopped_run_is_interrupted(tmp_path):
    with pytest.raises(Interrupted, match="after training step 1"):
        ended(tmp_path, outcome_of(Interrupted("stopped after training step 1 of 2")))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AnalyzerFailure("3 of 4 analyses failed"), "analyzer"),
        (EnvironmentFailure("4 of 4 episodes failed"), "env"),
        (MemoryError(), "oom"),
        (RuntimeError("CUDA out of memory"), "oom"),
        (type("ActorDiedError", (Exception,), {})("a worker died"), "infra"),
        (type("OutOfMemoryError", (Exception,), {})("killed by Ray"), "oom"),
        (ValueError("a mistake"), "crash"),
    ],
)
def test_a_failure_keeps_its_class_and_its_words(tmp_path, error, expected):
    assert failure_class(error) == expected
    outcome = outcome_of(error)
    assert outcome.outcome == FAILED
    with pytest.raises(VerlError, match=type(error).__name__) as raised:
        ended(tmp_path, outcome)
    assert raised.value.failure_class == expected


@pytest.mark.parametrize(("status", "expected", "words"), [(-9, "oom", "SIGKILL"), (1, "crash", "exit status 1")])
def test_a_process_that_said_nothing_is_a_failure_with_its_last_lines(tmp_path, status, expected, words):
    with pytest.raises(VerlError, match=words) as raised:
        ended(tmp_path, None, status)
    assert raised.value.failure_class == expected
    assert "the last words" in str(raised.value)


def test_an_outcome_that_cannot_be_read_is_a_failure(tmp_path):
    (tmp_path / "outcome.json").write_text("{")
    with pytest.raises(VerlError, match="cannot be read"):
        ended(tmp_path)


# ----------------------------------------------------------------------------------------------------------- processes
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def started(scratch):
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, STUBBORN],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, engine.SCRATCH: str(scratch)},
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(engine, "GRACE_SECONDS", 0.3)


def test_nothing_is_left_behind_not_even_sessions_of_their_own(tmp_path, impatient):
    process, child = started(tmp_path)
    bystander, other = started(tmp_path / "another run's")
    engine.end_family(process, tmp_path)
    assert process.poll() == -signal.SIGKILL
    assert gone(child)
    assert not gone(bystander.pid) and not gone(other)
    engine.end_family(bystander, tmp_path / "another run's")
    assert gone(other)


def test_what_outlives_its_parent_is_ended_too(tmp_path, impatient):
    process, child = started(tmp_path)
    process.kill()
    process.wait()
    assert not gone(child)
    engine.end_family(process, tmp_path)
    assert gone(child)


def test_a_stop_request_becomes_one_sigterm(tmp_path):
    listening = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(7))\nprint(1, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", listening + "time.sleep(600)"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert engine._wait(process, lambda: True, tmp_path) == 7


def test_an_exception_of_the_waiting_process_ends_the_other(tmp_path, impatient):
    process, child = started(tmp_path)

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine._wait(process, interrupted, tmp_path)
    assert process.poll() == -signal.SIGKILL
    assert gone(child)


def test_the_process_gets_a_ray_of_its_own_and_a_token(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", "somebody:6379")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "mine")
    found = engine.environment(RunConfig(), tmp_path)
    assert "RAY_ADDRESS" not in found
    assert len(found["RAY_AUTH_TOKEN"]) == 64
    assert found["VERL_USE_EXTERNAL_MODULES"] == "mine,harness.training.verl.cpu"
    assert found["VERL_PLATFORM"] == "cpu"
    assert found[engine.SCRATCH] == str(tmp_path)


def test_scratch_folders_have_room_for_sockets(monkeypatch):
    monkeypatch.setattr(engine.tempfile, "gettempdir", lambda: "/somewhere/" + "deep/" * 20)
    assert engine._short_folder() == "/tmp"


# --------------------------------------------------------------------------------------------- checkpoints and exports
def shards(folder: Path) -> None:
    (folder / store.ACTOR).mkdir()
    (folder / store.ACTOR / "model.pt").write_bytes(os.urandom(100))


def test_the_newest_sound_checkpoint_is_found_and_old_ones_go(tmp_path):
    for step in (1, 2, 3):
        store.save(tmp_path, step, {"seed": step}, shards, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003"]
    path, state, rejected = store.newest(tmp_path)
    assert path is not None and path.name == "step_000003"
    assert (state["step"], state["seed"]) == (3, 3) and rejected == []


@pytest.mark.parametrize("damage", ["short", "state", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    for step in (1, 2):
        store.save(tmp_path, step, {}, shards, keep=2)
    newest = tmp_path / "step_000002"
    if damage == "short":
        (newest / store.ACTOR / "model.pt").write_bytes(b"half")
    elif damage == "state":
        (newest / STATE).write_text((newest / STATE).read_text().replace("2", "7"))
    else:
        (newest / MANIFEST).unlink()
    path, state, rejected = store.newest(tmp_path)
    assert path is not None and path.name == "step_000001" and state["step"] == 1
    assert [bad.path.name for bad in rejected] == ["step_000002"]


def test_a_checkpoint_that_could_not_be_written_leaves_nothing(tmp_path):
    def failing(folder: Path) -> None:
        shards(folder)
        raise RuntimeError("a worker died")

    with pytest.raises(RuntimeError):
        store.save(tmp_path, 1, {}, failing, keep=2)
    assert list(tmp_path.iterdir()) == []


class OfOneGpu:
    """Services whose shards are of one rank, as a run on a CPU has them."""

    def __init__(self):
        self.restored = []

    def save(self, folder, with_teacher):
        shards(folder)

    def restore(self, folder, with_teacher):
        self.restored.append(folder.name)


def attempt(run, gpus):
    """A session of an attempt that has so many GPUs."""
    made = VerlSession.__new__(VerlSession)
    config = helpers.run_config("grpo", Path("nowhere"))
    config.runtime.device = "cuda"
    config.backbone.resources.gpus_per_node = gpus
    made.run, made.config, made.planned, made.services = run, config, 2, OfOneGpu()
    made.run.checkpoints_dir.mkdir(exist_ok=True)
    return made


def test_a_checkpoint_is_read_by_as_many_gpus_as_wrote_it(tmp_path):
    run = helpers.run_directory(tmp_path, helpers.run_config("grpo", Path("nowhere")))
    loaded = []
    trainer = SimpleNamespace(teacher=None, load_state=loaded.append)
    attempt(run, 4)._write(trainer, 1, {"seed": 0})
    other = attempt(run, 2)
    words = r"backbone\.resources\.gpus_per_node=2: step_000001 was written by 4 GPUs and this attempt has 2"
    with pytest.raises(ConfigError, match=words) as raised:
        other._load(trainer)
    assert failure_class(raised.value) == "config"
    assert other.services.restored == loaded == []
    again = attempt(run, 4)
    assert again._load(trainer)[0] == 1
    assert again.services.restored == ["step_000001"] and loaded[0]["seed"] == 0


def test_an_export_is_known_by_its_weights(tmp_path):
    folder = tmp_path / store.EXPORT
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    assert store.exported(tmp_path) is None  # not sealed: perhaps half of one
    store.seal_export(folder)
    found = store.exported(tmp_path)
    assert found is not None and len(found.digest) == 64
    (folder / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(CheckpointError, match="sha256"):
        store.exported(tmp_path)


def test_states_and_words_are_those_of_every_engine():
    assert json.loads(json.dumps(outcome_of(Interrupted("x")).__dict__))["outcome"] == INTERRUPTED
