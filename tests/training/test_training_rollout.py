"""Rollouts: exact tokens, independent random streams, contexts that end, environments that break."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tiny_env
import torch
from tiny_env import FAILURES
from training_helpers import CONTEXTS, TOKENIZER, chat, network, pool, run_config

from envs.interface import PromptParts
from harness.training.loop import rollout_settings
from harness.training.rollout import EpisodeRequest, Sampler, sample_tokens
from harness.training.streams import derived_seed, stream
from methods.skills.injection import inject

CHAT = chat()


def sampler(context="growing", model_seed=0, workers=0, **settings):
    config = run_config(context=context)
    chosen = dataclasses.replace(rollout_settings(config), **settings)
    return Sampler(network(model_seed), CHAT, pool(config, workers), tiny_env.prompter(config.env), chosen)


def requests(count=6, seed=0, skill=None):
    tasks = tiny_env.load_panel(run_config().env, "train").tasks
    return [EpisodeRequest(t, i, 0, (seed, "test", t.id), skill) for i, t in enumerate(tasks[:count])]


def tokens(trajectories):
    return [[(turn.prompt_ids, turn.response_ids) for turn in t.turns] for t in trajectories]


# ------------------------------------------------------------------------------------------------------------ sampling
def test_sampling_follows_the_distribution():
    logits = torch.tensor([0.0, 1.0, -1e9, 2.0]).expand(20000, 4)
    uniforms = torch.from_numpy(stream(0, "sampling").random(20000))
    drawn, logprobs = sample_tokens(logits, uniforms, 0.5)
    expected = torch.softmax(logits[0] / 0.5, -1)
    frequency = torch.bincount(drawn, minlength=4) / 20000
    assert torch.allclose(frequency, expected, atol=0.02)
    assert frequency[2] == 0
    torch.testing.assert_close(logprobs, expected.log()[drawn])


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.5, 2), (1 - 2**-53, 2)])
def test_the_ends_of_the_unit_interval_never_reach_impossible_tokens(uniform, token):
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]])
    drawn, _ = sample_tokens(logits, torch.tensor([uniform], dtype=torch.float64), 1.0)
    assert drawn.item() == token


def test_temperature_zero_takes_the_most_likely_token():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    drawn, logprobs = sample_tokens(logits, torch.tensor([0.999], dtype=torch.float64), 0)
    assert drawn.item() == 1
    torch.testing.assert_close(logprobs, torch.log_softmax(logits, -1)[:, 1])


def test_streams_are_addressed_by_their_key():
    assert np.array_equal(stream(1, "a", 2).random(5), stream(1, "a", 2).random(5))
    keys = [(1, "a", 2), (1, "a", 3), (2, "a", 2), (1, "b", 2), (1, "a", "2"), (1, "a")]
    assert len({derived_seed(*key) for key in keys}) == len(keys)


# ------------------------------------------------------------------------------------------------------------ contexts
@pytest.mark.parametrize("context", CONTEXTS)
def test_results_do_not_depend_on_the_rest_of_the_batch(context):
    play = sampler(context)
    together, _ = play.play(requests(), 1.0)
    alone = [play.play([request], 1.0)[0][0] for request in requests()]
    assert tokens(together) == tokens(alone)
    for one, other in zip(together, alone, strict=True):
        for turn, same in zip(one.turns, other.turns, strict=True):
            assert turn.old_logprobs == pytest.approx(same.old_logprobs, abs=1e-5)


@pytest.mark.parametrize("context", CONTEXTS)
def test_one_seed_repeats_and_two_differ(context):
    first, _ = sampler(context).play(requests(seed=0), 1.0)
    again, _ = sampler(context).play(requests(seed=0), 1.0)
    other, _ = sampler(context).play(requests(seed=1), 1.0)
    assert first == again
    assert tokens(first) != tokens(other)


def test_workers_change_nothing():
    here, _ = sampler(workers=0).play(requests(3), 1.0)
    play = sampler(workers=1)
    try:
        assert play.play(requests(3), 1.0)[0] == here
    finally:
        play.pool.close()


@pytest.mark.parametrize("context", CONTEXTS)
def test_old_logprobs_are_those_of_the_tokens_in_their_context(context):
    play = sampler(context)
    for trajectory in play.play(requests(3), 0.7)[0]:
        ids = []
        for turn in trajectory.turns:
            ids = ids + turn.prompt_ids if context == "growing" else list(turn.prompt_ids)
            start = len(ids)
            ids = ids + turn.response_ids
            with torch.no_grad():
                logits = play.network.logits(play.network.hidden(torch.tensor([ids])))[0]
            expected = torch.log_softmax(logits[start - 1 : -1] / 0.7, -1)
            expected = expected[torch.arange(len(turn.response_ids)), turn.response_ids]
            torch.testing.assert_close(torch.tensor(turn.old_logprobs), expected, atol=1e-5, rtol=1e-5)


def test_a_growing_context_is_the_sampled_ids_and_what_the_template_puts_between():
    trajectory = sampler().play(requests(1), 1.0)[0][0]
    assert len(trajectory.turns) == 4
    for turn, following in zip(trajectory.turns, trajectory.turns[1:], strict=False):
        closed = turn.response_ids[-1] == CHAT.eos_id
        assert following.prompt_ids == CHAT.continuation(following.prompt.text, closed)
        assert 1 <= len(turn.response_ids) <= 3


def test_per_step_prompts_stand_alone():
    trajectory = sampler("per_step").play(requests(1), 1.0)[0][0]
    for k, turn in enumerate(trajectory.turns):
        assert turn.prompt_ids == CHAT.opening(turn.prompt.text)
        assert turn.prompt.text.count("did:") == min(k, 2)


def test_oldest_history_is_dropped_when_the_prompt_is_too_long():
    free, nothing_dropped = sampler("per_step").play(requests(1), 1.0)
    longest = max(len(turn.prompt_ids) for turn in free[0].turns)
    cut, stats = sampler("per_step", max_prompt_tokens=longest - 1).play(requests(1), 1.0)
    assert nothing_dropped.dropped_history == 0
    assert stats.dropped_history > 0
    assert max(len(turn.prompt_ids) for turn in cut[0].turns) < longest
    last = cut[0].turns[-1].prompt.text
    assert (
        last.count("did:") == 1 and f"did: {cut[0].turns[-2].action}" in last
    )  # the newest pair is the one that stays


def test_a_full_context_ends_the_episode():
    free, _ = sampler().play(requests(1), 1.0)
    first = free[0].turns[0]
    limit = len(first.prompt_ids) + len(first.response_ids) + len(free[0].turns[1].prompt_ids)
    fits, _ = sampler(max_prompt_tokens=limit).play(requests(1), 1.0)
    short, _ = sampler(max_prompt_tokens=limit - 1).play(requests(1), 1.0)
    assert [len(t[0].turns) for t in (free, fits, short)] == [4, 2, 1]
    assert short[0].termination == "context_full" and free[0].termination == "max_steps"


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("skill", [None, "say green.", lambda task, text: f"do: {text}"])
def test_a_prompt_that_is_too_long_loses_words_of_the_observation_and_nothing_else(context, skill, monkeypatch):
    long = "the room is quiet. " * 30
    monkeypatch.setattr(
        tiny_env.TinyPrompter,
        "opening",
        lambda self, first: PromptParts("", f"task: {first.task}", f"\n{long}", "\nNow:"),
    )
    trajectories, stats = sampler(context, max_prompt_tokens=90).play(requests(2, skill=skill), 1.0)
    assert stats.truncated_prompts == 2
    for trajectory in trajectories:
        opening = trajectory.turns[0]
        assert 80 < len(opening.prompt_ids) <= 90
        prompt = opening.prompt
        assert prompt.task == f"task: {trajectory.task_text}" and prompt.turn == "\nNow:"
        assert 0 < len(prompt.after.split()) < len(long.split())
        assert CHAT.opening(inject(prompt, trajectory.skill, None)) == opening.prompt_ids
        assert (trajectory.skill is None) == (skill is None)
    if callable(skill):
        assert [t.skill for t in trajectories] == [f"do: {t.task_text}" for t in trajectories]
    with pytest.raises(ValueError, match=r"cannot be cut to 5: .*task: say red"):
        sampler(context, max_prompt_tokens=5).play(requests(2, skill=skill), 1.0)


def test_prompts_that_the_backbone_cannot_hold_are_refused():
    with pytest.raises(
        ValueError, match=r"max_prompt_tokens=510 plus training\.max_response_tokens=3 .* 512 positions"
    ):
        sampler(max_prompt_tokens=510)
    with pytest.raises(ValueError, match=r"training\.context='sideways'"):
        sampler("sideways")


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_skill_stands_in_the_policys_prompt(context):
    skill = "say green."
    trajectories, _ = sampler(context).play(requests(2, skill=skill), 1.0)
    needle = TOKENIZER.encode("\nSkill: say green.\n", add_special_tokens=False)
    for trajectory in trajectories:
        assert trajectory.skill == skill
        for k, turn in enumerate(trajectory.turns):
            found = any(turn.prompt_ids[i : i + len(needle)] == needle for i in range(len(turn.prompt_ids)))
            assert found == (k == 0 or context == "per_step")
            assert "Skill: say green." not in turn.prompt.text


# ------------------------------------------------------------------------------------------------- broken environments
@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_passing_failure_leaves_no_trace(where):
    expected, _ = sampler().play(requests(), 1.0)
    FAILURES["train-2", where] = 1
    trajectories, stats = sampler().play(requests(), 1.0)
    assert tokens(trajectories) == tokens(expected)
    assert [t.index for t in trajectories] == list(range(6)) and all(t.failure is None for t in trajectories)
    assert stats.retried == 1


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_lasting_failure_excludes_the_episode_and_no_other(where):
    expected, _ = sampler().play(requests(), 1.0)
    FAILURES["train-2", where] = 2
    trajectories, _ = sampler().play(requests(), 1.0)
    broken = [t for t in trajectories if t.failure is not None]
    assert [t.task_id for t in broken] == ["train-2"]
    assert "train-2 broke" in broken[0].failure
    assert (broken[0].termination, broken[0].turns, broken[0].success) == ("infra_failure", [], False)
    assert tokens(t for t in trajectories if t.failure is None) == tokens(t for t in expected if t.task_id != "train-2")
