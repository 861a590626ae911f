"""Log-probs of recorded responses without gradients: teachers (skills in the prompt), reference policy, old policy.

A teacher scores the very tokens that were sampled; only the prompt in front of them differs. In a growing context an
episode skill changes the opening and gives one row for all its steps; a step skill changes one message, so its row is
the episode cut at that step. With rebuilt prompts every step is a row of its own.

Rows of step skills repeat what stands before their step; those of one trajectory are packed into one (see packing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.training.batch import Row, micro_batches
from harness.training.chat import ChatFormat
from harness.training.forward import marked_logprobs
from harness.training.network import Network
from harness.training.packing import Branch, packed_length, packed_logprobs
from harness.training.truncation import fitted_opening
from methods.interface import Batch, TeacherRequest, Trajectory
from methods.skills.injection import inject


@dataclass(frozen=True, slots=True)
class TeacherStats:
    """tokens: read by the forward passes, shared beginnings once; rows: sequences scored; rescored: response tokens
    that got a score from them, once for all channels; unscored: response tokens beyond the backbone's last position;
    truncated: prompts that lost words of their observation, so that the skill fits."""

    tokens: int = 0
    rows: int = 0
    rescored: int = 0
    unscored: int = 0
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the scores of one step go: row and columns of the batch; from `positions` of the scored sequence."""

    channel: str
    row: int
    columns: list[int]
    positions: list[int]


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores of one channel, token by token."""

    rows: list[int]
    columns: list[int]
    values: list[float]

    def add(self, target: _Target, values: Sequence[float]) -> None:
        self.rows.extend([target.row] * len(target.columns))
        self.columns.extend(target.columns)
        self.values.extend(values)

    def dense(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """[R, T] log-probs, 0 where not scored, and where scored."""
        where = (torch.tensor(self.rows, dtype=torch.long), torch.tensor(self.columns, dtype=torch.long))
        logprobs, mask = torch.zeros_like(batch.old_logprobs), torch.zeros_like(batch.response_mask)
        logprobs[where] = torch.tensor(self.values, dtype=logprobs.dtype)
        mask[where] = True
        return logprobs, mask


@dataclass(frozen=True, slots=True)
class _Sequence:
    """ids: under the request's skills, cut at the backbone's last position; starts: of the response of each wanted step
    in them; is_student: prompts are the student's own; truncated: how many were shortened; leaves: how many of its
    first tokens are the trajectory's own (0 if its opening is another)."""

    ids: list[int]
    starts: dict[int, int]
    is_student: bool
    truncated: int
    leaves: int


class Scorer:
    """Scores rows in micro-batches of at most `micro_batch_tokens` padded tokens.

    context: growing | per_step; skill_style, placement: see methods.skills.injection; own_weights: this network is the
    one that sampled, so it need not score what it sampled under the same prompt.
    """

    def __init__(
        self,
        network: Network,
        chat: ChatFormat,
        context: str,
        temperature: float,
        micro_batch_tokens: int,
        skill_style: str = "compact",
        placement: str = "task",
        own_weights: bool = True,
    ) -> None:
        self.network, self.chat, self.growing = network, chat, context == "growing"
        self.temperature, self.micro_batch_tokens = temperature, micro_batch_tokens
        self.skill_style, self.placement, self.own_weights = skill_style, placement, own_weights

    @torch.inference_mode()
    def logprobs(self, ids: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> list[Tensor]:
        """Per row the log-probs [marked tokens] of ids[r][p], p in positions[r]; on the CPU."""
        scores: list[Tensor] = [torch.empty(0)] * len(ids)
        for chosen in micro_batches([len(row) for row in ids], self.micro_batch_tokens):
            marked = [positions[i] for i in chosen]
            flat = marked_logprobs(
                self.network,
                [ids[i] for i in chosen],
                marked,
                self.chat.pad_id,
                self.temperature,
                with_entropy=False,
            ).logprobs.cpu()
            for i, part in zip(chosen, torch.split(flat, [len(p) for p in marked]), strict=True):
                scores[i] = part
        return scores

    def batch_logprobs(self, rows: Sequence[Row], batch: Batch) -> Tensor:
        """[R, T] log-probs of the batch's own rows under this network's weights; 0 outside the response mask."""
        dense = torch.zeros_like(batch.old_logprobs)
        for r, scores in enumerate(self.logprobs([row.ids for row in rows], [row.positions for row in rows])):
            dense[r, rows[r].positions] = scores
        return dense

    def teacher(
        self,
        trajectories: Sequence[Trajectory],
        rows: Sequence[Row],
        requests: Sequence[TeacherRequest],
        batch: Batch,
    ) -> TeacherStats:
        """Fill `batch.teacher` and `batch.teacher_mask` with one entry per channel.

        rows: those of `batch`. Equal sequences are scored once. A teacher with the student's weights and prompts is
        the student: it gets the rollout's own log-probs, so that an empty skill gives a difference of exactly 0.
        Raises ValueError for a request that does not fit its trajectory, if a channel covers a step twice, and for a
        skill that leaves no room for the response.
        """
        places = _places(rows)
        first_steps = _first_steps(trajectories)
        scores = {request.channel: _Scores([], [], []) for request in requests}
        sequences: dict[tuple[int, ...], list[_Target]] = {}
        branches: dict[tuple[int, ...], tuple[int, int]] = {}  # sequence -> its trajectory, and where it leaves it
        covered: set[tuple[str, int]] = set()
        unscored = truncated = 0
        for request in requests:
            trajectory = _checked(request, trajectories)
            for steps in [request.steps] if self.growing else [(step,) for step in request.steps]:
                sequence = self._sequence(trajectory, request, steps)
                truncated += sequence.truncated
                for step, start in sequence.starts.items():
                    number = first_steps[request.trajectory] + step
                    if (request.channel, number) in covered:
                        raise ValueError(
                            f"channel {request.channel!r} scores step {step} of trajectory {request.trajectory} twice; "
                            "a method gives a step one skill per channel"
                        )
                    covered.add((request.channel, number))
                    row, columns, logprobs = places[number]
                    fitting = max(0, min(len(columns), len(sequence.ids) - start))
                    unscored += len(columns) - fitting
                    target = _Target(request.channel, row, columns[:fitting], list(range(start, start + fitting)))
                    if sequence.is_student:
                        scores[request.channel].add(target, logprobs[:fitting])
                    elif fitting:  # earlier turns that fill the backbone leave nothing to score
                        sequences.setdefault(tuple(sequence.ids), []).append(target)
                        if sequence.leaves:
                            branches[tuple(sequence.ids)] = (request.trajectory, sequence.leaves)
        tokens, rescored = self._score(sequences, branches, scores)
        for channel, found in scores.items():
            batch.teacher[channel], batch.teacher_mask[channel] = found.dense(batch)
        return TeacherStats(tokens, len(sequences), rescored, unscored, truncated)

    def _score(
        self,
        sequences: dict[tuple[int, ...], list[_Target]],
        branches: dict[tuple[int, ...], tuple[int, int]],
        scores: dict[str, _Scores],
    ) -> tuple[int, int]:
        """Returns how many tokens were read, and how many scored."""
        marks = {ids: sorted({p for t in targets for p in t.positions}) for ids, targets in sequences.items()}
        together: dict[int, list[tuple[int, ...]]] = {}
        for ids, (trajectory, _) in branches.items():
            together.setdefault(trajectory, []).append(ids)
        groups = [group for group in together.values() if len(group) > 1]
        packed = {ids for group in groups for ids in group}
        alone = [ids for ids in sequences if ids not in packed]
        found = dict(zip(alone, self.logprobs(alone, [marks[ids] for ids in alone]), strict=True))
        rows = [[Branch(ids, branches[ids][1], marks[ids]) for ids in group] for group in groups]
        values = packed_logprobs(self.network, rows, self.chat.pad_id, self.temperature, self.micro_batch_tokens)
        for group, of_group in zip(groups, values, strict=True):
            found.update(zip(group, of_group, strict=True))
        for ids, targets in sequences.items():
            known = dict(zip(marks[ids], found[ids].tolist(), strict=True))
            for target in targets:
                scores[target.channel].add(target, [known[position] for position in target.positions])
        return sum(map(len, alone)) + sum(map(packed_length, rows)), sum(map(len, marks.values()))

    def _sequence(self, trajectory: Trajectory, request: TeacherRequest, steps: Sequence[int]) -> _Sequence:
        ids: list[int] = []
        starts: dict[int, int] = {}
        is_student, truncated = self.own_weights, 0
        own, leaves = self.growing, 0  # whether all so far is the trajectory's own, and how long that was
        for number in range(0 if self.growing else min(steps), max(steps) + 1):
            turn = trajectory.turns[number]
            prompt_ids, cut = self._prompt(trajectory, number, request)
            truncated += cut
            is_student = is_student and prompt_ids == turn.prompt_ids
            if own and prompt_ids != turn.prompt_ids:
                own, leaves = False, len(ids)
            ids.extend(prompt_ids)
            if number in steps:
                starts[number] = len(ids)
            ids.extend(turn.response_ids)
        return _Sequence(ids[: self.network.max_positions], starts, is_student, truncated, leaves)

    def _prompt(self, trajectory: Trajectory, number: int, request: TeacherRequest) -> tuple[list[int], bool]:
        """Ids of a turn's prompt under the request's skills, and whether its observation was shortened for them."""
        turn = trajectory.turns[number]
        stands_alone = number == 0 or not self.growing
        episode_skill = request.episode_skill if stands_alone else None
        step_skill = request.step_skill if number in request.steps else None
        if episode_skill is None and step_skill is None:
            return turn.prompt_ids, False
        if stands_alone:
            # A skill that the policy itself was shown stays, unless the teacher has another in its place.
            shown = episode_skill if episode_skill is not None else trajectory.skill
            room = self.network.max_positions - len(turn.response_ids)
            _, prompt_ids, cut = fitted_opening(
                self.chat, turn.prompt, shown, step_skill, self.skill_style, self.placement, room
            )
            return prompt_ids, cut
        closed = trajectory.turns[number - 1].response_ids[-1] == self.chat.eos_id
        text = inject(turn.prompt, None, step_skill, self.skill_style, self.placement)
        return self.chat.continuation(text, closed), False


def _places(rows: Sequence[Row]) -> dict[int, tuple[int, list[int], list[float]]]:
    """Environment step of the batch -> (row, columns of its response tokens, their log-probs under the student)."""
    places: dict[int, tuple[int, list[int], list[float]]] = {}
    for r, row in enumerate(rows):
        for position, step, logprob in zip(row.positions, row.steps, row.logprobs, strict=True):
            _, columns, logprobs = places.setdefault(step, (r, [], []))
            columns.append(position)
            logprobs.append(logprob)
    return places


def _first_steps(trajectories: Sequence[Trajectory]) -> list[int]:
    """Number in the batch of each trajectory's first environment step."""
    numbers, total = [], 0
    for trajectory in trajectories:
        numbers.append(total)
        total += len(trajectory.turns)
    return numbers


def _checked(request: TeacherRequest, trajectories: Sequence[Trajectory]) -> Trajectory:
    if not 0 <= request.trajectory < len(trajectories):
        raise ValueError(f"teacher request for trajectory {request.trajectory} of {len(trajectories)}")
    trajectory = trajectories[request.trajectory]
    absent = [step for step in request.steps if not 0 <= step < len(trajectory.turns)]
    if absent or not request.steps:
        raise ValueError(
            f"teacher request ({request.channel}) for steps {list(request.steps)} of trajectory {request.trajectory}, "
            f"which has steps 0..{len(trajectory.turns) - 1}"
        )
    if request.step_skill is not None and len(request.steps) != 1:
        raise ValueError(
            f"teacher request ({request.channel}) with a step skill is for one step, not for {list(request.steps)}"
        )
    return trajectory
