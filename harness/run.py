"""One run, from its directory: build, resume, train, evaluate, record.

`execute` can be called again after any interruption: it continues from the newest sound checkpoint and plays only the
evaluations that are not recorded yet; the results equal those of an unbroken run bit for bit.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers.utils.logging import disable_progress_bar

from envs import registry as environments
from envs.interface import EnvSpec, Panel, Prompter, Task
from envs.panels import assert_disjoint, subset
from envs.pool import EnvPool, OrderedPool
from harness import backbones
from harness.config import RunConfig
from harness.evaluation import EpisodeFile, counts, play_panel, records
from harness.record import RunDirectory, declared_evaluations, planned_steps
from harness.states import COMPLETE, RUNNING, Interrupted
from harness.training import checkpoint, trajectories
from harness.training.chat import ChatFormat
from harness.training.loop import Library, Trainer, rollout_settings
from harness.training.network import Network
from harness.training.rollout import Sampler
from methods import registry as methods
from methods.faithful import check_faithful
from methods.interface import MethodContext, Trajectory
from methods.skills import analyzer as analyzers

__all__ = ["Interrupted", "execute"]

_log = logging.getLogger(__name__)


def execute(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """Bring the claimed run to completion and record it.

    Raises Interrupted at a step boundary after should_stop() became true; a checkpoint is written then. Any other
    exception means that the run failed.
    """
    config = run.load_config()
    run.write_state(state=RUNNING, planned_steps=planned_steps(config), declared=declared_evaluations(config))
    _deterministic(config.runtime.threads)
    with _parts(config) as parts:
        _check_weights(run, config)
        session = _Session(run, config, parts, should_stop)
        session.train()
        session.evaluate()
    run.write_state(state=COMPLETE)


@dataclass(frozen=True)
class _Parts:
    """What a run is made of. train: None for methods that do not train."""

    spec: EnvSpec
    prompter: Prompter
    pool: OrderedPool
    train: Panel | None
    panels: tuple[Panel, ...]
    network: Network
    chat: ChatFormat
    library: Library | None


@contextlib.contextmanager
def _parts(config: RunConfig) -> Iterator[_Parts]:
    spec = environments.get(config.env.name)
    panels = tuple(spec.load_panel(config.env, name) for name in config.evaluation.panels)
    train = spec.load_panel(config.env, "train") if config.method.trains else None
    if train is not None:
        assert_disjoint(train, *panels)
        if config.fraction_of == "tasks":
            train = subset(config.env.name, train, config.fraction)
    disable_progress_bar()  # of loading weights: it would end up in the run's log
    model, tokenizer = backbones.load(config.backbone, config.env)
    _own_memory(model)
    pool = OrderedPool(EnvPool(spec.make, config.env, config.runtime.env_workers))
    with contextlib.closing(pool):
        yield _Parts(
            spec=spec,
            prompter=spec.prompter(config.env),
            pool=pool,
            train=train,
            panels=panels,
            network=Network(model, config.runtime.device),
            chat=ChatFormat(tokenizer),
            library=_library(config, spec),
        )


def _check_weights(run: RunDirectory, config: RunConfig) -> None:
    """Record which weights the run starts from. Raises BackboneError if an earlier attempt started from others."""
    digest = backbones.weights_digest(config.backbone, config.env)
    earlier = [e["data"]["sha256"] for e in run.spool.read() if e["kind"] == "event" and e["name"] == "initial_weights"]
    if not earlier:
        run.spool.event("initial_weights", backbone=config.backbone.name, sha256=digest)
    elif earlier[0] != digest:
        raise backbones.BackboneError(
            f"backbone {config.backbone.name!r} now has other weights (sha256 {digest}) than when this run began "
            f"({earlier[0]}): restore them, or delete the run's folder to begin again"
        )


def _library(config: RunConfig, spec: EnvSpec) -> Library | None:
    """Skill texts for the policy's own prompt, if this run uses any."""
    if not config.method.rollout_skills_train and "on" not in config.method.rollout_skills_eval:
        return None
    if spec.workflow is None:
        raise ValueError(
            f"row {config.method.id!r} puts skills into the policy's prompt, but env.name={spec.name} has no skill "
            'library; set method.rollout_skills_train=false and method.rollout_skills_eval=["off"]'
        )
    return spec.workflow(config.env)


def _own_memory(model: torch.nn.Module) -> None:
    """Copy weights out of the file that they are mapped from.

    transformers maps safetensors files; if such a file is rewritten later, touching the weights kills the process
    (SIGBUS), long after it was loaded.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _deterministic(threads: int) -> None:
    """Same numbers for the same run: one set of kernels, a fixed number of threads."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # A debugging aid that comes with it: costs time, decides nothing.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


class _Session:
    """One attempt at a run."""

    def __init__(self, run: RunDirectory, config: RunConfig, parts: _Parts, should_stop: Callable[[], bool]) -> None:
        self.run, self.config, self.parts, self.should_stop = run, config, parts, should_stop
        self.planned = planned_steps(config)
        self.run.checkpoints_dir.mkdir(exist_ok=True)

    # ---------------------------------------------------------------------------------------------------- training
    def train(self) -> None:
        """From the newest sound checkpoint to the planned step."""
        if self.parts.train is None:
            self._rewind(0, 0)
            return
        trainer = self._trainer(self.parts.train.tasks)
        step = saved = self._resume(trainer)
        while step < self.planned:
            if self.should_stop():
                self._save(trainer, step, saved)
                raise Interrupted(f"stopped after training step {step} of {self.planned}")
            step += 1
            metrics, played = trainer.step(step)
            self._keep(played, phase="train", step=step)
            if failures := Counter(t.failure for t in played if t.failure is not None):
                self.run.spool.event("episodes_excluded", step=step, reasons=dict(failures))
            self.run.spool.metrics(step, metrics)
            self.run.write_state(last_step=step)
            if step % self.config.runtime.checkpoint_every == 0 or step == self.planned:
                saved = self._save(trainer, step, saved)

    def _trainer(self, tasks: Sequence[Task]) -> Trainer:
        config, parts = self.config, self.parts
        check_faithful(methods.get(config.method.name), config.method, self.planned)
        analyze = None
        if config.method.skill.source == "own_trajectory":
            hindsight = parts.spec.hindsight(config.env) if parts.spec.hindsight else None
            context = analyzers.AnalyzerContext(config.method.skill.max_step_skills, hindsight)
            analyze = analyzers.build(config.analyzer.name, context).analyze
        reference = None
        if config.training.kl_coef > 0:
            frozen = copy.deepcopy(parts.network.model).requires_grad_(False)
            reference = Network(frozen, config.runtime.device)
        return Trainer(
            config,
            parts.network,
            parts.chat,
            parts.pool,
            parts.prompter,
            tasks,
            methods.build(config.method, MethodContext(self.planned, config.seed, analyze)),
            parts.library,
            reference,
        )

    def _resume(self, trainer: Trainer) -> int:
        """Load the newest sound checkpoint; returns its step, 0 without one. What came after it is forgotten."""
        path, rejected = checkpoint.newest(self.run.checkpoints_dir)
        for bad in rejected:
            _log.warning("checkpoint %s is damaged: %s", bad.path.name, bad.reason)
            self.run.spool.event("checkpoint_rejected", checkpoint=bad.path.name, reason=bad.reason)
        step = written = 0
        if path is not None:
            state = checkpoint.read_state(path)
            checkpoint.load_model(path, self.parts.network.model)
            checkpoint.load_optimizer(path, trainer.updater.optimizer)
            trainer.load_state(state)
            step, written = int(state["step"]), int(state["trajectories_bytes"])
            self.run.spool.event("resumed", checkpoint=path.name, step=step)
            _log.info("resumed from %s", path.name)
        self._rewind(step, written)
        return step

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
            state = {**trainer.state(step), "trajectories_bytes": trajectories.size(self.run.trajectories_path)}
            checkpoint.save(self.run.checkpoints_dir, step, self.parts.network.model, trainer.updater.optimizer, state)
        return step

    # -------------------------------------------------------------------------------------------------- evaluation
    def evaluate(self) -> None:
        """Play every declared evaluation that is not recorded yet, on the weights of the last planned step."""
        rule = self.config.evaluation.selection
        if rule != "last":
            raise ValueError(
                f"evaluation.selection={rule!r} is unknown; the local engine evaluates the last checkpoint"
            )
        sampler = Sampler(
            self.parts.network, self.parts.chat, self.parts.pool, self.parts.prompter, rollout_settings(self.config)
        )
        episodes = EpisodeFile(self.run.episodes_path)
        done: dict[str, dict[str, int]] = {}
        for panel in self.parts.panels:
            for skills in self.config.method.rollout_skills_eval:
                if not episodes.has(panel, skills, self.config.evaluation.repeats, self.planned):
                    self._evaluate(sampler, episodes, panel, skills)
                done[f"{panel.name}/{skills}"] = counts(episodes.of(panel.name, skills))
                self.run.write_state(evaluations=done)
        self.run.spool.event("selection", rule=rule, checkpoint_step=self.planned)

    def _evaluate(self, sampler: Sampler, episodes: EpisodeFile, panel: Panel, skills: str) -> None:
        config = self.config
        requested = len(panel.tasks) * config.evaluation.repeats
        self.run.spool.event("evaluation_started", panel=panel.name, skills=skills, requested=requested)
        played = play_panel(
            sampler,
            panel,
            seed=config.seed,
            repeats=config.evaluation.repeats,
            temperature=config.evaluation.temperature,
            batch=config.runtime.eval_batch,
            skill_of=self.parts.library if skills == "on" else None,
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
