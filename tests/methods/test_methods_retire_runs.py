"""RetireOPD: its ablations, that a resumed run equals an unbroken one, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from methods_helpers import context, row
from retire_helpers import FALLING, GOOD, POOR, STEPS, STUCK, Gap, build, by_window, ends, play, run

from methods import registry
from methods.interface import MethodConfig
from methods.retire_opd import Knobs


# ------------------------------------------------------------------------------------------------------------ ablations
def test_without_a_criterion_the_other_decides() -> None:
    assert run("retire_opd_no_progress", FALLING, GOOD).last_taught == 10
    assert run("retire_opd_no_progress", FALLING, ends(0.1, 0.8, 0.8)).last_taught == 15
    assert run("retire_opd_no_progress", STUCK, POOR).last_taught == STEPS
    assert run("retire_opd_no_competence", STUCK, POOR).last_taught == 10
    assert run("retire_opd_no_competence", by_window(1.0, 0.5, 0.6), POOR).last_taught == 15
    assert run("retire_opd_no_competence", FALLING, GOOD).last_taught == STEPS


def test_a_fixed_step_needs_no_validation() -> None:
    method = registry.build(row("retire_opd_fixed"), context())
    assert not method.measures_teacher
    for gap, success in ((FALLING, POOR), (STUCK, GOOD)):
        found = run("retire_opd_fixed", gap, success)
        assert (found.last_taught, found.validated) == (15, [])
        assert [m["retired"] for m in found.metrics] == [0.0] * 14 + [1.0] * 16
        assert found.losses[15:] == [None] * 15 and None not in found.losses[:15]
    assert run("retire_opd", FALLING, POOR, "method.knobs.stop_step=7").last_taught == 7


@pytest.mark.parametrize(
    "name", ["retire_opd_no_progress", "retire_opd_no_competence", "retire_opd_fixed", "retire_opd_released"]
)
def test_ablations_change_one_knob(name: str) -> None:
    base, ablation = row("retire_opd"), row(name)
    changed = {k for k in base.knobs if base.knobs[k] != ablation.knobs[k]}
    assert len(changed) == 1 and changed <= {"use_progress", "use_competence", "stop_step", "progress_form"}
    assert replace(ablation, id=base.id, label=base.label, knobs=base.knobs) == base


def test_never_retiring_is_grpo_opd() -> None:
    base, never = row("retire_opd"), row("grpo_opd")
    assert replace(never, id=base.id, label=base.label, name=base.name, knobs=base.knobs) == base


def test_the_files_say_every_knob() -> None:
    assert row("retire_opd").knobs == vars(Knobs())


# --------------------------------------------------------------------------------------------------------------- resume
@pytest.mark.parametrize(
    "name",
    ["retire_opd", "retire_opd_no_progress", "retire_opd_no_competence", "retire_opd_fixed", "retire_opd_released"],
)
@pytest.mark.parametrize("after", [0, 1, 4, 5, 7, 12, 14, 15, 16, 26])
def test_resuming_equals_going_on(name: str, after: int) -> None:
    gap, success = by_window(1.0, 0.8, 0.9, 0.9), ends(0.5, 0.7, 0.8)
    config = row(name)
    unbroken = play(build(config), gap, success, range(1, STEPS + 1))
    first = build(config)
    play(first, gap, success, range(1, after + 1))
    state = json.loads(json.dumps(first.state_dict()))
    resumed = registry.build(config, context(total_steps=STEPS))  # whose teacher is not measured again
    resumed.load_state_dict(state)
    rest = play(resumed, gap, success, range(after + 1, STEPS + 1))
    assert rest.requests == unbroken.requests[after:]
    assert rest.losses == unbroken.losses[after:]
    assert rest.metrics == unbroken.metrics[after:]
    assert rest.validated == [step for step in unbroken.validated if step > after]
    assert resumed.state_dict() == json.loads(json.dumps(play_state(config, gap, success)))


def play_state(config: MethodConfig, gap: Gap, success: Mapping[int, float]) -> dict[str, object]:
    method = build(config)
    play(method, gap, success, range(1, STEPS + 1))
    return method.state_dict()


def test_a_repeated_step_counts_once() -> None:
    """A run that died after step 7 and goes on from the checkpoint of step 5, or of step 7 itself."""
    gap = by_window(1.0, 0.5)
    method = build(row("retire_opd"))
    play(method, gap, GOOD, [1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10])
    assert method.state_dict() == play_state_until(10, gap)


def play_state_until(last: int, gap: Gap) -> dict[str, object]:
    method = build(row("retire_opd"))
    play(method, gap, GOOD, range(1, last + 1))
    return method.state_dict()


def test_states_of_something_else_are_refused() -> None:
    state = build(row("retire_opd")).state_dict()
    other = registry.build(row("retire_opd", "method.knobs.window=6"), context())
    with pytest.raises(ValueError, match=r"method.knobs.window=6, but the checkpoint was written with 5"):
        other.load_state_dict(state)
    for foreign in ({}, {"knobs": {}}):
        with pytest.raises(ValueError, match="RetireOPD's holds"):
            other.load_state_dict(foreign)
    with pytest.raises(ValueError, match="keeps no state"):
        registry.build(row("grpo_opd"), context()).load_state_dict(state)


# ------------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method.knobs.progress_form=codes"], "did you mean 'code'"),
        (["method.schedule.kind=linear"], "weight is constant until the teacher retires"),
        (["method.knobs.window=0"], "method.knobs.window=0 must be at least 1"),
        (["method.knobs.competence_threshold=-0.5"], "method.knobs.competence_threshold=-0.5 must not be negative"),
        (["method.knobs.stop_step=0"], "method.knobs.stop_step=0 must be at least 1"),
        (["method.knobs.use_progress=false", "method.knobs.use_competence=false"], "leave no rule for retirement"),
        (["method.knobs.window=5.5"], "must be of type int"),
        (["method.advantage.estimator=none"], "learns from outcome rewards too"),
    ],
)
def test_configurations_that_cannot_be_honoured_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.validate(row("retire_opd", *overrides))


def test_the_spec_says_that_it_is_validated_while_training() -> None:
    assert registry.get("retire_opd").validates and not registry.get("grpo_opd").validates
