"""Behaviour cloning of an embedded backbone: a from-scratch Qwen3 model that plays a little and follows skills.

Muon for the hidden matrices, AdamW for embeddings and norms (several times fewer tokens than AdamW alone at this size).
While cloning, a token's vector is the sum of its own, its type's and its number's, so that `mug 5` profits from `mug
1`; afterwards the sums are written into an ordinary embedding table.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from envs.interface import Demonstration
from harness.backbones.tokenizer import END, PAD, token_parts
from harness.config import BackboneConfig
from methods.skills.injection import inject

SHARD = 2000  # demonstrations encoded at a time
ROWS_PER_STEP = 32
MUON_LR, ADAM_LR = 0.01, 5e-3
MUON_WEIGHT_DECAY = 0.1
WARMUP_STEPS = 30
EMBEDDING_STD = 0.1
Row = tuple[list[int], list[bool]]  # token ids, whether each is a target


def build_model(config: BackboneConfig, vocabulary_size: int, pad: int, end: int) -> Any:
    """Random Qwen3ForCausalLM of the configured size (transformers)."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(config.clone_seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary_size,
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            head_dim=config.hidden // config.heads,
            rope_theta=10000.0,
            max_position_embeddings=config.max_positions,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
            pad_token_id=pad,
            eos_token_id=end,
            bos_token_id=None,
        )
    )


def encode(tokenizer: Any, demonstration: Demonstration) -> Row:
    """Growing context of a demonstration; targets are the commands worth imitating, with their end-of-turn token."""
    messages = []
    for k, turn in enumerate(demonstration.turns):
        skill = demonstration.episode_skill if k == 0 else None
        messages.append({"role": "user", "content": inject(turn.prompt, skill, turn.step_skill, "compact")})
        messages.append({"role": "assistant", "content": turn.action})
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>assistant", END])
    targets, turn_index, speaking = [False] * len(ids), -1, False
    for position, token in enumerate(ids):
        if token == start:
            turn_index, speaking = turn_index + 1, True
        elif speaking:
            targets[position] = demonstration.turns[turn_index].imitate
            speaking = token != end
    return ids, targets


class SharedEmbedding(nn.Module):
    """[V, d] table as own + type + number parts."""

    kind: Tensor
    number: Tensor

    def __init__(self, tokens: list[str], width: int) -> None:
        super().__init__()
        parts = token_parts(tokens)
        kinds = {kind: i for i, kind in enumerate(dict.fromkeys(kind for kind, _ in parts))}
        self.register_buffer("kind", torch.tensor([kinds[k] for k, _ in parts]), persistent=False)
        self.register_buffer("number", torch.tensor([n for _, n in parts]), persistent=False)
        self.own = nn.Parameter(torch.randn(len(tokens), width) * EMBEDDING_STD * 0.3)
        self.kinds = nn.Parameter(torch.randn(len(kinds), width) * EMBEDDING_STD * 0.8)
        self.numbers = nn.Parameter(torch.randn(max(n for _, n in parts) + 1, width) * EMBEDDING_STD * 0.7)

    def table(self) -> Tensor:
        return self.own + self.kinds[self.kind] + self.numbers[self.number]


class Demonstrations:
    """`count` demonstrations, encoded shard by shard as they are needed, so that a short rebuild needs few of them."""

    def __init__(self, demonstrate: Callable[[int, int], Demonstration], tokenizer: Any, seed: int, count: int) -> None:
        if count < SHARD:
            raise ValueError(f"backbone.demos={count} is fewer than one shard of {SHARD}")
        self._demonstrate, self._tokenizer, self._seed = demonstrate, tokenizer, seed
        self._shards: list[list[Row]] = []
        self.count = count // SHARD  # shards

    def shard(self, k: int) -> list[Row]:
        while len(self._shards) <= k:
            first = len(self._shards) * SHARD
            self._shards.append(
                [encode(self._tokenizer, self._demonstrate(self._seed, i)) for i in range(first, first + SHARD)]
            )
        return self._shards[k]

    def batches(self, rng: random.Random) -> Iterator[list[Row]]:
        """Endless batches of rows of similar length, one shard after the other."""
        while True:
            for k in range(self.count):
                rows = self.shard(k)
                order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]) + rng.random() * 20)
                chunks = [order[i : i + ROWS_PER_STEP] for i in range(0, len(order) - ROWS_PER_STEP + 1, ROWS_PER_STEP)]
                rng.shuffle(chunks)
                for chunk in chunks:
                    yield [rows[i] for i in chunk]


def clone(
    model: Any,
    tokenizer: Any,
    demonstrations: Demonstrations,
    tokens: int,
    seed: int,
    progress: Callable[[int, float], None] | None = None,
    stop_after: int | None = None,
) -> None:
    """Trains on `tokens` unpadded tokens in place. Deterministic in `seed` on one thread.

    progress(tokens seen, smoothed loss in nats per target token) is called after each step.
    stop_after: end early, on the same path as the whole run (to check a rebuild).
    """
    torch.manual_seed(seed)
    rng = random.Random(f"clone|{seed}")
    pad = tokenizer.convert_tokens_to_ids(PAD)
    shared = SharedEmbedding(tokenizer.convert_ids_to_tokens(range(len(tokenizer))), model.config.hidden_size)
    body = model.model
    hidden = [p for n, p in body.named_parameters() if p.dim() == 2 and not n.startswith("embed_tokens")]
    others = [p for p in body.parameters() if p.dim() != 2] + list(shared.parameters())
    muon = torch.optim.Muon(hidden, lr=MUON_LR, weight_decay=MUON_WEIGHT_DECAY, momentum=0.95)
    adam = torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0)
    seen, step, loss_mean = 0, 0, float("nan")
    batches = demonstrations.batches(rng)
    model.train()
    while seen < min(tokens, stop_after or tokens):
        batch = next(batches)
        longest = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([r + [pad] * (longest - len(r)) for r, _ in batch])
        mask = torch.tensor([m + [False] * (longest - len(m)) for _, m in batch])
        table = shared.table()
        states = body(inputs_embeds=nn.functional.embedding(ids, table), use_cache=False).last_hidden_state
        row, column = mask[:, 1:].nonzero(as_tuple=True)
        logits = states[row, column] @ table.T
        loss = nn.functional.cross_entropy(logits, ids[row, column + 1])
        muon.zero_grad(set_to_none=True)
        adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([*hidden, *others], 1.0)
        scale = min(1.0, (step + 1) / WARMUP_STEPS) * max(0.02, min(1.0, 2 * (1 - seen / tokens)))
        muon.param_groups[0]["lr"], adam.param_groups[0]["lr"] = MUON_LR * scale, ADAM_LR * scale
        muon.step()
        adam.step()
        seen += sum(len(r) for r, _ in batch)
        step += 1
        loss_mean = loss.item() if step == 1 else 0.98 * loss_mean + 0.02 * loss.item()
        if progress:
            progress(seen, loss_mean)
    with torch.no_grad():
        body.embed_tokens.weight.copy_(shared.table())
    model.eval()
