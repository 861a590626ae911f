"""The course of a run of engine=verl: that of every engine (harness.run.Session), computed by verl's workers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.parts import Analysis, Parts, parts_with
from harness.record import RunDirectory
from harness.run import Session
from harness.teacher_run import FinishedRun
from harness.training.chat import ChatFormat
from harness.training.loop import Extras, Trainer
from harness.training.rollout import Player
from harness.training.teachers import Teacher
from harness.training.verl import store
from harness.training.verl.parts import (
    POLICY,
    TEACHER,
    RemoteNetwork,
    RemotePlayer,
    RemoteTeacher,
    RemoteTrainer,
    Services,
)
from harness.training.verl.settings import model_path
from harness.training.verl.sizes import sizes_of
from methods import registry as methods
from methods.faithful import check_faithful
from methods.interface import MethodContext
from methods.skills.analyzer import Usage


@contextlib.contextmanager
def verl_parts(config: RunConfig, tokenizer: Any, max_positions: int) -> Iterator[Parts]:
    """As harness.parts.parts_of, with weights and environments elsewhere: they are in verl's processes."""
    # No workers: the agent loops have pools of their own.
    with parts_with(config, lambda: (RemoteNetwork(max_positions), ChatFormat(tokenizer)), 0) as parts:
        yield parts


class VerlSession(Session):
    """One attempt."""

    def __init__(
        self,
        run: RunDirectory,
        config: RunConfig,
        parts: Parts,
        analysis: Analysis,
        should_stop: Callable[[], bool],
        services: Services,
    ) -> None:
        super().__init__(run, config, parts, analysis, should_stop)
        self.services = services

    def evaluate(self) -> None:
        self._export()
        super().evaluate()

    # -------------------------------------------------------------------------------------------- what computes
    def _trainer(self) -> Trainer:
        config, parts, analyzer = self.config, self.parts, self.analysis.analyzer
        check_faithful(methods.get(config.method.name), config.method, self.planned)
        assert parts.train is not None
        skills = parts.skills
        context = MethodContext(
            total_steps=self.planned,
            seed=config.seed,
            analyze=analyzer.analyze if analyzer is not None else None,
            library=skills.of_trajectory if skills is not None else None,
        )
        extras = Extras(
            skill_of=skills.of_task if skills is not None else None,
            reference=parts.network if config.training.kl_coef > 0 else None,
            usage=analyzer.usage if analyzer is not None else Usage,
            validate=self._validate(),
        )
        method = methods.build(config.method, context)
        tasks = parts.train.tasks
        return RemoteTrainer(
            self.services,
            self._teacher_folder(),
            config,
            parts.network,
            parts.chat,
            parts.pool,
            parts.prompter,
            tasks,
            method,
            extras,
        )

    def _teacher_folder(self) -> Path | None:
        """The frozen teacher's weights, after it was checked that they are those of earlier attempts."""
        if self.config.method.teacher.weights != "frozen":
            return None
        source = FinishedRun.of(self.config, self.run.path.parent)
        source.must_stay(self.run)
        return source.weights if source.weights is not None else Path(model_path(source.config))

    def _player(self, teacher: Teacher | None = None, config: RunConfig | None = None) -> Player:
        source = POLICY
        if isinstance(teacher, RemoteTeacher):
            teacher.network()
            source = TEACHER
        return RemotePlayer(self.services, config or self.config, source)

    # -------------------------------------------------------------------------------------------------- checkpoints
    def _load(self, trainer: Trainer) -> tuple[int, Mapping[str, Any]]:
        path, state, rejected = store.newest(self.run.checkpoints_dir)
        for bad in rejected:
            self._rejected(bad.path.name, bad.reason)
        step = int(state["step"]) if path is not None else 0
        if step < self.planned:  # what was exported of lost weights is made anew with them
            shutil.rmtree(self.run.path / store.EXPORT, ignore_errors=True)
        if path is None:
            return 0, {}
        store.refuse_other_world(path, state, sizes_of(self.config).gpus)
        self.services.restore(path, _moves(trainer.teacher))
        trainer.load_state(state)
        self.services.global_steps = step
        self._resumed(path.name, step)
        return step, state

    def _write(self, trainer: Trainer, step: int, state: Mapping[str, Any]) -> None:
        def shards(folder: Path) -> None:
            self.services.save(folder, _moves(trainer.teacher))

        written = {**state, store.WORLD: sizes_of(self.config).gpus}
        store.save(self.run.checkpoints_dir, step, written, shards, self.config.verl.keep_checkpoints)

    def _export(self) -> None:
        """The final weights as a transformers folder, once."""
        if not self.planned or store.exported(self.run.path) is not None:
            return
        folder = self.run.path / store.EXPORT
        self.services.export(folder, self.config.backbone.dtype)
        store.seal_export(folder)
        self.run.spool.event("exported", folder=store.EXPORT, dtype=self.config.backbone.dtype)


def _moves(teacher: Teacher) -> bool:
    return isinstance(teacher, RemoteTeacher) and teacher.moves
