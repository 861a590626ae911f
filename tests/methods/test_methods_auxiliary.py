"""Methods with an auxiliary loss: each formula and its gradient recomputed in float64 numpy, and its edges."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
import torch
from methods_helpers import F64, LAYOUTS, Arrays, context, make_arrays, row, to_batch, trajectories
from record_batches import AFTER_UPDATE, load
from torch import Tensor

from methods import auxiliary, registry
from methods.auxiliary import AuxiliaryTeacher, Tokens
from methods.faithful import check_faithful
from methods.interface import Batch, Method, MethodConfig

STEPS = 10  # planned training steps of the methods here
SELF_TAUGHT = ("opsd", "opsd_released")  # no outcome reward
REWARDED = ("grpo_opsd", "grpo_opsd_released", "skill_sd", "sdar", "sdar_soft_or", "sdar_entropy")
FROZEN = ("opd", "grpo_opd", "retire_opd")
ROWS = (*SELF_TAUGHT, *REWARDED, *FROZEN)
CANCELLED = ("grpo_opsd_released", "sdar_entropy")
K3 = ("skill_sd", *FROZEN)
REVERSE = ("opsd", "grpo_opsd")


def build(config: MethodConfig) -> Method:
    return registry.build(config, context(total_steps=STEPS))


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def numpy_token(name: str, live: float, old: float, teacher: float, entropy: float) -> tuple[float, float]:
    """Loss of one token without lambda, and its derivative in log pi_theta, as the papers write them; beta = 5.

    REVERSE: arXiv:2601.18734v3, eq. (9); K3: arXiv:2604.10674v1, eqs. (10) to (12), which the released code of
    2609.20784 has in the place of its eq. (4); gates: arXiv:2605.15155v1, section 2.3, without numbers.
    """
    gap = teacher - live
    if name in REVERSE:
        return -gap * live, -gap
    if name in K3:
        ratio = exp(live - old)
        return ratio * (exp(gap) - 1 - gap), ratio * -gap
    gates = {
        "opsd_released": sigmoid(5 * gap),
        "grpo_opsd_released": 0.5,
        "sdar": sigmoid(5 * gap),
        "sdar_entropy": sigmoid(5 * entropy),
        "sdar_soft_or": sigmoid(5 * (1 - (1 - entropy) * (1 - gap))),
    }
    return gates[name] * gap, -gates[name]


def case(source: str, layout: str) -> tuple[Arrays, Batch, Tensor, Tensor]:
    """A batch in float64 with live log-probs [R, T], which want a gradient, and entropies [R, T]."""
    arrays = load(layout, "additive") if source == "recorded" else make_arrays(3, layout)
    rng = np.random.default_rng(5)
    mask = np.asarray(arrays["response_mask"])
    if source == "recorded":
        live = np.asarray(arrays[AFTER_UPDATE], dtype=np.float64)
    else:
        live = np.where(mask, arrays["old_logprobs"] + 0.3 * rng.normal(size=mask.shape), 0.0)
    arrays = {k: np.asarray(v, np.float64) if k.startswith(("old", "teacher/")) else v for k, v in arrays.items()}
    entropy = torch.from_numpy(np.where(mask, rng.exponential(0.8, mask.shape), 0.0))
    return arrays, to_batch(arrays), torch.from_numpy(live).requires_grad_(), entropy


def loss_of(method: Method, step: int, batch: Batch, live: Tensor, entropy: Tensor) -> Tensor:
    found = method.aux_loss(step, batch, live, entropy)
    assert found is not None
    return found


def slope(method: Method, step: int, batch: Batch, live: Tensor, entropy: Tensor) -> Tensor:
    return torch.autograd.grad(loss_of(method, step, batch, live, entropy).sum(), live)[0]


# ------------------------------------------------------------------------------------------------- the papers' formulas
@pytest.mark.parametrize("source", ["recorded", "made up"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ROWS)
def test_formula_and_gradient_recomputed_in_numpy(name: str, layout: str, source: str) -> None:
    arrays, batch, live, entropy = case(source, layout)
    config = row(name)
    step = 4
    coefficient = config.coef * (1 - (step - 1) / STEPS if config.schedule.kind == "linear" else 1)
    losses, slopes = np.zeros(live.shape), np.zeros(live.shape)
    places = np.argwhere(np.asarray(arrays["teacher_mask/episode"]))
    assert 0 < len(places) <= np.asarray(arrays["response_mask"]).sum()
    for r, c in places:
        token = (live[r, c].item(), arrays["old_logprobs"][r, c], arrays["teacher/episode"][r, c], entropy[r, c].item())
        losses[r, c], slopes[r, c] = numpy_token(name, *(float(v) for v in token))
    method = build(config)
    found = loss_of(method, step, batch, live, entropy)
    np.testing.assert_allclose(found.detach().numpy(), coefficient * losses, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(slope(method, step, batch, live, entropy).numpy(), coefficient * slopes, 1e-6, 1e-9)


@pytest.mark.parametrize("name", ROWS)
def test_advantage_is_the_outcome_reward_or_nothing(name: str) -> None:
    _, batch, _, _ = case("made up", "growing")
    got = build(row(name)).advantages(1, batch)
    expected = registry.build(row("grpo"), context()).advantages(1, batch)
    assert torch.equal(got, torch.zeros_like(expected) if name in (*SELF_TAUGHT, "opd") else expected)


@pytest.mark.parametrize("name", ROWS)
def test_coefficient_zero_is_the_base_method(name: str) -> None:
    _, batch, live, entropy = case("made up", "growing")
    method = build(replace(row(name), coef=0.0))
    assert method.aux_loss(1, batch, live, entropy) is None
    assert method.teacher_requests(1, trajectories()) == []
    assert build(row(name)).aux_loss(1, replace(batch, teacher={}, teacher_mask={}), live, entropy) is None


def test_on_the_rollout_policy_k3_is_a_policy_gradient_with_the_teachers_shift() -> None:
    """Gradient lambda * l = -(lambda * Delta): the advantage of OPID's skill term, without its clip."""
    _, batch, _, entropy = case("made up", "growing")
    live = batch.old_logprobs.clone().requires_grad_()
    config = row("skill_sd")
    shift = torch.where(batch.teacher_mask["episode"], batch.teacher["episode"] - batch.old_logprobs, 0.0)
    torch.testing.assert_close(slope(build(config), 1, batch, live, entropy), -config.coef * shift)
    naive = row("grpo_opsd", f"method.coef={config.coef}")
    torch.testing.assert_close(slope(build(naive), 1, batch, live, entropy), -config.coef * shift)


# ---------------------------------------------------------------------------------------------------------------- edges
@pytest.mark.parametrize("name", ROWS)
def test_a_teacher_that_agrees(name: str) -> None:
    """Distillation has nothing to say; a gated gap still raises every token by half its weight."""
    _, batch, live, _ = case("made up", "per_step")
    agreeing = replace(batch, teacher={"episode": live.detach().clone()})
    config = row(name)
    got = slope(build(config), 1, agreeing, live, torch.zeros_like(live))
    scored = batch.teacher_mask["episode"].to(got.dtype)
    torch.testing.assert_close(got, torch.zeros_like(got) if name in (*REVERSE, *K3) else -0.5 * config.coef * scored)


@pytest.mark.parametrize("name", ROWS)
def test_nothing_outside_the_scored_tokens_matters(name: str) -> None:
    _, batch, live, entropy = case("made up", "growing")
    scored = batch.teacher_mask["episode"]

    def spoil(values: Tensor) -> Tensor:
        return torch.where(scored, values.detach(), float("nan"))

    spoilt = replace(
        batch, old_logprobs=spoil(batch.old_logprobs), teacher={"episode": spoil(batch.teacher["episode"])}
    )
    method, junk = build(row(name)), spoil(live).requires_grad_()
    expected = loss_of(method, 1, batch, live, entropy)
    assert torch.equal(loss_of(method, 1, spoilt, junk, spoil(entropy)), expected)
    got = slope(method, 1, spoilt, junk, spoil(entropy))
    assert torch.equal(got, slope(method, 1, batch, live, entropy)) and not got[~scored].any()
    outside = replace(batch, response_mask=batch.response_mask & ~scored)
    assert not slope(method, 1, outside, live, entropy).any()


@pytest.mark.parametrize("name", ROWS)
def test_no_gradient_reaches_teacher_old_policy_or_entropy(name: str) -> None:
    _, batch, live, entropy = case("made up", "growing")
    constants = [
        batch.teacher["episode"].requires_grad_(),
        batch.old_logprobs.requires_grad_(),
        entropy.requires_grad_(),
    ]
    total = loss_of(build(row(name)), 1, batch, live, entropy).sum()
    assert torch.autograd.grad(total, constants, allow_unused=True) == (None, None, None)


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_independent(name: str) -> None:
    """So a micro-batch gives what its rows give in the whole batch."""
    _, batch, live, entropy = case("made up", "growing")
    part = torch.tensor([4, 1, 7])
    view = replace(
        batch,
        response_mask=batch.response_mask[part],
        old_logprobs=batch.old_logprobs[part],
        token_step=batch.token_step[part],
        teacher={k: v[part] for k, v in batch.teacher.items()},
        teacher_mask={k: v[part] for k, v in batch.teacher_mask.items()},
    )
    method = build(row(name))
    whole = loss_of(method, 1, batch, live, entropy)[part]
    assert torch.equal(loss_of(method, 1, view, live[part], entropy[part]), whole)


def tokens(live: float, old: float, teacher: float, dtype: torch.dtype = torch.float64) -> Tokens:
    one, two, three = (torch.tensor([[value]], dtype=dtype) for value in (live, old, teacher))
    return Tokens(one.requires_grad_(), two, three, torch.zeros_like(one))


@pytest.mark.parametrize(
    ("live", "old", "teacher", "loss", "derivative"),
    [
        (-1.0, -1.0, -1.0, 0.0, 0.0),
        # exponent cut: exp(20), and a gradient that stands at -20, towards the teacher; rho = 1
        (-26.0, -26.0, -1.0, exp(20) - 1 - 25, -20.0),
        # ratio cut: 10 * k3, and a gradient with rho = 10
        (-0.5, -0.5 - log(50), -1.0, 10 * (exp(-0.5) - 0.5), 10 * 0.5),
        # both
        (-1.0, -1.0 - log(50), 29.0, 10 * (exp(20) - 1 - 30), -200.0),
        (-0.5, -0.5 - log(9.9), -1.0, 9.9 * (exp(-0.5) - 0.5), 9.9 * 0.5),
        # a teacher that excludes the token: linear in l, no cut
        (-0.5, -0.5, -100.5, exp(-100) - 1 + 100, 100.0),
    ],
)
def test_cuts_of_the_k3_loss(live: float, old: float, teacher: float, loss: float, derivative: float) -> None:
    given = tokens(live, old, teacher)
    found = auxiliary.k3_is(given)
    assert found.item() == pytest.approx(loss, rel=1e-9, abs=1e-12)
    assert torch.autograd.grad(found.sum(), given.logprobs)[0].item() == pytest.approx(derivative, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_k3_gradient_is_exact_and_turns_nowhere(dtype: torch.dtype) -> None:
    """rho = 1: the gradient is -Delta up to the cut, and -20 from there on, in either precision."""
    before = float("inf")
    for gap in (-3000.0, -30.0, -1e-3, 0.0, 1e-3, 1.0, 16.5, 17.0, 18.25, 19.9, 20.0, 20.1, 25.0, 90.0, 3000.0):
        given = tokens(0.0, 0.0, gap, dtype)
        slope = torch.autograd.grad(auxiliary.k3_is(given).sum(), given.logprobs)[0].item()
        assert slope == pytest.approx(-min(gap, 20.0), rel=1e-6, abs=0) and slope <= before
        before = slope


def test_the_k3_loss_is_its_own_value() -> None:
    """What carries the gradient adds nothing to it, whatever the sizes."""
    for gap in (-50.0, -1e-4, 1e-4, 3.0, 19.0, 40.0):
        given = tokens(-7.3, -7.1, -7.3 + gap, torch.float32)
        with torch.no_grad():
            assert auxiliary.k3_is(given).item() >= 0
        assert auxiliary.k3_is(given).item() == pytest.approx(exp(-0.2) * (exp(min(gap, 20.0)) - 1 - gap), rel=1e-2)


def test_tokens_beyond_the_cut_are_counted() -> None:
    _, batch, _, _ = case("made up", "growing")
    scored = batch.teacher_mask["episode"]
    chosen = scored.nonzero()[0]
    far = batch.teacher["episode"].clone()
    far[tuple(chosen)] = batch.old_logprobs[tuple(chosen)] + 20.5
    for name in K3:
        assert build(row(name)).metrics(1, batch)["exponent_cut"] == 0
        found = build(row(name)).metrics(1, replace(batch, teacher={"episode": far}))["exponent_cut"]
        assert found == pytest.approx(1 / int(scored.sum()))


def test_far_away_the_k3_loss_and_its_gradient_stay_finite() -> None:
    for live, old, teacher in [(0.0, -1e4, -1.0), (-1e4, 0.0, -1.0), (-1.0, -1.0, -1e4), (0.0, -1e4, -1e4)]:
        given = tokens(live, old, teacher, torch.float32)
        found = auxiliary.k3_is(given)
        assert found.isfinite().all() and torch.autograd.grad(found.sum(), given.logprobs)[0].isfinite().all()


def test_the_frame_needs_a_loss() -> None:
    _, batch, live, entropy = case("made up", "growing")
    with pytest.raises(NotImplementedError):
        AuxiliaryTeacher(row("opsd"), context()).aux_loss(1, batch, live, entropy)


# ---------------------------------------------------------------------------------------------- teacher in the gradient
@pytest.mark.parametrize("name", ROWS)
def test_whether_the_teacher_is_heard_is_what_the_spec_says(name: str) -> None:
    spec = registry.validate(row(name))
    check_faithful(spec, row(name))
    assert (spec.uses_teacher, spec.teacher_cancels) == (name not in CANCELLED, name in CANCELLED)
    _, batch, live, entropy = case("made up", "growing")
    other = replace(batch, teacher={k: v - 0.7 for k, v in batch.teacher.items()})
    method = build(row(name))
    same = torch.equal(slope(method, 1, batch, live, entropy), slope(method, 1, other, live, entropy))
    assert same == spec.teacher_cancels
    assert not torch.equal(loss_of(method, 1, batch, live, entropy), loss_of(method, 1, other, live, entropy))


def test_gated_losses_never_lower_a_token() -> None:
    _, batch, live, entropy = case("made up", "growing")
    for name in ("opsd_released", "grpo_opsd_released", "sdar", "sdar_soft_or", "sdar_entropy"):
        got = slope(build(row(name)), 1, batch, live, entropy)[batch.teacher_mask["episode"]] / row(name).coef
        assert ((got < 0) & (got > -1)).all()


def test_entropy_unit_scales_the_entropy() -> None:
    _, batch, live, entropy = case("made up", "growing")
    for name in ("sdar_entropy", "sdar_soft_or"):
        scaled = build(row(name, "method.knobs.entropy_unit=2.0"))
        expected = slope(build(row(name)), 1, batch, live, entropy / 2)
        torch.testing.assert_close(slope(scaled, 1, batch, live, entropy), expected)


def test_requests_read_the_library_over_whole_trajectories() -> None:
    played = trajectories()
    played[1].failure = "lost"
    played[2].turns = []
    for name in ROWS:
        requests = build(row(name)).teacher_requests(1, played)
        assert [r.trajectory for r in requests] == [0, 3, 4, 5]
        for request in requests:
            assert (request.channel, request.steps, request.step_skill) == ("episode", (0, 1, 2), None)
            assert request.episode_skill


def test_metrics() -> None:
    arrays, batch, _, _ = case("made up", "growing")
    found = build(row("sdar")).metrics(2, batch)
    scored = np.asarray(arrays["teacher_mask/episode"])
    shift: F64 = (np.asarray(arrays["teacher/episode"]) - arrays["old_logprobs"])[scored]
    gate = 1 / (1 + np.exp(-5 * shift))
    advantage = np.abs(build(row("grpo")).advantages(1, batch).numpy()[np.asarray(arrays["response_mask"])])
    assert found == pytest.approx(
        {
            "coef": 0.25 * 0.9,
            "shift": shift.mean(),
            "shift_abs": np.abs(shift).mean(),
            "skill_tokens": scored.sum() / np.asarray(arrays["response_mask"]).sum(),
            "advantage_abs": advantage.mean(),
            "gate": gate.mean(),
            "gate_open": (gate > 0.5).mean(),
        },
        abs=1e-6,
    )
    assert not {"gate", "gate_open"} & set(build(row("sdar_soft_or")).metrics(2, batch))


# ------------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        *((n, ["method.trains=false"], "trains; use method.name=vanilla") for n in ROWS),
        *(
            (
                n,
                ["method.skill.source=own_trajectory", "method.skill.router=critical_first"],
                "set method.skill.source=library",
            )
            for n in ROWS
        ),
        *((n, ["method.rollout_skills_train=true"], "its student never sees a skill") for n in ROWS),
        *((n, ["method.signal.clip=2.0"], r"method.signal.clip=2.0.* set null and false") for n in ROWS),
        *((n, ["method.signal.normalize=true"], "method.signal.normalize=True") for n in ROWS),
        *(
            (n, ["method.teacher.weights=frozen", "method.teacher.run=skill_grpo"], "one of: old, ema")
            for n in REWARDED
        ),
        *((n, ["method.teacher.weights=old", "method.teacher.run=null"], "one of: frozen") for n in FROZEN),
        *((n, ["method.advantage.estimator=grpo"], "learns from its teacher alone") for n in (*SELF_TAUGHT, "opd")),
        *((n, ["method.advantage.estimator=none"], "learns from outcome rewards too") for n in REWARDED),
        *((n, ["method.advantage.pg_coef=0.0"], "learns from outcome rewards too") for n in (*REWARDED, "grpo_opd")),
        ("sdar", ["method.knobs.beta=0.0"], "the teacher cancels out of the gradient"),
        ("opsd_released", ["method.knobs.beta=-1.0"], r"method.knobs.beta=-1.0 must be positive"),
        ("sdar", ["method.knobs.gate=gab"], "did you mean 'gap'"),
        ("sdar", ["method.knobs.gate=entropy"], "is sdar_entropy's"),
        ("sdar_entropy", ["method.knobs.gate=gap"], "the other gates are method.name=sdar"),
        ("sdar", ["method.knobs.entropy_unit=0.0"], "entropy_unit=0.0 must be a positive number"),
        ("sdar_entropy", ["method.knobs.entropy_unit=-1.0"], "entropy_unit=-1.0 must be a positive number"),
        ("opsd", ["+method.knobs.beta=5.0"], "sets knobs, but none are declared"),
    ],
)
def test_configurations_that_cannot_be_honoured_are_refused(name: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.validate(row(name, *overrides))


def test_a_library_is_needed() -> None:
    for name in ROWS:
        with pytest.raises(ValueError, match=f"row {name!r} needs a skill library"):
            registry.build(row(name), dataclasses.replace(context(), library=None))


def test_the_base_may_be_gigpo_and_the_teacher_an_average() -> None:
    for name in REWARDED:
        registry.validate(row(name, "method.advantage.estimator=gigpo"))
        registry.validate(row(name, "method.teacher.weights=ema", "method.teacher.decay=0.9"))
