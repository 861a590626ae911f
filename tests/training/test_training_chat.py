"""Prompts are exactly what the chat template says, and responses are never encoded again."""

from __future__ import annotations

import pytest
from tiny_model import CHATML, make_tokenizer

from harness.training.chat import ChatFormat, ChatTemplateError

TRIMMING = CHATML.replace("m['content']", "(m['content'] | trim)")


def whole(tokenizer, *texts):
    """Token ids of a conversation rendered at once, up to the next response."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(rendered, add_special_tokens=False)


@pytest.mark.parametrize("template", [CHATML, TRIMMING])
def test_growing_context_equals_the_rendered_conversation(template):
    tokenizer = make_tokenizer(template)
    chat = ChatFormat(tokenizer)
    reply = tokenizer.encode("red", add_special_tokens=False)
    ids = [
        *chat.opening(" task: say red then blue.\n"),
        *reply,
        chat.eos_id,
        *chat.continuation("you said red. ", closed=True),
        *tokenizer.encode("blue", add_special_tokens=False),
        *chat.continuation("nothing happens.", closed=False),  # cut at the length limit: the template closes the turn
    ]
    texts = (" task: say red then blue.\n", "red", "you said red. ", "blue", "nothing happens.")
    assert ids == whole(tokenizer, *texts)


def test_a_template_that_changes_the_text_is_rendered_every_time():
    assert not ChatFormat(make_tokenizer(TRIMMING))._verbatim
    assert ChatFormat(make_tokenizer(CHATML))._verbatim


def test_callers_cannot_change_the_cache():
    chat = ChatFormat(make_tokenizer())
    chat.opening("say red").append(0)
    assert chat.opening("say red")[-1] != 0


def test_only_the_closing_end_of_turn_is_hidden():
    tokenizer = make_tokenizer()
    chat = ChatFormat(tokenizer)
    red = tokenizer.convert_tokens_to_ids("red")
    assert chat.response_text([red, chat.eos_id]) == "red"
    assert chat.response_text([red]) == "red"
    assert chat.response_text([chat.eos_id]) == ""
    assert "<|im_end|>" in chat.response_text([chat.eos_id, red])
    assert "<|im_start|>" in chat.response_text([tokenizer.convert_tokens_to_ids("<|im_start|>"), red])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chat_template": None}, "no chat template"),
        ({"eos_token": None}, "no eos_token"),
        ({"eos_token": "<|endoftext|>"}, "end-of-turn"),
        ({"chat_template": CHATML + "{{ messages[0]['content'] }}"}, "expected once"),
    ],
)
def test_unusable_tokenizers_are_refused(change, message):
    tokenizer = make_tokenizer()
    for name, value in change.items():
        setattr(tokenizer, name, value)
    with pytest.raises(ChatTemplateError, match=message):
        ChatFormat(tokenizer)


def test_an_end_of_turn_that_is_not_one_token_is_refused():
    tokenizer = make_tokenizer()
    chat = ChatFormat(tokenizer)
    chat.eos_id = tokenizer.convert_tokens_to_ids("red")
    with pytest.raises(ChatTemplateError, match="not encoded as one token"):
        chat.continuation("say red", closed=True)
