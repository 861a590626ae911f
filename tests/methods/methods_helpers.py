"""Batches, trajectories, a tiny policy, and the papers' formulas in plain float64 numpy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.compose import Composer, composer
from harness.training.losses import policy_loss
from methods.interface import (
    AdvantageConfig,
    Analysis,
    Batch,
    MethodConfig,
    MethodContext,
    ScheduleConfig,
    SignalConfig,
    SkillConfig,
    TeacherConfig,
    Trajectory,
    Turn,
)
from methods.skills.analyzer import finished

DATA = Path(__file__).parent / "data"
LAYOUTS = ("per_step", "growing")
Arrays = dict[str, NDArray[np.generic]]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Message:
    """A prompt in four parts."""

    before: str = "You are in a room.\n"
    task: str = "Your task is to: put a mug on the desk."
    after: str = "\nYou see a mug.\n"
    turn: str = "What do you do?"


# ------------------------------------------------------------------------------------------------------ configurations
def grpo_config(**advantage: object) -> MethodConfig:
    return MethodConfig(id="grpo", name="grpo", advantage=AdvantageConfig(**advantage))  # type: ignore[arg-type]


@cache
def _composer() -> Composer:
    return composer()


def row(name: str, *overrides: str) -> MethodConfig:
    """The method of sweeps/method/<name>.yaml, composed as the command line does."""
    return deepcopy(_composer().config([f"method={name}", *overrides])[0].method)


def opid_config(
    router: str = "critical_first",
    coef: float = 0.25,
    weight_episode: float = 1.0,
    weight_step: float = 1.0,
    clip: float | None = None,
    normalize: bool = False,
    schedule: ScheduleConfig | None = None,
    max_failure_rate: float = 0.2,
    advantage: AdvantageConfig | None = None,
) -> MethodConfig:
    return MethodConfig(
        id="opid",
        name="opid",
        label="OPID",
        advantage=advantage or AdvantageConfig(),
        skill=SkillConfig("own_trajectory", router, max_step_skills=3, max_failure_rate=max_failure_rate),
        teacher=TeacherConfig("old"),
        signal=SignalConfig(clip=clip, normalize=normalize),
        schedule=schedule or ScheduleConfig(),
        coef=coef,
        knobs={"weight_episode": weight_episode, "weight_step": weight_step},
    )


def context(analyses: Sequence[Analysis | None] | None = None, total_steps: int = 10, seed: int = 0) -> MethodContext:
    """A context whose analyzer gives `analyses` in order, or one made up per trajectory, and with a library."""

    def analyze(trajectories: Sequence[Trajectory]) -> Future[list[Analysis | None]]:
        if analyses is not None:
            return finished(list(analyses[: len(trajectories)]))
        return finished([Analysis(f"episode skill {t.index}", {1: f"step skill {t.index}"}) for t in trajectories])

    return MethodContext(total_steps=total_steps, seed=seed, analyze=analyze, library=library)


def library(given: Trajectory) -> str:
    return f"library skill of {given.task_type}"


# -------------------------------------------------------------------------------------------------------- trajectories
def trajectory(index: int, group: int, steps: int = 3, task_id: str | None = None) -> Trajectory:
    turns = [
        Turn(Message(), f"observation {k}", [1, 2], [3, 4], [-0.5, -0.5], action=f"action {k}", valid=k != 1)
        for k in range(steps)
    ]
    return Trajectory(index, group, 0, task_id or f"task {group}", "put", f"text of task {group}", turns, success=True)


def trajectories(groups: int = 3, size: int = 2, steps: int = 3) -> list[Trajectory]:
    return [trajectory(i, i // size, steps) for i in range(groups * size)]


# -------------------------------------------------------------------------------------------------------------- batches
def make_arrays(seed: int, layout: str, groups: int = 3, size: int = 4, channels: str = "routed") -> Arrays:
    """A made-up batch as numpy arrays. channels: none | routed (each step in one channel at most) | additive."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, size=groups * size)  # environment steps per trajectory
    lengths = [rng.integers(1, 4, size=n) for n in counts]  # policy tokens per step
    step_trajectory = np.repeat(np.arange(groups * size), counts)
    step_number = np.concatenate([np.arange(n) for n in counts])
    spans: list[list[tuple[int, int]]] = []  # rows of (step, tokens)
    if layout == "per_step":
        spans = [[(s, int(n))] for s, n in enumerate(np.concatenate(lengths))]
    else:
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        spans = [[(int(first[i] + k), int(n)) for k, n in enumerate(lengths[i])] for i in range(groups * size)]
    gap = 2  # prompt tokens between the responses of a growing row
    width = max(sum(n + gap for _, n in row) for row in spans) + 2
    token_step = np.full((len(spans), width), -1, dtype=np.int64)
    for row, parts in enumerate(spans):
        at = 0 if layout == "per_step" else gap
        for s, n in parts:
            token_step[row, at : at + n] = s
            at += n + gap
    mask = token_step >= 0
    old = np.where(mask, -rng.exponential(0.7, mask.shape), 0.0).astype(np.float32)
    steps = len(step_trajectory)
    arrays: Arrays = {
        "response_mask": mask,
        "old_logprobs": old,
        "token_step": token_step,
        "step_trajectory": step_trajectory,
        "step_number": step_number,
        "step_invalid": rng.random(steps) < 0.3,
        "group": np.repeat(np.arange(groups), size),
        "returns": rng.integers(0, 2, groups * size).astype(np.float32),
        "invalid_penalty": np.float64(0.02),
    }
    # a task has few places, so that its rollouts meet; the return is paid at the last step, as the environments do
    places = rng.integers(0, 3, steps)
    tasks = np.asarray(arrays["group"])[step_trajectory]
    arrays["observations"] = np.array([f"place {p} of task {t}" for p, t in zip(places, tasks, strict=True)])
    last = np.append(step_trajectory[1:] != step_trajectory[:-1], True)
    arrays["step_reward"] = np.where(last, arrays["returns"][step_trajectory], 0.0).astype(np.float32)
    if channels != "none":
        kind = rng.integers(0, 3, steps)  # 0: not scored, 1: episode, 2: step
        members = {"episode": kind >= 1 if channels == "additive" else kind == 1, "step": kind == 2}
        for channel, member in members.items():
            scored = mask & np.where(mask, member[token_step], False)
            arrays[f"teacher_mask/{channel}"] = scored
            arrays[f"teacher/{channel}"] = np.where(scored, old + rng.normal(-0.3, 1.5, mask.shape), 0.0).astype(
                np.float32
            )
    return arrays


def to_batch(arrays: Arrays) -> Batch:
    other = ("invalid_penalty", "observations")
    tensors = {k: torch.from_numpy(np.asarray(v)) for k, v in arrays.items() if k not in other}
    fields = {k: v for k, v in tensors.items() if "/" not in k}
    return Batch(
        **fields,
        observations=tuple(str(text) for text in arrays["observations"]),
        invalid_penalty=float(arrays["invalid_penalty"]),
        teacher={k.split("/")[1]: v for k, v in tensors.items() if k.startswith("teacher/")},
        teacher_mask={k.split("/")[1]: v for k, v in tensors.items() if k.startswith("teacher_mask/")},
    )


def make_batch(seed: int, layout: str = "per_step", channels: str = "routed", **sizes: int) -> Batch:
    return to_batch(make_arrays(seed, layout, channels=channels, **sizes))


def one_token_batch(scores: Iterable[tuple[int, int, float, bool]], penalty: float = 0.02) -> Batch:
    """One row of one token per environment step, given as (group, trajectory, return, invalid), in order."""
    steps = list(scores)
    number_of = max(t for _, t, _, _ in steps) + 1
    group, returns = torch.zeros(number_of, dtype=torch.long), torch.zeros(number_of)
    for g, t, value, _ in steps:
        group[t], returns[t] = g, value
    n = len(steps)
    return Batch(
        response_mask=torch.ones(n, 1, dtype=torch.bool),
        old_logprobs=torch.full((n, 1), -0.5),
        token_step=torch.arange(n)[:, None],
        step_trajectory=torch.tensor([t for _, t, _, _ in steps]),
        step_number=torch.tensor([sum(steps[k][1] == steps[i][1] for k in range(i)) for i in range(n)]),
        step_invalid=torch.tensor([bad for *_, bad in steps]),
        group=group,
        returns=returns,
        invalid_penalty=penalty,
        observations=("a place",) * n,
        step_reward=torch.zeros(n),
    )


# ------------------------------------------------------------------------------------- the formulas again, in numpy
def numpy_episode_advantage(arrays: Arrays, std: bool, stats_over: str) -> F64:
    """A_ep per environment step, as loops over groups, trajectories and steps: arXiv:2402.03300 section 4.1.2 (of the
    objective, Eq. 3), per trajectory of an agent as in arXiv:2606.26790 section 3.4."""
    trajectory_of = np.asarray(arrays["step_trajectory"])
    group_of = np.asarray(arrays["group"])
    returns = np.asarray(arrays["returns"], dtype=np.float64)
    invalid = np.asarray(arrays["step_invalid"], dtype=np.float64)
    score = np.array([returns[t] for t in trajectory_of]) - float(arrays["invalid_penalty"]) * invalid
    out = np.zeros(len(score))
    for g in sorted(set(group_of.tolist())):
        inside = [i for i, t in enumerate(trajectory_of) if group_of[t] == g]
        members = sorted({int(trajectory_of[i]) for i in inside})
        values = score[inside]
        if len(inside) == 0 or values.max() == values.min():
            continue
        if stats_over == "steps":
            mean, deviation = values.mean(), values.std(ddof=1)
        else:
            per = [score[[i for i in inside if trajectory_of[i] == t]] for t in members]
            mean = np.mean([p.mean() for p in per])
            deviation = np.sqrt(np.mean([np.mean((p - mean) ** 2) for p in per]))
        out[inside] = (values - mean) / (deviation + 1e-6) if std else values - mean
    return out


def numpy_opid_advantage(
    arrays: Arrays, std: bool, stats_over: str, weights: dict[str, float], clip: float | None, normalize: bool
) -> F64:
    """A_OPID [R, T] by loops over rows and tokens: arXiv:2606.26790 section 3 and algorithm 1."""
    per_step = numpy_episode_advantage(arrays, std, stats_over)
    token_step = np.asarray(arrays["token_step"])
    old = np.asarray(arrays["old_logprobs"], dtype=np.float64)
    out = np.zeros(token_step.shape)
    for r, c in np.argwhere(np.asarray(arrays["response_mask"])):
        out[r, c] = per_step[token_step[r, c]]
    for channel, weight in weights.items():
        teacher = np.asarray(arrays[f"teacher/{channel}"], dtype=np.float64)
        places = np.argwhere(np.asarray(arrays[f"teacher_mask/{channel}"]))
        shifts = np.array([teacher[r, c] - old[r, c] for r, c in places])
        if normalize:
            shifts = (shifts - shifts.mean()) / (shifts.std() + 1e-6)
        if clip is not None:
            shifts = np.clip(shifts, -clip, clip)
        for (r, c), shift in zip(places, shifts, strict=True):
            out[r, c] += weight * shift
    return out


# ------------------------------------------------------------------------------------------------------- a real policy
class TinyPolicy(nn.Module):
    """Next-token logits from the current token and its position: enough for gradients to be real."""

    def __init__(self, vocabulary: int = 13, width: int = 8, positions: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(positions, width)
        self.head = nn.Linear(width, vocabulary)

    def logprobs(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """[R, T] log-prob of `targets` after `inputs`."""
        hidden = torch.tanh(self.tokens(inputs) + self.places(torch.arange(inputs.shape[1])))
        logits: Tensor = self.head(hidden)
        return logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def policy_gradient(batch: Batch, advantages: Tensor) -> Tensor:
    """Gradient of the clipped policy loss, token mean, in all parameters of a fixed tiny policy, flattened."""
    torch.manual_seed(0)
    policy = TinyPolicy()
    rows, width = batch.response_mask.shape
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 13, (rows, 65), generator=generator)  # a fixed stream, cut to this batch's width
    logprobs = policy.logprobs(tokens[:, :width], tokens[:, 1 : width + 1])
    mask = batch.response_mask
    # ratios near 1, so that clipping is not everywhere active
    old = logprobs.detach() + 0.05 * torch.sin(torch.arange(width, dtype=torch.float32))
    loss, _ = policy_loss(logprobs[mask], old[mask], advantages[mask], clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    loss.mean().backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
