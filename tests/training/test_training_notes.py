"""What a teacher read and said is written into the sampled trajectories, token by token."""

from __future__ import annotations

import pytest
import torch
from test_training_scoring import CHAT, EPISODE, STEP, World
from training_helpers import CONTEXTS

from harness.training import trajectories
from harness.training.notes import note_skills
from methods.interface import TeacherRequest


@pytest.mark.parametrize("context", CONTEXTS)
def test_turns_say_what_the_teacher_read_and_how_much_it_moved_each_token(context, tmp_path):
    world = World(context)
    requests = (
        TeacherRequest("episode", 0, (0, 2), episode_skill=EPISODE),
        TeacherRequest("step", 0, (1,), step_skill=STEP),
        TeacherRequest("step", 0, (2,), step_skill=STEP),
    )
    world.teach(*requests)
    note_skills(world.trajectories, world.rows, requests, world.batch)
    turns = world.trajectories[0].turns
    assert [turn.skill for turn in turns[:3]] == [EPISODE, STEP, f"{EPISODE} | {STEP}"]
    for step, skills in enumerate([(EPISODE, None), (None, STEP)]):
        wanted = world.expected(0, step, *skills) - torch.tensor(turns[step].old_logprobs)
        torch.testing.assert_close(torch.tensor(turns[step].skill_advantage), wanted, atol=1e-5, rtol=1e-5)
    both = world.expected(0, 2, EPISODE, None) + world.expected(0, 2, None, STEP)
    both -= 2 * torch.tensor(turns[2].old_logprobs)
    torch.testing.assert_close(torch.tensor(turns[2].skill_advantage), both, atol=1e-5, rtol=1e-5)
    assert all(t.skill is None and not t.skill_advantage for t in world.trajectories[1].turns)

    path = tmp_path / "trajectories.jsonl.zst"
    trajectories.append(path, world.trajectories[:2], CHAT.response_text)
    first, second = trajectories.read(path)
    for turn in first["turns"][:3]:
        assert len(turn["tokens"]) == len(turn["skill_advantage"]) == len(turn["response_ids"])
        assert turn["skill"] and any(turn["tokens"])
    assert all("tokens" not in turn and "skill" not in turn for turn in second["turns"])
