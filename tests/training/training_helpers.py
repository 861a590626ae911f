"""Configurations and parts for tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_env
from tiny_model import make_model, make_tokenizer

from envs.interface import EnvConfig
from envs.pool import EnvPool, OrderedPool
from harness.config import BackboneConfig, EvaluationConfig, RunConfig, RuntimeConfig, TrainingConfig
from harness.record import RunDirectory, planned_steps
from harness.training.chat import ChatFormat
from harness.training.loop import Trainer
from harness.training.network import Network
from methods import registry
from methods.interface import AdvantageConfig, MethodConfig, MethodContext, SkillConfig, TeacherConfig
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


def trainer(config: RunConfig, model_seed: int = 0, **parts: Any) -> Trainer:
    """A Trainer of the tiny environment on a random model."""
    analyze = None
    if config.method.skill.source == "own_trajectory":
        context = analyzer.AnalyzerContext(config.method.skill.max_step_skills, tiny_env.hindsight)
        analyze = analyzer.build("rules", context).analyze
    method = registry.build(config.method, MethodContext(planned_steps(config), config.seed, analyze))
    library = tiny_env.workflow(config.env) if config.method.rollout_skills_train else None
    given = {
        "network": network(model_seed),
        "chat": chat(),
        "pool": pool(config),
        "prompter": tiny_env.prompter(config.env),
        "tasks": tiny_env.load_panel(config.env, "train").tasks,
        "method": method,
        "library": library,
        "reference": network(model_seed) if config.training.kl_coef else None,
    }
    return Trainer(config, **{**given, **parts})


def save_backbone(folder: Path) -> Path:
    """A random model as a transformers folder, for backbone.kind=hub."""
    make_model(TOKENIZER).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def run_directory(root: Path, config: RunConfig, backbone: Path, name: str = "0123456789abcdef") -> RunDirectory:
    config.backbone.path = str(backbone)
    return RunDirectory.create(root, config, name)
