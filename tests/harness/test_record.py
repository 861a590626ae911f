"""Run directories: creation, configuration, provenance, states."""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from fake_cells import make_config, make_run

from harness import attempts, provenance
from harness import claim as claims
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.files import DiskFullError, RecordError, atomic_write
from harness.record import GONE, RunDirectory, config_text, declared_evaluations, parse_config, planned_steps
from harness.redaction import redact, redact_arguments
from harness.states import classify, derive_state, missing_for_completeness

EVALUATED = {"seen/off": {"requested": 4, "graded": 3, "excluded": 1}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out folder" / "runs"


# --------------------------------------------------------------------------------- creation
def test_creation_writes_config_provenance_and_a_pending_state(root: Path) -> None:
    run = make_run(root, steps=7)
    assert sorted(path.name for path in run.path.iterdir()) == ["config.yaml", "provenance.json", "state.json"]
    assert run.path == root / run.fingerprint
    state = run.state()
    assert (state.state, state.planned_steps, state.declared) == ("pending", 7, ("seen/off",))
    assert [path.name for path in root.iterdir()] == [run.fingerprint]


def test_creation_is_idempotent(root: Path) -> None:
    run = make_run(root)
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    again = make_run(root)
    assert {path.name: path.read_bytes() for path in again.path.iterdir()} == before


def test_config_survives_the_round_trip(root: Path) -> None:
    config = make_config(seed=3)
    config.training.lr = 1e-10
    config.training.dual_clip = None
    config.method.rollout_skills_eval = ["off", "on"]
    config.method.label = "OPID: «λ» # yes"
    config.env.data = "null"
    config.runtime.out = "/a b/c"
    run = RunDirectory.create(root, config, "f" * 16)
    loaded = run.load_config()
    assert isinstance(loaded, RunConfig)
    assert asdict(loaded) == asdict(config)


def test_another_configuration_under_the_same_fingerprint_is_refused(root: Path) -> None:
    make_run(root)
    config = make_config()
    config.training.lr = 0.5
    with pytest.raises(RecordError, match=r"training\.lr: 0\.0003 there, 0\.5 now"):
        RunDirectory.create(root, config, f"{0:016x}")


def test_fields_that_cannot_change_a_result_are_brought_up_to_date(root: Path) -> None:
    run = make_run(root)
    config = make_config()
    config.runtime.eval_batch = 8
    before = (run.path / "config.yaml").read_bytes()
    RunDirectory.create(root, config, run.fingerprint, update=False)
    assert (run.path / "config.yaml").read_bytes() == before
    RunDirectory.create(root, config, run.fingerprint)
    assert run.load_config().runtime.eval_batch == 8


def test_configuration_of_a_run_in_work_or_complete_stays(root: Path) -> None:
    config = make_config()
    config.runtime.eval_batch = 8
    run = make_run(root)
    with run.claim() or pytest.fail("free"):
        RunDirectory.create(root, config, run.fingerprint)
        assert run.load_config().runtime.eval_batch == 64
    run.write_state(state="complete", last_step=3, evaluations=EVALUATED)
    RunDirectory.create(root, config, run.fingerprint)
    assert run.load_config().runtime.eval_batch == 64


def _create(root: Path, start: object, results: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    run = make_run(root, seed=5)
    results.put((run.path / "provenance.json").read_bytes())  # type: ignore[attr-defined]


def test_many_processes_creating_at_once_make_one_directory(root: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    processes = [context.Process(target=_create, args=(root, start, results)) for _ in range(8)]
    for process in processes:
        process.start()
    start.set()
    seen = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(seen) == 1
    assert [path.name for path in root.iterdir()] == [f"{5:016x}"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_folder_is_a_clear_error(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(path: object, mode: int = 0o777) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(RecordError, match=r"may not write .*choose a writable runtime\.out"):
        make_run(root)


def test_a_file_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a folder")
    with pytest.raises(RecordError, match="cannot write"):
        make_run(tmp_path / "runs")


def test_a_full_disk_leaves_nothing_half_made(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="free space or choose another"):
        make_run(root)
    assert list(root.iterdir()) == []


def test_a_failed_replacement_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    atomic_write(path, b"old")

    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFullError):
        atomic_write(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["state.json"]


def test_a_damaged_config_names_the_file(root: Path) -> None:
    run = make_run(root)
    (run.path / "config.yaml").write_text("trainig: {lr: 1}\n")
    with pytest.raises(RecordError, match=r"config\.yaml does not fit.*trainig"):
        run.load_config()
    (run.path / "config.yaml").unlink()
    with pytest.raises(RecordError, match="is this a run directory"):
        run.load_config()


def test_planned_steps_and_declared_evaluations() -> None:
    config = make_config(steps=30)
    assert planned_steps(config) == 30
    config.fraction, config.fraction_of = 0.1, "steps"
    assert planned_steps(config) == 3  # not 4: 0.1 * 30 is a little over 3 in binary
    config.fraction = 0.11
    assert planned_steps(config) == 4
    config.method.trains = False
    assert planned_steps(config) == 0
    config.evaluation.panels, config.method.rollout_skills_eval = ["seen", "unseen"], ["off", "on"]
    assert declared_evaluations(config) == ("seen/off", "seen/on", "unseen/off", "unseen/on")


def test_records_import_nothing_heavy() -> None:
    code = (
        "import sys, harness.record, harness.states, harness.attempts, harness.worker, harness.launch.local\n"
        "heavy = {'torch', 'transformers', 'mlflow', 'textworld', 'pandas', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --------------------------------------------------------------------------------- secrets, provenance
def test_provenance_holds_what_is_needed_and_no_secret(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-9f8e7d6c")
    monkeypatch.setenv("PLAIN_SETTING", "visible-elsewhere-only")
    command = ["harness", "analyzer.api_key=sk-other-1234", "x=sk-planted-9f8e7d6c", "--token", "abc", "seed=3"]
    monkeypatch.setattr(sys, "argv", command)
    run = make_run(root)
    text = (run.path / "provenance.json").read_text()
    for hidden in ("planted", "sk-other", "abc", "visible-elsewhere-only", "PLAIN_SETTING", "OPENAI_API_KEY"):
        assert hidden not in text
    content = json.loads(text)
    assert content["argv"] == ["harness", "analyzer.api_key=***", "x=***", "--token", "***", "seed=3"]
    known = {"version", "created", "git", "python", "packages", "host", "device", "slurm", "argv", "workdir"}
    assert set(content) == {*known, "method_module"} and content["workdir"] == str(Path.cwd())
    assert content["method_module"] is None
    assert content["device"] == "cpu"
    assert content["packages"]["omegaconf"]
    assert set(content["git"]) == {"commit", "dirty", "diff_sha256"}


def test_provenance_knows_the_file_of_a_method_of_the_users_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "provenance_test_method.py"
    file.write_text("SPEC = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("provenance_test_method")
    config = make_config()
    config.method.name = "provenance_test_method:SPEC"
    found = RunDirectory.create(root, config, "b" * 16).provenance()["method_module"]
    digest = hashlib.sha256(b"SPEC = 1\n").hexdigest()
    assert found == {"path": config.method.name, "file": str(file), "sha256": digest}
    unknown = "never.imported:SPEC"
    assert provenance.module_identity(unknown) == {"path": unknown, "file": None, "sha256": None}
    file.unlink()
    assert provenance.module_identity(config.method.name)["sha256"] is None  # type: ignore[index]


@pytest.mark.parametrize("secret", ["sk-planted-9f8e7d6c", "postgresql://user:hunter2@host/db"])
def test_a_secret_in_the_configuration_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-9f8e7d6c")
    config = make_config()
    config.tracking.uri = secret
    with pytest.raises(ConfigError, match="a secret") as caught:
        RunDirectory.create(root, config, "a" * 16)
    assert secret not in str(caught.value)
    assert not root.exists()


def test_redaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "tok-123456789")
    monkeypatch.setenv("SHORT_KEY", "1")
    assert redact("a tok-123456789 b 1") == "a *** b 1"
    assert redact("http://me:pass@host:80/x sqlite:////a/b.db") == "http://me:***@host:80/x sqlite:////a/b.db"
    spoken = ["training.max_prompt_tokens=960", "backbone.clone_tokens=5", "seed=1"]
    assert redact_arguments(spoken) == spoken


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_code_identity_follows_every_change(tmp_path: Path) -> None:
    folder = tmp_path / "a repository"
    folder.mkdir()
    assert provenance.code_identity(folder) == {"commit": None, "dirty": None, "diff_sha256": None}
    _git(folder, "init", "-q")
    (folder / "code.py").write_text("x = 1\n")
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "one")
    clean = provenance.code_identity(folder)
    assert clean["commit"] and clean["dirty"] is False and clean["diff_sha256"] is None
    (folder / "notes.txt").write_text("no source: does not count")
    assert provenance.code_identity(folder) == clean
    (folder / "code.py").write_text("x = 2\n")
    changed = provenance.code_identity(folder)
    assert changed["dirty"] is True and changed["commit"] == clean["commit"]
    (folder / "new.py").write_text("y = 1\n")
    added = provenance.code_identity(folder)
    (folder / "new.py").write_text("y = 2\n")
    assert len({changed["diff_sha256"], added["diff_sha256"], provenance.code_identity(folder)["diff_sha256"]}) == 3


def test_code_equals_a_commit_as_long_as_nothing_that_makes_results_changes(tmp_path: Path) -> None:
    for name in ("harness/loop.py", "sweeps/grid.yaml", "docs/words.md"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("one")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "one")
    commit = provenance.code_identity(tmp_path)["commit"]

    def equal(of: str = commit) -> bool:
        provenance.equals_commit.cache_clear()
        return provenance.equals_commit(of, tmp_path)

    (tmp_path / "docs/words.md").write_text("two")
    _git(tmp_path, "commit", "-q", "-a", "-m", "words")
    (tmp_path / "harness/notes.txt").write_text("no source")
    assert equal() and not equal("c0ffee" * 6 + "abcd")
    (tmp_path / "harness/new.py").write_text("x = 1")
    assert not equal()
    (tmp_path / "harness/new.py").unlink()
    (tmp_path / "sweeps/grid.yaml").write_text("two")
    assert not equal()
    _git(tmp_path, "commit", "-q", "-a", "-m", "grid")
    assert not equal() and equal("HEAD")


def test_without_git_no_commit_is_that_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    provenance.equals_commit.cache_clear()
    assert not provenance.equals_commit("HEAD")
    provenance.equals_commit.cache_clear()


# --------------------------------------------------------------------------------- states
def test_state_is_replaced_in_one_step_and_checked(root: Path) -> None:
    run = make_run(root)
    first = run.write_state(state="failed", error="boom", failure_class="crash")
    second = run.write_state(state="running")
    assert (second.error, second.failure_class) == (None, None)
    assert second.updated > first.updated
    with pytest.raises(TypeError, match="no field 'stat'; known: state, last_step"):
        run.write_state(stat="running")
    with pytest.raises(ValueError, match="not a state; known: pending"):
        run.write_state(state="done")
    with pytest.raises(ValueError, match="needs one of config, env"):
        run.write_state(state="failed")
    with pytest.raises(ValueError, match="needs one of config, env"):
        run.write_state(state="failed", failure_class="bad luck")
    assert run.stored_state() == second


@pytest.mark.parametrize(
    ("last_step", "evaluations", "lack"),
    [
        (2, EVALUATED, "2 of 3 training steps"),
        (3, {}, "evaluation seen/off not done"),
        (3, {"seen/off": {"requested": 4, "graded": 3, "excluded": 0}}, "3 graded \\+ 0 excluded of 4 requested"),
        (3, {"seen/off": {"requested": 4, "graded": 0, "excluded": 4}}, "no episode graded"),
        (3, {"unseen/off": {"requested": 4, "graded": 4, "excluded": 0}}, "evaluation seen/off not done"),
    ],
)
def test_complete_needs_every_step_and_every_evaluation(
    root: Path, last_step: int, evaluations: dict[str, dict[str, int]], lack: str
) -> None:
    run = make_run(root)
    run.write_state(last_step=last_step, evaluations=evaluations)
    with pytest.raises(ValueError, match=f"state=complete refused: .*{lack}"):
        run.write_state(state="complete")
    # A file that claims it all the same is not believed.
    content = json.loads((run.path / "state.json").read_text())
    (run.path / "state.json").write_text(json.dumps({**content, "state": "complete"}))
    state = run.state()
    assert (state.state, state.failure_class) == ("failed", "incomplete")
    assert state.error is not None and state.error.startswith("recorded as complete, but")


def test_complete_with_everything_graded_is_complete(root: Path) -> None:
    run = make_run(root)
    run.write_state(state="complete", last_step=3, evaluations=EVALUATED)
    assert run.state().is_complete
    assert missing_for_completeness(run.state()) == []


def test_running_without_a_live_claim_is_interrupted(root: Path) -> None:
    run = make_run(root)
    run.write_state(state="running", last_step=2)
    state = run.state()
    assert (state.state, state.last_step) == ("interrupted", 2)
    with run.claim() or pytest.fail("free"):
        assert run.state().state == "running"
    run.claim_path.write_text(json.dumps({**asdict(claims.current_owner()), "pid": 2**22 + 1}))
    state = run.state()
    assert state.state == "interrupted"
    assert state.error is not None and "is gone" in state.error


def test_running_under_a_claim_of_another_machine_stays_running(root: Path) -> None:
    run = make_run(root)
    run.write_state(state="running")
    run.claim_path.write_text(json.dumps({**asdict(claims.current_owner()), "host": "elsewhere"}))
    assert run.state().state == "running"


def test_a_claimed_run_is_running_whatever_was_recorded_before(root: Path) -> None:
    run = make_run(root)
    with run.claim() or pytest.fail("free"):
        assert run.state().state == "running"
        assert run.state_without_claim().state == "pending"
        run.write_state(state="failed", error="boom", failure_class="crash")
        assert run.state().state == "running"
    assert run.state().state == "failed"


def test_an_ending_between_two_looks_is_not_taken_for_an_interruption(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(root)
    claim = run.claim() or pytest.fail("free")
    run.write_state(state="running", last_step=3, evaluations=EVALUATED)
    real = claims.inspect

    def finish_then_look(path: Path) -> claims.ClaimStatus:
        if run.stored_state().state == "running":
            run.write_state(state="complete")
            claim.path.unlink()
        return real(path)

    monkeypatch.setattr(claims, "inspect", finish_then_look)
    assert run.state().state == "complete"


@pytest.mark.parametrize("text", ["{", "[]", '{"state": "done"}', '{"state": "running", "declared": 3}'])
def test_an_unreadable_state_is_a_failure_that_names_the_file(root: Path, text: str) -> None:
    run = make_run(root)
    (run.path / "state.json").write_text(text)
    state = derive_state(run.path)
    assert (state.state, state.failure_class) == ("failed", "infra")
    assert state.error is not None and str(run.path / "state.json") in state.error


def test_a_directory_without_files_is_pending(tmp_path: Path) -> None:
    assert derive_state(tmp_path / "nothing").state == "pending"


# --------------------------------------------------------------------------------- failures, attempts
class _TorchLikeError(RuntimeError):
    pass


def _caused(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), "crash"),
        (MemoryError(), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "oom"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), "oom"),
        (OSError(28, "No space left on device"), "disk"),
        (OSError(122, "Disk quota exceeded"), "disk"),
        (_caused(RuntimeError("writing"), OSError(28, "No space left")), "disk"),
        (DiskFullError("full"), "disk"),
        (type("EnvironmentFailure", (RuntimeError,), {})("engine"), "env"),
        (type("Custom", (RuntimeError,), {"failure_class": "analyzer"})("x"), "analyzer"),
        (type("Custom", (RuntimeError,), {"failure_class": "no such class"})("x"), "crash"),
        (ConfigError([]), "config"),
        (ConnectionResetError("gone"), "infra"),
        (FileNotFoundError(2, "missing"), "crash"),
        (_TorchLikeError("shape mismatch"), "crash"),
    ],
)
def test_failures_are_classed(error: BaseException, expected: str) -> None:
    assert classify(error) == expected


def test_a_cycle_of_causes_ends() -> None:
    one, other = ValueError("1"), ValueError("2")
    one.__cause__, other.__cause__ = other, one
    assert classify(one) == "crash"


def test_attempts_are_numbered_and_lost_ones_closed(root: Path) -> None:
    run = make_run(root)
    assert attempts.count(run.path) == 0
    first = attempts.begin(run.path, "host", 0)
    attempts.begin(run.path, "host", 2).finish("complete", 3)
    found = attempts.all_attempts(run.path)
    assert [item.number for item in found] == [1, 2]
    assert [item.content["outcome"] for item in found] == ["interrupted", "complete"]
    assert found[0].content["end"] is None and first.content["end"] is None
    assert (found[1].content["from_step"], found[1].content["to_step"]) == (2, 3)
    assert sorted(path.name for path in (run.path / "attempts").iterdir()) == ["001.json", "002.json"]


def test_an_analyzer_that_fails_too_often_is_classed_as_such() -> None:
    from harness.states import classify
    from methods.skills.analyzer import AnalyzerFailure

    assert classify(AnalyzerFailure("3 of 4 analyses failed")) == "analyzer"


def test_records_that_hold_a_key_that_is_gone_can_still_be_read(tmp_path: Path) -> None:
    text = config_text(RunConfig())
    for section, key in GONE:
        assert not hasattr(getattr(RunConfig(), section), key)
        text = text.replace(f"{section}:\n", f"{section}:\n  {key}: true\n", 1)
    assert parse_config(text, "here") == RunConfig()
    with pytest.raises(RecordError, match="here does not fit this version"):
        parse_config(text.replace("verl:\n", "verl:\n  never_a_key: 1\n"), "here")
