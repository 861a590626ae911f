"""Sampling for engine=verl on a CPU: the local engine's network and its sampling, one prompt at a time.

Imports nothing of verl, so that the server's process starts quickly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.training.network import Network
from harness.training.rollout import sample_tokens


@dataclass
class Sampled:
    """What verl's client expects of a server's answer."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str = "completed"
    num_preempted: int = 0
    extra_fields: dict[str, Any] = field(default_factory=dict)


class CpuServer:
    """One model that answers requests in the order in which they come. An actor of Ray wraps it."""

    def __init__(self, folder: str, eos_id: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        self.network = Network(model)
        self.eos_id = eos_id
        self.global_steps: int | None = None
        self._one_at_a_time = asyncio.Lock()

    # ------------------------------------------------------------------------- what verl's managers call, all of it
    async def wake_up(self, *given: Any, **named: Any) -> None:
        pass

    async def sleep(self, *given: Any, **named: Any) -> None:
        pass

    async def clear_kv_cache(self) -> None:
        pass

    async def release_kv_cache(self) -> None:
        pass

    async def resume_kv_cache(self) -> None:
        pass

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        pass

    async def resume_generation(self) -> None:
        pass

    async def set_global_steps(self, step: int | None) -> None:
        self.global_steps = step

    async def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over the trainer's weights. Raises ValueError for weights of another model."""
        _, unexpected = self.network.model.load_state_dict(dict(weights), strict=False)
        if unexpected:
            raise ValueError(f"weights of another model: {', '.join(sorted(unexpected)[:5])}")

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **named: Any
    ) -> Sampled:
        """sampling_params: temperature, max_tokens, and `uniforms`, one number in [0, 1) per token of the response."""
        async with self._one_at_a_time:
            tokens, logprobs = self._sample(list(prompt_ids), sampling_params)
        return Sampled(tokens, logprobs, extra_fields={"global_steps": self.global_steps})

    @torch.inference_mode()
    def _sample(self, prompt: list[int], wanted: Mapping[str, Any]) -> tuple[list[int], list[float]]:
        limit, temperature = int(wanted["max_tokens"]), float(wanted["temperature"])
        uniforms = torch.tensor(wanted["uniforms"], dtype=torch.float64)
        decoder = self.network.decoder(1)
        logits = decoder.feed([prompt])
        tokens: list[int] = []
        logprobs: list[float] = []
        for position in range(limit):
            drawn, logprob = sample_tokens(logits, uniforms[position : position + 1], temperature)
            tokens.append(int(drawn))
            logprobs.append(float(logprob))
            if tokens[-1] == self.eos_id:
                break
            if position < limit - 1:
                logits = decoder.feed([tokens[-1:]])
        return tokens, logprobs
