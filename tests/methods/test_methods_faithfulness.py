"""One suite for every row of sweeps/method: what its spec and the interface promise, checked on made-up batches.

The loss is the engine's: clipped surrogate plus auxiliary loss, summed over the response mask and divided by its size.
Gradients are in the log-probs of the tokens, [R, T], through which every parameter's gradient goes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from methods_helpers import LAYOUTS, context, make_batch, row, trajectories
from test_methods_grpo import padded, with_junk
from torch import Tensor

import sweeps
from harness.training.batch import select_rows
from harness.training.losses import policy_loss
from methods import registry
from methods.interface import Batch, Method, MethodConfig, MethodSpec, Validation

ROWS = sorted(p.stem for p in (Path(next(iter(sweeps.__path__))) / "method").glob("*.yaml"))
STEPS = 10
FEW = settings(max_examples=6, deadline=None, derandomize=True)


def trained() -> list[str]:
    return [name for name in ROWS if row(name).trains]


def taught() -> list[str]:
    """Rows whose teacher is scored."""
    return [name for name in trained() if scores(registry.get(row(name).name))]


def scores(spec: MethodSpec) -> bool:
    return spec.uses_teacher or spec.teacher_cancels


def build(config: MethodConfig) -> Method:
    method = registry.build(config, context(total_steps=STEPS))
    if method.measures_teacher:
        method.teacher_measured(Validation(0.5, 8))
    return method


def base_of(config: MethodConfig) -> Method:
    """The method without a teacher that has the same advantage; also none, which no row without a teacher may have."""
    name = "gigpo" if config.advantage.estimator == "gigpo" else "grpo"
    made = MethodConfig(id=name, name=name, advantage=config.advantage)
    return registry.get(name).build(made, context(total_steps=STEPS))


@dataclass
class Outcome:
    advantages: Tensor  # [R, T]
    loss: Tensor  # scalar
    gradient: Tensor  # [R, T]

    def equals(self, other: Outcome) -> bool:
        return (
            torch.equal(self.advantages, other.advantages)
            and torch.equal(self.loss, other.loss)
            and torch.equal(self.gradient, other.gradient)
        )


def away(batch: Batch) -> Tensor:
    """Live log-probs near the old ones: ratios on both sides of 1, some beyond the clipping range. [R, T]"""
    generator = torch.Generator().manual_seed(5)
    noise = 0.15 * torch.randn(batch.response_mask.shape, generator=generator)
    return torch.where(batch.response_mask, batch.old_logprobs + noise, 0.0)


def entropies(batch: Batch) -> Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.rand(batch.response_mask.shape, generator=generator)


def outcome(
    method: Method, batch: Batch, live: Tensor | None = None, entropy: Tensor | None = None, step: int = 1
) -> Outcome:
    advantages = method.advantages(step, batch)
    logprobs = (away(batch) if live is None else live).clone().requires_grad_()
    entropy = entropies(batch) if entropy is None else entropy
    total = part(method, batch, advantages, logprobs, entropy, step) / batch.response_mask.sum()
    return Outcome(advantages, total.detach(), torch.autograd.grad(total, logprobs)[0])


def part(method: Method, batch: Batch, advantages: Tensor, logprobs: Tensor, entropy: Tensor, step: int = 1) -> Tensor:
    """Sum of the loss over the policy tokens of some rows."""
    mask = batch.response_mask
    total = policy_loss(logprobs[mask], batch.old_logprobs[mask], advantages[mask], 0.2, 0.2, 3.0)[0].sum()
    auxiliary = method.aux_loss(step, batch, logprobs, entropy)
    return total if auxiliary is None else total + auxiliary[mask].sum()


# ------------------------------------------------------------------------------------------------------- equal to base
@pytest.mark.parametrize("name", trained())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_coefficient_zero_is_the_base_bit_for_bit(name: str, layout: str) -> None:
    config = row(name)

    @FEW
    @given(seed=st.integers(0, 10_000))
    def check(seed: int) -> None:
        batch, played = make_batch(seed, layout, "additive"), trajectories()
        zero, base = build(replace(config, coef=0.0)), base_of(config)
        zero.after_rollout(1, played)
        assert zero.teacher_requests(1, played) == []
        assert outcome(zero, batch).equals(outcome(base, batch))

    check()


# -------------------------------------------------------------------------------------------------------- the teacher
@pytest.mark.parametrize("name", trained())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_teacher_is_in_the_gradient_as_declared(name: str, layout: str) -> None:
    config, played = row(name), trajectories()
    spec, method = registry.get(config.name), build(config)
    method.after_rollout(1, played)
    assert bool(method.teacher_requests(1, played)) == scores(spec)
    batch = make_batch(8, layout, "additive")
    moved = {c: torch.where(batch.teacher_mask[c], 0.7 * v - 0.3, 0.0) for c, v in batch.teacher.items()}
    before, after = (outcome(build(config), b).gradient for b in (batch, replace(batch, teacher=moved)))
    assert torch.equal(before, after) != (spec.uses_teacher and not spec.teacher_cancels)
    assert bool(after.isfinite().all())


def half(entropy: Tensor) -> Tensor:
    return torch.full_like(entropy, 0.5)


def by_entropy(entropy: Tensor) -> Tensor:
    return (5.0 * entropy).sigmoid()


# Losses that raise every sampled token by a gate (arXiv:2605.15155): what the gate is where the teacher agrees.
RESIDUE: dict[str, Callable[[Tensor], Tensor]] = {
    "opsd_released": half,
    "grpo_opsd_released": half,
    "sdar": half,
    "sdar_entropy": by_entropy,
    "sdar_soft_or": by_entropy,
}


@pytest.mark.parametrize("name", trained())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_teacher_that_agrees_gives_no_signal_but_the_documented(name: str, layout: str) -> None:
    """The skill changes no log-prob, and the student has not moved: l = Delta = 0 for each token."""
    config = row(name)

    @FEW
    @given(seed=st.integers(0, 10_000))
    def check(seed: int) -> None:
        batch = make_batch(seed, layout, "additive")
        same = replace(
            batch, teacher={c: torch.where(m, batch.old_logprobs, 0.0) for c, m in batch.teacher_mask.items()}
        )
        found = outcome(build(config), same, batch.old_logprobs)
        base = outcome(base_of(config), same, batch.old_logprobs)
        assert torch.equal(found.advantages, base.advantages)
        if name not in RESIDUE:
            assert torch.equal(found.gradient, base.gradient)
            return
        pulled = torch.where(same.teacher_mask["episode"], -RESIDUE[name](entropies(batch)), 0.0)
        pulled *= config.coef / batch.response_mask.sum()
        assert pulled.any()
        torch.testing.assert_close(found.gradient - base.gradient, pulled, rtol=1e-3, atol=1e-7)

    check()


@pytest.mark.parametrize("name", taught())
def test_no_step_is_scored_twice_under_one_skill(name: str) -> None:
    config, played = row(name), trajectories()
    method = build(config)
    method.after_rollout(1, played)
    requests = method.teacher_requests(1, played)
    where = [(r.channel, r.trajectory, k) for r in requests for k in r.steps]
    steps = [(trajectory, k) for _, trajectory, k in where]
    assert len(set(where)) == len(where)
    assert config.skill.router == "additive" or len(set(steps)) == len(steps)
    for request in requests:
        assert list(request.steps) == sorted(request.steps) and (request.episode_skill or request.step_skill)
        assert request.step_skill is None or len(request.steps) == 1


# --------------------------------------------------------------------------------------------------- what cannot matter
@pytest.mark.parametrize("name", trained())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_outside_the_mask(name: str, layout: str) -> None:
    config, batch = row(name), make_batch(5, layout, "additive")
    outside = ~batch.response_mask
    plain = outcome(build(config), batch)
    assert not plain.gradient[outside].any() and plain.gradient[batch.response_mask].any()
    assert not plain.advantages[outside].any() and not plain.advantages.requires_grad
    assert outcome(build(config), with_junk(batch), away(batch)).equals(plain)


@pytest.mark.parametrize("name", trained())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_does_not_matter(name: str, layout: str) -> None:
    config, batch = row(name), make_batch(6, layout, "additive")
    plain = outcome(build(config), batch)
    live, entropy = (torch.nn.functional.pad(v, (0, 5), value=0.3) for v in (away(batch), entropies(batch)))
    wide = outcome(build(config), padded(batch, 5), live, entropy)
    torch.testing.assert_close(wide.loss, plain.loss)
    torch.testing.assert_close(wide.gradient[:, :-5], plain.gradient)
    assert not wide.gradient[:, -5:].any()


@pytest.mark.parametrize("name", trained())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_micro_batches_do_not_matter(name: str, layout: str) -> None:
    """Advantages are of the whole batch; the loss of its rows may be taken in any parts, each as wide as it needs."""
    config, batch = row(name), make_batch(7, layout, "additive")
    method = build(config)
    whole = outcome(method, batch)
    live, entropy = away(batch).requires_grad_(), entropies(batch)
    order = torch.randperm(len(batch.response_mask), generator=torch.Generator().manual_seed(1))
    total = torch.zeros(())
    for rows in order.split(3):
        width = int(batch.response_mask[rows].any(0).nonzero().max()) + 1
        cut = select_rows(batch, rows, width, torch.device("cpu"))
        total = total + part(method, cut, whole.advantages[rows, :width], live[rows, :width], entropy[rows, :width])
    total = total / batch.response_mask.sum()
    torch.testing.assert_close(total.detach(), whole.loss)
    torch.testing.assert_close(torch.autograd.grad(total, live)[0], whole.gradient)


# ---------------------------------------------------------------------------------------------------- the run's course
def one_step(method: Method, step: int) -> tuple[object, ...]:
    """Everything that a training step makes of a method, in the order of the loop."""
    played, batch = trajectories(), make_batch(step, channels="additive")
    told: list[object] = [method.after_rollout(step, played), method.teacher_requests(step, played)]
    found = outcome(method, batch, step=step)
    told += [method.metrics(step, batch), found.loss.item(), found.gradient.tolist(), method.wants_validation(step)]
    if method.wants_validation(step):
        told.append(method.after_validation(step, Validation(0.05 * step, 20)))
    return tuple(told)


@pytest.mark.parametrize("name", trained())
@pytest.mark.parametrize("stop", [3, 5])
def test_a_resumed_method_equals_an_unbroken_one(name: str, stop: int) -> None:
    unbroken = build(row(name))
    for step in range(1, stop + 1):
        one_step(unbroken, step)
    resumed = registry.build(row(name), context(total_steps=STEPS))
    resumed.load_state_dict(json.loads(json.dumps(unbroken.state_dict())))
    assert resumed.state_dict() == unbroken.state_dict()
    for step in range(stop + 1, STEPS + 1):
        assert one_step(resumed, step) == one_step(unbroken, step)
    assert resumed.state_dict() == unbroken.state_dict()


@pytest.mark.parametrize("name", trained())
def test_metrics_are_plain_finite_numbers(name: str) -> None:
    method, played = build(row(name)), trajectories()
    batch = make_batch(2, channels="additive")
    found = method.after_rollout(1, played)
    method.teacher_requests(1, played)
    method.advantages(1, batch)
    for metric, value in {**found, **method.metrics(1, batch)}.items():
        assert isinstance(value, float) and math.isfinite(value), metric
        assert "/" not in metric  # the engine puts them under method/
