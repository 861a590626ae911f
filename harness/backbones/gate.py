"""Is an embedded backbone fit for comparing skill-conditioned methods?

Two conditions, both measured on train tasks. Without them columns of methods that learn from skills mean nothing: a
policy that cannot read a skill gives a teacher's signal that is noise, and one that knows everything has nothing to
learn from it. They are necessary, not sufficient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs import registry
from envs.interface import EnvConfig, Task
from envs.pool import EnvPool, OrderedPool
from harness import backbones
from harness.backbones.fitness import PER_TYPE, GateResult
from harness.config import BackboneConfig
from harness.training.batch import build_batch, build_rows
from harness.training.chat import ChatFormat
from harness.training.network import Network
from harness.training.rollout import EpisodeRequest, RolloutSettings, Sampler
from harness.training.scoring import Scorer
from methods.interface import TeacherRequest, Trajectory

_ALL_STEPS = 10_000


def auc(good: list[float], bad: list[float]) -> float:
    """Probability that a draw from `good` exceeds one from `bad`, ties count half. ValueError if either is empty."""
    if not good or not bad:
        raise ValueError(f"AUC needs both kinds: {len(good)} sensible and {len(bad)} other actions")
    g, b = np.array(good)[:, None], np.array(bad)[None, :]
    return float((g > b).mean() + 0.5 * (g == b).mean())


def check(backbone: BackboneConfig, env: EnvConfig, per_type: int = PER_TYPE, max_tokens: int = 8) -> GateResult:
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
    scores: list[tuple[list[float], list[float]]] = []  # of each episode: sensible actions, other ones
    first = 0
    for trajectory in plain:
        _, wanted = hindsight(trajectory.task_text, trajectory.transcript(), trajectory.success, _ALL_STEPS)
        good: list[float] = []
        bad: list[float] = []
        for k, command in wanted.items():
            (good if trajectory.turns[k].action == command else bad).append(float(per_step[first + k]))
        scores.append((good, bad))
        first += len(trajectory.turns)
    area, area_error = auc_over_episodes(scores)
    gains = np.array([t.success for t in told], float) - np.array([p.success for p in plain], float)
    return GateResult(
        _share(plain),
        _share(told),
        area,
        len(tasks),
        sum(len(good) for good, _ in scores),
        sum(len(bad) for _, bad in scores),
        float(gains.std() / np.sqrt(len(gains))),
        area_error,
    )


def auc_over_episodes(scores: Sequence[tuple[list[float], list[float]]], draws: int = 500) -> tuple[float, float]:
    """(AUC, standard error) from (sensible, other) actions of each episode. NaN where there is nothing to compare.

    The error comes from drawing whole episodes anew: actions of one episode are no independent observations.
    """
    counts = np.array([(len(good), len(bad)) for good, bad in scores], float).T
    if not counts[0].any() or not counts[1].any():
        return float("nan"), float("nan")
    wins = np.zeros((len(scores), len(scores)))  # of the sensible actions of one episode over the others of another
    of_good, of_bad = (np.repeat(np.arange(len(scores)), n.astype(int)) for n in counts)
    good, bad = (np.concatenate([pair[k] for pair in scores]) for k in (0, 1))
    above = (good[:, None] > bad) + 0.5 * (good[:, None] == bad)
    np.add.at(wins, (of_good[:, None], of_bad), above)
    rng = np.random.default_rng(0)
    times = rng.multinomial(len(scores), np.full(len(scores), 1 / len(scores)), draws)  # each episode is drawn
    with np.errstate(invalid="ignore"):
        drawn = np.einsum("di,ij,dj->d", times, wins, times, optimize=True) / np.prod(times @ counts.T, axis=1)
    return float(wins.sum() / counts.sum(1).prod()), float(np.nanstd(drawn))


def _share(trajectories: list[Trajectory]) -> float:
    return sum(t.success for t in trajectories) / len(trajectories)


def _some_of_each_type(tasks: tuple[Task, ...], per_type: int) -> list[Task]:
    chosen: dict[str, list[Task]] = {}
    for task in tasks:
        chosen.setdefault(task.type, []).append(task)
    return [t for kind in sorted(chosen) for t in chosen[kind][:per_type]]
