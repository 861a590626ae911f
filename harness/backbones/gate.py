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
from methods.interface import Analysis, TeacherRequest, Trajectory
from methods.skills.routing import route

STEP_SKILLS = 5  # critical steps per trajectory, as in OPID's rows
_ALL_STEPS = 10_000


def check(backbone: BackboneConfig, env: EnvConfig, per_type: int = PER_TYPE, max_tokens: int = 8) -> GateResult:
    """Plays `per_type` train tasks of each type with and without the library's skill, and scores the plain episodes
    under their own hindsight skills, routed as OPID routes them (and, to be reported, under the episode skill alone).

    An action is sensible if the rules of hindsight find it as good as any, given what had been seen; steps at which
    they have no opinion (where to search next) do not count.
    """
    spec = registry.get(env.name)
    if spec.workflow is None or spec.hindsight is None:
        raise backbones.BackboneError(f"env.name={env.name!r} has no skill library or hindsight: nothing to gate")
    skill_of, hindsight = spec.workflow(env), spec.hindsight(env)
    tasks = _some_of_each_type(spec.load_panel(env, "train").tasks, per_type)
    model, tokenizer = backbones.load(backbone, env)
    network, chat = Network(model), ChatFormat(tokenizer)
    prompter = spec.prompter(env)
    settings = RolloutSettings("growing", backbone.max_positions - max_tokens, max_tokens, env.max_steps, env.history)

    def play(with_skill: bool) -> list[Trajectory]:
        with EnvPool(spec.make, env) as pool:
            sampler = Sampler(network, chat, OrderedPool(pool), prompter, settings)
            requests = [
                EpisodeRequest(t, i, 0, (0, "gate", t.id, int(with_skill)), skill_of(t) if with_skill else None)
                for i, t in enumerate(tasks)
            ]
            played = sampler.play(requests, temperature=1.0)[0]
        if broken := [t for t in played if t.failure is not None]:
            raise backbones.BackboneError(
                f"{len(broken)} of {len(played)} episodes of env.name={env.name} broke, so the backbone cannot be "
                f"gated; the first: {broken[0].failure}"
            )
        return played

    def means(command: str, action: str) -> bool:
        """Whether an action is what the command says, in whatever form the environment takes it."""
        return prompter.parse(command).action == action

    plain, told = play(False), play(True)
    wanted = [hindsight(t.task_text, t.transcript(), t.success, _ALL_STEPS)[1] for t in plain]
    skills = [hindsight(t.task_text, t.transcript(), t.success, STEP_SKILLS) for t in plain]
    analyses = {t.index: Analysis(*skill) for t, skill in zip(plain, skills, strict=True)}
    scorer = Scorer(network, chat, "growing", 1.0, 4096)

    def area_of(router: str) -> tuple[float, float, int, int]:
        shifts = _shifts(plain, scorer, route(router, plain, analyses, episode=True, step=True))
        scores: list[tuple[list[float], list[float]]] = []  # of each episode: sensible actions, other ones
        for trajectory, commands, shift in zip(plain, wanted, shifts, strict=True):
            good = [shift[k] for k, command in commands.items() if means(command, trajectory.turns[k].action)]
            bad = [shift[k] for k, command in commands.items() if not means(command, trajectory.turns[k].action)]
            scores.append((good, bad))
        return (*auc_over_episodes(scores), sum(len(g) for g, _ in scores), sum(len(b) for _, b in scores))

    area, area_error, good, bad = area_of("critical_first")
    gains = np.array([t.success for t in told], float) - np.array([p.success for p in plain], float)
    return GateResult(
        _share(plain),
        _share(told),
        area,
        len(tasks),
        good,
        bad,
        float(gains.std() / np.sqrt(len(gains))),
        area_error,
        area_of("episode_only")[0],
    )


def _shifts(trajectories: list[Trajectory], scorer: Scorer, requests: list[TeacherRequest]) -> list[list[float]]:
    """Per trajectory and step: log-prob of the response under the routed skill minus without, in nats."""
    rows = build_rows(trajectories, "growing")
    batch = build_batch(trajectories, rows, 1.0, 0.0, "inadmissible")
    scorer.teacher(trajectories, rows, requests, batch)
    per_step = np.zeros(len(batch.step_trajectory))
    for channel, scores in batch.teacher.items():
        mask = batch.teacher_mask[channel]
        np.add.at(per_step, batch.token_step[mask].numpy(), (scores - batch.old_logprobs)[mask].numpy())
    ends = np.cumsum([len(t.turns) for t in trajectories])
    return [part.tolist() for part in np.split(per_step, ends[:-1])]


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
