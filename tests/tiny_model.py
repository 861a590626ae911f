"""A random Qwen3 of a few thousand parameters and a word-level ChatML tokenizer, for tests."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ("<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = (
    "user assistant system task say then red green blue you said nothing happens the room is quiet step saw did "
    "Skill: Now: . : , good try again"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer(chat_template: str = CHATML) -> PreTrainedTokenizerFast:
    words = ["\n", *dict.fromkeys(WORDS.split())]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*SPECIAL, *words])}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|[A-Za-z]+:|[A-Za-z]+|[.,:]"), "removed", invert=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def make_model(tokenizer: Any, seed: int = 0, hidden: int = 32, layers: int = 2, heads: int = 2) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.1,
    )
    return Qwen3ForCausalLM(config).eval()
