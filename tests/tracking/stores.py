"""What a store holds, as a whole: for tests that compare two moments of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fake_cells import evaluate, make_run

from harness import attempts
from harness.record import RunDirectory

SWEEP = "main table"


def finished(root: Path, seed: int = 0, steps: int = 3) -> RunDirectory:
    """A complete run of one attempt."""
    run = make_run(root, seed, steps)
    attempt = attempts.begin(run.path, "host", 0)
    run.spool.event("attempt_started")
    for step in range(1, steps + 1):
        run.spool.metrics(step, {"train/success": step / 10, "train/loss": 1.0 / step})
    run.log_path.write_text("what happened\n")
    evaluate(run)
    run.write_state(state="complete", last_step=steps)
    run.spool.close()
    attempt.finish("complete", steps)
    return run


def client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def live_runs(uri: str, experiment: str = SWEEP) -> list[Any]:
    found = client(uri).get_experiment_by_name(experiment)
    return [] if found is None else list(client(uri).search_runs([found.experiment_id], max_results=1000))


def parents(uri: str, experiment: str = SWEEP) -> list[Any]:
    runs = [run for run in live_runs(uri, experiment) if "harness.fingerprint" in run.data.tags]
    return sorted(runs, key=lambda run: int(run.data.tags["seed"]))


def points(uri: str, run: Any, name: str) -> list[tuple[int, float, int]]:
    return [(m.step, m.value, m.timestamp) for m in client(uri).get_metric_history(run.info.run_id, name)]


def content(uri: str, experiment: str = SWEEP, deep: int = 8) -> list[Any]:
    """Everything of every run, in an order of its own; points and files of the first `deep` runs only."""
    found = []
    for run in sorted(live_runs(uri, experiment), key=lambda item: str(item.info.run_id)):
        info = run.info
        entry = [info.run_id, info.status, info.start_time, info.end_time, run.data.params, run.data.tags]
        found.append([*entry, run.data.metrics])
        if "harness.fingerprint" in run.data.tags and int(run.data.tags["seed"]) < deep:
            points_of = {name: points(uri, run, name) for name in sorted(run.data.metrics)}
            files = sorted(item.path for item in client(uri).list_artifacts(info.run_id))
            found[-1] += [points_of, files]
    return found
