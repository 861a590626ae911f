"""Is an embedded backbone fit for comparing skill-conditioned methods?

Two conditions, both measured on train tasks. Without them columns of methods that learn from skills mean nothing: a
policy that cannot read a skill gives a teacher's signal that is noise, and one that knows everything has nothing to
learn from it. They are necessary, not sufficient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs import registry
from envs.interface import EnvConfig, Task
from envs.pool import EnvPool, OrderedPool
from harness import backbones
from harness.config import BackboneConfig
from harness.training.batch import build_batch, build_rows
from harness.training.chat import ChatFormat
from harness.training.network import Network
from harness.training.rollout import EpisodeRequest, RolloutSettings, Sampler
from harness.training.scoring import Scorer
from methods.interface import TeacherRequest, Trajectory

MIN_GAIN = 0.2  # success with the skill in the prompt minus without
MIN_AUC = 0.6  # of the skill advantage of an action, sensible against other actions
_ALL_STEPS = 10_000


@dataclass(frozen=True)
class GateResult:
    """success_plain, success_skill: over `episodes` each, at temperature 1. auc: over `good` and `bad` actions."""

    success_plain: float
    success_skill: float
    auc: float
    episodes: int
    good: int
    bad: int

    @property
    def gain(self) -> float:
        return self.success_skill - self.success_plain

    @property
    def passed(self) -> bool:
        return self.gain > MIN_GAIN and self.auc > MIN_AUC

    def __str__(self) -> str:
        verdict = "passes" if self.passed else "FAILS"
        return (
            f"{verdict}: success {self.success_plain:.3f} without and {self.success_skill:.3f} with the skill in the "
            f"prompt (gain {self.gain:+.3f}, wanted > {MIN_GAIN}); AUC of the skill advantage {self.auc:.3f} over "
            f"{self.good} sensible and {self.bad} other actions (wanted > {MIN_AUC}); {self.episodes} episodes each"
        )


def auc(good: list[float], bad: list[float]) -> float:
    """Probability that a draw from `good` exceeds one from `bad`, ties count half. ValueError if either is empty."""
    if not good or not bad:
        raise ValueError(f"AUC needs both kinds: {len(good)} sensible and {len(bad)} other actions")
    g, b = np.array(good)[:, None], np.array(bad)[None, :]
    return float((g > b).mean() + 0.5 * (g == b).mean())


def check(backbone: BackboneConfig, env: EnvConfig, per_type: int = 10, max_tokens: int = 8) -> GateResult:
    """Plays `per_type` train tasks of each type with and without the skill, and scores the plain episodes under it."""
    spec = registry.get(env.name)
    if spec.library is None or spec.hindsight is None:
        raise backbones.BackboneError(f"env.name={env.name!r} has no skill library or hindsight: nothing to gate")
    skill_of, hindsight = spec.library(env), spec.hindsight(env)
    tasks = _some_of_each_type(spec.load_panel(env, "train").tasks, per_type)
    model, tokenizer = backbones.load(backbone, env)
    network, chat = Network(model), ChatFormat(tokenizer)
    settings = RolloutSettings("growing", backbone.max_positions - max_tokens, max_tokens, env.max_steps, env.history)

    def play(with_skill: bool) -> list[Trajectory]:
        with EnvPool(spec.make, env) as pool:
            sampler = Sampler(network, chat, OrderedPool(pool), spec.prompter(env), settings)
            requests = [
                EpisodeRequest(t, i, 0, (0, "gate", t.id, int(with_skill)), skill_of(t) if with_skill else None)
                for i, t in enumerate(tasks)
            ]
            return sampler.play(requests, temperature=1.0)[0]

    plain, told = play(False), play(True)
    rows = build_rows(plain, "growing")
    batch = build_batch(plain, rows, 1.0, 0.0, "inadmissible")
    requests = [
        TeacherRequest("skill", t.index, tuple(range(len(t.turns))), episode_skill=skill_of(tasks[t.index]))
        for t in plain
    ]
    Scorer(network, chat, "growing", 1.0, 4096).teacher(plain, rows, requests, batch)
    shift = (batch.teacher["skill"] - batch.old_logprobs) * batch.response_mask
    per_step = np.zeros(len(batch.step_trajectory))
    scored = batch.token_step >= 0
    np.add.at(per_step, batch.token_step[scored].numpy(), shift[scored].numpy())
    good: list[float] = []
    bad: list[float] = []
    first = 0
    for trajectory in plain:
        _, wanted = hindsight(trajectory.task_text, trajectory.transcript(), trajectory.success, _ALL_STEPS)
        for k, command in wanted.items():
            (good if trajectory.turns[k].action == command else bad).append(float(per_step[first + k]))
        first += len(trajectory.turns)
    return GateResult(_share(plain), _share(told), auc(good, bad), len(tasks), len(good), len(bad))


def _share(trajectories: list[Trajectory]) -> float:
    return sum(t.success for t in trajectories) / len(trajectories)


def _some_of_each_type(tasks: tuple[Task, ...], per_type: int) -> list[Task]:
    chosen: dict[str, list[Task]] = {}
    for task in tasks:
        chosen.setdefault(task.type, []).append(task)
    return [t for kind in sorted(chosen) for t in chosen[kind][:per_type]]
