"""From trajectories to padded rows, and to the tensors that methods see.

A row is one token sequence with some of its tokens marked: one per episode in a growing context, one per environment
step with rebuilt prompts. Environment steps are numbered over the whole batch in order of (trajectory, step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.interface import Batch, Trajectory, Turn

PENALISE = ("format", "inadmissible")


@dataclass(frozen=True, slots=True)
class Row:
    """ids: the tokens; positions: indices in `ids` of the marked (response) tokens, ascending; steps: the
    environment step (0..S-1) of each marked token; logprobs: of the marked tokens under the rollout policy."""

    ids: list[int]
    positions: list[int]
    steps: list[int]
    logprobs: list[float]


def build_rows(trajectories: Sequence[Trajectory], context: str) -> list[Row]:
    """Training rows. Trajectories without turns (their first prompt did not fit) have none."""
    rows: list[Row] = []
    step = 0
    for trajectory in trajectories:
        if context == "growing":
            if trajectory.turns:
                rows.append(joined(trajectory.turns, step))
        else:
            rows.extend(joined([turn], step + k) for k, turn in enumerate(trajectory.turns))
        step += len(trajectory.turns)
    return rows


def joined(turns: Sequence[Turn], first_step: int) -> Row:
    """One row of consecutive turns; all their response tokens are marked."""
    row = Row([], [], [], [])
    for offset, turn in enumerate(turns):
        row.ids.extend(turn.prompt_ids)
        row.positions.extend(range(len(row.ids), len(row.ids) + len(turn.response_ids)))
        row.ids.extend(turn.response_ids)
        row.steps.extend([first_step + offset] * len(turn.response_ids))
        row.logprobs.extend(turn.old_logprobs)
    return row


def build_batch(
    trajectories: Sequence[Trajectory],
    rows: Sequence[Row],
    success_reward: float,
    invalid_penalty: float,
    penalise: str,
) -> Batch:
    """The method's view of `rows` (CPU tensors, padded to the longest row).

    returns: success_reward times the sum of a trajectory's rewards. penalise: `format` counts malformed responses,
    `inadmissible` also actions that the environment refused.
    """
    if penalise not in PENALISE:
        raise ValueError(f"training.penalise={penalise!r} is unknown; choose from {', '.join(PENALISE)}")
    height, width = len(rows), max((len(row.ids) for row in rows), default=0)
    mask = torch.zeros(height, width, dtype=torch.bool)
    old_logprobs = torch.zeros(height, width)
    token_step = torch.full((height, width), -1)
    # One assignment over all rows: thousands of small ones would cost more than the forward pass of a small model.
    where = (
        _long([r for r, row in enumerate(rows) for _ in row.positions]),
        _long([position for row in rows for position in row.positions]),
    )
    mask[where] = True
    old_logprobs[where] = torch.tensor([value for row in rows for value in row.logprobs])
    token_step[where] = _long([step for row in rows for step in row.steps])
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    return Batch(
        response_mask=mask,
        old_logprobs=old_logprobs,
        token_step=token_step,
        step_trajectory=_long([i for i, trajectory in enumerate(trajectories) for _ in trajectory.turns]),
        step_number=_long([k for trajectory in trajectories for k in range(len(trajectory.turns))]),
        step_invalid=torch.tensor(
            [not turn.valid or (penalise == "inadmissible" and not turn.admissible) for turn in turns],
            dtype=torch.bool,
        ),
        group=_long([trajectory.group for trajectory in trajectories]),
        returns=torch.tensor(
            [success_reward * sum(turn.reward for turn in trajectory.turns) for trajectory in trajectories],
            dtype=torch.float32,
        ),
        invalid_penalty=invalid_penalty,
        observations=tuple(turn.observation for turn in turns),
        step_reward=torch.tensor([success_reward * turn.reward for turn in turns], dtype=torch.float32),
    )


def select_rows(batch: Batch, rows: Tensor, width: int, device: torch.device) -> Batch:
    """The batch restricted to `rows` [r] and its first `width` columns, on `device`; steps and trajectories stay those
    of the whole batch."""

    def cut(tensor: Tensor) -> Tensor:
        return tensor[rows, :width].to(device)

    return Batch(
        response_mask=cut(batch.response_mask),
        old_logprobs=cut(batch.old_logprobs),
        token_step=cut(batch.token_step),
        step_trajectory=batch.step_trajectory.to(device),
        step_number=batch.step_number.to(device),
        step_invalid=batch.step_invalid.to(device),
        group=batch.group.to(device),
        returns=batch.returns.to(device),
        invalid_penalty=batch.invalid_penalty,
        observations=batch.observations,
        step_reward=None if batch.step_reward is None else batch.step_reward.to(device),
        teacher={name: cut(scores) for name, scores in batch.teacher.items()},
        teacher_mask={name: cut(scored) for name, scored in batch.teacher_mask.items()},
    )


def pad(sequences: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """[rows, longest] token ids, padded on the right."""
    width = max(len(ids) for ids in sequences)
    return torch.tensor([[*ids, *[pad_id] * (width - len(ids))] for ids in sequences])


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of rows of similar length, longest first, each set at most `max_tokens` padded tokens.

    A row that is longer than that is alone in its set. Longest first, so that memory peaks at once and not at the end.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    sets: list[list[int]] = []
    for index in order:
        if sets and (len(sets[-1]) + 1) * lengths[sets[-1][0]] <= max_tokens:
            sets[-1].append(index)
        else:
            sets.append([index])
    return sets


def _long(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.long)
