"""Messages answered by the policy: repeatable, independent of each other."""

from __future__ import annotations

import logging

import pytest
import torch
from training_helpers import chat, network, run_config, trainer

from harness.training.generation import PolicyWriter
from methods.skills.analyzer import AnalyzerContext, build
from methods.skills.analyzers.settings import AnalyzerConfig

MESSAGES = ["say red.", "say green then blue.", "the room is quiet. say blue.", "say red."]


def writer(seed=0, temperature=1.0, batch=8, max_tokens=12, net=None):
    made = PolicyWriter(net or network(), chat(), seed, temperature, max_tokens, batch)
    made.begin(1)
    return made


def test_answers_repeat_and_do_not_depend_on_the_batch():
    together = writer()(MESSAGES)
    assert together == writer()(MESSAGES) == writer(batch=1)(MESSAGES)
    assert together[0] != together[3]  # asked twice, answered twice
    alone = writer()
    assert [alone([message])[0] for message in MESSAGES] == together
    assert writer(seed=1)(MESSAGES) != together
    later = writer()
    later.begin(2)
    assert later(MESSAGES) != together
    later.begin(1)
    assert later(MESSAGES) == together
    assert writer()([]) == []


def test_the_most_likely_answer_is_that_of_plain_decoding():
    net, talk = network(), chat()
    [text] = writer(temperature=0, net=net, max_tokens=5)(["say red."])
    ids = talk.opening("say red.")
    start = len(ids)
    with torch.no_grad():
        while len(ids) < start + 5 and (len(ids) == start or ids[-1] != talk.eos_id):
            ids.append(int(net.logits(net.hidden(torch.tensor([ids])))[0, -1].argmax()))
    assert text == talk.response_text(ids[start:])


def test_tokens_are_counted_once():
    made = writer(max_tokens=4)
    made(MESSAGES)
    read, written = made.take_tokens()
    assert read == sum(len(chat().opening(message)) for message in MESSAGES) and 4 <= written <= 16
    assert made.take_tokens() == (0, 0)


def test_messages_that_fill_the_backbone_get_no_answer_and_a_warning(caplog):
    net = network()
    short = len(chat().opening("say red."))
    net.max_positions = short + 2
    made = writer(net=net, max_tokens=50)
    with caplog.at_level(logging.WARNING):
        texts = made(["say red.", "say red then green then blue. " * 5])
    assert texts[1] == "" and len(caplog.records) == 1
    assert "longer than its" in caplog.text
    assert made.take_tokens()[0] == short and made.take_tokens() == (0, 0)
    assert made(["say red. " * 50]) == [""]


@pytest.mark.parametrize("rate", [1.0])
def test_the_policy_analyses_its_own_trajectories(rate):
    """A random policy writes no analysis; that it was asked is seen in what it cost."""
    config = run_config("opid")
    config.method.skill.max_failure_rate = rate
    net = network()
    net.max_positions = 100000
    made_writer = writer(net=net, max_tokens=3)
    context = AnalyzerContext(2, config=AnalyzerConfig(name="policy"), generate=made_writer, max_failure_rate=rate)
    analyzer = build("policy", context)
    made = trainer(config, network=net, writer=made_writer, usage=analyzer.usage)
    made.method.context = type(made.method.context)(3, 0, analyzer.analyze)
    metrics = made.step(1)[0]
    assert metrics["cost/analyzer_calls"] >= 12 and metrics["cost/analyzer_prompt_tokens"] > 100
    assert metrics["cost/analyzer_completion_tokens"] > 0 and metrics["method/analysis_failures"] == 12
