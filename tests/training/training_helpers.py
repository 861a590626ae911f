"""Configurations and parts for tests of training."""

from __future__ import annotations

import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

import tiny_env
from tiny_model import make_model, make_tokenizer

from core.knobs import resolve_knobs
from envs.interface import EnvConfig
from envs.pool import EnvPool, OrderedPool
from harness.compose import Composer, composer, package_files
from harness.config import BackboneConfig, EvaluationConfig, RunConfig, RuntimeConfig, TrainingConfig
from harness.parts import SkillTexts, skill_texts
from harness.record import RunDirectory, planned_steps
from harness.training.chat import ChatFormat
from harness.training.loop import Extras, Trainer
from harness.training.network import Network
from methods import registry
from methods.interface import AdvantageConfig, MethodConfig, MethodContext, SkillConfig, TeacherConfig, Validation
from methods.skills import analyzer

CONTEXTS = ("growing", "per_step")
TOKENIZER = make_tokenizer()


def method_config(name: str, **changes: Any) -> MethodConfig:
    """A small configuration of a registered method."""
    config = MethodConfig(id=name, name=name, label=name)
    if name == "vanilla":
        config = MethodConfig(id=name, name=name, trains=False, advantage=AdvantageConfig(estimator="none"))
    elif name == "opid":
        config.skill = SkillConfig("own_trajectory", "critical_first", max_step_skills=2)
        config.teacher = TeacherConfig("old")
        config.coef = 0.25
    for key, value in changes.items():
        setattr(config, key, value)
    return config


@functools.cache
def _composer() -> Composer:
    return composer()


def method_files() -> list[str]:
    """Every file in sweeps/method/."""
    return list(package_files()["method"])


def method_of_file(name: str) -> MethodConfig:
    """The configuration in sweeps/method/<name>.yaml, as a command composes it, with all knobs."""
    method = copy.deepcopy(_composer().config([f"method={name}"])[0].method)
    method.knobs = resolve_knobs(registry.get(method.name).knobs, method.knobs, "method.knobs")
    return method


def run_config(method: str | MethodConfig = "grpo", seed: int = 0, **training: Any) -> RunConfig:
    given: dict[str, Any] = {
        "steps": 3,
        "tasks_per_step": 3,
        "group_size": 4,
        "max_prompt_tokens": 200,
        "max_response_tokens": 3,
        "lr": 3e-3,
        "micro_batch_tokens": 256,
    }
    return RunConfig(
        method=method_config(method) if isinstance(method, str) else method,
        env=EnvConfig(name="tiny", max_steps=4, history=2),
        training=TrainingConfig(**{**given, **training}),
        evaluation=EvaluationConfig(panels=["seen", "unseen"], temperature=1.0),
        backbone=BackboneConfig(name="random", kind="hub"),
        runtime=RuntimeConfig(checkpoint_every=2, keep_trajectories=2),
        seed=seed,
    )


def network(seed: int = 0) -> Network:
    return Network(make_model(TOKENIZER, seed))


def chat() -> ChatFormat:
    return ChatFormat(TOKENIZER)


def pool(config: RunConfig, workers: int = 0) -> OrderedPool:
    return OrderedPool(EnvPool(tiny_env.make, config.env, workers))


def skills(config: RunConfig) -> SkillTexts | None:
    """Library skills of all tasks, if the method reads a library."""
    panels = [tiny_env.load_panel(config.env, name) for name in tiny_env.SPEC.panels]
    return skill_texts(config, tiny_env.SPEC, panels[0], tuple(panels[1:]))


def trainer(config: RunConfig, model_seed: int = 0, **parts: Any) -> Trainer:
    """A Trainer of the tiny environment on a random model. A frozen teacher is another random model."""
    analyze = None
    if config.method.skill.source == "own_trajectory":
        context = analyzer.AnalyzerContext(config.method.skill.max_step_skills, tiny_env.hindsight)
        analyze = analyzer.build("rules", context).analyze
    texts = skills(config)
    of_trajectory = texts.of_trajectory if texts is not None else None
    given = {
        "network": network(model_seed),
        "chat": chat(),
        "pool": pool(config),
        "prompter": tiny_env.prompter(config.env),
        "tasks": tiny_env.load_panel(config.env, "train").tasks,
        "method": registry.build(
            config.method, MethodContext(planned_steps(config), config.seed, analyze, of_trajectory)
        ),
    }
    extras = {
        "skill_of": texts.of_task if texts is not None else None,
        "reference": network(model_seed) if config.training.kl_coef else None,
        "load_teacher": lambda: network(model_seed + 100),
        "validate": lambda: Validation(0.5, 4),
    }
    names = {item.name for item in dataclasses.fields(Extras)}
    extras |= {name: parts.pop(name) for name in sorted(names & set(parts))}
    return Trainer(config, **{**given, **parts}, extras=Extras(**extras))


def save_backbone(folder: Path) -> Path:
    """A random model as a transformers folder, for backbone.kind=hub."""
    make_model(TOKENIZER).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def run_directory(root: Path, config: RunConfig, backbone: Path, name: str = "0123456789abcdef") -> RunDirectory:
    config.backbone.path = str(backbone)
    return RunDirectory.create(root, config, name)
