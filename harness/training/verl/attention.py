"""Which attention a job of engine=verl computes with, and what follows from it. Imports nothing heavy."""

from __future__ import annotations

import importlib.util

from harness.config import RunConfig
from harness.errors import ConfigError, Problem
from harness.training.verl.cost import VOCABULARY
from harness.training.verl.sizes import NOT_SPREAD, row_fill, sizes_of

FLASH = "flash_attention_2"
# Without flash-attn verl's log-probs (verl.utils.torch_functional.logprobs_from_logits_v2, under autocast) hold the
# logits in 2 bytes, their log-softmax in 4 and the gradient in 2. With it the gradient takes the place of the logits.
BYTES_PER_LOGIT = 8
ROOM = 20e9  # bytes that this may take before it is worth a word: a quarter of a GPU of 80 GB


def attention(config: RunConfig) -> str:
    """The attention that this process can load. `auto`: flash_attention_2 where flash_attn is there, on a GPU."""
    wanted = config.verl.attn_implementation
    if wanted != "auto":
        return wanted
    return FLASH if _on_gpu(config) and importlib.util.find_spec("flash_attn") is not None else "sdpa"


def refuse_spread_rows(config: RunConfig) -> None:
    """What `auto` comes to is known in the job only. Raises ConfigError where rows are spread over GPUs and the
    attention of this process would see each GPU's part of a row alone."""
    if config.verl.sequence_parallel > 1 and attention(config) != FLASH:
        given = config.verl.attn_implementation
        fix = f"comes to {attention(config)} here, because flash_attn cannot be imported: {NOT_SPREAD}"
        raise ConfigError(Problem("verl.attn_implementation", given, "", fix))


def memory_note(config: RunConfig) -> str | None:
    """What to set where log-probs are computed without flash-attn and their budget of tokens may not fit; None where
    nothing is to be said. The vocabulary is taken to be Qwen's."""
    sizes = sizes_of(config)
    taken = sizes.update_tokens * VOCABULARY * BYTES_PER_LOGIT
    if not config.method.trains or not _on_gpu(config) or attention(config) == FLASH or taken <= ROOM:
        return None
    rows = max(1, int(ROOM / (VOCABULARY * BYTES_PER_LOGIT * row_fill(sizes.longest))))
    return (
        f"verl.attn_implementation={config.verl.attn_implementation} comes to {attention(config)} here: without "
        f"flash-attn the logits of {sizes.update_tokens:,} tokens and what their gradient needs take about "
        f"{taken / 1e9:.0f} GB of each GPU; install flash-attn, or set verl.micro_batch={rows}"
    )


def _on_gpu(config: RunConfig) -> bool:
    return config.runtime.device.partition(":")[0] != "cpu"
