"""Injection, analysis and routing of skills."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from methods_helpers import Message, trajectories, trajectory

from methods.interface import Analysis
from methods.skills import analyzer
from methods.skills.analyzer import AnalyzerContext, AnalyzerSpec, RulesAnalyzer, validate_analysis
from methods.skills.injection import PLACEMENTS, STYLES, fit, inject, is_blank
from methods.skills.routing import exchange_skills, route

WHOLE = Message()
PLAIN = WHOLE.before + WHOLE.task + WHOLE.after + WHOLE.turn


# ----------------------------------------------------------------------------------------------------------- injection
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("message", [WHOLE, Message("", "task", "", ""), Message(" a ", "", "\n\n", "\tb")])
def test_without_skill_the_message_is_byte_identical(style: str, message: Message) -> None:
    joined = message.before + message.task + message.after + message.turn
    assert inject(message, None, None, style).encode() == joined.encode()


def test_compact_strings_are_exact() -> None:
    found = inject(WHOLE, " find mug ", "take mug 1", "compact")
    assert found == (
        "You are in a room.\nYour task is to: put a mug on the desk.\nSkill: find mug\n\nYou see a mug.\n"
        "\nNow: take mug 1\nWhat do you do?"
    )
    assert inject(Message("", "t", "a", ""), None, "go", "compact") == "ta\nNow: go\n"


@pytest.mark.parametrize("style", STYLES)
def test_skills_only_add_text_at_their_places(style: str) -> None:
    found = inject(WHOLE, "EPISODE", "STEP", style)
    assert (
        found.replace(inject(Message("", "", "", ""), "EPISODE", None, style), "").replace(
            inject(Message("", "", "", ""), None, "STEP", style), ""
        )
        == PLAIN
    )
    head, tail = WHOLE.before + WHOLE.task, WHOLE.turn
    assert found.startswith(head) and found.endswith(tail)
    assert len(head) < found.index("EPISODE") < found.index(WHOLE.after.strip()) < found.index("STEP") < len(found)


def test_braces_in_a_skill_are_text() -> None:
    assert "\nSkill: use {0} and {text}\n" in inject(WHOLE, "use {0} and {text}", None)


INVISIBLE = ["\u200b\u200b", "\ufeff", "no\u200bne", "\u2060.\u00a0"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "\n",
        "None",
        " none. ",
        "null",
        "N/A",
        "[]",
        "string",
        '""',
        "---",
        "<text>",
        "Nothing.",
        "TBD",
        "No skill.",
        *INVISIBLE,
    ],
)
def test_blank_skills_are_errors_naming_the_task(text: str) -> None:
    assert is_blank(text)
    with pytest.raises(ValueError, match=r"episode skill .* is empty, for the task: Your task is to: put a mug"):
        inject(WHOLE, text, None)
    with pytest.raises(ValueError, match=r"step skill .* is empty, for the task: a follow-up message"):
        inject(Message("", "", "x", ""), None, text)


def test_real_skills_are_not_blank() -> None:
    assert not any(
        is_blank(t)
        for t in (
            "go",
            "none of the drawers holds it",
            "nullify",
            "take string 1",
            "\u53bb\u62ff\u676f\u5b50",
            "say nothing",
        )
    )
    assert is_blank(None) and is_blank(3)


def test_unknown_style_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'compact'"):
        inject(WHOLE, "go", None, "compakt")


def test_unknown_placement_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"method.skill.placement='frnt' is unknown; did you mean 'front'"):
        inject(WHOLE, "go", None, "compact", "frnt")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placement_moves_the_episode_skill_alone(style: str, placement: str) -> None:
    assert inject(WHOLE, None, None, style, placement) == PLAIN
    assert inject(WHOLE, None, "STEP", style, placement) == inject(WHOLE, None, "STEP", style)
    found = inject(WHOLE, "EPISODE", "STEP", style, placement)
    in_front = found.index("EPISODE") < found.index(WHOLE.before.strip())
    assert in_front == (placement == "front") and not found.startswith("\n")
    assert found.endswith(inject(Message("", "", WHOLE.after, WHOLE.turn), None, "STEP", style))


def test_front_is_exact() -> None:
    assert inject(Message("", "t", "a", "!"), "go", "now", "compact", "front") == "Skill: go\nta\nNow: now\n!"


# ------------------------------------------------------------------------------------------- messages that are too long
def words_of(text: str) -> int:
    return len(text.split())


LONG = Message(after="\n" + " ".join(f"word{i}" for i in range(100)) + "\n")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_message_that_fits_is_untouched_and_measured_once(style: str, placement: str) -> None:
    whole = inject(LONG, "EPISODE", "STEP", style, placement)
    asked: list[str] = []

    def measure(text: str) -> int:
        asked.append(text)
        return words_of(text)

    assert fit(LONG, "EPISODE", "STEP", style, placement, measure, words_of(whole)) == (whole, False)
    assert asked == [whole]
    fit(LONG, "EPISODE", "STEP", style, placement, measure, words_of(whole) - 1)
    assert len(asked) < 12  # a search by halves


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_what_is_cut_comes_out_of_the_middle_of_what_was_seen(placement: str) -> None:
    whole = inject(LONG, "EPISODE", "STEP", "compact", placement)
    text, cut = fit(LONG, "EPISODE", "STEP", "compact", placement, words_of, words_of(whole) - 10)
    assert cut and words_of(text) == words_of(whole) - 10  # as many words as fit
    kept = [int(n) for n in re.findall(r"word(\d+)", text)]
    assert kept == [*range(30), *range(40, 100)]
    assert "word29\nword40" in text and "word99\n\nNow: STEP\n" in text
    assert fit(LONG, "EPISODE", "STEP", "sections", placement, words_of, 90)[0].count("[... words left out ...]") == 1


def test_a_message_that_cannot_be_cut_enough_names_the_task() -> None:
    for message in (LONG, Message(after=""), Message(after=" \n ")):
        with pytest.raises(ValueError, match=r"cannot be cut to 5: .*top_k\. The task: Your task is to: put a mug"):
            fit(message, "a very long episode skill", None, "compact", "task", words_of, 5)
    with pytest.raises(ValueError, match="is empty, for the task"):
        fit(LONG, "None", None, "compact", "task", words_of, 500)


TEXTS = st.text(alphabet="ab \n\t[]\u00e9\u2003", max_size=60)
SKILLS = st.one_of(st.none(), st.sampled_from(["find mug", "take {text}\nthen go"]))


@given(
    st.tuples(TEXTS, TEXTS, TEXTS, TEXTS),
    SKILLS,
    SKILLS,
    st.sampled_from(STYLES),
    st.sampled_from(PLACEMENTS),
    st.integers(0, 400),
)
def test_only_words_of_the_observation_are_ever_lost(
    parts: tuple[str, str, str, str],
    episode: str | None,
    step: str | None,
    style: str,
    placement: str,
    budget: int,
) -> None:
    message = Message(*parts)
    whole = inject(message, episode, step, style, placement)
    try:
        text, cut = fit(message, episode, step, style, placement, len, budget)
    except ValueError:
        assert len(whole) > budget
        return
    assert len(text) <= budget and cut == (len(whole) > budget)
    if not cut:
        assert text == whole
    bare = inject(Message(message.before, message.task, "", message.turn), episode, step, style, placement)
    # the message is still head + something + tail, with head and tail whole
    split = len(inject(Message(message.before, message.task, "", ""), episode, None, style, placement))
    assert text.startswith(bare[:split]) and text.endswith(bare[split:])


# ------------------------------------------------------------------------------------------------------------ analyses
def test_good_answers_pass_unchanged_in_step_order() -> None:
    assert validate_analysis(" go ", {2: "b", 0: " a "}, 3, 5) == Analysis("go", {0: "a", 2: "b"}, 0)
    assert list(validate_analysis("go", {2: "b", 0: "a"}, 3, 5).step_skills) == [0, 2]  # type: ignore[union-attr]
    assert validate_analysis("go", {"1": "a"}, 3, 5) == Analysis("go", {1: "a"}, 0)
    assert validate_analysis("go", None, 3, 5) == Analysis("go", {}, 0)


@pytest.mark.parametrize(
    "steps",
    [{-1: "a"}, {3: "a"}, {"x": "a"}, {"-1": "a"}, {1.0: "a"}, {True: "a"}, {None: "a"}, {1: ""}, {1: "None"}, {1: 7}],
)
def test_unusable_step_skills_are_dropped_and_counted(steps: dict[Any, Any]) -> None:
    assert validate_analysis("go", steps, 3, 5) == Analysis("go", {}, 1)


def test_the_first_k_are_kept() -> None:
    assert validate_analysis("go", {9: "x", 4: "a", 1: "b", 2: "c"}, 5, 2) == Analysis("go", {1: "b", 4: "a"}, 2)
    assert validate_analysis("go", {1: "a", "1": "b"}, 5, 2) == Analysis("go", {1: "a"}, 1)
    assert validate_analysis("go", {1: "a"}, 5, 0) == Analysis("go", {}, 1)


@pytest.mark.parametrize("episode", ["", " ", "None", None, 3, ["go"]])
def test_answers_without_episode_skill_fail(episode: object) -> None:
    assert validate_analysis(episode, {1: "a"}, 3, 5) is None


def test_other_unusable_answers_fail() -> None:
    assert validate_analysis("go", ["a"], 3, 5) is None
    assert validate_analysis("go", {}, 0, 5) is None


def test_rules_see_the_trajectory_alone_and_are_deterministic() -> None:
    seen: list[Any] = []

    def hindsight(task: str, steps: Any, success: bool, most: int) -> tuple[str, dict[int, str]]:
        seen.append((task, steps, success, most))
        return ("" if task.endswith("1") else f"do {task}"), {1: "now", 99: "late"}

    played = trajectories(groups=2, size=1)
    rules = RulesAnalyzer(hindsight, 4)
    answers = rules.analyze(played).result()
    assert answers == [Analysis("do text of task 0", {1: "now"}, 1), None]
    assert answers == rules.analyze(played).result()
    expected = [("observation 0", "action 0", True), ("observation 1", "action 1", False)]
    assert seen[0][0] == "text of task 0" and seen[0][1][:2] == expected and seen[0][2:] == (True, 4)


def test_faults_in_the_rules_are_not_hidden() -> None:
    def hindsight(*_: Any) -> tuple[str, dict[int, str]]:
        raise KeyError("fridge")

    with pytest.raises(KeyError, match="fridge"):
        RulesAnalyzer(hindsight, 4).analyze(trajectories()).result()


def test_analyzer_registry() -> None:
    assert "rules" in analyzer.names() and analyzer.get("rules").needs == {"env:hindsight"}
    built = analyzer.build("rules", AnalyzerContext(2, lambda *_: ("go", {})))
    assert built.analyze(trajectories(1, 1)).result() == [Analysis("go", {})]
    with pytest.raises(ValueError, match=r"analyzer.name='rulez' is unknown; did you mean 'rules'"):
        analyzer.get("rulez")
    with pytest.raises(ValueError, match="capability hindsight"):
        analyzer.build("rules", AnalyzerContext(2))
    with pytest.raises(ValueError, match="'rules' exists already"):
        analyzer.register(AnalyzerSpec("rules", lambda _: built))


# ------------------------------------------------------------------------------------------------------------- routing
PLAYED = trajectories(groups=2, size=1, steps=4)
ANALYSES = {0: Analysis("E0", {1: "S1", 3: "S3"}), 1: None}


def shape(router: str, episode: bool = True, step: bool = True) -> list[tuple[str, tuple[int, ...], str | None]]:
    found = route(router, PLAYED, ANALYSES, episode, step)
    assert all(r.trajectory == 0 for r in found)  # a failed analysis is not scored
    for channel in ("episode", "step"):
        covered = [k for r in found if r.channel == channel for k in r.steps]
        assert len(covered) == len(set(covered))  # no step twice in a channel
    assert all((r.episode_skill is None) != (r.step_skill is None) for r in found)  # never both in one prompt
    assert all(len(r.steps) == 1 for r in found if r.step_skill is not None)
    return [(r.channel, r.steps, r.episode_skill or r.step_skill) for r in found]


STEP_REQUESTS = [("step", (1,), "S1"), ("step", (3,), "S3")]
ALL_EPISODE = ("episode", (0, 1, 2, 3), "E0")


def test_routers() -> None:
    assert shape("critical_first") == [("episode", (0, 2), "E0"), *STEP_REQUESTS]
    assert shape("random") == shape("critical_first")
    assert shape("episode_only") == [ALL_EPISODE]
    assert shape("step_only") == STEP_REQUESTS
    assert shape("additive") == [ALL_EPISODE, *STEP_REQUESTS]


def test_skills_without_weight_are_absent() -> None:
    assert shape("critical_first", step=False) == [ALL_EPISODE]
    assert shape("critical_first", episode=False) == STEP_REQUESTS
    assert shape("additive", step=False) == [ALL_EPISODE]
    assert shape("additive", episode=False) == STEP_REQUESTS
    assert shape("step_only", step=False) == [] == shape("episode_only", episode=False)


def test_all_steps_critical_leaves_no_episode_request() -> None:
    every = {0: Analysis("E", dict.fromkeys(range(4), "s"))}
    assert [r.channel for r in route("critical_first", PLAYED[:1], every, True, True)] == ["step"] * 4


def test_skills_for_steps_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"trajectory 0 \(task 0\) has skills for steps \[4\], but it has only 4"):
        route("critical_first", PLAYED, {0: Analysis("E", {4: "s"})}, True, True)


def made_up(groups: int, size: int) -> tuple[list[Any], dict[int, Analysis | None]]:
    played = trajectories(groups, size)
    return played, {t.index: Analysis(f"E{t.index}", {t.index % 3: f"S{t.index}"}) for t in played}


@pytest.mark.parametrize("step", range(1, 20))
def test_random_skills_come_from_another_task_and_keep_positions(step: int) -> None:
    played, analyses = made_up(3, 4)
    exchanged, missing = exchange_skills(played, analyses, 7, step)
    assert missing == 0 and sorted(exchanged) == sorted(analyses)
    for t in played:
        own, given = analyses[t.index], exchanged[t.index]
        assert own is not None and given is not None
        donor = int(given.episode_skill[1:])
        assert played[donor].group != t.group
        assert list(given.step_skills) == list(own.step_skills)
        assert list(given.step_skills.values()) == [f"S{donor}"]


def test_random_skills_depend_on_seed_and_step_alone() -> None:
    played, analyses = made_up(3, 4)
    assert exchange_skills(played, analyses, 7, 1) == exchange_skills(played, dict(reversed(analyses.items())), 7, 1)
    assert exchange_skills(played, analyses, 7, 1) != exchange_skills(played, analyses, 7, 2)
    assert exchange_skills(played, analyses, 7, 1) != exchange_skills(played, analyses, 8, 1)


def test_random_skills_are_the_same_in_another_process() -> None:
    """The draw must not depend on the interpreter's hash seed: a recorded answer."""
    played, analyses = made_up(3, 2)
    exchanged, _ = exchange_skills(played, analyses, 0, 1)
    assert [a.episode_skill for a in exchanged.values() if a] == RECORDED_DRAW


RECORDED_DRAW = ["E5", "E2", "E5", "E5", "E1", "E0"]


def test_random_skills_when_texts_are_few_or_none() -> None:
    played = trajectories(groups=3, size=1)
    own = Analysis("E0", {0: "a", 1: "b", 2: "c"})
    few, _ = exchange_skills(played[:2], {0: own, 1: Analysis("E1", {2: "y", 1: "x"})}, 0, 1)
    assert few[0] == Analysis("E1", {0: "x", 1: "y", 2: "x"})
    # the drawn donor may have none: then any other that has some; nobody has any: no step skills
    for step in range(1, 9):
        some, _ = exchange_skills(played, {0: own, 1: Analysis("E1", {}), 2: Analysis("E2", {0: "y"})}, 0, step)
        assert some[0] is not None and set(some[0].step_skills.values()) == {"y"}
    none, _ = exchange_skills(played, {0: own, 1: Analysis("E1", {}), 2: None}, 0, 1)
    assert none[0] == Analysis("E1", {}) and none[2] is None


def test_random_skills_without_donor() -> None:
    played = trajectories(groups=2, size=1)
    exchanged, missing = exchange_skills(played, {0: Analysis("E0", {}), 1: None}, 0, 1)
    assert exchanged == {0: None, 1: None} and missing == 1
    # the same task drawn twice is no other task
    twins = [trajectory(0, 0, task_id="same"), trajectory(1, 1, task_id="same"), trajectory(2, 2)]
    assert exchange_skills(twins, {0: Analysis("E0", {}), 1: Analysis("E1", {}), 2: None}, 0, 1)[1] == 2
    one = trajectories(groups=1)
    analyses = {t.index: Analysis(f"E{t.index}", {}) for t in one}
    assert exchange_skills(one, analyses, 0, 1) == (dict.fromkeys(analyses), len(one))
