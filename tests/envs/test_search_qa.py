"""Search-QA: questions, panels, scoring, episodes and prompts."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter

import pytest

from envs.interface import EnvConfig, EnvironmentFailure, Task
from envs.panels import assert_disjoint
from envs.pool import EnvPool, OrderedPool
from envs.search_qa import corpus, tasks
from envs.search_qa.em import exact_match, normalise
from envs.search_qa.episode import SearchQa
from envs.search_qa.expert import Reader, entries, relation_of
from envs.search_qa.hindsight import compact_hindsight, full_hindsight, spoken, workflow
from envs.search_qa.naming import MOST_NAMES, Names
from envs.search_qa.prompts import make_prompter
from envs.search_qa.questions import KINDS, derive, embedded_questions
from envs.search_qa.settings import knobs_of
from envs.search_qa.spec import SPEC

pytest.importorskip("httpx")
CONFIG = EnvConfig(name="search_qa", engine="native", train_per_type=80, eval_per_type=40, max_steps=4, history=4)


def config(**changes: object) -> EnvConfig:
    return dataclasses.replace(CONFIG, **changes)


# --------------------------------------------------------------------------------------------------------------- score
@pytest.mark.parametrize(
    ("answer", "golden", "right"),
    [
        ("The Beatles", ["beatles"], True),
        ("beatles!", ["The Beatles"], True),
        ("  Paul   McCartney ", ["Paul McCartney"], True),
        ("Paul", ["Paul McCartney"], False),
        ("a", ["the"], False),  # both normalise to nothing: no answer is no answer
        ("", [""], False),
        ("1984", ["1984", "Nineteen Eighty-Four"], True),
        ("U.S.", ["us"], True),
        ("théâtre", ["theatre"], False),  # accents count, as in the published evaluation
    ],
)
def test_exact_match(answer: str, golden: list[str], right: bool) -> None:
    assert exact_match(answer, golden) is right


def test_normalisation_leaves_articles_inside_words() -> None:
    assert normalise("Theatre of an Anthem, the") == "theatre of anthem"


# ----------------------------------------------------------------------------------------------------------- questions
def test_every_answer_stands_in_the_last_passage_that_has_to_be_read() -> None:
    passages = {p.title: p for p in corpus.embedded()}
    for question in embedded_questions():
        contents = " ".join(passages[title].contents for title in question.hops).lower()
        assert any(answer.lower() in contents for answer in question.answers), question


def test_questions_do_not_depend_on_the_order_of_passages() -> None:
    shuffled = list(corpus.embedded())
    random.Random(0).shuffle(shuffled)
    assert Counter(q.kind for q in derive(sorted(shuffled, key=lambda p: int(p.id)))) == Counter(
        q.kind for q in embedded_questions()
    )
    assert {q.kind for q in embedded_questions()} == set(KINDS)


def test_no_article_is_asked_about_on_both_sides() -> None:
    sides = {side: {t for q in embedded_questions() if q.held_out == side for t in q.hops} for side in (False, True)}
    assert sides[True] and not sides[True] & sides[False]


def test_what_has_two_answers_is_not_asked() -> None:
    """Neither by itself nor on the way to something else, whichever article comes first."""

    def article(title: str, about: str, topic: str = "Places") -> corpus.Passage:
        return corpus.Passage(title, title, f"{about}. It is called {title}.", about, topic)

    articles = [
        article("Sanaa", "Capital of Yemen"),
        article("Aden", "Temporary capital of Yemen"),
        article("Lima", "Capital of Peru"),
        article("Socotra", "Island in Yemen"),
        article("Amazon", "River in Peru"),
        article("Mirror (film)", "1975 film by Andrei Tarkovsky"),
        article("Mirror (1999 film)", "1999 film by Somebody Else"),
        *(article(f"Poet{k}", f"Writer ({1200 + 9 * k}–{1260 + 9 * k})", "People") for k in range(40)),
        article("Andrei Tarkovsky", "Filmmaker (1932–1986)", "People"),
    ]
    for order in (articles, articles[::-1]):
        asked = {q.text for q in derive(order)}
        assert not [text for text in asked if ("Yemen" in text and "capital" in text) or "Socotra is in" in text]
        assert not [text for text in asked if "the film Mirror" in text]
        assert {"What is the capital of Peru?", "What is the capital of the country that Amazon is in?"} <= asked
    texts = [q.text for q in embedded_questions()]
    assert not [text for text in texts if "capital of Yemen" in text or "capital of South Africa" in text]


def test_passages_without_lives_are_refused() -> None:
    with pytest.raises(ValueError, match="is this the embedded corpus"):
        derive([corpus.Passage("0", "A", "text")])


# -------------------------------------------------------------------------------------------------------------- panels
def test_panels_are_complete_disjoint_and_stable() -> None:
    panels = {name: SPEC.load_panel(CONFIG, name) for name in tasks.PANELS}
    assert {name: len(panel.tasks) for name, panel in panels.items()} == {"train": 240, "validation": 12, "test": 120}
    assert_disjoint(panels["train"], panels["validation"], panels["test"])
    for panel in panels.values():
        assert len({Counter(t.type for t in panel.tasks)[kind] for kind in KINDS}) == 1
    assert panels["test"].hash == SPEC.load_panel(CONFIG, "test").hash
    assert panels["test"].hash != SPEC.load_panel(config(world_seed=1), "test").hash


def test_a_larger_panel_contains_the_smaller_one() -> None:
    small, large = (SPEC.load_panel(config(eval_per_type=n), "test") for n in (10, 20))
    assert {t.content_hash for t in small.tasks} < {t.content_hash for t in large.tasks}


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"eval_per_type": 5000}, "env.eval_per_type"), ({"train_per_type": 5000}, "env.train_per_type")],
)
def test_more_questions_than_there_are_is_an_error(changes: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SPEC.load_panel(config(**changes), "test")


def test_an_unknown_panel_is_named() -> None:
    with pytest.raises(ValueError, match="no panel 'seen'"):
        SPEC.load_panel(CONFIG, "seen")


def test_a_missing_package_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "PACKAGE", "no-such-package")
    with pytest.raises(FileNotFoundError, match=r"agentic-rl-harness\[search\]"):
        corpus.embedded_path()
    assert corpus.embedded_version().endswith("missing")


# ------------------------------------------------------------------------------------------------------------- episodes
def first_task(kind: str, given: EnvConfig = CONFIG) -> Task:
    return next(t for t in SPEC.load_panel(given, "test").tasks if t.type == kind)


def play(given: EnvConfig, task: Task) -> tuple[bool, int]:
    """The expert's episode: whether it was right, and its turns."""
    environment, prompter = SearchQa(given), SPEC.prompter(given)
    seen = environment.reset(task)
    reader = Reader(seen.task)
    for turn in range(1, given.max_steps + 1):
        action = reader.decide()
        if action is None:
            return False, turn - 1
        result = environment.step(prompter.parse(action).action)
        reader.observe(action, result.observation.text)
        if result.done:
            return result.success, turn
    raise AssertionError("the episode did not end")


@pytest.mark.parametrize("panel", ["test", "train", "validation"])
def test_the_expert_solves_nearly_every_panel(panel: str) -> None:
    played = [play(CONFIG, task) for task in SPEC.load_panel(CONFIG, panel).tasks]
    assert sum(right for right, _ in played) >= 0.95 * len(played)


def test_naive_reading_fails_where_two_searches_are_needed() -> None:
    environment = SearchQa(CONFIG)
    wrong = 0
    chosen = [t for t in SPEC.load_panel(CONFIG, "test").tasks if t.type == "wikilead-bridge"]
    for task in chosen:
        reader = Reader(environment.reset(task).task, naive=True)
        while (action := reader.decide()) is not None:
            result = environment.step(make_prompter(CONFIG).parse(action).action)
            reader.observe(action, result.observation.text)
            if result.done:
                break
        wrong += not result.success
    assert wrong >= 0.9 * len(chosen)


def test_an_episode_in_full_prompts() -> None:
    given = config(prompt="full")
    task = first_task("wikilead-1hop", given)
    question = tasks.question_of(given, task)
    environment = SearchQa(given)
    assert environment.reset(task).text == question.text
    found = environment.step(f"search[{question.names[0]}]")
    assert "Doc 1(Title: " in found.observation.text and not found.done and found.admissible
    stray = environment.step("sing a song")
    assert not stray.admissible and stray.observation.text.startswith("Nothing happens")
    right = environment.step(f"answer[{question.answers[0]}]")
    assert (right.reward, right.done, right.success, right.score) == (1.0, True, True, 1.0)
    with pytest.raises(RuntimeError, match="call reset"):
        environment.step("answer[x]")


def test_passages_as_json() -> None:
    given = config(prompt="full", knobs={"information": "json"})
    environment = SearchQa(given)
    environment.reset(first_task("wikilead-1hop", given))
    assert json.loads(environment.step("search[Paris]").observation.text)["result"].startswith("Doc 1: ")


def test_an_answer_inside_a_passage_does_not_count() -> None:
    environment = SearchQa(config(prompt="full"))
    task = first_task("wikilead-1hop")
    environment.reset(task)
    for turn in range(4):
        result = environment.step(f"search[{tasks.question_of(CONFIG, task).names[0]}]")
        assert result.reward == 0.0 and result.done == (turn == 3)


def test_a_changed_or_missing_question_is_an_environment_failure() -> None:
    environment, task = SearchQa(CONFIG), first_task("wikilead-1hop")
    with pytest.raises(EnvironmentFailure, match="has changed"):
        environment.reset(dataclasses.replace(task, content_hash="0" * 64))
    with pytest.raises(EnvironmentFailure, match="no question"):
        environment.reset(dataclasses.replace(task, location="wikilead-1hop/none"))


ADVERSARIAL = (
    "",
    "\x00\x01",
    "search[",
    "search[]",
    "answer[ ]",
    "search[search[x]]",
    "<search>x</search>",
    "é漢字🙂" * 500,
    "search[" + "x" * 100_000 + "]",
    "answer[name 99]",
    "search[name 0]",
)


@pytest.mark.parametrize("prompt", ["compact", "full"])
def test_adversarial_and_idle_policies_beside_experts(prompt: str) -> None:
    """200 episodes at once: nothing crashes, idle ones score 0, experts beside them still succeed."""
    given = config(prompt="compact") if prompt == "compact" else config(prompt="full")
    panel = SPEC.load_panel(given, "test").tasks
    chosen = [panel[i % len(panel)] for i in range(200)]
    pool = OrderedPool(EnvPool(SPEC.make, given, 0))
    prompter, rng = SPEC.prompter(given), random.Random(0)
    seen = pool.reset(chosen)
    readers = [Reader(o.task) for o in seen]  # type: ignore[union-attr]
    questions = [tasks.question_of(given, t) for t in chosen]
    live, success = list(range(200)), [False] * 200
    for _ in range(4):
        said = []
        for i in live:
            if i % 4 == 0:
                expert = readers[i].decide() if prompt == "compact" else f"answer[{questions[i].answers[0]}]"
                said.append(prompter.parse(str(expert)).action)
            elif i % 4 == 1:
                said.append("")
            else:
                said.append(
                    rng.choice(ADVERSARIAL) if i % 4 == 2 else "".join(chr(rng.randrange(1, 50000)) for _ in range(30))
                )
        results = pool.step(live, said)
        assert not any(isinstance(r, EnvironmentFailure) for r in results)
        for i, action, result in zip(live, said, results, strict=True):
            readers[i].observe(spoken(action), result.observation.text)  # type: ignore[union-attr]
            success[i] = result.success  # type: ignore[union-attr]
        live = [i for i, r in zip(live, results, strict=True) if not r.done]  # type: ignore[union-attr]
    assert not live
    assert (
        sum(success[0::4]) >= 0.95 * 50 and not any(success[1::4]) and not any(success[2::4]) and not any(success[3::4])
    )


def test_a_lock_step_asks_the_retriever_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from envs.search_qa import episode

    calls: list[int] = []
    real = episode.retriever_of(CONFIG)

    class Counting:
        def search(self, queries: list[str], k: int) -> object:
            calls.append(len(queries))
            return real.search(queries, k)

    monkeypatch.setattr(episode, "retriever_of", lambda config: Counting())
    pool = OrderedPool(EnvPool(SPEC.make, CONFIG, 0))
    chosen = SPEC.load_panel(CONFIG, "test").tasks[:20]
    pool.reset(chosen)
    pool.step(range(20), ["search[name 1]"] * 20)
    assert len(calls) == 1 and calls[0] <= 20


def test_what_is_fetched_at_once_is_what_each_would_fetch() -> None:
    chosen = SPEC.load_panel(CONFIG, "test").tasks[:12]
    pool = OrderedPool(EnvPool(SPEC.make, CONFIG, 0))
    pool.reset(chosen)
    together = pool.step(range(12), ["search[name 1]"] * 12)
    for task, result in zip(chosen, together, strict=True):
        alone = SearchQa(CONFIG)
        alone.reset(task)
        assert alone.step("search[name 1]") == result


# ---------------------------------------------------------------------------------------------------------------- names
def test_names_are_numbered_and_found_again() -> None:
    names = Names()
    assert names.passage("Candide", "1759 novella by Voltaire") == "name 1 : name 2 century 17 year 59 by name 3"
    assert names.of("the Candide!") == "name 1"
    assert names.resolve("capital of name 3") == "capital of Voltaire"
    assert names.resolve("name 9") == "name 9"
    assert names.of("Yasujirō") == names.of("Yasujiro")
    for k in range(MOST_NAMES):
        names.of(f"Thing {k}")
    assert names.of("One more") == "something"


def test_compact_texts_stay_in_the_closed_vocabulary() -> None:
    from harness.backbones.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(SPEC.lexicon(CONFIG))  # type: ignore[misc]
    environment, prompter = SearchQa(CONFIG), SPEC.prompter(CONFIG)
    for task in SPEC.load_panel(CONFIG, "test").tasks[:40]:
        opening = prompter.opening(environment.reset(task)).text
        shown = environment.step("search[name 1]").observation.text
        skill = SPEC.workflow(CONFIG)(task)  # type: ignore[misc]
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(f"{opening} {shown} {skill}")["input_ids"])
        assert "<unk>" not in tokens and len(tokens) < 150


# ----------------------------------------------------------------------------------------------------- prompts, parsing
@pytest.mark.parametrize(
    ("prompt", "response", "said", "action", "reason"),
    [
        ("compact", "bare", "search name 1", "search[name 1]", None),
        ("compact", "bare", "", "", "empty"),
        ("compact", "bare", "search", "search", "empty"),
        ("compact", "bare", "found it", "found it", "missing_action"),
        ("full", "bare", "Answer[Paris]", "answer[Paris]", None),
        ("full", "bare", "", "", "empty"),
        ("full", "bare", "Paris", "Paris", "missing_action"),
        ("full", "bare", "search[ ]", "search[ ]", "empty"),
        ("full", "tagged", "<think>t</think><search>q</search>", "search[q]", None),
        ("full", "tagged", "<think>t</think> <answer>a</answer>", "answer[a]", None),
        ("full", "tagged", "<search>q</search>", "search[q]", "missing_think_tag"),
        ("full", "tagged", "<search>q</search><think>t</think>", "search[q]", "tag_order"),
        ("full", "tagged", "<think>t</think><answer>a</answer><search>q</search>", "search[q]", "several_actions"),
        ("full", "tagged", "<think>t</think><search> </search>", "search[]", "empty"),
        ("full", "tagged", "no idea", "no idea", "missing_action_tag"),
    ],
)
def test_parsing(prompt: str, response: str, said: str, action: str, reason: str | None) -> None:
    parsed = make_prompter(config(prompt=prompt, response=response)).parse(said)
    assert (parsed.action, parsed.valid, parsed.reason) == (action, reason is None, reason)


@pytest.mark.parametrize(("key", "value"), [("prompt", "long"), ("response", "free")])
def test_unknown_styles_are_named(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"env.{key}='{value}'"):
        make_prompter(config(**{key: value}))


@pytest.mark.parametrize("prompt", ["compact", "full"])
def test_a_prompt_per_step_has_the_last_turns_and_no_more(prompt: str) -> None:
    given = config(prompt=prompt, history=1)
    environment = SearchQa(given)
    first = environment.reset(first_task("wikilead-compare", given))
    one = environment.step("search[Paris]").observation
    two = environment.step("search[Rome]").observation
    text = (
        make_prompter(given).per_step(first, [(first.text, "search[Paris]"), (one.text, "search[Rome]")], two, 2).text
    )
    assert "search[Rome]" in text and "search[Paris]" not in text and two.text in text and first.task in text


# --------------------------------------------------------------------------------------------------------------- skills
def test_every_relation_has_a_workflow_and_is_read_back() -> None:
    environment = SearchQa(CONFIG)
    for question in embedded_questions()[::7]:
        asked = environment.reset(tasks.task_of(question)).task
        assert relation_of(asked) == question.relation
        assert workflow(question.relation, ["name 1", "name 2"]).startswith("search ")
    assert relation_of("is it so") is None


def test_a_task_without_slots_has_no_workflow() -> None:
    with pytest.raises(KeyError, match="relation"):
        SPEC.workflow(CONFIG)(Task("x", "nq", "0"))  # type: ignore[misc]


def test_hindsight_finds_the_step_that_was_missed() -> None:
    asked = "capital of country of name 1"
    steps = [
        (asked, "search[name 1]", True),
        ("found name 1 : city in name 2 name 3", "answer[name 3]", True),
    ]
    episode, skills = compact_hindsight(asked, steps, False, 5)
    assert (
        episode
        == "search name 1, then search capital city of its country, then answer the capital ; do not answer before"
    )
    assert skills == {0: "search name 1", 1: "search capital city of name 3"}
    assert compact_hindsight(asked, steps, True, 1)[1] == {
        1: "search capital city of name 3"
    }  # what was missed comes first


def test_hindsight_in_ordinary_words() -> None:
    steps = [("q", "search[a]", True), ("p", "search[a]", True), ("p", "blah", False), ("p", "answer[x]", True)]
    episode, skills = full_hindsight("q", steps, False, 5)
    assert "search for each by itself" in episode and sorted(skills) == [1, 2, 3]
    assert '"a"' in full_hindsight("q", steps, True, 5)[0]
    assert "without searching" in full_hindsight("q", [("q", "answer[x]", True)], True, 5)[0]


def test_an_observation_without_passages_has_no_entries() -> None:
    assert entries("found nothing") == [] and entries("nothing happens") == []
    assert Reader("nonsense").decide() is None


# ------------------------------------------------------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"retriever": "lexcal"}, "env.knobs.retriever"),
        ({"topk": 0}, "env.knobs.topk"),
        ({"attempts": 0}, "env.knobs.attempts"),
        ({"timeout": 0.0}, "env.knobs.timeout"),
        ({"information": "xml"}, "env.knobs.information"),
        ({"retriever": "dense"}, "env.knobs.encoder"),
        ({"encoder": "x"}, "env.knobs.encoder"),
        ({"top_k": 3}, "did you mean 'topk'"),
    ],
)
def test_settings_that_make_no_sense_are_named(knobs: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        knobs_of(config(knobs=knobs))
