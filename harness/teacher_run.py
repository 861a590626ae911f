"""The finished run whose final weights are another run's frozen teacher."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import backbones
from harness.config import RunConfig
from harness.record import RunDirectory, planned_steps
from harness.training import checkpoint
from harness.training.chat import ChatFormat
from harness.training.network import Network, own_memory


class TeacherError(RuntimeError):
    """The teacher's run is missing, unfinished or does not fit."""

    failure_class = "config"


@dataclass(frozen=True)
class FinishedRun:
    """config: of the teacher's run; weights: its final checkpoint (with engine=verl, the folder that it exported), None
    if it does not train; digest: sha256 of the weights (of the backbone if it does not train; None if that cannot
    tell)."""

    name: str
    config: RunConfig
    weights: Path | None
    digest: str | None

    @classmethod
    def of(cls, student: RunConfig, runs: Path) -> FinishedRun:
        """The run that `method.teacher.source` names, in the folder `runs`. Raises TeacherError unless its last planned
        step has a sound checkpoint."""
        name, wanted = student.method.teacher.source, student.method.teacher.run
        what = f"the teacher of row {student.method.id!r}, a run of method={wanted}"
        if not name:
            raise TeacherError(
                f"method.teacher.source is empty: {what}, has no fingerprint yet. Start the run through "
                "`python -m harness`, whose planner fills it in"
            )
        run = RunDirectory(runs / name)
        if not run.path.is_dir():
            raise TeacherError(f"{what}, is missing: there is no {run.path}. Run it first: the launcher does by itself")
        config = run.load_config()
        planned = planned_steps(config)
        if planned == 0:
            return cls(name, config, None, backbones.weights_digest(config.backbone, config.env))
        if config.engine == "verl":
            return cls._exported(name, config, run, what)
        path = checkpoint.step_path(run.checkpoints_dir, planned)
        if not path.is_dir():
            made = checkpoint.steps(run.checkpoints_dir)
            raise TeacherError(
                f"{what}, is not finished: {run.path} has no checkpoint of its last step {planned} (newest: "
                f"{made[-1] if made else 'none'}). Let it finish, then start this run again"
            )
        try:
            checkpoint.verify(path)
            checkpoint.read_state(path)
        except checkpoint.CheckpointError as error:
            raise TeacherError(
                f"{what}, has a damaged final checkpoint: {error}. Delete it and run it again"
            ) from error
        manifest: dict[str, Any] = json.loads((path / checkpoint.MANIFEST).read_text(encoding="utf-8"))
        return cls(name, config, path, manifest[checkpoint.MODEL]["sha256"])

    @classmethod
    def _exported(cls, name: str, config: RunConfig, run: RunDirectory, what: str) -> FinishedRun:
        """A run of engine=verl: its weights are the folder that it exports after its last step."""
        from harness.training.verl import store

        try:
            found = store.exported(run.path)
        except checkpoint.CheckpointError as error:
            raise TeacherError(f"{what}, has damaged final weights: {error}. Delete it and run it again") from error
        if found is None:
            raise TeacherError(
                f"{what}, is not finished: {run.path} has no {store.EXPORT}/. Let it finish, then start this run again"
            )
        return cls(name, config, found.path, found.digest)

    def must_stay(self, student: RunDirectory) -> None:
        """Record whose weights teach. Raises TeacherError if an earlier attempt of the student had others."""
        entries = (e for e in student.spool.read() if e["kind"] == "event" and e["name"] == "teacher_weights")
        earlier = [entry["data"]["sha256"] for entry in entries]
        if not earlier:
            student.spool.event("teacher_weights", run=self.name, sha256=self.digest)
        elif earlier[0] != self.digest:
            raise TeacherError(
                f"the teacher's run {self.name} now has other final weights (sha256 {self.digest}) than when this run "
                f"began ({earlier[0]}): restore them, or delete this run's folder to begin again"
            )

    def network(self, student: RunConfig, chat: ChatFormat) -> Network:
        """Its weights on the student's device. Raises TeacherError if it has another vocabulary than the student."""
        model, tokenizer = backbones.load(self.config.backbone, student.env)
        if tokenizer.get_vocab() != chat.vocabulary():
            raise TeacherError(
                f"the teacher's backbone {self.config.backbone.name!r} has another vocabulary than the student's "
                f"{student.backbone.name!r}; a teacher scores the student's tokens, so they must be the same"
            )
        own_memory(model)
        if self.weights is not None:
            checkpoint.load_model(self.weights, model)
        return Network(model, student.runtime.device)
