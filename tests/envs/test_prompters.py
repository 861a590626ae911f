"""What holds for the prompters of all environments: no response breaks them, no history is no trouble."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import registry
from envs.interface import EnvConfig, Observation, ParsedAction, Prompter

STYLES = [("compact", "bare"), ("compact", "tagged"), ("full", "bare"), ("full", "tagged")]
NAMES = ("alfworld", "search_qa", "webshop")
# Letters of tags, those that only some ways of ignoring case take for them, and what tags are made of.
PIECES = ("<think>", "</think>", "<action>", "</action>", "<search>", "</search>", "<answer>", "</answer>", "search[")
ALIKE = ("<actıon>", "<actİon>", "<thİnK>", "<ſearch>", "ſEARCH[x]", "İ", "ı", "\u212a", "]", "\n", "\x85", " ", "x")
responses = st.one_of(st.text(), st.lists(st.sampled_from((*PIECES, *ALIKE)), max_size=12).map("".join))


def prompter(name: str, prompt: str, response: str, history: int = 2) -> Prompter:
    config = EnvConfig(name=name, prompt=prompt, response=response, history=history, max_steps=4)
    return registry.get(name).prompter(config)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("prompt", "style"), STYLES)
def test_no_response_breaks_a_parser(name: str, prompt: str, style: str) -> None:
    parser = prompter(name, prompt, style)

    @given(responses)
    def every(response: str) -> None:
        parsed = parser.parse(response)
        assert isinstance(parsed, ParsedAction) and parsed.valid == (parsed.reason is None)

    every()


@pytest.mark.parametrize("name", ("alfworld", "webshop"))
@pytest.mark.parametrize("tag", ("<actıon>go</action>", "<think>t</think><actİon>go</action>"))
def test_a_tag_with_another_letter_is_no_tag(name: str, tag: str) -> None:
    assert prompter(name, "full", "tagged").parse(f"{tag}<think>").reason == "missing_action_tag"
    good = f"İİİ<think>{'İ' * 9}</think><ACTION>look</action>"  # lower-casing these makes the text longer
    assert prompter(name, "full", "tagged").parse(good) == ParsedAction("look", True)


def test_a_search_with_another_letter_is_no_search() -> None:
    assert prompter("search_qa", "full", "tagged").parse("<think>t</think><ſearch>x</ſearch>").reason is not None
    assert prompter("search_qa", "full", "bare").parse("ſearch[x]").reason == "missing_action"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("prompt", "style"), STYLES)
@pytest.mark.parametrize("history", (0, 2))
def test_without_history_what_is_seen_now_stands_alone(name: str, prompt: str, style: str, history: int) -> None:
    """Asked for (env.history=0), or because the prompt was too long and all of it had to go."""
    asking = prompter(name, prompt, style, history)
    first, current = Observation("the beginning", "the task", ()), Observation("what is there now", "the task", ())
    past = [("the beginning", "one action"), ("middle", "another action")]
    texts = [asking.per_step(first, past if history == 0 else [], current, 2).text]
    texts.append(asking.per_step(first, [], current, 2).text)
    for text in texts:
        assert "the task" in text and "what is there now" in text and "action" not in text.partition("there now")[0]
