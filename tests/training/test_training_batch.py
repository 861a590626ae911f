"""Rows and tensors hold what the trajectories hold."""

from __future__ import annotations

import pytest
import tiny_env
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_helpers import CONTEXTS, chat, network, pool, run_config

from harness.training.batch import build_batch, build_rows, micro_batches, pad, select_rows
from harness.training.loop import rollout_settings
from harness.training.rollout import EpisodeRequest, Sampler
from harness.training.update import mini_batches


def played(context):
    config = run_config(context=context)
    tasks = tiny_env.load_panel(config.env, "train").tasks
    play = Sampler(network(), chat(), pool(config), tiny_env.prompter(config.env), rollout_settings(config))
    return play.play([EpisodeRequest(t, i // 2, i % 2, (0, t.id)) for i, t in enumerate(tasks)], 1.0)[0]


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_sampled_token_is_in_the_batch_once(context):
    trajectories = played(context)
    trajectories[1].turns.clear()  # its first prompt did not fit
    rows = build_rows(trajectories, context)
    batch = build_batch(trajectories, rows, 10.0, 0.1, "inadmissible")
    turns = [(t, k, turn) for t in trajectories for k, turn in enumerate(t.turns)]
    assert len(rows) == (len(trajectories) - 1 if context == "growing" else len(turns))
    for number, (trajectory, k, turn) in enumerate(turns):
        cells = (batch.token_step == number).nonzero()
        assert len({r for r, _ in cells.tolist()}) == 1
        assert [rows[r].ids[c] for r, c in cells.tolist()] == turn.response_ids
        assert batch.old_logprobs[batch.token_step == number].tolist() == pytest.approx(turn.old_logprobs)
        assert (batch.step_trajectory[number], batch.step_number[number]) == (trajectory.index, k)
        assert batch.step_invalid[number] == (not turn.valid or not turn.admissible)
        row = rows[cells[0][0]]
        start = int(cells[0][1])
        assert row.ids[start - len(turn.prompt_ids) : start] == turn.prompt_ids
    assert torch.equal(batch.response_mask, batch.token_step >= 0)
    assert int(batch.response_mask.sum()) == sum(len(turn.response_ids) for _, _, turn in turns)
    assert bool((batch.old_logprobs[~batch.response_mask] == 0).all())
    assert batch.returns.tolist() == [10.0 * sum(turn.reward for turn in t.turns) for t in trajectories]
    assert batch.group.tolist() == [t.group for t in trajectories]


def test_what_counts_as_invalid():
    trajectories = played("growing")
    rows = build_rows(trajectories, "growing")
    turns = [turn for t in trajectories for turn in t.turns]
    malformed = build_batch(trajectories, rows, 1.0, 0.1, "format").step_invalid
    assert malformed.tolist() == [not turn.valid for turn in turns]
    assert malformed.sum() < build_batch(trajectories, rows, 1.0, 0.1, "inadmissible").step_invalid.sum()
    with pytest.raises(ValueError, match=r"training\.penalise='inadmissable'"):
        build_batch(trajectories, rows, 1.0, 0.1, "inadmissable")


def test_a_selection_keeps_rows_and_steps():
    trajectories = played("per_step")
    rows = build_rows(trajectories, "per_step")
    batch = build_batch(trajectories, rows, 1.0, 0.1, "format")
    batch.teacher["episode"] = torch.randn_like(batch.old_logprobs)
    batch.teacher_mask["episode"] = batch.response_mask.clone()
    part = select_rows(batch, torch.tensor([3, 1]), 40, torch.device("cpu"))
    assert torch.equal(part.token_step, batch.token_step[[3, 1], :40])
    assert torch.equal(part.teacher["episode"], batch.teacher["episode"][[3, 1], :40])
    assert part.step_trajectory is batch.step_trajectory


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(20, 200))
def test_micro_batches_cover_every_row_once_and_stay_small(lengths, limit):
    sets = micro_batches(lengths, limit)
    assert sorted(i for chosen in sets for i in chosen) == list(range(len(lengths)))
    for chosen in sets:
        longest = max(lengths[i] for i in chosen)
        assert len(chosen) * longest <= limit or len(chosen) == 1
    assert [len(chosen) for chosen in micro_batches([5, 5, 5, 5], 10)] == [2, 2]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 50), st.integers(1, 8), st.integers(0, 5))
def test_mini_batches_cover_every_row_once(rows, parts, step):
    sets = mini_batches(rows, parts, 0, step)
    assert sorted(i for part in sets for i in part) == list(range(rows))
    assert len(sets) == min(parts, rows)
    assert max(map(len, sets)) - min(map(len, sets)) <= 1
    assert sets == mini_batches(rows, parts, 0, step)


def test_padding_is_on_the_right():
    assert pad([[1, 2, 3], [4]], 9).tolist() == [[1, 2, 3], [4, 9, 9]]
