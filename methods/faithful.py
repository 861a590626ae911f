"""Does a method do what its spec says? A synthetic batch answers in milliseconds, before anything is trained.

The fault this guards against: a teacher is scored, its scores reach nothing, and a row trains as GRPO under another
name. Imports torch when called, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from methods.interface import (
    Analysis,
    Batch,
    Method,
    MethodConfig,
    MethodContext,
    MethodSpec,
    TeacherRequest,
    Trajectory,
    Turn,
    Validation,
)
from methods.skills.analyzer import finished

if TYPE_CHECKING:
    from torch import Tensor

_STEPS = 4  # environment steps per synthetic trajectory
_TOKENS = 3  # policy tokens per step


class UnfaithfulError(ValueError):
    """A method's behaviour contradicts its spec or the interface."""


@dataclass(frozen=True)
class _Message:
    before: str = "You are in a room.\n"
    task: str = "Your task: put the cup away."
    after: str = "\n"
    turn: str = "What now?"


def check_faithful(spec: MethodSpec, config: MethodConfig, total_steps: int = 20) -> None:
    """Raise UnfaithfulError, with the reason, unless the method keeps its promises on a synthetic batch.

    Checked: advantages are [R, T], finite, detached and 0 outside the mask; an auxiliary loss is [R, T] and finite
    inside it; the same data give the same gradient of -A * logprob + aux_loss twice; a method that uses no teacher asks
    for no scores; one that does asks for scores within `total_steps` steps, and changing those of any one channel
    changes the gradient; one that declares teacher_cancels asks for scores as well, and changing them changes no bit of
    it. Each gradient is taken from a method that was built for it and led through the same steps, so what a method
    remembers cannot pass for what its teacher says. A configuration that switches the teacher off (coefficient 0) is
    refused as well: it is the base method, and its row should say so. A method that does not train is only checked for
    uses_teacher.
    """
    scores = spec.uses_teacher or spec.teacher_cancels
    if not config.trains:
        if scores:
            raise UnfaithfulError(
                f"method {spec.name!r} does not train (method.trains=false) but declares uses_teacher"
            )
        return
    trial = _Trial(spec, config, total_steps)
    batch = _batch()
    step, requests = trial.first_requests()
    _check_advantages(spec, trial.method(step), step, batch)
    if not scores and requests:
        raise UnfaithfulError(
            f"method {spec.name!r} asks for teacher scores at step {step} but declares uses_teacher=False"
        )
    if scores and not requests:
        raise UnfaithfulError(
            f"row {config.id!r} uses method {spec.name!r}, which declares "
            f"{'teacher_cancels' if spec.teacher_cancels else 'uses_teacher'}, but asks for no teacher score in "
            f"{total_steps} steps (method.coef={config.coef}): it would train as its base method"
        )
    scored = _scored(batch, requests, seed=1)
    before = trial.gradient(step, scored)
    if not _equal(before, trial.gradient(step, scored)):
        raise UnfaithfulError(
            f"row {config.id!r}: method {spec.name!r} gives two gradients for the same data and seed, so nothing can "
            "be said about what its teacher changes; draw random numbers from MethodContext.seed and the step"
        )
    if not scores:
        return
    _check_advantages(spec, trial.method(step), step, scored)
    others = _scored(batch, requests, seed=2)
    for channel in sorted(scored.teacher):
        moved = replace(scored, teacher={**scored.teacher, channel: others.teacher[channel]})
        deaf = _equal(before, trial.gradient(step, moved))
        if spec.teacher_cancels and not deaf:
            raise UnfaithfulError(
                f"row {config.id!r}: changing the teacher's scores (channel {channel!r}) changes the gradient of "
                f"method {spec.name!r}, although it declares that they cancel (teacher_cancels)"
            )
        if deaf and not spec.teacher_cancels:
            raise UnfaithfulError(
                f"row {config.id!r}: changing the teacher's scores of channel {channel!r} changes no gradient of "
                f"method {spec.name!r}, although it asks for them and declares uses_teacher"
            )


@dataclass(frozen=True)
class _Trial:
    """Builds the method anew and leads it to a step, always in the same way."""

    spec: MethodSpec
    config: MethodConfig
    total_steps: int

    def _fresh(self) -> Method:
        context = MethodContext(self.total_steps, seed=0, analyze=_analyze, library=_library)
        method = self.spec.build(self.config, context)
        if method.measures_teacher:
            method.teacher_measured(Validation(success=0.5, episodes=4))
        return method

    def first_requests(self) -> tuple[int, list[TeacherRequest]]:
        """The first step with teacher requests, and those; (last step, []) if there are none."""
        method, trajectories = self._fresh(), _trajectories()
        for step in range(1, self.total_steps + 1):
            method.after_rollout(step, trajectories)
            if requests := method.teacher_requests(step, trajectories):
                return step, requests
        return self.total_steps, []

    def method(self, step: int) -> Method:
        """One that was just asked for its teacher requests of `step`."""
        method, trajectories = self._fresh(), _trajectories()
        for number in range(1, step + 1):
            method.after_rollout(number, trajectories)
            method.teacher_requests(number, trajectories)
        return method

    def gradient(self, step: int, batch: Batch) -> tuple[Tensor, Tensor]:
        return _gradient(self.method(step), step, batch)


def _equal(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    return all(bool((a == b).all()) for a, b in zip(one, other, strict=True))


def _analyze(trajectories: Sequence[Trajectory]) -> Future[list[Analysis | None]]:
    return finished([Analysis(f"skill of {t.task_id}", {1: f"step skill of {t.task_id}"}) for t in trajectories])


def _library(trajectory: Trajectory) -> str:
    return f"library skill of {trajectory.task_id}"


def _trajectories() -> list[Trajectory]:
    """Two tasks, two trajectories each."""
    found = []
    for index in range(4):
        turns = [
            Turn(_Message(), "You see a cup.", [1, 2], [3] * _TOKENS, [-1.0] * _TOKENS, action="take cup")
            for _ in range(_STEPS)
        ]
        found.append(Trajectory(index, index // 2, index % 2, f"task-{index // 2}", "put", "put the cup away", turns))
    return found


def _batch() -> Batch:
    """One row per environment step, one padding column, one success and one failure per task."""
    import torch

    generator = torch.Generator().manual_seed(0)
    rows = 4 * _STEPS
    mask = torch.ones(rows, _TOKENS + 1, dtype=torch.bool)
    mask[:, -1] = False
    steps = torch.arange(rows)
    return Batch(
        response_mask=mask,
        old_logprobs=torch.where(mask, -torch.rand(rows, _TOKENS + 1, generator=generator) - 0.1, 0.0),
        token_step=torch.where(mask, steps[:, None], -1),
        step_trajectory=steps // _STEPS,
        step_number=steps % _STEPS,
        step_invalid=torch.zeros(rows, dtype=torch.bool),
        group=torch.tensor([0, 0, 1, 1]),
        returns=torch.tensor([1.0, 0.0, 0.0, 1.0]),
        observations=tuple(f"observation {n % _STEPS} of {n // (2 * _STEPS)}" for n in range(rows)),
        step_reward=((steps % _STEPS == _STEPS - 1) & torch.tensor([1, 0, 0, 1])[steps // _STEPS].bool()).float(),
    )


def _scored(batch: Batch, requests: Sequence[TeacherRequest], seed: int) -> Batch:
    """The batch with random teacher scores wherever the requests ask for them."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    teacher: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for request in requests:
        mask = masks.setdefault(request.channel, torch.zeros_like(batch.response_mask))
        for number in request.steps:
            mask[request.trajectory * _STEPS + number] = batch.response_mask[request.trajectory * _STEPS + number]
    for channel, mask in masks.items():
        noise = torch.randn(mask.shape, generator=generator)
        teacher[channel] = torch.where(mask, batch.old_logprobs + 0.5 * noise, 0.0)
    return replace(batch, teacher=teacher, teacher_mask=masks)


def _check_advantages(spec: MethodSpec, method: Method, step: int, batch: Batch) -> None:
    advantages = method.advantages(step, batch)
    problems = {
        f"have shape {tuple(advantages.shape)}, not [R, T]": advantages.shape == batch.response_mask.shape,
        "carry a gradient": not advantages.requires_grad,
        "are not finite": bool(advantages.isfinite().all()),
    }
    for problem, good in problems.items():
        if not good:
            raise UnfaithfulError(f"the advantages of method {spec.name!r} {problem}")
    if bool(advantages[~batch.response_mask].any()):
        raise UnfaithfulError(f"the advantages of method {spec.name!r} are not 0 outside response_mask")


def _gradient(method: Method, step: int, batch: Batch) -> tuple[Tensor, Tensor]:
    """Gradient of sum over the mask of (-A * logprob + aux_loss) in logprob and entropy, each [R, T]."""
    import torch

    # away from the old policy, where importance ratios are 1 and some losses have no slope
    logprobs = (batch.old_logprobs - 0.05).requires_grad_()
    entropy = torch.full_like(batch.old_logprobs, 0.7).requires_grad_()
    loss = -method.advantages(step, batch) * logprobs
    auxiliary = method.aux_loss(step, batch, logprobs, entropy)
    if auxiliary is not None:
        if auxiliary.shape != batch.response_mask.shape or not bool(auxiliary[batch.response_mask].isfinite().all()):
            raise UnfaithfulError(
                f"the auxiliary loss of {type(method).__name__} must be [R, T] and finite inside response_mask; it has "
                f"shape {tuple(auxiliary.shape)}"
            )
        loss = loss + auxiliary
    total = torch.where(batch.response_mask, loss, 0.0).sum()
    first, second = torch.autograd.grad(total, (logprobs, entropy), allow_unused=True)
    if any(g is not None and not bool(g.isfinite().all()) for g in (first, second)):
        raise UnfaithfulError(f"the loss of {type(method).__name__} has a gradient that is not finite")
    return tuple(torch.zeros_like(logprobs) if g is None else g for g in (first, second))  # type: ignore[return-value]
