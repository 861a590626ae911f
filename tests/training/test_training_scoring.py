"""Teachers score the sampled tokens behind the prompt with the skill, and nothing else."""

from __future__ import annotations

import pytest
import tiny_env
import torch
from training_helpers import CONTEXTS, chat, network, pool, run_config

from harness.training.batch import build_batch, build_rows
from harness.training.loop import rollout_settings
from harness.training.rollout import EpisodeRequest, Sampler
from harness.training.scoring import Scorer
from methods.interface import TeacherRequest
from methods.skills.injection import inject

CHAT = chat()
EPISODE, STEP = "say red.", "say blue then green."


class World:
    """Played trajectories with their rows and batch, and a scorer."""

    def __init__(self, context, skill=None, temperature=0.8):
        config = run_config(context=context)
        tasks = tiny_env.load_panel(config.env, "train").tasks[:4]
        self.net, self.context, self.temperature = network(), context, temperature
        play = Sampler(self.net, CHAT, pool(config), tiny_env.prompter(config.env), rollout_settings(config))
        wanted = [EpisodeRequest(t, i, 0, (0, t.id), skill) for i, t in enumerate(tasks)]
        self.trajectories, _ = play.play(wanted, temperature)
        self.rows = build_rows(self.trajectories, context)
        self.batch = build_batch(self.trajectories, self.rows, 1.0, 0.0, "format")
        self.scorer = Scorer(self.net, CHAT, context, temperature, 300)

    def teach(self, *requests):
        return self.scorer.teacher(self.trajectories, self.rows, requests, self.batch)

    def cells(self, trajectory, step):
        """Mask of the response of one step."""
        number = sum(len(t.turns) for t in self.trajectories[:trajectory]) + step
        return self.batch.token_step == number

    def expected(self, trajectory, step, episode, step_skill):
        """Log-probs of one response from a plain forward pass over a prompt put together here."""
        turns = self.trajectories[trajectory].turns
        if self.context == "per_step":
            ids = CHAT.opening(inject(turns[step].prompt, episode, step_skill))
        else:
            ids = CHAT.opening(inject(turns[0].prompt, episode, step_skill if step == 0 else None))
            for k in range(1, step + 1):
                ids = ids + turns[k - 1].response_ids
                closed = turns[k - 1].response_ids[-1] == CHAT.eos_id
                text = inject(turns[k].prompt, None, step_skill if k == step else None)
                ids = ids + CHAT.continuation(text, closed)
        response = turns[step].response_ids
        with torch.no_grad():
            logits = self.net.logits(self.net.hidden(torch.tensor([ids + response])))[0, len(ids) - 1 : -1]
        logprobs = torch.log_softmax(logits / self.temperature, -1)
        return logprobs[torch.arange(len(response)), response]


@pytest.mark.parametrize("context", CONTEXTS)
def test_episode_and_step_skills(context):
    world = World(context)
    world.teach(
        TeacherRequest("episode", 0, (0, 2, 3), episode_skill=EPISODE),
        TeacherRequest("step", 0, (1,), step_skill=STEP),
        TeacherRequest("step", 2, (0,), step_skill=STEP),
        TeacherRequest("both", 1, (2,), episode_skill=EPISODE, step_skill=STEP),
    )
    wanted = {
        "episode": {(0, 0): (EPISODE, None), (0, 2): (EPISODE, None), (0, 3): (EPISODE, None)},
        "step": {(0, 1): (None, STEP), (2, 0): (None, STEP)},
        "both": {(1, 2): (EPISODE, STEP)},
    }
    for channel, places in wanted.items():
        covered = torch.zeros_like(world.batch.response_mask)
        for (trajectory, step), skills in places.items():
            cells = world.cells(trajectory, step)
            covered |= cells
            scores = world.batch.teacher[channel][cells]
            torch.testing.assert_close(scores, world.expected(trajectory, step, *skills), atol=1e-5, rtol=1e-5)
            assert not torch.allclose(scores, world.batch.old_logprobs[cells], atol=1e-4)
        assert torch.equal(world.batch.teacher_mask[channel], covered)
        assert bool((world.batch.teacher[channel][~covered] == 0).all())


@pytest.mark.parametrize("context", CONTEXTS)
def test_old_logprobs_are_reproduced(context):
    world = World(context)
    again = world.scorer.batch_logprobs(world.rows, world.batch)
    torch.testing.assert_close(again, world.batch.old_logprobs, atol=1e-5, rtol=1e-5)
    assert bool((again[~world.batch.response_mask] == 0).all())


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_teacher_without_a_skill_is_the_student_exactly_and_for_free(context):
    world = World(context)
    stats = world.teach(
        *[TeacherRequest("none", i, tuple(range(len(t.turns)))) for i, t in enumerate(world.trajectories)]
    )
    assert torch.equal(world.batch.teacher["none"], world.batch.old_logprobs)
    assert torch.equal(world.batch.teacher_mask["none"], world.batch.response_mask)
    assert stats.tokens == 0


@pytest.mark.parametrize("context", CONTEXTS)
def test_equal_sequences_are_scored_once(context):
    world = World(context)
    one = world.teach(TeacherRequest("a", 0, (0, 1), episode_skill=EPISODE))
    two = World(context).teach(
        TeacherRequest("a", 0, (0, 1), episode_skill=EPISODE), TeacherRequest("b", 0, (1, 0), episode_skill=EPISODE)
    )
    assert one == two
    assert one.rows == (1 if context == "growing" else 2)


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_policys_own_skill_stays_unless_the_teacher_brings_another(context):
    own = "say green."
    world = World(context, skill=own)
    world.teach(
        TeacherRequest("step", 0, (2,), step_skill=STEP), TeacherRequest("episode", 0, (2,), episode_skill=EPISODE)
    )
    for channel, skills in (("step", (own, STEP)), ("episode", (EPISODE, None))):
        torch.testing.assert_close(
            world.batch.teacher[channel][world.cells(0, 2)], world.expected(0, 2, *skills), atol=1e-5, rtol=1e-5
        )


def test_rows_of_a_growing_context_end_with_the_last_scored_step():
    world = World("growing")
    turns = world.trajectories[0].turns
    stats = world.teach(TeacherRequest("a", 0, (1,), step_skill=STEP))
    student = sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in turns[:2])
    skill = len(CHAT.continuation(inject(turns[1].prompt, None, STEP), True)) - len(
        CHAT.continuation(turns[1].prompt.text, True)
    )
    assert stats.tokens == student + skill


def test_tokens_beyond_the_backbone_are_counted_and_left_out():
    world = World("growing")
    length = len(world.rows[0].ids)
    world.scorer.network.max_positions = length + 2  # the skill is longer than that
    stats = world.teach(TeacherRequest("a", 0, (0, 1, 2, 3), episode_skill=EPISODE))
    missing = world.batch.response_mask[0] & ~world.batch.teacher_mask["a"][0]
    assert stats.unscored == int(missing.sum()) > 0
    assert bool(missing[: world.rows[0].positions[-4]].logical_not().all())


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_skill_that_leaves_no_room_is_an_error_that_names_the_task(context):
    world = World(context)
    world.scorer.network.max_positions = 3
    with pytest.raises(ValueError, match=r"cannot be cut to .*task: say red"):
        world.teach(TeacherRequest("a", 0, (0, 1), episode_skill=EPISODE))


def test_earlier_turns_that_fill_the_backbone_leave_nothing_to_score():
    """Such a sequence may even be alone in its micro-batch."""
    world = World("growing")
    turns = world.trajectories[0].turns
    world.scorer.network.max_positions = 50
    assert sum(len(turn.prompt_ids) + len(turn.response_ids) for turn in turns[:3]) > 50
    stats = world.teach(TeacherRequest("a", 0, (3,), episode_skill=EPISODE))
    assert (stats.tokens, stats.rows, stats.rescored) == (0, 0, 0)
    assert stats.unscored == len(turns[3].response_ids)
    assert not world.batch.teacher_mask["a"].any() and not world.batch.teacher["a"].any()


def test_the_observation_gives_way_to_the_skill(monkeypatch):
    world = World("per_step")
    turn = world.trajectories[0].turns[2]
    whole = CHAT.opening(inject(turn.prompt, EPISODE, None))
    world.scorer.network.max_positions = len(whole) + len(turn.response_ids) - 2
    seen = []
    original = world.scorer.logprobs
    monkeypatch.setattr(world.scorer, "logprobs", lambda ids, marks: seen.extend(ids) or original(ids, marks))
    stats = world.teach(TeacherRequest("a", 0, (2,), episode_skill=EPISODE))
    assert (stats.truncated, stats.rows, stats.unscored) == (1, 1, 0)
    assert stats.rescored == len(turn.response_ids) == int(world.batch.teacher_mask["a"].sum())
    skill = CHAT.opening(inject(type(turn.prompt)("", turn.prompt.task), EPISODE, None))
    assert list(seen[0][: len(skill) - 5]) == skill[: len(skill) - 5]
    assert list(seen[0][-len(turn.response_ids) :]) == turn.response_ids


@pytest.mark.parametrize("context", CONTEXTS)
def test_other_weights_score_the_students_own_prompts_too(context):
    """Only the rollout policy's own log-probs may stand in for scores."""
    world = World(context)
    wanted = [TeacherRequest("none", i, tuple(range(len(t.turns)))) for i, t in enumerate(world.trajectories)]
    world.scorer = Scorer(network(5), CHAT, context, world.temperature, 300, own_weights=False)
    stats = world.teach(*wanted)
    assert stats.tokens == sum(len(row.ids) for row in world.rows) and stats.rows == len(world.rows)
    expected = world.scorer.batch_logprobs(world.rows, world.batch)
    torch.testing.assert_close(world.batch.teacher["none"], expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(world.batch.teacher["none"], world.batch.old_logprobs, atol=1e-3)


@pytest.mark.parametrize("context", CONTEXTS)
def test_placement_of_the_skill(context):
    world = World(context)
    world.scorer.placement = "front"
    world.teach(TeacherRequest("front", 0, (0,), episode_skill=EPISODE))
    world.scorer.placement = "task"
    expected = world.expected(0, 0, EPISODE, None)
    assert not torch.allclose(world.batch.teacher["front"][world.cells(0, 0)], expected, atol=1e-4)


def test_rows_without_marks_have_no_scores():
    world = World("per_step")
    ids = [row.ids for row in world.rows[:2]]
    assert [len(scores) for scores in world.scorer.logprobs(ids, [[], []])] == [0, 0]


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([TeacherRequest("a", 9, (0,))], "trajectory 9 of 4"),
        ([TeacherRequest("a", 0, (7,))], "has steps 0..3"),
        ([TeacherRequest("a", 0, ())], r"for steps \[\]"),
        ([TeacherRequest("a", 0, (0, 1), step_skill=STEP)], "for one step"),
        ([TeacherRequest("a", 0, (0, 1), EPISODE), TeacherRequest("a", 0, (1,), None, STEP)], "scores step 1 .* twice"),
    ],
)
def test_requests_that_do_not_fit_are_refused(requests, message):
    with pytest.raises(ValueError, match=message):
        World("growing").teach(*requests)
