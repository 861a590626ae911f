"""Several continuations of one text in one row: what they share is read once.

A row holds a base text and branches; each branch continues the base from one of its positions. A token of a branch
sees the base up to where the branch leaves it, and its own branch up to itself; its position is that in the unpacked
text. So the hidden states are those of the separate texts, up to the rounding of other matrix shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.training.batch import micro_batches, pad
from harness.training.network import Network


@dataclass(frozen=True, slots=True)
class Branch:
    """ids: the whole text; leaves: how many of its first tokens are the base's; marked: positions in `ids` to score,
    none of them before `leaves` + 1."""

    ids: Sequence[int]
    leaves: int
    marked: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Packed:
    ids: list[int]
    positions: list[int]
    segment: list[int]  # 0: base; k: branch k
    limit: list[int]  # base tokens before this index are seen (a token of the base sees those before itself)
    marked: list[int]  # packed indices, branch by branch


def packed_length(group: Sequence[Branch]) -> int:
    """Tokens of the group's row."""
    return max(branch.leaves for branch in group) + sum(len(branch.ids) - branch.leaves for branch in group)


def packed_logprobs(
    network: Network, groups: Sequence[Sequence[Branch]], pad_id: int, temperature: float, micro_batch_tokens: int
) -> list[list[Tensor]]:
    """Per group and branch the log-probs [marked tokens] at the sampling temperature; on the CPU, without gradient.

    The branches of a group leave one text: the longest of their shared beginnings starts with each of the others'.
    Raises ValueError if they do not.
    """
    rows = [_pack(group) for group in groups]
    found: list[list[Tensor]] = [[] for _ in groups]
    for chosen in micro_batches([len(row.ids) for row in rows], micro_batch_tokens):
        flat = _forward(network, [rows[i] for i in chosen], pad_id, temperature)
        sizes = [len(branch.marked) for i in chosen for branch in groups[i]]
        parts = iter(torch.split(flat, sizes))
        for i in chosen:
            found[i] = [next(parts) for _ in groups[i]]
    return found


def _pack(group: Sequence[Branch]) -> _Packed:
    longest = max(group, key=lambda branch: branch.leaves)
    base = list(longest.ids[: longest.leaves])
    packed = _Packed(list(base), list(range(len(base))), [0] * len(base), [0] * len(base), [])
    for number, branch in enumerate(group, start=1):
        if list(branch.ids[: branch.leaves]) != base[: branch.leaves]:
            raise ValueError("the texts of a packed row do not begin alike")
        offset = len(packed.ids) - branch.leaves
        rest = branch.ids[branch.leaves :]
        packed.ids.extend(rest)
        packed.positions.extend(range(branch.leaves, len(branch.ids)))
        packed.segment.extend([number] * len(rest))
        packed.limit.extend([branch.leaves] * len(rest))
        packed.marked.extend(position + offset for position in branch.marked)
    return packed


@torch.inference_mode()
def _forward(network: Network, rows: Sequence[_Packed], pad_id: int, temperature: float) -> Tensor:
    """[marked tokens of all rows] log-probs."""
    device = network.device
    ids = pad([row.ids for row in rows], pad_id).to(device)
    positions = pad([row.positions for row in rows], 0).to(device)
    segment = pad([row.segment for row in rows], -1).to(device)
    limit = pad([row.limit for row in rows], 0).to(device)
    order = torch.arange(ids.shape[1], device=device)
    own = (segment[:, :, None] == segment[:, None, :]) & (order[None, :] <= order[:, None])
    shared = (segment[:, None, :] == 0) & (order < limit[:, :, None])
    # As numbers to add: attention on a CPU takes half as long again with truth values (measured).
    dtype = network.body.get_input_embeddings().weight.dtype
    mask = torch.zeros(own.shape, dtype=dtype, device=device).masked_fill_(~(own | shared), torch.finfo(dtype).min)
    hidden = network.body(
        input_ids=ids, attention_mask=mask[:, None], position_ids=positions, use_cache=False
    ).last_hidden_state
    row = torch.tensor([r for r, packed in enumerate(rows) for _ in packed.marked], dtype=torch.long, device=device)
    column = torch.tensor([p for packed in rows for p in packed.marked], dtype=torch.long, device=device)
    distribution = torch.log_softmax(network.logits(hidden[row, column - 1]) / temperature, -1)
    return distribution.gather(-1, ids[row, column][:, None])[:, 0].cpu()
