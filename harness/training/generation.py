"""Single messages answered by the policy, for an analyzer that is the policy itself."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from harness.training.chat import ChatFormat
from harness.training.network import Network
from harness.training.rollout import sample_tokens
from harness.training.streams import stream

_log = logging.getLogger(__name__)


class PolicyWriter:
    """Samples one response per message with the current weights of the network.

    What a message gets depends on (seed, step, its text, how often it was asked before in that step), not on the others
    of its batch. step: set by the training loop. prompt_tokens, response_tokens: since `take_tokens` was last called.
    """

    def __init__(
        self, network: Network, chat: ChatFormat, seed: int, temperature: float, max_tokens: int, batch: int
    ) -> None:
        self.network, self.chat, self.seed = network, chat, seed
        self.temperature, self.max_tokens, self.batch = temperature, max_tokens, batch
        self._step = 0
        self._asked: Counter[str] = Counter()
        self._tokens = (0, 0)

    def begin(self, step: int) -> None:
        """Training step `step` begins."""
        self._step = step
        self._asked.clear()

    def take_tokens(self) -> tuple[int, int]:
        """(prompt tokens, response tokens) since this was last asked."""
        taken, self._tokens = self._tokens, (0, 0)
        return taken

    def __call__(self, messages: Sequence[str]) -> list[str]:
        """Responses in order. A message that fills the backbone's positions gets an empty one, and a warning."""
        texts: list[str] = []
        for start in range(0, len(messages), self.batch):
            texts += self._answer(messages[start : start + self.batch])
        return texts

    @torch.inference_mode()
    def _answer(self, messages: Sequence[str]) -> list[str]:
        prompts = [self.chat.opening(message) for message in messages]
        room = [self.network.max_positions - len(prompt) for prompt in prompts]
        keys = [self._key(message) for message in messages]
        if long := [i for i, left in enumerate(room) if left < 1]:
            longest = max(len(prompts[i]) for i in long)
            _log.warning(
                "%d messages to the policy are longer than its %d positions (up to %d tokens): no answer",
                len(long),
                self.network.max_positions,
                longest,
            )
        responses: list[list[int]] = [[] for _ in messages]
        rows = [i for i, left in enumerate(room) if left >= 1]
        if not rows:
            return [""] * len(messages)
        generators = {i: stream(self.seed, "writer", self._step, *keys[i]) for i in rows}
        decoder = self.network.decoder(len(rows))
        logits = decoder.feed([prompts[i] for i in rows])
        while rows:
            uniforms = torch.from_numpy(np.array([generators[i].random() for i in rows]))
            tokens = sample_tokens(logits, uniforms, self.temperature)[0].tolist()
            for i, token in zip(rows, tokens, strict=True):
                responses[i].append(token)
            going = [
                k
                for k, i in enumerate(rows)
                if tokens[k] != self.chat.eos_id and len(responses[i]) < min(self.max_tokens, room[i])
            ]
            if not going:
                break
            if len(going) < len(rows):
                decoder.keep(going)
                rows = [rows[k] for k in going]
            logits = decoder.feed([[responses[i][-1]] for i in rows])
        asked, written = self._tokens
        fed = sum(len(prompt) for prompt, left in zip(prompts, room, strict=True) if left >= 1)
        self._tokens = (asked + fed, written + sum(map(len, responses)))
        return [self.chat.response_text(ids) for ids in responses]

    def _key(self, message: str) -> tuple[str, int]:
        name = hashlib.sha256(message.encode()).hexdigest()
        self._asked[name] += 1
        return name, self._asked[name]
