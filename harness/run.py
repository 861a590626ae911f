"""One run, from its directory: build, resume, train, evaluate, record.

`execute` can be called again after any interruption: it continues from the newest sound checkpoint and plays only the
evaluations that are not recorded yet; the results equal those of an unbroken run bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from envs.interface import Panel
from harness import backbones
from harness.config import RunConfig
from harness.evaluation import EpisodeFile, counts, play_panel, records
from harness.parts import Analysis, Parts, analysis_of, parts_of, skill_texts, teacher_loader, trainer_of
from harness.record import RunDirectory, declared_evaluations, planned_steps
from harness.sources import check_sources
from harness.states import COMPLETE, RUNNING, Interrupted
from harness.teacher_run import FinishedRun
from harness.training import checkpoint, notes, trajectories
from harness.training.broken import reasons, unbroken
from harness.training.clocks import unit_of
from harness.training.loop import Trainer, rollout_settings
from harness.training.rollout import Player, RolloutStats, Sampler, SkillOf
from harness.training.teachers import Teacher
from methods import registry as methods
from methods.faithful import check_faithful
from methods.interface import Trajectory, Validation

__all__ = ["Interrupted", "execute"]

_log = logging.getLogger(__name__)


def execute(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """Bring the claimed run to completion and record it.

    Raises Interrupted at a step boundary after should_stop() became true; a checkpoint is written then. Any other
    exception means that the run failed.
    """
    config = run.load_config()
    if config.engine == "verl":
        from harness.training.verl.engine import execute as execute_verl

        return execute_verl(run, should_stop)
    if config.engine == "vllm":
        from harness.training import vllm_engine

        return vllm_engine.execute(run, should_stop)
    run.write_state(state=RUNNING, planned_steps=planned_steps(config), declared=declared_evaluations(config))
    _deterministic(config.runtime.threads)
    with parts_of(config) as parts, analysis_of(config, parts, run.path) as analysis:
        check_weights(run, config)
        session = _LocalSession(run, config, parts, analysis, should_stop)
        session.train()
        session.evaluate()
    run.write_state(state=COMPLETE)


def check_weights(run: RunDirectory, config: RunConfig) -> None:
    """Record which weights the run starts from, and what its environment reads. Raises BackboneError if an earlier
    attempt started from others, and SourceError if it read something else."""
    check_sources(run, config)
    digest = backbones.weights_digest(config.backbone, config.env)
    earlier = [e["data"]["sha256"] for e in run.spool.read() if e["kind"] == "event" and e["name"] == "initial_weights"]
    if not earlier:
        run.spool.event("initial_weights", backbone=config.backbone.name, sha256=digest)
    elif earlier[0] != digest:
        raise backbones.BackboneError(
            f"backbone {config.backbone.name!r} now has other weights (sha256 {digest}) than when this run began "
            f"({earlier[0]}): restore them, or delete the run's folder to begin again"
        )


def _deterministic(threads: int) -> None:
    """Same numbers for the same run: one set of kernels, a fixed number of threads."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # A debugging aid that comes with it: costs time, decides nothing.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


class Session:
    """One attempt at a run: the same course and the same records for every engine.

    What computes is the engine's: `_trainer`, `_player`, `_load` and `_write` are its own.
    """

    def __init__(
        self, run: RunDirectory, config: RunConfig, parts: Parts, analysis: Analysis, should_stop: Callable[[], bool]
    ) -> None:
        self.run, self.config, self.parts, self.analysis = run, config, parts, analysis
        self.should_stop = should_stop
        self.planned = planned_steps(config)
        self.run.checkpoints_dir.mkdir(exist_ok=True)

    # ---------------------------------------------------------------------------------------------------- training
    def train(self) -> None:
        """From the newest sound checkpoint to the planned step."""
        if self.parts.train is None:
            self._rewind(0, 0)
            return
        trainer = self._trainer()
        step = saved = self._resume(trainer)
        if step < self.planned:
            notes.clock(self.run.spool, *unit_of(self.config))
        if step == 0 and self.planned and trainer.method.measures_teacher:
            self._measure_teacher(trainer)
        while step < self.planned:
            if self.should_stop():
                self._save(trainer, step, saved)
                raise Interrupted(f"stopped after training step {step} of {self.planned}")
            step += 1
            metrics, played = self._step(trainer, step)
            self._keep(played, phase="train", step=step)
            self._excluded(played, step=step)
            self.run.spool.metrics(step, metrics)
            if metrics.get("method/retired"):
                self._say_once("retired", step=step)
            self.run.write_state(last_step=step)
            if step % self.config.runtime.checkpoint_every == 0 or step == self.planned:
                saved = self._save(trainer, step, saved)

    def _step(self, trainer: Trainer, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        """Trainer.step; what the analyzer spent is recorded even if the step fails."""
        try:
            return trainer.step(step)
        except BaseException:
            if self.analysis.analyzer is not None:
                self.analysis.analyzer.close()  # what it has under way is given up, so that its cost is known
            raise
        finally:
            notes.analyzer_usage(self.run.spool, step, trainer.usage())

    def _excluded(self, played: Sequence[Trajectory], **about: object) -> None:
        """Record why episodes are left out, if any is."""
        if why := reasons(played):
            self.run.spool.event("episodes_excluded", **about, reasons=why)

    def _trainer(self) -> Trainer:
        """The trainer at the run's initial weights."""
        raise NotImplementedError

    def _validate(self) -> Callable[[], Validation] | None:
        """What plays the validation panel with the policy; None for runs that have none."""
        return self._validation if self.parts.validation is not None else None

    def _skill_of(self) -> SkillOf | None:
        return self.parts.skills.of_task if self.parts.skills is not None else None

    # -------------------------------------------------------------------------------------------------- validation
    def _measure_teacher(self, trainer: Trainer) -> None:
        """Play the validation panel with the teacher's weights and skills, before the first training step.

        A frozen teacher that learned to read skills gets those of its own run, where that showed them.
        """
        config, parts, skills = self.config, self.parts, self.parts.skills
        if config.method.teacher.weights == "frozen":
            learned = FinishedRun.of(config, self.run.path.parent).config.method.skill
            if learned.source == "library":
                config = replace(config, method=replace(config.method, skill=learned))
                skills = skill_texts(config, parts.spec, parts.train, tuple(filter(None, [parts.validation])))
        skill_of = skills.of_task if skills is not None else None
        result = trainer.measure_teacher(lambda: self._validation(trainer.teacher, skill_of, config))
        assert parts.validation is not None
        self._say_once("teacher_measured", **asdict(result), panel_hash=parts.validation.hash)

    def _validation(
        self, teacher: Teacher | None = None, skill_of: SkillOf | None = None, config: RunConfig | None = None
    ) -> Validation:
        """One episode of each task of the validation panel, by the policy or a teacher. Draws from streams of its own,
        so training is the same whether it is played or not. Raises EnvironmentFailure if too few could be played."""
        panel, spent = self.parts.validation, RolloutStats()
        assert panel is not None
        played = play_panel(
            self._player(teacher, config),
            panel,
            seed=self.config.seed,
            repeats=1,
            temperature=self.config.evaluation.temperature,
            batch=self.config.runtime.eval_batch,
            skill_of=skill_of,
            spent=spent,
        )
        episodes = [p.trajectory for p in played]
        self._excluded(episodes, panel=panel.name, weights="policy" if teacher is None else "teacher")
        graded = unbroken(episodes, self.config.training.max_failed_episodes, f"panel {panel.name}")
        return Validation(sum(t.success for t in graded) / len(graded), len(graded), spent.tokens)

    def _player(self, teacher: Teacher | None = None, config: RunConfig | None = None) -> Player:
        """What plays episodes with the policy, or with a teacher's weights.

        config: if other settings than the run's say how episodes are played.
        """
        raise NotImplementedError

    def _say_once(self, name: str, **data: object) -> None:
        """An event that is recorded once, unless what it was about was undone. Doing it again gives the same."""
        if not any(e["kind"] == "event" and e["name"] == name and not e.get("rewound") for e in self.run.spool.read()):
            self.run.spool.event(name, **data)

    # ------------------------------------------------------------------------------------------------- checkpoints
    def _resume(self, trainer: Trainer) -> int:
        """Load the newest sound checkpoint; returns its step, 0 without one. What came after it is forgotten."""
        step, state = self._load(trainer)
        self._rewind(step, int(state["trajectories_bytes"]) if state else 0)
        return step

    def _load(self, trainer: Trainer) -> tuple[int, Mapping[str, Any]]:
        """Restore the newest sound checkpoint: its step and its state; (0, {}) without one."""
        raise NotImplementedError

    def _write(self, trainer: Trainer, step: int, state: Mapping[str, Any]) -> None:
        """Write the checkpoint of `step`."""
        raise NotImplementedError

    def _rejected(self, name: str, reason: str) -> None:
        """Record that a damaged checkpoint was passed over."""
        _log.warning("checkpoint %s is damaged: %s", name, reason)
        self.run.spool.event("checkpoint_rejected", checkpoint=name, reason=reason)

    def _resumed(self, name: str, step: int) -> None:
        """Record what the run continues from."""
        self.run.spool.event("resumed", checkpoint=name, step=step)
        _log.info("resumed from %s", name)

    def _rewind(self, step: int, written: int) -> None:
        """Forget records that are newer than what the run continues from."""
        self.run.spool.truncate_after(step)
        episodes = EpisodeFile(self.run.episodes_path)
        if step < self.planned and episodes.rows:
            # The final weights are lost and made anew. What was evaluated on the lost ones goes, and with it a size
            # of the trajectory file that later would point into the middle of a frame.
            episodes.forget()
            self.run.write_state(evaluations={})
            self.run.spool.event("evaluations_forgotten", step=step)
        # Evaluations are appended after all training, and the episode file knows how far they got.
        trajectories.cut(self.run.trajectories_path, max(written, episodes.trajectories_bytes))
        self.run.write_state(last_step=step)

    def _save(self, trainer: Trainer, step: int, saved: int) -> int:
        if step != saved:
            size = trajectories.size(self.run.trajectories_path)
            self._write(trainer, step, {**trainer.state(step), "trajectories_bytes": size})
        return step

    # -------------------------------------------------------------------------------------------------- evaluation
    def evaluate(self) -> None:
        """Play every declared evaluation that is not recorded yet, on the weights of the last planned step."""
        rule = self.config.evaluation.selection
        if rule != "last":
            raise ValueError(f"evaluation.selection={rule!r} is unknown; the engines evaluate the last checkpoint")
        player = self._player()
        episodes = EpisodeFile(self.run.episodes_path)
        done: dict[str, dict[str, int]] = {}
        for panel in self.parts.panels:
            for skills in self.config.method.rollout_skills_eval:
                if not episodes.has(panel, skills, self.config.evaluation.repeats, self.planned):
                    self._evaluate(player, episodes, panel, skills)
                done[f"{panel.name}/{skills}"] = counts(episodes.of(panel.name, skills))
                self.run.write_state(evaluations=done)
        self.run.spool.event("selection", rule=rule, checkpoint_step=self.planned)

    def _evaluate(self, player: Player, episodes: EpisodeFile, panel: Panel, skills: str) -> None:
        config = self.config
        requested = len(panel.tasks) * config.evaluation.repeats
        self.run.spool.event("evaluation_started", panel=panel.name, skills=skills, requested=requested)
        played = play_panel(
            player,
            panel,
            seed=config.seed,
            repeats=config.evaluation.repeats,
            temperature=config.evaluation.temperature,
            batch=config.runtime.eval_batch,
            skill_of=self._skill_of() if skills == "on" else None,
            should_stop=self.should_stop,
        )
        rows = records(
            played,
            panel,
            run=self.run.fingerprint,
            seed=config.seed,
            skills=skills,
            prompt_protocol=self.parts.prompter.protocol,
            context=config.training.context,
            checkpoint_step=self.planned,
            temperature=config.evaluation.temperature,
            selection=config.evaluation.selection,
        )
        self._keep([p.trajectory for p in played], phase="evaluation", panel=panel.name, skills=skills)
        episodes.add(rows, trajectories.size(self.run.trajectories_path))
        self.run.spool.event("evaluation_finished", panel=panel.name, skills=skills, **counts(rows))

    def _keep(self, played: Sequence[Trajectory], **about: object) -> None:
        """Append a sample of the trajectories to the run's records."""
        chosen = trajectories.spread(len(played), self.config.runtime.keep_trajectories)
        trajectories.append(
            self.run.trajectories_path, [played[i] for i in chosen], self.parts.chat.response_text, **about
        )


class _LocalSession(Session):
    """The local engine: torch and transformers in this process."""

    def _trainer(self) -> Trainer:
        config, parts = self.config, self.parts
        check_faithful(methods.get(config.method.name), config.method, self.planned)
        load = teacher_loader(self.run, config, parts)
        return trainer_of(config, parts, self.analysis, load, self._validate())

    def _player(self, teacher: Teacher | None = None, config: RunConfig | None = None) -> Player:
        parts = self.parts
        network = parts.network if teacher is None else teacher.network()
        return Sampler(network, parts.chat, parts.pool, parts.prompter, rollout_settings(config or self.config))

    def _load(self, trainer: Trainer) -> tuple[int, Mapping[str, Any]]:
        path, rejected = checkpoint.newest(self.run.checkpoints_dir)
        for bad in rejected:
            self._rejected(bad.path.name, bad.reason)
        if path is None:
            return 0, {}
        state = checkpoint.read_state(path)
        checkpoint.load_model(path, self.parts.network.model)
        checkpoint.load_optimizer(path, trainer.optimizer)
        if trainer.teacher.module is not None:
            checkpoint.load_model(path, trainer.teacher.module, checkpoint.TEACHER)
        trainer.load_state(state)
        self._resumed(path.name, int(state["step"]))
        return int(state["step"]), state

    def _write(self, trainer: Trainer, step: int, state: Mapping[str, Any]) -> None:
        folder, model = self.run.checkpoints_dir, self.parts.network.model
        checkpoint.save(folder, step, model, trainer.optimizer, state, trainer.teacher.module)
