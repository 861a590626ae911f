"""Packed rows give the log-probs of the separate texts."""

from __future__ import annotations

import pytest
import torch
from training_helpers import chat, network

from harness.training.forward import marked_logprobs
from harness.training.packing import Branch, packed_logprobs

PAD = chat().pad_id


def texts(seed: int) -> list[list[Branch]]:
    """Two groups: branches that leave at different places, one right at the end, one that marks several tokens."""
    generator = torch.Generator().manual_seed(seed)

    def words(count: int) -> list[int]:
        return torch.randint(0, 20, (count,), generator=generator).tolist()

    base, other = words(17), words(5)
    return [
        [
            Branch([*base[:4], *words(5)], 4, [7, 8]),
            Branch([*base[:11], *words(3)], 11, [13]),
            Branch([*base, *words(6)], 17, [18, 20, 22]),
        ],
        [Branch([*other, *words(4)], 5, [6, 7, 8]), Branch([*other[:1], *words(2)], 1, [2])],
    ]


@pytest.mark.parametrize("tokens", [1, 40, 10_000])
def test_packed_texts_score_as_they_do_apart(tokens: int) -> None:
    made, groups = network(3), texts(0)
    packed = packed_logprobs(made, groups, PAD, 0.7, tokens)
    for group, found in zip(groups, packed, strict=True):
        for branch, values in zip(group, found, strict=True):
            with torch.no_grad():
                alone = marked_logprobs(made, [branch.ids], [branch.marked], PAD, 0.7).logprobs
            assert torch.allclose(values, alone, atol=1e-5) and len(values) == len(branch.marked)


def test_a_branch_sees_nothing_of_the_others() -> None:
    made, (group, _) = network(3), texts(1)
    before = packed_logprobs(made, [group], PAD, 1.0, 1000)[0][2]
    changed = [Branch([*group[0].ids[:4], 1, 1, 1, 1, 1], 4, [7, 8]), *group[1:]]
    after = packed_logprobs(made, [changed], PAD, 1.0, 1000)[0][2]
    assert torch.equal(before, after)


def test_texts_that_do_not_begin_alike_are_refused() -> None:
    with pytest.raises(ValueError, match="do not begin alike"):
        packed_logprobs(network(), [[Branch([1, 2, 3, 4], 2, [3]), Branch([5, 4], 1, [1])]], PAD, 1.0, 100)
