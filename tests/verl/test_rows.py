"""What travels through verl comes back as it was: trajectories, rows, mini-batches, requests."""

from __future__ import annotations

import itertools

import pytest
import torch

from envs.interface import PromptParts, Task
from harness.training.batch import build_batch, build_rows
from harness.training.episode import EpisodeRequest
from harness.training.verl.requests import Wanted
from harness.training.verl.rows import (
    PAD,
    arranged,
    empty_fields,
    learning_fields,
    packed,
    put_logprobs,
    sample_of,
    unpacked,
)
from methods.interface import SkillConfig, Trajectory, Turn

CONTEXTS = ("growing", "per_step")
EOS = 9


def trajectory(index=0, turns=3, failure=None):
    made = Trajectory(index, 4, 1, f"task {index}", "kind", "do it", skill="a skill", score=0.5, termination="done")
    for k in range(turns):
        answered = [10 * k + 1, EOS][: 1 + k % 2]
        made.turns.append(
            Turn(
                PromptParts("before", "task", f"after {k}", "turn"),
                f"saw {k}",
                [100 + k] * (k + 2),
                answered,
                [-0.5 - k] * len(answered),
                action=f"act {k}",
                valid=k != 1,
                invalid_reason="no_word" if k == 1 else None,
                admissible=k != 2,
                reward=float(k == 2),
            )
        )
    made.failure = failure
    return made


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("turns", [1, 3])
def test_a_trajectory_survives_the_journey(context, turns):
    given = trajectory(turns=turns)
    samples, text = packed(given, context, EOS)
    assert len(samples) == (1 if context == "growing" else turns)
    assert unpacked(samples, text, context) == given
    for sample in samples:
        assert sample.prompt and len(sample.response) == len(sample.mask) == len(sample.logprobs)


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_failed_episode_sends_one_row_that_teaches_nothing(context):
    given = trajectory(turns=0, failure="the engine broke")
    samples, text = packed(given, context, EOS)
    assert [sample.mask for sample in samples] == [[0]]
    assert unpacked(samples, text, context) == given


def test_samples_with_tokens_that_no_step_explains_are_refused():
    samples, text = packed(trajectory(), "per_step", EOS)
    with pytest.raises(ValueError, match="more tokens than its 3 steps"):
        unpacked([*samples, samples[0]], text, "per_step")


@pytest.mark.parametrize("context", CONTEXTS)
def test_new_logprobs_reach_the_tokens_that_they_are_of(context):
    given = [trajectory(0), trajectory(1, turns=0), trajectory(2, turns=2)]
    rows = build_rows(given, context)
    number = itertools.count(1)
    scores = [torch.tensor([float(next(number)) for _ in range(r.positions[0], r.positions[-1] + 1)]) for r in rows]
    expected = [[float(scores[i][p - row.positions[0]]) for p in row.positions] for i, row in enumerate(rows)]
    put_logprobs(given, context, scores)
    assert [row.logprobs for row in build_rows(given, context)] == expected


def test_only_marked_tokens_are_the_policys():
    sample = sample_of([5, 6, 7, 8, 9, 4], [2, 4], [-1.0, -2.0])
    assert (sample.prompt, sample.response) == ([5, 6], [7, 8, 9])
    assert (sample.mask, sample.logprobs) == ([1, 0, 1], [-1.0, 0.0, -2.0])


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_the_loss_reads_lies_beside_the_response(context):
    given = [trajectory(0), trajectory(1)]
    rows = build_rows(given, context)
    batch = build_batch(given, rows, 1.0, 0.0, "format")
    batch.teacher["episode"] = batch.old_logprobs * 2
    batch.teacher_mask["episode"] = batch.response_mask.clone()
    advantages = torch.where(batch.response_mask, 3.0, 0.0)
    fields = learning_fields(rows, batch, advantages, batch.old_logprobs - 1)
    for row, field in zip(rows, fields, strict=True):
        marked = [p - row.positions[0] for p in row.positions]
        assert field["old_log_probs"][marked].tolist() == row.logprobs
        assert field["harness_step"][marked].tolist() == row.steps
        assert set(field["advantages"].tolist()) <= {0.0, 3.0}
        assert field["harness_teacher_episode"].shape == field["ref_log_prob"].shape
    padding = empty_fields(fields[0])
    assert padding.keys() == fields[0].keys()
    assert padding["harness_step"].tolist() == [-1] and padding["advantages"].tolist() == [0.0]


# -------------------------------------------------------------------------------------------------------- mini-batches
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(4, 4), (5, 3), (1,), (7, 7, 6)])
def test_every_row_is_in_its_mini_batch_once_and_parts_are_equal(workers, sizes):
    numbers = iter(range(sum(sizes)))
    sets = [[next(numbers) for _ in range(size)] for size in sizes]
    lengths = [1 + (i * 7) % 5 for i in range(sum(sizes))]
    order, share = arranged(sets, lengths, workers)
    assert len(order) == share * len(sets) * workers
    per_worker = len(order) // workers
    for k, rows in enumerate(sets):
        seen = [
            row
            for worker in range(workers)
            for row in order[worker * per_worker + k * share : worker * per_worker + (k + 1) * share]
        ]
        assert sorted(row for row in seen if row != PAD) == sorted(rows)


def test_long_rows_are_spread_over_workers():
    order, _ = arranged([[0, 1, 2, 3]], [100, 100, 1, 1], 2)
    assert {0, 1} not in ({*order[:2]}, {*order[2:]})


# ------------------------------------------------------------------------------------------------------------ requests
def test_a_request_survives_the_journey():
    task = Task("id", "kind", "abc", {"object": "mug"}, "games/1")
    request = EpisodeRequest(task, 2, 1, (0, "train", 1, "id", 0, 1), "a text")
    wanted = Wanted.from_text(Wanted.of(request, 0.7, SkillConfig()).to_text())
    assert wanted.request() == request
    assert wanted.temperature == 0.7 and wanted.skill is None


def test_a_skill_that_is_a_function_travels_as_where_it_comes_from():
    task = Task("id", "kind", "abc")
    request = EpisodeRequest(task, 0, 0, (1,), lambda task, text: "never called here")
    wanted = Wanted.from_text(Wanted.of(request, 1.0, SkillConfig("library", "task_type")).to_text())
    assert wanted.text is None
    assert SkillConfig(**wanted.skill) == SkillConfig("library", "task_type")
