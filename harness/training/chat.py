"""Token ids of prompts, from any tokenizer with a chat template.

Responses are never decoded and encoded again: a growing context is the sampled ids followed by the ids that the
template puts between one response and the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

CACHED_TEXTS = 4096  # per kind of prompt; one entry is one prompt's ids
_FIRST, _REPLY, _NEXT = "FIRSTUSERTEXT", "ASSISTANTREPLY", "NEXTUSERTEXT"
_PROBE = "  two\n lines "


class ChatTemplateError(ValueError):
    """The chat template does something that a growing context cannot follow."""

    failure_class = "config"


class ChatFormat:
    """Prompts of one tokenizer.

    template_kwargs: passed to the template; the default switches the thinking block of Qwen3's template off, other
    templates ignore it. Raises ChatTemplateError for templates without a clear end-of-turn token.
    """

    def __init__(self, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self._kwargs = {"enable_thinking": False} if template_kwargs is None else dict(template_kwargs)
        if not getattr(tokenizer, "chat_template", None):
            raise ChatTemplateError(f"tokenizer {tokenizer.name_or_path!r} has no chat template; use an instruct model")
        if tokenizer.eos_token_id is None:
            raise ChatTemplateError(f"tokenizer {tokenizer.name_or_path!r} has no eos_token to end a turn with")
        self.eos_id = int(tokenizer.eos_token_id)
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
        self._opening_ends = _split(self._render(_user(_FIRST)), _FIRST)
        rendered = self._render([*_user(_FIRST), {"role": "assistant", "content": _REPLY}, *_user(_NEXT)])
        self._between, self._tail = _split(_split(rendered, _REPLY)[1], _NEXT)
        if not self._between.startswith(str(tokenizer.eos_token)):
            raise ChatTemplateError(
                f"the chat template ends a response with {self._between[:20]!r}, but the tokenizer's eos_token is "
                f"{tokenizer.eos_token!r}: set eos_token to the template's end-of-turn token"
            )
        # Most templates copy the text as it is; then joining strings replaces rendering (a hundred times cheaper).
        self._verbatim = (
            self._render(_user(_PROBE)) == self._opening_ends[0] + _PROBE + self._opening_ends[1]
            and self._rendered_continuation(_PROBE) == self._between + _PROBE + self._tail
        )
        self._opening = lru_cache(maxsize=CACHED_TEXTS)(self._opening_uncached)
        self._continuation = lru_cache(maxsize=CACHED_TEXTS)(self._continuation_uncached)

    def opening(self, text: str) -> list[int]:
        """Ids of a conversation's first user message with the generation prompt."""
        return list(self._opening(text))

    def continuation(self, text: str, closed: bool) -> list[int]:
        """Ids between a response and the next one: end of turn, user message `text`, generation prompt.

        closed: the response's last token is the end-of-turn token already, so the ids start after it.
        """
        ids = self._continuation(text)
        return list(ids[1:] if closed else ids)

    def response_text(self, ids: list[int]) -> str:
        """Text of a response without its end-of-turn token. Other special tokens stay visible: they are not format."""
        if ids and ids[-1] == self.eos_id:
            ids = ids[:-1]
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def vocabulary(self) -> dict[str, int]:
        """Token -> id."""
        return dict(self._tokenizer.get_vocab())

    def _opening_uncached(self, text: str) -> tuple[int, ...]:
        if self._verbatim:
            return self._encode(self._opening_ends[0] + text + self._opening_ends[1])
        return self._encode(self._render(_user(text)))

    def _continuation_uncached(self, text: str) -> tuple[int, ...]:
        rendered = self._between + text + self._tail if self._verbatim else self._rendered_continuation(text)
        # Encoded together with the end-of-turn token in front, so that no tokenizer adds a leading space after it.
        ids = self._encode(rendered)
        if not ids or ids[0] != self.eos_id:
            raise ChatTemplateError(f"the end-of-turn token is not encoded as one token at the start of {rendered!r}")
        return ids

    def _rendered_continuation(self, text: str) -> str:
        messages = [*_user(_FIRST), {"role": "assistant", "content": _REPLY}, *_user(text)]
        return self._render(messages).split(_REPLY, 1)[1]

    def _render(self, messages: list[dict[str, str]]) -> str:
        return str(
            self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **self._kwargs)
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _split(rendered: str, marker: str) -> tuple[str, str]:
    if rendered.count(marker) != 1:
        raise ChatTemplateError(f"the chat template writes a message {rendered.count(marker)} times, expected once")
    before, after = rendered.split(marker)
    return before, after
