"""Importing run directories into MLflow: idempotent, rebuildable, never left running, outages survived."""

from __future__ import annotations

import math
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest
from fake_cells import evaluate, make_config, make_run

from harness import attempts, tracking
from harness.files import RecordError
from harness.record import RunDirectory
from harness.tracking import needs_sync, sync
from harness.tracking_marks import MARKS_NAME, read_mark

SWEEP = "main table"


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with its schema, made once: that takes seconds."""
    path = tmp_path_factory.mktemp("a store") / "mlflow.db"
    client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(tmp_path: Path, empty_store: Path) -> str:
    (tmp_path / "out folder").mkdir()
    shutil.copy(empty_store, tmp_path / "out folder" / "mlflow.db")
    return f"sqlite:///{tmp_path / 'out folder' / 'mlflow.db'}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out folder" / "runs"


@pytest.fixture(autouse=True)
def few_retries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tracking.quiet()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    yield


def client(uri: str) -> Any:
    tracking.quiet()
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def finished(root: Path, seed: int = 0, steps: int = 3) -> RunDirectory:
    """A complete run of one attempt."""
    run = make_run(root, seed, steps)
    attempt = attempts.begin(run.path, "host", 0)
    run.spool.event("attempt_started")
    for step in range(1, steps + 1):
        run.spool.metrics(step, {"train/success": step / 10, "loss (mean), %": 1.0 / step})
    run.log_path.write_text("what happened\n")
    evaluate(run)
    run.write_state(state="complete", last_step=steps)
    attempt.finish("complete", steps)
    return run


def parents(uri: str, experiment: str = SWEEP) -> list[Any]:
    found = client(uri).get_experiment_by_name(experiment)
    runs = client(uri).search_runs([found.experiment_id]) if found else []
    return sorted(
        (run for run in runs if "harness.fingerprint" in run.data.tags), key=lambda run: run.data.tags["seed"]
    )


def children(uri: str, parent: Any, experiment: str = SWEEP) -> list[Any]:
    found = client(uri).get_experiment_by_name(experiment)
    runs = client(uri).search_runs([found.experiment_id])
    mine = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    return sorted(mine, key=lambda run: int(run.data.tags["harness.attempt"]))


def history(uri: str, run: Any, name: str) -> list[tuple[int, float, int]]:
    return [(m.step, m.value, m.timestamp) for m in client(uri).get_metric_history(run.info.run_id, name)]


def snapshot(uri: str) -> list[Any]:
    """Everything in the experiment that an import could change."""
    content = []
    for run in parents(uri):
        points = {name: history(uri, run, name) for name in sorted(run.data.metrics)}
        files = sorted(item.path for item in client(uri).list_artifacts(run.info.run_id))
        status = [(child.info.status, child.info.end_time) for child in children(uri, run)]
        info = (run.info.status, run.info.start_time, run.info.end_time)
        content.append((info, run.data.params, run.data.tags, points, files, status))
    return content


# ------------------------------------------------------------------------------------- what is imported
def test_a_complete_run(root: Path, uri: str) -> None:
    run = finished(root)
    assert needs_sync([run], uri, SWEEP)
    report = sync([run], uri, SWEEP)
    assert (report.imported, report.unchanged, report.problem) == (1, 0, None)
    (there,) = parents(uri)
    assert there.info.status == "FINISHED"
    assert there.info.end_time == round(attempts.all_attempts(run.path)[0].content["end"] * 1000)
    assert there.data.tags["harness.fingerprint"] == run.fingerprint
    assert there.data.tags["harness.state"] == "complete"
    assert there.data.tags["method"] == "grpo"
    assert there.data.params["training.lr"] == "0.0003"
    assert there.data.params["seed"] == "0"
    extra = {key for key in there.data.params if key.startswith(("runtime.", "tracking."))}
    assert extra == {"runtime.device"}  # the only one that can change a result
    lines = [entry for entry in run.spool.read() if entry["kind"] == "metrics"]
    assert history(uri, there, "train/success") == [
        (line["step"], line["values"]["train/success"], round(line["t"] * 1000)) for line in lines
    ]
    assert len(history(uri, there, "loss _mean__ _")) == 3  # names that MLflow takes
    files = sorted(item.path for item in client(uri).list_artifacts(there.info.run_id))
    assert files == ["config.yaml", "log.txt", "provenance.json", "state.json"]
    (child,) = children(uri, there)
    assert (child.info.status, child.data.tags["harness.host"]) == ("FINISHED", "host")


def test_artifacts_lie_beside_the_store_and_not_in_the_current_folder(
    root: Path, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    sync([finished(root)], uri, SWEEP)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(list((tmp_path / "out folder" / "mlruns" / "main_table").rglob("config.yaml"))) == 1


def test_importing_again_changes_nothing(root: Path, uri: str) -> None:
    runs = [finished(root, seed) for seed in range(2)]
    sync(runs, uri, SWEEP)
    before = snapshot(uri)
    assert not needs_sync(runs, uri, SWEEP)
    assert sync(runs, uri, SWEEP) == tracking.SyncReport(0, 2)
    # Without the marks everything is found or sent again: same content.
    for run in runs:
        (run.path / MARKS_NAME).unlink()
    assert sync(runs, uri, SWEEP).imported == 2
    assert snapshot(uri) == before
    (runs[0].path / MARKS_NAME).write_text("{damaged")
    assert sync(runs, uri, SWEEP).imported == 1
    assert snapshot(uri) == before


def test_needs_sync_does_not_import_mlflow(root: Path, uri: str) -> None:
    run = finished(root)
    code = (
        "import sys; from pathlib import Path; from harness.record import RunDirectory; from harness import tracking\n"
        "print(tracking.needs_sync([RunDirectory(Path(sys.argv[1]))], sys.argv[2], 's'))\n"
        "assert 'mlflow' not in sys.modules"
    )
    command = [sys.executable, "-c", code, str(run.path), uri]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "True"


def test_a_deleted_store_is_rebuilt_from_the_records(root: Path, uri: str, empty_store: Path) -> None:
    runs = [finished(root, seed) for seed in range(2)]
    sync(runs, uri, SWEEP)
    before = snapshot(uri)
    database = Path(uri.removeprefix("sqlite:///"))
    shutil.copy(empty_store, database)
    assert needs_sync(runs, uri, SWEEP)
    sync(runs, uri, SWEEP)
    assert snapshot(uri) == before
    database.unlink()
    assert needs_sync(runs, uri, SWEEP)


def test_a_run_deleted_in_the_store_comes_back(root: Path, uri: str) -> None:
    run = finished(root)
    sync([run], uri, SWEEP)
    client(uri).delete_run(parents(uri)[0].info.run_id)
    assert needs_sync([run], uri, SWEEP)
    sync([run], uri, SWEEP)
    assert len(parents(uri)) == 1


def test_one_run_in_two_sweeps_is_in_two_experiments(root: Path, uri: str) -> None:
    run = finished(root)
    sync([run], uri, SWEEP)
    assert needs_sync([run], uri, "ablation")
    sync([run], uri, "ablation")
    assert len(parents(uri)) == len(parents(uri, "ablation")) == 1
    assert not needs_sync([run], uri, SWEEP) and not needs_sync([run], uri, "ablation")


def test_a_relative_store_is_the_same_store(root: Path, uri: str, tmp_path: Path, monkeypatch: Any) -> None:
    run = finished(root)
    monkeypatch.chdir(tmp_path / "out folder")
    sync([run], "sqlite:///mlflow.db", SWEEP)
    assert not needs_sync([run], uri, SWEEP)


def test_pending_runs_are_left_out(root: Path, uri: str) -> None:
    run = make_run(root)
    assert not needs_sync([run], uri, SWEEP)
    assert sync([run], uri, SWEEP).imported == 0
    assert parents(uri) == []


# ------------------------------------------------------------------------------------- states
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"state": "failed", "error": "boom", "failure_class": "env"}, "FAILED"),
        ({"state": "interrupted", "error": "SIGTERM"}, "KILLED"),
        ({"state": "running"}, "KILLED"),  # nobody works on it: it was killed
        ({"state": "complete", "last_step": 3}, None),  # refused below: claims completeness without evaluation
    ],
)
def test_every_end_is_a_final_status(root: Path, uri: str, changes: dict[str, Any], status: str | None) -> None:
    run = make_run(root)
    attempts.begin(run.path, "host", 0)
    if status is None:
        text = (run.path / "state.json").read_text()
        (run.path / "state.json").write_text(text.replace('"pending"', '"complete"'))
        status = "FAILED"
    else:
        run.write_state(**changes)
    sync([run], uri, SWEEP)
    (there,) = parents(uri)
    assert there.info.status == status and there.info.end_time
    assert there.data.tags["harness.failure_class"] == (run.state().failure_class or "")
    assert there.data.tags["harness.error"] == run.state().error
    assert [child.info.status for child in children(uri, there)] == [status]


def test_a_run_in_work_is_running_and_later_killed_or_finished(root: Path, uri: str) -> None:
    run = make_run(root)
    with run.claim() or pytest.fail("free"):
        attempts.begin(run.path, "host", 0)
        run.write_state(state="running")
        run.spool.metrics(1, {"a": 1.0})
        sync([run], uri, SWEEP)
        assert parents(uri)[0].info.status == "RUNNING"
    assert needs_sync([run], uri, SWEEP)  # nothing was written, but it is no longer running
    sync([run], uri, SWEEP)
    assert parents(uri)[0].info.status == "KILLED"
    run.spool.metrics(2, {"a": 2.0})
    attempt = attempts.begin(run.path, "host", 1)
    run.spool.metrics(3, {"a": 3.0})
    evaluate(run)
    run.write_state(state="complete", last_step=3)
    attempt.finish("complete", 3)
    sync([run], uri, SWEEP)
    (there,) = parents(uri)
    assert (there.info.status, there.data.tags["harness.error"]) == ("FINISHED", "")
    assert [child.info.status for child in children(uri, there)] == ["KILLED", "FINISHED"]
    assert [step for step, _, _ in history(uri, there, "a")] == [1, 2, 3]


def test_rewound_steps_leave_no_trace(root: Path, uri: str) -> None:
    run = make_run(root, steps=4)
    attempts.begin(run.path, "host", 0)
    run.write_state(state="running")
    for step in (1, 2, 3):
        run.spool.metrics(step, {"a": float(step)})
    sync([run], uri, SWEEP)
    first = parents(uri)[0].info.run_id
    run.spool.truncate_after(2)
    attempts.begin(run.path, "host", 2)
    for step in (3, 4):
        run.spool.metrics(step, {"a": 10.0 * step})
    sync([run], uri, SWEEP)
    (there,) = parents(uri)
    assert there.info.run_id != first
    assert [(step, value) for step, value, _ in history(uri, there, "a")] == [(1, 1), (2, 2), (3, 30), (4, 40)]
    assert len(children(uri, there)) == 2
    before = snapshot(uri)
    (run.path / MARKS_NAME).unlink()
    sync([run], uri, SWEEP)
    assert snapshot(uri) == before


def test_a_rewind_of_what_was_not_sent_keeps_the_run(root: Path, uri: str) -> None:
    run = make_run(root, steps=4)
    attempts.begin(run.path, "host", 0)
    run.write_state(state="running")
    run.spool.metrics(1, {"a": 1.0})
    sync([run], uri, SWEEP)
    first = parents(uri)[0].info.run_id
    run.spool.metrics(2, {"a": 2.0})
    run.spool.truncate_after(1)
    run.spool.metrics(2, {"a": 20.0})
    sync([run], uri, SWEEP)
    (there,) = parents(uri)
    assert there.info.run_id == first
    assert [(step, value) for step, value, _ in history(uri, there, "a")] == [(1, 1.0), (2, 20.0)]


# ------------------------------------------------------------------------------------- awkward contents
def test_numbers_that_are_none_are_tags(root: Path, uri: str) -> None:
    run = finished(root)
    run.spool.metrics(3, {"loss": math.nan, "grad": math.inf, "fine": 1.0})
    run.spool.metrics(4, {"loss": math.nan})
    sync([run], uri, SWEEP)
    (there,) = parents(uri)
    assert there.data.tags["harness.non_finite.loss"] == "nan at step 3 and 1 more"
    assert there.data.tags["harness.non_finite.grad"] == "inf at step 3"
    assert "loss" not in there.data.metrics and "grad" not in there.data.metrics
    assert there.data.metrics["fine"] == 1.0


def test_long_parameters_become_artifacts(root: Path, uri: str) -> None:
    config = make_config()
    config.evaluation.panels = [f"panel-{number:04d}" for number in range(1000)]
    run = RunDirectory.create(root, config, "a" * 16)
    run.write_state(state="failed", error="e" * 20_000, failure_class="crash")
    assert sync([run], uri, SWEEP).problem is None
    (there,) = parents(uri)
    assert there.data.params["evaluation.panels"] == "too long: see artifact params/evaluation.panels.txt"
    path = Path(url2pathname(urlparse(there.info.artifact_uri).path)) / "params" / "evaluation.panels.txt"
    assert path.read_text() == str(config.evaluation.panels)
    assert 1000 < len(there.data.tags["harness.error"]) <= 5000


def test_many_metrics_go_in_batches(root: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    sizes: list[int] = []
    real = MlflowClient.log_batch

    def spy(self: Any, run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), **rest: Any) -> Any:
        sizes.append(len(metrics))
        return real(self, run_id, metrics=metrics, params=params, tags=tags, **rest)

    monkeypatch.setattr(MlflowClient, "log_batch", spy)
    run = finished(root)
    run.spool.metrics(3, {f"m{number}": float(number) for number in range(2500)})
    sync([run], uri, SWEEP)
    assert [size for size in sizes if size] == [1000, 1000, 506]
    sizes.clear()
    run.spool.metrics(3, {"late": 1.0})
    sync([run], uri, SWEEP)
    assert [size for size in sizes if size] == [1]  # only what is new


def test_large_files_stay_in_the_run_directory(root: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.tracking_store.ARTIFACT_BYTES", 1000)
    run = finished(root)
    run.log_path.write_text("x" * 1001)
    sync([run], uri, SWEEP)
    (there,) = parents(uri)
    assert there.data.tags["harness.not_uploaded.log.txt"] == "1001 bytes: only in the run directory"
    assert "log.txt" not in {item.path for item in client(uri).list_artifacts(there.info.run_id)}


def test_a_store_that_disagrees_about_a_parameter_is_a_clear_problem(root: Path, uri: str) -> None:
    runs = [finished(root, seed) for seed in range(2)]
    sync(runs, uri, SWEEP)
    path = runs[0].path / "config.yaml"
    path.write_text(path.read_text().replace("lr: 0.0003", "lr: 0.5"))
    (runs[0].path / MARKS_NAME).unlink()
    runs[1].spool.event("something new")
    report = sync(runs, uri, SWEEP)
    assert report.imported == 1  # the other one is not held up
    assert report.problem is not None and "training.lr=0.0003 in the tracker, but 0.5 in its record" in report.problem


def test_secrets_do_not_reach_the_store(root: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-55667788")
    run = finished(root)
    run.write_state(state="failed", error="refused: sk-planted-55667788", failure_class="infra")
    sync([run], uri, SWEEP)
    assert parents(uri)[0].data.tags["harness.error"] == "refused: ***"
    assert b"sk-planted" not in Path(uri.removeprefix("sqlite:///")).read_bytes()


# ------------------------------------------------------------------------------------- outages, races
@pytest.mark.parametrize(
    "away",
    ["http://127.0.0.1:9", "sqlite:////proc/no/such/place/mlflow.db", "./mlruns", "postgresql://127.0.0.1:9/none"],
)
def test_an_outage_is_a_warning_and_is_caught_up_with(
    root: Path, uri: str, away: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = finished(root)
    before = run.spool.path.read_bytes()
    try:
        report = sync([run], away, SWEEP)
    except Exception as error:
        assert away.startswith("sqlite:////proc"), error  # not even a place for the lock
    else:
        assert (report.imported, report.unchanged) == (0, 0)
        assert report.problem is not None and away in report.problem
        assert "The records are safe" in caplog.text
    assert run.spool.path.read_bytes() == before
    assert needs_sync([run], away, SWEEP)
    assert sync([run], uri, SWEEP).imported == 1


def test_an_outage_half_way_is_caught_up_with(root: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    runs = [finished(root, seed) for seed in range(6)]
    calls = 0
    real = MlflowClient.log_batch

    def breaks_down(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise MlflowException("the server went away; token=sk")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_batch", breaks_down)
    report = sync(runs, uri, SWEEP)
    assert report.imported == 1 and report.problem is not None and "went away" in report.problem
    assert calls < 12  # it does not try every run of a dead server
    monkeypatch.undo()
    assert sync(runs, uri, SWEEP).imported == 5
    half_way = snapshot(uri)
    assert [len(points["train/success"]) for *_, points, _, _ in half_way] == [3] * 6
    assert len(half_way) == 6


def test_runs_that_cannot_be_imported_hold_up_no_other_and_are_all_named(root: Path, uri: str) -> None:
    runs = [finished(root, seed) for seed in range(6)]
    for run in runs[:4]:
        (run.path / "attempts" / "001.json").write_text("{")
    report = sync(runs, uri, SWEEP)
    assert report.imported == 2 and [run.data.tags["seed"] for run in parents(uri)] == ["4", "5"]
    assert report.problem is not None and "4 failed: " in report.problem
    assert all(str(run.path) in report.problem for run in runs[:4])


@pytest.mark.parametrize(
    ("error", "own"),
    [
        (RecordError("damaged"), True),
        (PermissionError(13, "Permission denied", "RUN/log.txt"), True),
        (PermissionError(13, "Permission denied", "/elsewhere/mlruns/log.txt"), False),
        (ConnectionError("refused"), False),
    ],
)
def test_a_run_is_to_blame_only_for_its_own_files(root: Path, error: Exception, own: bool) -> None:
    run = RunDirectory(root / "a")
    if isinstance(error, PermissionError):
        error.filename = str(error.filename).replace("RUN", str(run.path))
    assert tracking._of_the_run(run, error) == own


def test_many_runs_that_failed_are_told_once_for_each_reason(root: Path) -> None:
    failed: dict[RunDirectory, Exception] = {
        RunDirectory(root / f"{n:02d}"): RecordError("the same") for n in range(14)
    }
    told = tracking._of_runs(failed)
    assert told.startswith("14 failed: ") and told.count("the same") == 1
    assert str(root / "09") in told and "and 4 more (10, 11, 12, 13)" in told


# A store of which nothing can be told from outside, as that of a server.
@pytest.fixture
def far(root: Path, empty_store: Path, tmp_path: Path) -> str:
    shutil.copy(empty_store, tmp_path / "far.db")
    return f"sqlite+pysqlite:///{tmp_path / 'far.db'}"


def test_a_server_that_came_back_empty_is_noticed_when_it_is_asked(
    root: Path, far: str, empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.tracking_store.RUNS_PER_PAGE", 2)
    runs = [finished(root, seed) for seed in range(5)]
    assert sync(runs, far, SWEEP).imported == 5
    assert sync(runs, far, SWEEP, ask_server=True) == tracking.SyncReport(0, 5)
    client(far).delete_run(parents(far)[1].info.run_id)
    assert sync(runs, far, SWEEP) == tracking.SyncReport(0, 5)  # not asked
    assert sync(runs, far, SWEEP, ask_server=True) == tracking.SyncReport(1, 4)
    shutil.copy(empty_store, tmp_path / "far.db")
    assert sync(runs, far, SWEEP, ask_server=True).imported == 5 and len(parents(far)) == 5
    assert sync([make_run(root, 9)], far, SWEEP, ask_server=True) == tracking.SyncReport(0, 1)  # nothing to ask about


def test_a_server_that_does_not_answer_is_a_problem_although_all_was_sent_before(
    root: Path, far: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException

    def breaks(self: object) -> frozenset[str]:
        raise MlflowException("no answer")

    runs = [finished(root)]
    sync(runs, far, SWEEP)
    monkeypatch.setattr("harness.tracking_store.Store.runs", breaks)
    report = sync(runs, far, SWEEP, ask_server=True)
    assert (
        (report.imported, report.unchanged) == (0, 0) and report.problem is not None and "no answer" in report.problem
    )


def test_a_deleted_experiment_is_a_clear_problem(root: Path, uri: str) -> None:
    run = finished(root)
    sync([run], uri, SWEEP)
    client(uri).delete_experiment(client(uri).get_experiment_by_name(SWEEP).experiment_id)
    report = sync([run], uri, SWEEP)
    assert report.problem is not None and "was deleted in the tracker; restore it there" in report.problem


def _sync(paths: list[Path], uri: str, results: Any) -> None:
    results.put(sync([RunDirectory(path) for path in paths], uri, SWEEP).problem)


@pytest.mark.slow
def test_several_processes_on_a_new_store_make_it_once(root: Path, tmp_path: Path) -> None:
    runs = [finished(root, seed) for seed in range(3)]
    fresh = f"sqlite:///{tmp_path / 'new folder' / 'mlflow.db'}"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    arguments = ([run.path for run in runs], fresh, results)
    processes = [context.Process(target=_sync, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=240) for _ in processes] == [None] * 2
    for process in processes:
        process.join(60)
    assert len(parents(fresh)) == 3
    assert [len(history(fresh, run, "train/success")) for run in parents(fresh)] == [3, 3, 3]


def test_marks_remember_what_was_sent(root: Path, uri: str) -> None:
    run = finished(root)
    sync([run], uri, SWEEP)
    mark = read_mark(run, uri, SWEEP)
    assert mark.last_step == 3 and mark.lines == len(list(run.spool.read())) and mark.truncations == 0
    assert mark.children["1"]["outcome"] == "complete"
