"""A causal language model as the local engine sees it: hidden states, an lm head, and batched decoding.

Decoding uses the transformers model itself, without `generate()`. The key-value cache stores token p of a row in slot
p of that row, so rows of different length need no left padding, padding is overwritten by the next real token, and
forgetting a suffix (`rewind`) is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

CAPACITY_STEP = 64  # slots; the cache grows in multiples of this


class UnsupportedModelError(ValueError):
    """The model has something that the local engine would compute wrongly."""

    failure_class = "config"


def own_memory(model: torch.nn.Module) -> None:
    """Copy weights out of the file that they are mapped from.

    transformers maps safetensors files; if such a file is rewritten later, touching the weights kills the process
    (SIGBUS), long after it was loaded.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


class Network:
    """Wraps a transformers causal LM. Always in evaluation mode: dropout would make ratios of log-probs noise.

    model: AutoModelForCausalLM with full attention in every layer. Raises UnsupportedModelError otherwise, or if its
    logits are more than its lm head applied to its last hidden state (soft-capped or scaled logits).
    """

    def __init__(self, model: Any, device: str = "cpu") -> None:
        self.model = model.to(device).eval()
        self.device = torch.device(device)
        self.body = model.get_decoder()
        self.head = model.get_output_embeddings()
        config = model.config.get_text_config()
        self.max_positions = int(config.max_position_embeddings)
        self.layers = int(config.num_hidden_layers)
        other = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
        if other:
            raise UnsupportedModelError(
                f"{type(model).__name__} has layers of type {', '.join(other)}; the local engine computes full "
                "attention only: choose another backbone"
            )
        self._check_head()

    @torch.no_grad()
    def _check_head(self) -> None:
        ids = torch.zeros(1, 2, dtype=torch.long, device=self.device)
        if not torch.allclose(self.model(input_ids=ids).logits.float(), self.logits(self.hidden(ids)), atol=1e-3):
            raise UnsupportedModelError(
                f"logits of {type(self.model).__name__} are not its lm head applied to its hidden states; the local "
                "engine applies the head to selected positions only: choose another backbone"
            )

    def hidden(self, ids: Tensor) -> Tensor:
        """Last hidden states [rows, tokens, width] of right-padded `ids` [rows, tokens]; differentiable.

        No padding mask: attention is causal, so no token sees the padding to its right.
        """
        result: Tensor = self.body(input_ids=ids, use_cache=False).last_hidden_state
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [..., vocabulary]."""
        result: Tensor = self.head(hidden).float()
        return result

    def decoder(self, rows: int) -> Decoder:
        return Decoder(self, rows)


class Decoder:
    """Incremental forward passes over rows that share a key-value cache. Use under `torch.inference_mode()`."""

    def __init__(self, network: Network, rows: int) -> None:
        self.network = network
        self.lengths = torch.zeros(rows, dtype=torch.long, device=network.device)
        self._cache = _SlotCache(network.layers)

    def feed(self, new: Sequence[Sequence[int]]) -> Tensor:
        """Append new[r] to row r and return the float32 logits [rows, vocabulary] after each row's last new token.

        An empty new[r] leaves row r as it is; its logits are meaningless.
        """
        device = self.network.device
        counts = torch.tensor([len(tokens) for tokens in new], device=device)
        width = max(len(tokens) for tokens in new)
        ids = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in new], device=device)
        slots = self.lengths[:, None] + torch.arange(width, device=device)
        self.lengths = self.lengths + counts
        self._cache.place(slots, int(self.lengths.max()))
        # A query sees the slots up to its own position: all of them hold real tokens of its row.
        mask = torch.arange(self._cache.width, device=device) <= slots[:, None, :, None]
        hidden = self.network.body(
            input_ids=ids, attention_mask=mask, position_ids=slots, past_key_values=self._cache, use_cache=True
        ).last_hidden_state
        last = hidden[torch.arange(len(new), device=device), (counts - 1).clamp_(min=0)]
        return self.network.logits(last)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.network.device)
        self.lengths = self.lengths[index]
        self._cache.keep(index, int(self.lengths.max()) if len(rows) else 0)

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget all but the first lengths[r] tokens of each row."""
        self.lengths = torch.tensor(list(lengths), dtype=torch.long, device=self.network.device)


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values [rows, heads, capacity, width] of one layer."""

    is_sliding = False

    def __init__(self, owner: _SlotCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = key_states.new_zeros(*key_states.shape[:2], self.owner.capacity, key_states.shape[3])
        self.values = value_states.new_zeros(*value_states.shape[:2], self.owner.capacity, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner = self.owner
        missing = owner.capacity - self.keys.shape[2]
        if missing > 0:
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, missing))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, missing))
        self.keys[owner.rows, :, owner.slots] = key_states.transpose(1, 2)
        self.values[owner.rows, :, owner.slots] = value_states.transpose(1, 2)
        return self.keys[:, :, : owner.width], self.values[:, :, : owner.width]

    def keep(self, index: Tensor, width: int) -> None:
        if self.is_initialized:
            self.keys = self.keys[index, :, :width]
            self.values = self.values[index, :, :width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.width, 0

    def get_seq_length(self) -> int:
        return self.owner.width

    def get_max_cache_shape(self) -> int:
        return self.owner.capacity


class _SlotCache(Cache):  # type: ignore[misc]
    def __init__(self, layers: int) -> None:
        self.capacity = 0
        self.width = 0
        self.rows = torch.empty(0, dtype=torch.long)
        self.slots = torch.empty(0, dtype=torch.long)
        super().__init__(layers=[_SlotLayer(self) for _ in range(layers)])

    def place(self, slots: Tensor, width: int) -> None:
        """Where the next forward writes: slots [rows, tokens]; width: slots that attention reads."""
        self.slots, self.width = slots, width
        if slots.shape[0] != self.rows.shape[0]:
            self.rows = torch.arange(slots.shape[0], device=slots.device)[:, None]
        needed = int(slots.max()) + 1
        if needed > self.capacity:
            self.capacity = -(-max(needed, self.capacity * 5 // 4) // CAPACITY_STEP) * CAPACITY_STEP

    def keep(self, index: Tensor, width: int) -> None:
        self.capacity = min(self.capacity, width)
        for layer in self.layers:
            layer.keep(index, width)
