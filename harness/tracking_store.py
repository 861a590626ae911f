"""One experiment of one MLflow store, and how a run directory is written into it. See `harness.tracking`.

Import this module only where MLflow may be imported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from mlflow import entities
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from harness import attempts
from harness.files import RecordError
from harness.fingerprint import identity
from harness.record import RunDirectory
from harness.redaction import redact
from harness.states import COMPLETE, FAILED, INTERRUPTED, RUNNING, RunState
from harness.tracking_marks import Mark, read_mark, signature, sqlite_path, write_mark
from harness.tracking_schema import ensure_schema

STATUS = {COMPLETE: "FINISHED", FAILED: "FAILED", INTERRUPTED: "KILLED"}
TAG_FINGERPRINT = "harness.fingerprint"
TAG_ATTEMPT_OF = "harness.attempt_of"
RUNS_PER_PAGE = 200  # a second of a server (measured: 5 ms per run)
METRICS_PER_CALL = 1000  # limit of MLflow's interface
PARAMS_PER_CALL = 100
PARAM_LENGTH = 500  # what every server takes; longer values become artifacts
TAG_LENGTH = 5000
ARTIFACT_BYTES = 20_000_000
DATABASES = ("postgresql", "mysql", "mssql")
CONNECT_SECONDS = 10
ARTIFACTS = ("config.yaml", "provenance.json", "state.json", "episodes.parquet", "log.txt")
FIXED = ("config.yaml", "provenance.json")  # the others still grow while a run works, and are sent when it stops

T = TypeVar("T")


class Store:
    """One experiment of one store. Creates the schema and the experiment on first use (under the caller's lock)."""

    def __init__(self, uri: str, experiment: str, folder: Path) -> None:
        path = sqlite_path(uri)
        if path is not None:
            ensure_schema(path)
            folder = path.parent
        elif uri.startswith(DATABASES):
            _must_answer(uri)
        self.uri, self.experiment = uri, experiment
        self._locked = path is not None  # nobody else writes meanwhile
        self._new: set[str] = set()  # runs made here: nothing can be in them already
        self.client = MlflowClient(tracking_uri=uri)
        # Without a location of its own a database store would put artifacts below the current directory.
        remote = uri.startswith(("http://", "https://", "databricks"))
        location = None if remote else (folder / "mlruns" / re.sub(r"[^\w.-]+", "_", experiment)).absolute().as_uri()
        self.experiment_id = self._experiment(location)

    def _experiment(self, location: str | None) -> str:
        found = self.client.get_experiment_by_name(self.experiment)
        if found is None:
            try:
                return str(self.client.create_experiment(self.experiment, artifact_location=location))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self.client.get_experiment_by_name(self.experiment)  # somebody else on the same server
        if found is None or found.lifecycle_stage != "active":
            raise RecordError(
                f"experiment {self.experiment!r} was deleted in the tracker; restore it there, or set "
                "tracking.experiment to another name"
            )
        return str(found.experiment_id)

    def runs(self) -> frozenset[str]:
        """Ids of the live runs that it has of run directories."""
        found: set[str] = set()
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id], f"tags.`{TAG_FINGERPRINT}` != ''", max_results=RUNS_PER_PAGE, page_token=token
            )
            found.update(str(item.info.run_id) for item in page)
            token = page.token
            if not token:
                return frozenset(found)

    # ------------------------------------------------------------------------------------------------ one run
    def import_run(self, run: RunDirectory) -> None:
        """Bring one run up to date."""
        now = signature(run)  # before reading: what changes meanwhile is sent next time
        state = run.state()
        entries = list(run.spool.read())
        tries = attempts.all_attempts(run.path)
        mark = self._located(run, read_mark(run, self.uri, self.experiment), entries)
        if not mark.run_id:
            mark.run_id = self._create(run, tries, entries)
        if not mark.params:
            self._send_params(run, mark)
            self._remember(run, mark)
        self._send_metrics(mark, entries)
        self._send_artifacts(run, mark, FIXED if state.state == RUNNING else ARTIFACTS)
        self._send_attempts(run, mark, tries, state)
        self._send_state(run, mark, tries, state)
        mark.signature = now
        self._remember(run, mark)

    def _remember(self, run: RunDirectory, mark: Mark) -> None:
        write_mark(run, self.uri, self.experiment, mark)

    def _located(self, run: RunDirectory, mark: Mark, entries: Sequence[Mapping[str, Any]]) -> Mark:
        """The mark of the run as it is in the store; an empty one if it has to be created (again)."""
        found = self._existing(run, mark)
        if found is None:
            return Mark()
        if found != mark.run_id:
            mark = Mark(run_id=found)
        # Points of steps that were rewound cannot be taken out of a run: it is made anew without them. Where nothing
        # is known of what was sent, any rewind counts.
        rewinds = [int(entry["data"]["after"]) for entry in entries if entry.get("name") == "spool_truncated"]
        new = rewinds[mark.truncations :]
        sent = mark.last_step if mark.lines or mark.last_step >= 0 else math.inf
        if new and min(new) < sent:
            for child in self._search(f"tags.`mlflow.parentRunId` = '{found}'"):
                self.client.delete_run(child)
            self.client.delete_run(found)
            return Mark()
        if new:
            mark.lines = 0  # the file was rewritten, so positions in it mean nothing; sending again is harmless
        return mark

    def _existing(self, run: RunDirectory, mark: Mark) -> str | None:
        """Id of the live run of this fingerprint in this experiment."""
        if mark.run_id:
            try:
                info = self.client.get_run(mark.run_id).info
                if info.lifecycle_stage == "active" and str(info.experiment_id) == self.experiment_id:
                    return mark.run_id
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        return self._only(f"tags.`{TAG_FINGERPRINT}` = '{run.fingerprint}'")

    def _search(self, condition: str) -> list[str]:
        """Ids of live runs, in an order that every importer sees alike."""
        runs = self.client.search_runs([self.experiment_id], condition, max_results=1000)
        return sorted(str(item.info.run_id) for item in runs)

    def _only(self, condition: str) -> str | None:
        """The live run with these tags, None if there is none.

        There are several after a lost answer (the server had made the run) or where importers on two machines were
        equally fast: all importers keep the same one and take the others out.
        """
        found = self._search(condition)
        for other in found[1:]:
            self.client.delete_run(other)
        return found[0] if found else None

    def _create(
        self, run: RunDirectory, tries: Sequence[attempts.Attempt], entries: Sequence[Mapping[str, Any]]
    ) -> str:
        config = run.load_config()
        names = {
            "method": config.method.id,
            "label": config.method.label,
            "env": config.env.name,
            "backbone": config.backbone.name,
            "fraction": f"{config.fraction:g}",
            "seed": str(config.seed),
            "scale": config.scale,
            "engine": config.engine,
            "protocol": config.protocol,
        }
        began = [float(item.content["start"]) for item in tries] + [float(entry["t"]) for entry in entries]
        created = self.client.create_run(
            self.experiment_id,
            start_time=_milliseconds(min(began, default=run.stored_state().updated)),
            run_name=f"{config.method.label} {config.env.name} {config.backbone.name} seed {config.seed}",
            tags={TAG_FINGERPRINT: run.fingerprint, "harness.sweep": self.experiment, **names},
        )
        made = str(created.info.run_id)
        kept = made if self._locked else self._only(f"tags.`{TAG_FINGERPRINT}` = '{run.fingerprint}'") or made
        if kept == made:
            self._new.add(made)
        return kept

    # ------------------------------------------------------------------------------------------------ its parts
    def _send_params(self, run: RunDirectory, mark: Mark) -> None:
        """The fields that make the run what it is. They never change; a store that disagrees is an error."""
        there = {} if mark.run_id in self._new else self.client.get_run(mark.run_id).data.params
        params: dict[str, str] = {}
        for key, value in identity(run.load_config()).items():
            text = str(value)
            if len(text) > PARAM_LENGTH:
                name = f"params/{_metric_name(key)}.txt"
                self.client.log_text(mark.run_id, text, name)
                text = f"too long: see artifact {name}"
            if there.get(key, text) != text:
                raise RecordError(
                    f"run {mark.run_id} of {run.path} has {key}={there[key]} in the tracker, but {text} in its record; "
                    "delete that run in the tracker, and it is made again from the record"
                )
            if key not in there:
                params[key] = text
        for batch in _batches([entities.Param(key, text) for key, text in params.items()], PARAMS_PER_CALL):
            self.client.log_batch(mark.run_id, params=batch)
        mark.params = True

    def _send_metrics(self, mark: Mark, entries: Sequence[Mapping[str, Any]]) -> None:
        metrics = []
        broken: dict[str, list[str]] = {}
        for position, entry in enumerate(entries):
            if entry["kind"] != "metrics":
                continue
            step = int(entry["step"])
            mark.last_step = max(mark.last_step, step)
            for name, value in entry["values"].items():
                if isinstance(value, str):  # nan, inf: no numbers to a database
                    broken.setdefault(name, []).append(f"{value} at step {step}")
                elif position >= mark.lines:
                    moment = _milliseconds(float(entry["t"]))
                    metrics.append(entities.Metric(_metric_name(name), float(value), moment, step))
        for batch in _batches(metrics, METRICS_PER_CALL):
            self.client.log_batch(mark.run_id, metrics=batch)
        for name, places in sorted(broken.items()):
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            self.client.set_tag(mark.run_id, f"harness.non_finite.{_metric_name(name)}", f"{places[0]}{more}")
        mark.lines = len(entries)
        mark.truncations = sum(entry.get("name") == "spool_truncated" for entry in entries)

    def _send_artifacts(self, run: RunDirectory, mark: Mark, names: Sequence[str]) -> None:
        for name in names:
            path = run.path / name
            if not path.is_file():
                continue
            status = path.stat()
            if status.st_size > ARTIFACT_BYTES:
                told = f"{status.st_size} bytes: only in the run directory"
                self.client.set_tag(mark.run_id, f"harness.not_uploaded.{name}", told)
            elif mark.artifacts.get(name) != [status.st_size, status.st_mtime_ns]:
                self.client.log_artifact(mark.run_id, str(path))
                mark.artifacts[name] = [status.st_size, status.st_mtime_ns]

    def _send_attempts(self, run: RunDirectory, mark: Mark, tries: Sequence[attempts.Attempt], state: RunState) -> None:
        for item in tries:
            content = item.content
            number = str(item.number)
            last = item is tries[-1]
            outcome = content.get("outcome") or (state.state if last else INTERRUPTED)
            known = mark.children.get(number)
            if known is not None and known["outcome"] == outcome:
                continue
            child = known["run_id"] if known else self._child(run, mark.run_id, content, number)
            self._send_status(child, outcome, content.get("end") or state.updated)
            mark.children[number] = {"run_id": child, "outcome": outcome}

    def _child(self, run: RunDirectory, parent: str, content: Mapping[str, Any], number: str) -> str:
        condition = f"tags.`{TAG_ATTEMPT_OF}` = '{run.fingerprint}' and tags.`harness.attempt` = '{number}'"
        if parent not in self._new:
            found = self._only(f"{condition} and tags.`mlflow.parentRunId` = '{parent}'")
            if found is not None:
                return found
        created = self.client.create_run(
            self.experiment_id,
            start_time=_milliseconds(float(content["start"])),
            run_name=f"attempt {number}",
            tags={
                "mlflow.parentRunId": parent,
                TAG_ATTEMPT_OF: run.fingerprint,
                "harness.attempt": number,
                "harness.host": str(content.get("host")),
            },
        )
        return str(created.info.run_id)

    def _send_state(self, run: RunDirectory, mark: Mark, tries: Sequence[attempts.Attempt], state: RunState) -> None:
        tags = {
            "harness.state": state.state,
            "harness.steps": f"{state.last_step}/{state.planned_steps}",
            "harness.attempts": str(len(tries)),
            # Empty again once a later attempt went well.
            "harness.error": redact(state.error or "")[:TAG_LENGTH],
            "harness.failure_class": state.failure_class or "",
            "harness.run_dir": str(run.path)[:TAG_LENGTH],
        }
        self.client.log_batch(mark.run_id, tags=[entities.RunTag(key, value) for key, value in tags.items()])
        ends = [float(item.content["end"]) for item in tries if item.content.get("end")]
        self._send_status(mark.run_id, state.state, max(ends, default=state.updated))

    def _send_status(self, run_id: str, outcome: str, end: float) -> None:
        if outcome in STATUS:
            self.client.set_terminated(run_id, STATUS[outcome], end_time=_milliseconds(end))
        else:
            self.client.update_run(run_id, status="RUNNING")


def _must_answer(uri: str) -> None:
    """Raise SQLAlchemy's error if a database does not answer. MLflow itself would try again for minutes."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    wait = {} if uri.startswith("mssql") else {"connect_timeout": CONNECT_SECONDS}
    with create_engine(uri, poolclass=NullPool, connect_args=wait).connect():
        pass


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _metric_name(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch
