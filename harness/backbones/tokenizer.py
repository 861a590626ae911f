"""Word-level tokenizer of the embedded backbones: a fast tokenizer with the chat template of the Qwen family.

`mug 1` is one token (copying names from the context is what a small model finds hardest), so are frequent phrases;
words that carry nothing get no token. The text that environments show is unchanged: all of this happens in the
tokenizer.
"""

from __future__ import annotations

import re
from typing import Any

from envs.interface import Lexicon

PAD, END, UNKNOWN = "<|endoftext|>", "<|im_end|>", "<unk>"
_ROLES = ("system", "user", "assistant")
# ChatML. The line breaks belong to the template and have no token of their own.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def vocabulary(lexicon: Lexicon) -> list[str]:
    """Tokens in id order."""
    specials = [PAD, END, UNKNOWN, *(f"<|im_start|>{role}" for role in _ROLES)]
    entities = [f"{kind} {k}" for kind, most in sorted(lexicon.entities.items()) for k in range(1, most + 1)]
    return list(dict.fromkeys([*specials, *lexicon.phrases, *lexicon.words, *entities]))


def token_parts(tokens: list[str]) -> list[tuple[str, int]]:
    """(type, number) of each token; number 0 for anything that is no entity. Embeddings share these parts."""
    parts = []
    for token in tokens:
        match = re.fullmatch(r"([a-z]+) (\d+)", token)
        parts.append((match.group(1), int(match.group(2))) if match else (token, 0))
    return parts


def build_tokenizer(lexicon: Lexicon) -> Any:
    """A transformers PreTrainedTokenizerFast."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = vocabulary(lexicon)
    core = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token=UNKNOWN))
    core.normalizer = normalizers.Lowercase()
    phrases = "|".join(re.escape(p) for p in sorted(lexicon.phrases, key=len, reverse=True))
    dropped = "|".join(sorted(lexicon.dropped))
    pattern = rf"\b[a-z]+ \d+\b|\b(?:{phrases})\b|\b(?!(?:{dropped})\b)[a-z']+"
    core.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    roles = [f"<|im_start|>{role}" for role in _ROLES]
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, END, UNKNOWN, *roles)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        additional_special_tokens=roles,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
