"""The loop: every method in both contexts, determinism, exclusion of broken episodes."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import tiny_env
import torch
from tiny_env import FAILURES
from training_helpers import CONTEXTS, method_config, run_config, trainer

from envs.interface import EnvironmentFailure
from harness.training.broken import reasons, unbroken
from harness.training.loop import check_advantages, tasks_of_step
from methods import registry
from methods.interface import Batch, ScheduleConfig, SkillConfig, Trajectory

METRICS = {
    *(f"train/{n}" for n in ("success", "return", "length", "invalid", "zero_groups", "entropy", "kl", "loss")),
    *(f"train/{n}" for n in ("clip_fraction", "grad_norm", "response_tokens", "rows")),
    *(f"time/{n}_s" for n in ("rollout", "env", "teacher", "analyzer", "update", "cpu_total")),
    *(f"tokens/{n}" for n in ("rollout", "teacher", "update")),
    "memory/rss_mb",
}
TRAINED = ["grpo", "opid"]  # every method: test_training_methods.py


def weights(made):
    return [p.detach().clone() for p in made.network.model.parameters()]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def steady(metrics):
    """Metrics that do not depend on the machine."""
    return {name: value for name, value in metrics.items() if not name.startswith(("time/", "memory/"))}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", TRAINED)
def test_every_method_trains_three_steps(name, context):
    made = trainer(run_config(name, context=context))
    before = weights(made)
    for step in (1, 2, 3):
        metrics, trajectories = made.step(step)
        assert set(metrics) >= METRICS
        assert all(math.isfinite(value) for value in metrics.values())
        assert len(trajectories) == 12
        assert metrics["train/rows"] == (12 if context == "growing" else sum(len(t.turns) for t in trajectories))
        assert metrics["tokens/update"] > metrics["train/response_tokens"] > 0
        assert (metrics["tokens/teacher"] > 0) == registry.get(name).uses_teacher
        assert any(key.startswith("method/") for key in metrics)
    assert not equal(before, weights(made))


@pytest.mark.parametrize("name", TRAINED)
def test_a_seed_repeats_and_two_differ(name):
    def train(seed):
        made = trainer(run_config(name, seed=seed))
        return [steady(made.step(step)[0]) for step in (1, 2)], weights(made)

    first, again, other = train(0), train(0), train(1)
    assert first[0] == again[0] and equal(first[1], again[1])
    assert first[0] != other[0] and not equal(first[1], other[1])


@pytest.mark.parametrize("context", CONTEXTS)
def test_students_see_the_same_prompts_whatever_the_method(context):
    """Byte-identical prompts; in the first step, before any update, identical episodes."""
    played = {}
    for name in TRAINED:
        _, trajectories = trainer(run_config(name, context=context)).step(1)
        played[name] = [
            (t.task_id, [(turn.prompt.text, turn.prompt_ids, turn.response_ids) for turn in t.turns])
            for t in trajectories
        ]
    assert all(episodes == played["grpo"] for episodes in played.values())


@pytest.mark.parametrize("context", CONTEXTS)
def test_opid_without_weight_is_grpo_bit_for_bit(context):
    grpo = trainer(run_config("grpo", context=context))
    opid = trainer(run_config(method_config("opid", coef=0.0), context=context))
    for step in (1, 2):
        one, other = steady(grpo.step(step)[0]), steady(opid.step(step)[0])
        assert {k: v for k, v in one.items() if "method/" not in k} == {k: other[k] for k in one if "method/" not in k}
    assert other["tokens/teacher"] == 0
    assert equal(weights(grpo), weights(opid))


def test_no_teacher_forward_after_the_schedule_ends():
    schedule = ScheduleConfig(kind="window", start=0, stop=1)
    made = trainer(run_config(method_config("opid", schedule=schedule)))
    assert made.step(1)[0]["tokens/teacher"] > 0
    assert made.step(2)[0]["tokens/teacher"] == 0


def test_the_reference_policy_enters_the_loss_and_stays_as_it_is():
    made = trainer(run_config(kl_coef=0.5))
    plain = trainer(run_config())
    frozen = [p.clone() for p in made.reference_scorer.network.model.parameters()]
    first = made.step(1)[0]
    assert first["train/kl_reference"] >= 0
    assert made.step(2)[0]["train/kl_reference"] > 0
    assert equal(frozen, list(made.reference_scorer.network.model.parameters()))
    plain.step(1), plain.step(2)
    assert not equal(weights(made), weights(plain))
    with pytest.raises(ValueError, match="reference policy disagree"):
        trainer(run_config(kl_coef=0.5), reference=None)


def test_skills_in_training_rollouts():
    method = method_config("grpo", rollout_skills_train=True, skill=SkillConfig("library", "task_type"))
    made = trainer(run_config(method))
    _, trajectories = made.step(1)
    wanted = {task.id: tiny_env.workflow(made.config.env)(task) for task in made.tasks}
    assert all(t.skill == wanted[t.task_id] for t in trajectories)
    with pytest.raises(ValueError, match="needs a skill library"):
        trainer(run_config(method), skill_of=None)


# ---------------------------------------------------------------------------------------------------- broken episodes
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", TRAINED)
def test_broken_episodes_are_left_out_and_counted(name, context):
    made = trainer(run_config(name, context=context))
    broken = made.requests(1)[0].task.id
    FAILURES[broken, "step"] = 3  # two of four episodes break once and are replayed, one of them breaks again
    FAILURES[made.requests(1)[4].task.id, "reset"] = 10**6  # this task never works
    metrics, trajectories = made.step(1)
    failed = [t for t in trajectories if t.failure is not None]
    kept = [t for t in trajectories if t.failure is None]
    assert len(failed) >= 4 and len(kept) + len(failed) == 12
    assert metrics["train/excluded"] == pytest.approx(len(failed) / 12)
    assert [t.index for t in kept] == list(range(len(kept)))
    assert metrics["train/length"] == pytest.approx(sum(len(t.turns) for t in kept) / len(kept))
    assert metrics["train/success"] == pytest.approx(sum(t.success for t in kept) / len(kept))
    assert metrics["train/response_tokens"] == sum(len(turn.response_ids) for t in kept for turn in t.turns)


def test_a_step_without_any_episode_stops_the_run():
    made = trainer(run_config())
    for request in made.requests(1):
        FAILURES[request.task.id, "reset"] = 10**6
    with pytest.raises(EnvironmentFailure, match=r"step 1: no episode could be played; the first: task .*broke"):
        made.step(1)


@pytest.mark.parametrize("limit, stops", [(0.3, True), (0.4, False)])
def test_more_broken_episodes_than_allowed_stop_the_run_with_the_first_reason(limit, stops):
    made = trainer(run_config(max_failed_episodes=limit))
    FAILURES[made.requests(1)[4].task.id, "reset"] = 10**6  # one task of three: 4 of 12 episodes
    if stops:
        told = r"step 1: 4 of 12 episodes failed.*training\.max_failed_episodes allows; the first: task .*broke"
        with pytest.raises(EnvironmentFailure, match=told):
            made.step(1)
    else:
        assert made.step(1)[0]["train/excluded"] == pytest.approx(4 / 12)


def test_one_broken_episode_stops_a_run_that_allows_none():
    played = [Trajectory(i, 0, i, "t", "one", "") for i in range(2)]
    assert unbroken(played, 0.0, "here") == played and reasons(played) == {}
    played[1].failure = "broke"
    assert unbroken(played, 0.5, "here") == played[:1] and reasons(played) == {"broke": 1}
    with pytest.raises(EnvironmentFailure, match="here: 1 of 2 episodes failed"):
        unbroken(played, 0.0, "here")


# ------------------------------------------------------------------------------------------------------------ the data
def test_every_epoch_plays_each_task_once():
    tasks = tiny_env.load_panel(run_config().env, "train").tasks
    drawn = [task.id for step in range(1, 7) for task in tasks_of_step(tasks, 4, 0, step)]
    assert all(count == 4 for count in Counter(drawn).values()) and len(set(drawn)) == 6
    epochs = [drawn[i : i + 6] for i in range(0, 24, 6)]
    assert all(len(set(epoch)) == 6 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert drawn != [task.id for step in range(1, 7) for task in tasks_of_step(tasks, 4, 1, step)]
    assert tasks_of_step(tasks, 4, 0, 5) == tasks_of_step(tasks, 4, 0, 5)


def test_a_task_drawn_twice_in_a_step_gives_different_episodes():
    made = trainer(run_config(tasks_per_step=4), tasks=tiny_env.load_panel(run_config().env, "train").tasks[:2])
    requests = made.requests(1)
    assert len({request.key for request in requests}) == len(requests) == 16


def test_no_tasks():
    with pytest.raises(ValueError, match="no task to train on"):
        trainer(run_config(), tasks=())


# --------------------------------------------------------------------------------------------------- guards and state
def test_advantages_are_checked():
    mask = torch.tensor([[False, True]])
    batch = Batch(mask, *[torch.zeros(1, 2)] * 7)
    check_advantages(torch.tensor([[0.0, 1.0]]), batch, 1)
    for wrong, message in (
        (torch.zeros(2, 2), "shape"),
        (torch.tensor([[0.0, math.nan]]), "NaN"),
        (torch.tensor([[1.0, 1.0]]), "outside the response mask"),
    ):
        with pytest.raises(ValueError, match=message):
            check_advantages(wrong, batch, 1)


def test_state_of_another_run_is_refused():
    state = {**trainer(run_config(seed=1)).state(2), "step": 2}
    with pytest.raises(ValueError, match="does not belong to this run"):
        trainer(run_config(seed=0)).load_state(state)
    trainer(run_config(seed=1)).load_state(state)


@pytest.mark.parametrize("context", CONTEXTS)
def test_training_teaches(context):
    """Saying the word of a one-word task: from chance to most of the time."""
    config = run_config(context=context, tasks_per_step=3, group_size=8, lr=1e-2, max_response_tokens=2)
    made = trainer(config, tasks=tiny_env.load_panel(config.env, "seen").tasks)
    success = [made.step(step)[0]["train/success"] for step in range(1, 31)]
    assert sum(success[-5:]) / 5 > sum(success[:5]) / 5 + 0.3
