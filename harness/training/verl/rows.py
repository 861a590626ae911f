"""Between our trajectories and rows, and what travels through verl: one sample is a prompt and a response with a mask.

An agent loop sends one sample per row (per environment step, or per episode in a growing context), with everything
about the trajectory that is no token in one text beside the first of them. Imports nothing of verl.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envs.interface import PromptParts
from harness.training.batch import Row, build_rows
from methods.interface import Batch, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Sample:
    """prompt, response: token ids, neither empty; mask: 1 for tokens of the policy; logprobs: of the response under the
    policy that sampled, 0 where it did not."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    logprobs: list[float]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.response)


def sample_of(ids: Sequence[int], positions: Sequence[int], logprobs: Sequence[float] | None = None) -> Sample:
    """The sample of marked tokens `positions` (ascending, none of them 0); tokens after the last are left out."""
    start, stop = positions[0], positions[-1] + 1
    mask, found = [0] * (stop - start), [0.0] * (stop - start)
    for k, position in enumerate(positions):
        mask[position - start] = 1
        if logprobs is not None:
            found[position - start] = logprobs[k]
    return Sample(list(ids[:start]), list(ids[start:stop]), mask, found)


def sample_of_row(row: Row) -> Sample:
    return sample_of(row.ids, row.positions, row.logprobs)


# -------------------------------------------------------------------------------------------- what an agent loop sends
def packed(trajectory: Trajectory, context: str, eos_id: int) -> tuple[list[Sample], str]:
    """A trajectory's samples, and the text that goes with the first of them. One without turns has a sample that
    nothing learns from: verl wants a row of every episode."""
    samples = [sample_of_row(row) for row in build_rows([trajectory], context)]
    return samples or [Sample([eos_id], [eos_id], [0], [0.0])], json.dumps(_content(trajectory))


def unpacked(samples: Sequence[Sample], text: str, context: str) -> Trajectory:
    """The trajectory of `packed`; its index is 0."""
    content = json.loads(text)
    turns = content.pop("turns")
    trajectory = Trajectory(index=0, **content)
    tokens = iter([pair for sample in samples for pair in _tokens(sample)])
    for turn in turns:
        asked = [token for token, _ in itertools.islice(tokens, turn.pop("asked"))]
        answered = list(itertools.islice(tokens, turn.pop("answered")))
        turn["prompt"] = PromptParts(*turn["prompt"])
        made: dict[str, Any] = {
            "prompt_ids": asked,
            "response_ids": [token for token, _ in answered],
            "old_logprobs": [logprob for _, logprob in answered],
        }
        trajectory.turns.append(Turn(**turn, **made))
    if turns and next(tokens, None) is not None:
        raise ValueError(f"the samples of task {trajectory.task_id} hold more tokens than its {len(turns)} steps")
    return trajectory


def _tokens(sample: Sample) -> list[tuple[int, float]]:
    asked = [(token, 0.0) for token in sample.prompt]
    return [*asked, *zip(sample.response, sample.logprobs, strict=True)]


def _content(trajectory: Trajectory) -> dict[str, Any]:
    names = ("group", "sample", "task_id", "task_type", "task_text", "success", "score", "termination", "failure")
    return {
        **{name: getattr(trajectory, name) for name in names},
        "skill": trajectory.skill,
        "turns": [
            {
                "prompt": [turn.prompt.before, turn.prompt.task, turn.prompt.after, turn.prompt.turn],
                "asked": len(turn.prompt_ids),
                "answered": len(turn.response_ids),
                "observation": turn.observation,
                "action": turn.action,
                "valid": turn.valid,
                "invalid_reason": turn.invalid_reason,
                "admissible": turn.admissible,
                "reward": turn.reward,
            }
            for turn in trajectory.turns
        ],
    }


def put_logprobs(trajectories: Sequence[Trajectory], context: str, scores: Sequence[Tensor]) -> None:
    """Replace the turns' log-probs. scores: per row the log-probs [response tokens] under the policy that trains."""
    rows = iter(scores)
    for trajectory in trajectories:
        if not trajectory.turns:
            continue
        if context == "growing":
            found = next(rows).tolist()
            at = -len(trajectory.turns[0].prompt_ids)
            for turn in trajectory.turns:
                at += len(turn.prompt_ids)
                turn.old_logprobs = found[at : at + len(turn.response_ids)]
                at += len(turn.response_ids)
        else:
            for turn in trajectory.turns:
                turn.old_logprobs = next(rows).tolist()


# ------------------------------------------------------------------------------------------------------ what is learnt
TEACHER, SCORED = "harness_teacher_", "harness_scored_"  # + channel


def learning_fields(
    rows: Sequence[Row], batch: Batch, advantages: Tensor, reference: Tensor | None
) -> list[dict[str, Tensor]]:
    """Per row what the loss reads, each [response tokens] of the row's sample."""
    dense = {
        "old_log_probs": batch.old_logprobs,
        "advantages": advantages,
        "harness_step": batch.token_step,
        **({"ref_log_prob": reference} if reference is not None else {}),
        **{f"{TEACHER}{channel}": scores for channel, scores in batch.teacher.items()},
        **{f"{SCORED}{channel}": scored.to(torch.float32) for channel, scored in batch.teacher_mask.items()},
    }
    spans = [(row.positions[0], row.positions[-1] + 1) for row in rows]
    return [{name: dense[name][r, a:b].clone() for name in dense} for r, (a, b) in enumerate(spans)]


def empty_fields(like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The fields of a row of padding, which has one token."""
    return {
        name: torch.full((1,), -1) if name == "harness_step" else tensor.new_zeros(1) for name, tensor in like.items()
    }


# -------------------------------------------------------------------------------------------------------- mini-batches
PAD = -1


def arranged(sets: Sequence[Sequence[int]], lengths: Sequence[int], workers: int) -> tuple[list[int], int]:
    """The order in which rows go to data-parallel workers, and rows per worker and mini-batch.

    sets: rows of each mini-batch; lengths: tokens of each row. Worker w gets a contiguous share of the order, and of
    that share mini-batch k is the k-th part. PAD stands for a row that nothing is learnt from; every part has as many
    rows. Within a mini-batch long and short rows are dealt so that the workers get about the same number of tokens.
    """
    share = max(-(-len(rows) // workers) for rows in sets)
    parts: list[list[int]] = [[] for _ in range(workers)]
    for rows in sets:
        dealt: list[list[int]] = [[] for _ in range(workers)]
        loads = [0] * workers
        for row in sorted(rows, key=lambda r: (-lengths[r], r)):
            worker = min((w for w in range(workers) if len(dealt[w]) < share), key=lambda w: (loads[w], w))
            dealt[worker].append(row)
            loads[worker] += lengths[row]
        for worker, mine in enumerate(dealt):
            parts[worker].extend([*mine, *[PAD] * (share - len(mine))])
    return [row for part in parts for row in part], share
