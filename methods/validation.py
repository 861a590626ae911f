"""Values of a method's configuration that no method accepts. Needs no torch: planning validates every cell with it."""

from __future__ import annotations

import math

from core.names import require_known
from methods.interface import MethodConfig
from methods.schedule import check_schedule

ESTIMATORS = ("grpo", "gigpo", "none")
STATS_OVER = ("trajectories", "steps")
ANCHORS = ("exact", "similar")
SOURCES = ("none", "library", "own_trajectory")
LIBRARY_ROUTERS = ("task_type", "keyword", "data_source", "general", "all", "random", "embedding")
OWN_TRAJECTORY_ROUTERS = ("critical_first", "episode_only", "step_only", "additive", "random")
ROUTERS = ("none", *dict.fromkeys((*LIBRARY_ROUTERS, *OWN_TRAJECTORY_ROUTERS)))
PLACEMENTS = ("task", "front")
TEACHERS = ("none", "old", "frozen", "ema")
EVALUATION_SKILLS = ("off", "on")


def check_values(config: MethodConfig) -> None:
    """Raise ValueError naming the first key whose value is out of range or unknown, or that contradicts another key."""
    where = f"(row {config.id!r}, sweeps/method/{config.id}.yaml or an override)"
    require_known("method.advantage.estimator", config.advantage.estimator, ESTIMATORS, where)
    require_known("method.advantage.stats_over", config.advantage.stats_over, STATS_OVER, where)
    require_known("method.advantage.anchor", config.advantage.anchor, ANCHORS, where)
    require_known("method.skill.placement", config.skill.placement, PLACEMENTS, where)
    require_known("method.teacher.weights", config.teacher.weights, TEACHERS, where)
    require_known("method.skill.source", config.skill.source, SOURCES, where)
    require_known("method.skill.router", config.skill.router, ROUTERS, where)
    check_schedule(config.schedule)
    _check_numbers(config, where)
    _check_skills(config, where)


def check_base(config: MethodConfig, name: str) -> None:
    """Raise ValueError for keys that a method without any teacher (`name`) would silently ignore, and for one that has
    nothing to learn from."""
    row = f"row {config.id!r}"
    if not config.trains:
        raise ValueError(f"method.trains=false: {row} uses {name}, which trains; use method.name=vanilla instead")
    if config.coef or config.teacher.weights != "none":
        raise ValueError(
            f"{row} sets method.coef={config.coef}, method.teacher.weights={config.teacher.weights}, but {name} has no "
            "teacher; set them to 0 and none, or use another method"
        )
    if config.skill.source == "own_trajectory":
        raise ValueError(
            f"{row} sets method.skill.source=own_trajectory, but {name} analyses nothing; use none, library, or "
            "method.name=opid"
        )
    if not rewarded(config):
        raise ValueError(
            f"{row} sets method.advantage.estimator={config.advantage.estimator} and method.advantage.pg_coef="
            f"{config.advantage.pg_coef}, but {name} learns from outcome rewards alone: nothing would be learnt; set "
            "an estimator and a positive weight, or use method.name=vanilla"
        )


def rewarded(config: MethodConfig) -> bool:
    """Whether the outcome reward has a part in the loss."""
    return config.advantage.estimator != "none" and config.advantage.pg_coef != 0


def _check_numbers(config: MethodConfig, where: str) -> None:
    numbers = {
        "method.advantage.pg_coef": config.advantage.pg_coef,
        "method.coef": config.coef,
        "method.advantage.omega": config.advantage.omega,
    }
    for key, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{key}={value} must be a finite number of at least 0 {where}")
    if config.skill.max_step_skills < 0:
        raise ValueError(f"method.skill.max_step_skills={config.skill.max_step_skills} must not be negative {where}")
    if not 0 <= config.skill.max_failure_rate <= 1:
        raise ValueError(
            f"method.skill.max_failure_rate={config.skill.max_failure_rate} must be a share between 0 and 1 {where}"
        )
    shares = {
        "method.advantage.gamma": config.advantage.gamma,
        "method.advantage.similarity": config.advantage.similarity,
    }
    for key, value in shares.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{key}={value} must be between 0 and 1 {where}")
    if config.skill.top_k < 0:
        raise ValueError(f"method.skill.top_k={config.skill.top_k} must not be negative {where}")
    if (config.teacher.weights == "frozen") != (config.teacher.run is not None):
        raise ValueError(
            f"method.teacher.run={config.teacher.run} does not fit method.teacher.weights={config.teacher.weights}: a "
            f"frozen teacher, and no other, names the method whose run gives its weights {where}"
        )
    decay, moving = config.teacher.decay, config.teacher.weights == "ema"
    if moving and not 0 < decay < 1:
        raise ValueError(
            f"method.teacher.decay={decay} must be above 0 and below 1: at 0 the moving average is the policy itself "
            f"(method.teacher.weights=old), at 1 it never moves {where}"
        )
    if not moving and decay != 0:
        raise ValueError(
            f"method.teacher.decay={decay} is read by method.teacher.weights=ema only, but they are "
            f"{config.teacher.weights}; set it to 0, or choose ema {where}"
        )
    clip = config.signal.clip
    if clip is not None and not (math.isfinite(clip) and clip > 0):
        raise ValueError(
            f"method.signal.clip={clip} must be a positive number of nats, or null for no clipping {where}"
        )


def _check_skills(config: MethodConfig, where: str) -> None:
    source, router = config.skill.source, config.skill.router
    fitting = {"none": ("none",), "library": LIBRARY_ROUTERS, "own_trajectory": OWN_TRAJECTORY_ROUTERS}[source]
    if router not in fitting:
        raise ValueError(
            f"method.skill.router={router!r} does not fit method.skill.source={source!r}; "
            f"use one of: {', '.join(fitting)} {where}"
        )
    evaluations = list(config.rollout_skills_eval)
    if not evaluations or len(set(evaluations)) != len(evaluations):
        raise ValueError(f"method.rollout_skills_eval={evaluations} must name off, on or both, each once {where}")
    for value in evaluations:
        require_known("method.rollout_skills_eval", value, EVALUATION_SKILLS, where)
    if source != "library" and ("on" in evaluations or config.rollout_skills_train):
        key = "rollout_skills_eval" if "on" in evaluations else "rollout_skills_train"
        raise ValueError(
            f"method.{key} puts skills into the policy's own prompt, which needs method.skill.source=library, "
            f"but it is {source!r} {where}"
        )
    used = "on" in evaluations or config.rollout_skills_train or config.teacher.weights != "none"
    if source == "library":
        check_library_router(router, config.skill.top_k, config.skill.encoder, where)
    elif config.skill.encoder is not None or config.skill.top_k:
        key = "encoder" if config.skill.encoder is not None else "top_k"
        raise ValueError(
            f"method.skill.{key} is a setting of skill libraries, but method.skill.source={source!r}; drop one of them "
            f"{where}"
        )
    if source == "library" and not used:
        raise ValueError(
            "method.skill.source=library names a skill library, but the row uses it nowhere: set "
            "method.rollout_skills_eval=[on], method.rollout_skills_train=true, a method.teacher.weights or "
            f"method.skill.source=none {where}"
        )


def check_library_router(router: str, top_k: int, encoder: str | None, where: str = "") -> None:
    """Raise ValueError for a router of a skill library that the settings beside it contradict."""
    require_known("method.skill.router", router, LIBRARY_ROUTERS, where)
    if router == "embedding" and top_k == 0:
        raise ValueError(
            "method.skill.router=embedding ranks every skill of the library and needs a number to stop at: set "
            f"method.skill.top_k (SkillRL, arXiv:2602.08234: 6), or method.skill.router=all {where}".rstrip()
        )
    if encoder is not None and router != "embedding":
        raise ValueError(
            f"method.skill.encoder={encoder!r} is used by method.skill.router=embedding only, but the router is "
            f"{router!r}; drop one of them {where}".rstrip()
        )
