"""Cached decoding gives what a whole forward pass gives."""

from __future__ import annotations

import pytest
import torch
from tiny_model import make_model
from training_helpers import TOKENIZER, network

from harness.training.network import Network, UnsupportedModelError


def full_logits(net, ids):
    with torch.no_grad():
        return net.logits(net.hidden(torch.tensor([ids])))[0, -1]


@torch.inference_mode()
def test_feeding_in_pieces_equals_one_pass():
    net, rng = network(), torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 30, (n,), generator=rng).tolist() for n in (3, 17, 9)]
    decoder = net.decoder(3)
    logits = decoder.feed(rows)
    for _ in range(30):  # beyond one step of the cache's capacity
        new = [torch.randint(0, 30, (n,), generator=rng).tolist() for n in (1, 4, 7)]
        logits = decoder.feed(new)
        rows = [row + more for row, more in zip(rows, new, strict=True)]
    for row, result in zip(rows, logits, strict=True):
        torch.testing.assert_close(result, full_logits(net, row), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_idle_rows_dropped_rows_and_forgotten_suffixes():
    net = network()
    decoder = net.decoder(3)
    decoder.feed([[1, 2, 3], [4, 5], [6, 7, 8, 9]])
    decoder.feed([[10], [], [11]])  # row 1 idles: what is written behind its end must never be seen
    decoder.feed([[], [12, 13, 14], []])
    decoder.keep([1, 2])
    logits = decoder.feed([[15], [16]])
    torch.testing.assert_close(logits[0], full_logits(net, [4, 5, 12, 13, 14, 15]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[1], full_logits(net, [6, 7, 8, 9, 11, 16]), atol=1e-5, rtol=1e-5)
    decoder.rewind([2, 3])
    logits = decoder.feed([[20], [21, 22]])
    torch.testing.assert_close(logits[0], full_logits(net, [4, 5, 20]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[1], full_logits(net, [6, 7, 8, 21, 22]), atol=1e-5, rtol=1e-5)


def test_padding_does_not_change_hidden_states():
    net = network()
    with torch.no_grad():
        alone = net.hidden(torch.tensor([[1, 2, 3]]))
        padded = net.hidden(torch.tensor([[1, 2, 3, 0, 0], [5, 6, 7, 8, 9]]))
    torch.testing.assert_close(alone[0], padded[0, :3], atol=1e-6, rtol=1e-6)


def test_models_that_would_be_computed_wrongly_are_refused():
    model = make_model(TOKENIZER)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(UnsupportedModelError, match="sliding_attention"):
        Network(model)

    class Scaled(type(model)):
        def forward(self, *args, **kwargs):
            result = super().forward(*args, **kwargs)
            result.logits = result.logits * 2
            return result

    model = make_model(TOKENIZER)
    model.__class__ = Scaled
    with pytest.raises(UnsupportedModelError, match="lm head"):
        Network(model)
