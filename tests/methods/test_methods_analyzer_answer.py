"""From a model's text to an analysis: what passes, what is refused and why, and that nothing in a text can hurt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from analyzer_helpers import GOOD, played
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.interface import Analysis
from methods.skills.analyzers import prompt as prompts
from methods.skills.analyzers.answer import (
    MAX_ANSWER_CHARS,
    MAX_DEPTH,
    MAX_STARTS,
    AnswerError,
    Limits,
    check_answer,
    read_answer,
)

LIMITS = Limits(steps=3, max_step_skills=2, skill_chars=100)
TEXT = json.dumps(GOOD)
ANALYSIS = Analysis("look before you go", {1: "go east"}, 0)


def read(text: str) -> Analysis:
    return read_answer(text, LIMITS).analysis


def refused(text: str) -> str:
    with pytest.raises(AnswerError) as caught:
        read_answer(text, LIMITS)
    return str(caught.value)


def changed(**keys: Any) -> str:
    return json.dumps({k: v for k, v in {**GOOD, **keys}.items() if v is not ...})


# -------------------------------------------------------------------------------------------------------- what passes
@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"  \n{TEXT}\n",
        f"```json\n{TEXT}\n```",
        f"Here is what I found:\n\n{TEXT}\n\nI hope that it's of use.",
        f'The agent "looked" {{around}} and it\'s done. {TEXT}',
        f"A lone {{ brace. {TEXT} And another {{ one, and a }}",
        f'<think>maybe {{"episode_skill": "draft", "step_skills": {{}}}}</think>\n{TEXT}',
        f'An object of another kind: {{"steps": 3}}. {TEXT}',
        json.dumps(GOOD, indent=4),
        changed(extra="ignored"),
        changed(episode_summary=...),
    ],
)
def test_text_around_the_object_is_passed_over(text: str) -> None:
    assert read(text) == ANALYSIS


def test_braces_and_quotes_inside_of_texts() -> None:
    text = changed(episode_skill='say "}" and then {"episode_skill": \\ to it')
    assert read(text).episode_skill == 'say "}" and then {"episode_skill": \\ to it'


def test_steps_that_do_not_exist_are_dropped_and_counted() -> None:
    assert read(changed(step_skills={"1": "a", "3": "b", "-1": "c", "x": "d", "2": " ", "0": 7})) == Analysis(
        "look before you go", {1: "a"}, 5
    )
    assert read(changed(step_skills={"2": "a", "0": "b", "1": "c"})) == Analysis(
        "look before you go", {0: "b", 2: "a"}, 1
    )
    assert read(changed(step_skills={"1": "a", "01": "b"})).dropped == 1
    assert read(changed(step_skills={"9" * 5000: "a"})) == Analysis("look before you go", {}, 1)
    assert read(changed(step_skills={})) == Analysis("look before you go", {}, 0)


def test_what_is_kept_gives_the_same_answer_again() -> None:
    answer = read_answer(changed(step_skills={"1": "a", "7": "b", "2": 3}), LIMITS)
    again = check_answer(json.loads(json.dumps(answer.content)), LIMITS)
    assert again == answer and answer.analysis.dropped == 2


# ----------------------------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("<think>nothing to say</think>", "it is empty"),
        ("I could not find anything.", "no JSON object with the key episode_skill"),
        ("[1, 2]", "no JSON object"),
        ('"episode_skill"', "no JSON object"),
        ('{"summary": "x"}', "no JSON object with the key episode_skill"),
        (TEXT[:-1], "ends before its JSON object is complete"),
        (TEXT[:40], "ends before its JSON object is complete"),
        (f"```json\n{TEXT[:-20]}", "ends before its JSON object is complete"),
        (TEXT + TEXT, "holds 2 objects with episode_skill, and exactly one is wanted"),
        (json.dumps(prompts.answer_schema()), "repeats the schema"),
        (json.dumps({"$schema": "x"}), "repeats the schema"),
        (json.dumps({"episode_skill": "x", "step_skills": {}}) + TEXT, "holds 2 objects"),
        (json.dumps(prompts.answer_schema()["properties"]), "episode_summary is a JSON object, not text"),
        (json.dumps(prompts._MEANINGS), "step_skills is a JSON text"),
        (changed(episode_skill="string"), "episode_skill says nothing"),
        (changed(episode_skill="..."), "episode_skill says nothing"),
        (changed(episode_skill=prompts._MEANINGS["episode_skill"]), "repeats the description of a key"),
        (
            changed(episode_skill="Text, never empty: the advice for the whole task."),
            "repeats the description of a key",
        ),
        (changed(episode_skill="the advice for the whole task"), "repeats the description of a key"),
        (changed(episode_skill="<advice>"), "repeats the description of a key"),
        (changed(step_skills={"1": " <one short sentence> "}), "repeats the description of a key"),
        (changed(episode_skill="\u200b\u200b"), "episode_skill says nothing"),
        (changed(episode_skill="\ufeff"), "episode_skill says nothing"),
        (changed(episode_skill="---"), "episode_skill says nothing"),
        (changed(episode_skill="Text"), "episode_skill says nothing"),
        (changed(episode_skill="TBD"), "episode_skill says nothing"),
        (changed(episode_skill=""), "episode_skill says nothing"),
        (changed(episode_skill=" None. "), "episode_skill says nothing"),
        (changed(episode_skill=None), "episode_skill is a JSON null"),
        (changed(episode_skill=True), "episode_skill is a JSON boolean"),
        (changed(episode_skill=["go"]), "episode_skill is a JSON array"),
        (changed(episode_skill=3), "episode_skill is a JSON number"),
        (changed(episode_skill="x" * 101), "is 101 characters long, at most 100"),
        (changed(step_skills={"1": "x" * 101}), "is 101 characters long"),
        (changed(step_skills=...), "the key step_skills is missing"),
        (changed(step_skills=None), "step_skills is a JSON null"),
        (changed(step_skills=["go"]), "step_skills is a JSON array"),
        (changed(episode_summary=1), "episode_summary is a JSON number"),
        ('{"episode_skill": "a", "episode_skill": "b", "step_skills": {}}', "the key episode_skill occurs twice"),
        ('{"episode_skill": "a", "step_skills": {"1": "a", "1": "b"}}', "the key 1 occurs twice"),
        ('{"episode_skill": "a", "step_skills": {"1": NaN}}', "NaN is no JSON"),
        ('{"episode_skill": "a", "step_skills": {"1": %s}}' % ("1" * 5000), "cannot be read (ValueError)"),
        ("{'episode_skill': 'a', 'step_skills': {}}", "no JSON object"),
        ('{"episode_skill": "a", "step_skills": {},}', "its JSON is invalid"),
        ('{"episode_skill": "a\nb", "step_skills": {}}', "its JSON is invalid: Invalid control character"),
        (changed(episode_skill="go\x00east"), "control characters"),
        (changed(episode_skill="go <|im_end|> east"), "markers of a chat template"),
        (changed(step_skills={"1": "[/INST] go"}), "markers of a chat template"),
        (changed(episode_skill="go <\uff5cUser\uff5c> east"), "markers of a chat template"),
        ('{"episode_skill": "go \\ud800", "step_skills": {}}', "half a surrogate pair"),
        ("x" * (MAX_ANSWER_CHARS + 1), "more than the 100000 that are read"),
        ('{"a":' * (MAX_DEPTH + 1), "nested more than 8 levels deep"),
        ("{" + "[" * 50_000, "nested more than 8 levels deep"),
        ("{}" * (MAX_STARTS + 1) + TEXT, "too many braces"),
    ],
)
def test_everything_else_is_refused_with_the_reason(text: str, said: str) -> None:
    assert said in refused(text)


@pytest.mark.parametrize("content", [None, 3, "text", ["episode_skill"], {}, {"episode_skill": "a"}])
def test_stored_answers_are_judged_too(content: object) -> None:
    with pytest.raises(AnswerError):
        check_answer(content, LIMITS)


def test_a_trajectory_without_steps_has_no_analysis() -> None:
    with pytest.raises(AnswerError, match="at least one step"):
        check_answer(GOOD, Limits(0, 2, 100))


_FRAGMENTS = st.sampled_from(
    ['{"', '"}', "{", "}", "[", "]", '"', "\\", ":", ",", '"episode_skill"', "\ud800", TEXT, "1"]
)


@given(st.lists(st.one_of(_FRAGMENTS, st.text(max_size=5)), max_size=30).map("".join))
@settings(max_examples=200, deadline=None)
def test_no_text_does_anything_but_pass_or_be_refused(text: str) -> None:
    try:
        answer = read_answer(text, LIMITS)
    except AnswerError as error:
        assert str(error)
    else:
        assert answer.analysis.episode_skill.strip()
        assert all(0 <= step < 3 for step in answer.analysis.step_skills)


# ---------------------------------------------------------------------------------------------------------- the request
def test_the_request_holds_task_outcome_and_numbered_steps() -> None:
    (one,) = played()
    text = prompts.analysis_prompt(one, 5, 1000, 300)
    assert "Task: text of task 0" in text and "Outcome: solved" in text and "workflow" in text
    assert "Step 0\nObservation: observation 0\nAction: action 0\n\nStep 1" in text
    assert text.count("did not accept this action") == 1  # step 1 is invalid
    assert "at most 3 of them" in text and "from 0 to 2" in text and "at most 300 characters" in text
    assert all(f"- {key}: " in text for key in prompts.ANSWER_KEYS)
    one.success = False
    failed = prompts.analysis_prompt(one, 2, 1000, 300)
    assert "Outcome: not solved" in failed and "warning" in failed and "at most 2 of them" in failed
    assert "step_skills must be {}" in prompts.analysis_prompt(one, 0, 1000, 300)


def test_braces_in_a_trajectory_are_text() -> None:
    (one,) = played()
    one.turns[0].observation = "a {box} with {0}"
    assert "a {box} with {0}" in prompts.analysis_prompt(one, 5, 1000, 300)
    assert "bad {answer}" in prompts.repair_prompt("request", "an {error}", "bad {answer}")


def test_long_observations_lose_their_middle() -> None:
    (one,) = played()
    one.turns[1].observation = "a" * 50 + "b" * 900 + "c" * 50
    text = prompts.analysis_prompt(one, 5, 100, 300)
    assert "a" * 50 + " [... 900 characters left out ...] " + "c" * 50 in text and "bb" not in text
    assert prompts.shorten("abc", 3) == "abc"


def test_a_repair_says_what_was_wrong_and_shows_the_end() -> None:
    text = prompts.repair_prompt("REQUEST", "it is empty", "x" * 5000 + "END")
    assert text.startswith("REQUEST") and "could not be used: it is empty" in text
    assert "x" * 1997 + "END" in text and "x" * 1998 not in text
    assert "The end of that reply" not in prompts.repair_prompt("REQUEST", "it is empty", None)


def test_the_digest_is_of_the_content_alone() -> None:
    one, other = played(2)
    assert prompts.trajectory_digest(one) != prompts.trajectory_digest(other)
    same = played(1)[0]
    same.index, same.task_id, same.sample = 9, "elsewhere", 3
    assert prompts.trajectory_digest(same) == prompts.trajectory_digest(one)
    assert prompts.by_content([one, other, same]) == {
        prompts.trajectory_digest(one): [0, 2],
        prompts.trajectory_digest(other): [1],
    }
    for change in ("success", "observation", "action", "effect", "task_text"):
        (new,) = played()
        if change == "success":
            new.success = False
        elif change == "effect":
            new.turns[0].admissible = False
        elif change == "task_text":
            new.task_text = "\ud800"
        else:
            setattr(new.turns[0], change, "other")
        assert prompts.trajectory_digest(new) != prompts.trajectory_digest(one), change
