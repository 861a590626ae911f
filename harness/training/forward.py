"""Log-probs of marked tokens: the one forward pass that scoring and updating share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.training.batch import pad
from harness.training.losses import entropy
from harness.training.network import Network


@dataclass(frozen=True, slots=True)
class MarkedLogprobs:
    """logprobs, entropy [tokens]: natural logs at the sampling temperature, rows in order and positions ascending;
    row, position [tokens]: where each token stands."""

    logprobs: Tensor
    entropy: Tensor
    row: Tensor
    position: Tensor


def marked_logprobs(
    network: Network,
    ids: Sequence[Sequence[int]],
    positions: Sequence[Sequence[int]],
    pad_id: int,
    temperature: float,
    with_entropy: bool = True,
) -> MarkedLogprobs:
    """Differentiable log-probs of ids[r][p] for p in positions[r]. No position may be 0: nothing predicts it.

    with_entropy: whether to compute it; it is empty otherwise.

    The lm head is applied to the marked tokens only; with a large vocabulary it costs more than the layers.
    """
    device = network.device
    # The dtype is said because an empty list would make floats, which cannot index.
    row = torch.tensor([r for r, marked in enumerate(positions) for _ in marked], dtype=torch.long, device=device)
    position = torch.tensor([p for marked in positions for p in marked], dtype=torch.long, device=device)
    padded = pad(ids, pad_id).to(device)
    hidden = network.hidden(padded)[row, position - 1]
    log_distribution = torch.log_softmax(network.logits(hidden) / temperature, -1)
    logprobs = log_distribution.gather(-1, padded[row, position][:, None])[:, 0]
    spread = entropy(log_distribution) if with_entropy else logprobs.new_empty(0)
    return MarkedLogprobs(logprobs, spread, row, position)
