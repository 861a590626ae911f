"""What a run is made of: tasks, environments, policy, skills, analyzer, teacher's weights."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from envs import registry as environments
from envs.interface import EnvSpec, Panel, Prompter, Task
from envs.panels import assert_disjoint, subset
from envs.pool import EnvPool, OrderedPool
from harness import backbones
from harness.analysis_setup import build_analyzer
from harness.config import RunConfig
from harness.panels import TRAIN, VALIDATION, used_panels
from harness.record import RunDirectory, planned_steps
from harness.teacher_run import FinishedRun
from harness.training.chat import ChatFormat
from harness.training.generation import PolicyWriter
from harness.training.loop import Extras, Trainer, skill_style
from harness.training.network import Network, own_memory
from methods import registry as methods
from methods.interface import MethodContext, Trajectory, Validation
from methods.skills import library as libraries
from methods.skills.analyzer import Analyzer, Usage


@dataclass(frozen=True)
class Parts:
    """train: None for methods that do not train; validation: None for methods that are not validated while training;
    skills: None for runs that read no library."""

    spec: EnvSpec
    prompter: Prompter
    pool: OrderedPool
    train: Panel | None
    panels: tuple[Panel, ...]
    validation: Panel | None
    network: Network
    chat: ChatFormat
    skills: SkillTexts | None


def panels_of(config: RunConfig, spec: EnvSpec) -> tuple[Panel | None, tuple[Panel, ...], Panel | None]:
    """What a run trains on (None if it does not; its fraction only), is evaluated on, and is validated on on the way.

    Raises as parts_of does.
    """
    used = used_panels(config)
    panels = tuple(spec.load_panel(config.env, name) for name in config.evaluation.panels)
    validation = spec.load_panel(config.env, VALIDATION) if VALIDATION in used else None
    others = [panel for panel in panels if panel.name != VALIDATION]
    if validation is not None:
        assert_disjoint(validation, *others)
    train = spec.load_panel(config.env, TRAIN) if TRAIN in used else None
    if train is not None:
        assert_disjoint(train, *panels, *filter(None, [validation]))
        if config.fraction_of == "tasks":
            train = subset(config.env.name, train, config.fraction)
    return train, panels, validation


@contextlib.contextmanager
def parts_with(
    config: RunConfig, policy: Callable[[], tuple[Network, ChatFormat]], env_workers: int
) -> Iterator[Parts]:
    """Everything but the policy, which `policy` gives after the panels were found sound. Raises as panels_of."""
    spec = environments.get(config.env.name)
    train, panels, validation = panels_of(config, spec)
    network, chat = policy()
    pool = OrderedPool(EnvPool(spec.make, config.env, env_workers))
    with contextlib.closing(pool):
        yield Parts(
            spec=spec,
            prompter=spec.prompter(config.env),
            pool=pool,
            train=train,
            panels=panels,
            validation=validation,
            network=network,
            chat=chat,
            skills=skill_texts(config, spec, train, (*panels, *filter(None, [validation]))),
        )


@contextlib.contextmanager
def parts_of(config: RunConfig) -> Iterator[Parts]:
    """Raises PanelError if what is trained on shares tasks with what is validated or evaluated on, and if what is
    validated on shares tasks with what is evaluated on."""

    def policy() -> tuple[Network, ChatFormat]:
        disable_progress_bar()  # of loading weights: it would end up in the run's log
        model, tokenizer = backbones.load(config.backbone, config.env)
        own_memory(model)
        return Network(model, config.runtime.device), ChatFormat(tokenizer)

    with parts_with(config, policy, config.runtime.env_workers) as parts:
        yield parts


# -------------------------------------------------------------------------------------------------------------- skills
@dataclass(frozen=True)
class SkillTexts:
    """Library skills of this run's tasks, for the policy's own prompt and for teachers."""

    selector: libraries.Selector
    tasks: Mapping[str, Task]

    def of_task(self, task: Task, text: str) -> str:
        """text: the instruction as the environment says it."""
        source = task.slots.get("data_source") or task.type
        return self.selector.choose(task.id, task.type, text, source)

    def of_trajectory(self, trajectory: Trajectory) -> str:
        return self.of_task(self.tasks[trajectory.task_id], trajectory.task_text)


def skill_texts(config: RunConfig, spec: EnvSpec, train: Panel | None, others: tuple[Panel, ...]) -> SkillTexts | None:
    """The skills of a run that uses a library, else None. Raises ValueError if the environment has none.

    Lines of other tasks (style compact, routers that look beyond the task) are those of training tasks.
    """
    method = config.method
    if method.skill.source != "library":
        if method.rollout_skills_train or "on" in method.rollout_skills_eval:
            raise ValueError(
                f"row {method.id!r} puts skills into the policy's prompt, but method.skill.source="
                f"{method.skill.source}; set it to library, or method.rollout_skills_train=false and "
                'method.rollout_skills_eval=["off"]'
            )
        return None
    known = {task.id: task for panel in (*others, *filter(None, [train])) for task in panel.tasks}
    selector = libraries.build(
        method.skill,
        spec.library(config.env) if spec.library else None,
        spec.workflow(config.env) if spec.workflow else None,
        skill_style(config),
        config.seed,
        train.tasks if train is not None else known.values(),
    )
    selector.know(known.values())
    return SkillTexts(selector, known)


# ------------------------------------------------------------------------------------------------------------ analyzer
@dataclass(frozen=True)
class Analysis:
    """analyzer: None for methods without one; writer: the policy as a writer, for analyzers that want it."""

    analyzer: Analyzer | None = None
    writer: PolicyWriter | None = None


@contextlib.contextmanager
def analysis_of(config: RunConfig, parts: Parts, run_dir: Path) -> Iterator[Analysis]:
    """The analyzer of a run that trains on skills of its own trajectories."""
    if not config.method.trains or config.method.skill.source != "own_trajectory":
        yield Analysis()
        return
    hindsight = parts.spec.hindsight(config.env) if parts.spec.hindsight else None
    settings = config.analyzer
    writer = PolicyWriter(
        parts.network,
        parts.chat,
        config.seed,
        settings.temperature,
        settings.max_output_tokens,
        config.runtime.eval_batch,
    )
    analyzer = build_analyzer(config, run_dir, hindsight, writer)
    with contextlib.closing(analyzer):
        yield Analysis(analyzer, writer)


# ------------------------------------------------------------------------------------------- further sets of weights
def reference_network(config: RunConfig, parts: Parts) -> Network | None:
    """A frozen copy of the initial policy, for runs whose loss has a KL term. Call it before weights are changed."""
    if config.training.kl_coef == 0:
        return None
    frozen = copy.deepcopy(parts.network.model).requires_grad_(False)
    return Network(frozen, config.runtime.device)


def teacher_loader(run: RunDirectory, config: RunConfig, parts: Parts) -> Callable[[], Network] | None:
    """Loads the frozen teacher of a run that has one, after it was checked that it can be loaded; else None."""
    if config.method.teacher.weights != "frozen":
        return None
    source = FinishedRun.of(config, run.path.parent)
    source.must_stay(run)
    return lambda: source.network(config, parts.chat)


# ------------------------------------------------------------------------------------------------------------- trainer
def trainer_of(
    config: RunConfig,
    parts: Parts,
    analysis: Analysis,
    load_teacher: Callable[[], Network] | None = None,
    validate: Callable[[], Validation] | None = None,
) -> Trainer:
    """The training of a run at its initial weights. load_teacher, validate: see harness.training.loop.Extras.

    Raises ValueError for a run that does not train, and for a method that its configuration does not fit.
    """
    if parts.train is None:
        raise ValueError(f"row {config.method.id!r} does not train (method.trains=false)")
    planned, skills, analyzer = planned_steps(config), parts.skills, analysis.analyzer
    context = MethodContext(
        total_steps=planned,
        seed=config.seed,
        analyze=analyzer.analyze if analyzer is not None else None,
        library=skills.of_trajectory if skills is not None else None,
    )
    extras = Extras(
        skill_of=skills.of_task if skills is not None else None,
        reference=reference_network(config, parts),
        load_teacher=load_teacher,
        usage=analyzer.usage if analyzer is not None else Usage,
        writer=analysis.writer,
        validate=validate,
    )
    method = methods.build(config.method, context)
    return Trainer(config, parts.network, parts.chat, parts.pool, parts.prompter, parts.train.tasks, method, extras)
