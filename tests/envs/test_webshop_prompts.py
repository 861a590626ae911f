"""What policies read and how their answers are read: prompts, parser, pages read back, hindsight, vocabulary."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from webshop_helpers import config, product, shop_expert, succeeded, visit

from envs.interface import EnvConfig, Observation, Task
from envs.webshop import pages, reading, spec
from envs.webshop.demos import make_demonstrations
from envs.webshop.expert import Expert, Memory
from envs.webshop.hindsight import make_hindsight
from envs.webshop.lexicon import lexicon
from envs.webshop.library import skill_for
from envs.webshop.prompts import WebshopPrompter, make_prompter, parse_tagged, shorten, shorten_task
from envs.webshop.reading import read_instruction, read_page
from envs.webshop.shop import ITEM, RESULTS, SEARCH, SUB

COMPACT, FULL = WebshopPrompter("compact", "bare", 2), WebshopPrompter("full", "tagged", 2)
INSTRUCTION = "find me a soft shirt with color: red, and size: large, and price lower than 40.00 dollars"
SHELF = [product(f"B{k:09}", title=f"Brand Soft Shirt, Number {k}", price_tag="$12.5 to $30.5") for k in range(12)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop cache")


def observed(*actions: str, form: str = "text_rich") -> Observation:
    shopper = visit(SHELF)
    for action in actions:
        assert shopper.act(action)
    text = pages.render(shopper, INSTRUCTION, form)
    return Observation(text, INSTRUCTION, tuple(sorted(pages.commands(shopper))))


# ---------------------------------------------------------------------------------------------------- reading back
@pytest.mark.parametrize("form", pages.FORMS)
def test_pages_are_read_back(form: str) -> None:
    assert read_page(observed(form=form).text).kind == SEARCH
    results = read_page(observed("search[x]", "click[next >]", form=form).text)
    assert (results.kind, results.number, results.total) == (RESULTS, 2, 12)
    assert [r.asin for r in results.results] == ["B000000010", "B000000011"]
    assert (results.results[0].short_title, results.results[0].low, results.results[0].high) == (
        "Brand Soft Shirt",
        12.5,
        30.5,
    )
    item = read_page(observed("search[x]", "click[b000000003]", "click[red]", form=form).text)
    assert (item.kind, item.title, item.low, item.high) == (ITEM, "Brand Soft Shirt, Number 3", 12.5, 30.5)
    if form == "text_rich":
        assert item.options == {"color": ("red", "blue"), "size": ("small", "large")} and item.chosen == ("red",)
    else:
        assert item.options == {"": ("color", "red", "blue", "size", "small", "large")} and item.chosen == ()
    sub = read_page(observed("search[x]", "click[b000000003]", "click[features]", form=form).text)
    assert (sub.kind, sub.texts) == (SUB, ("Soft", "Warm"))


def test_texts_that_are_no_page() -> None:
    for text in ("", "\n", "Hello [SEP] world"):
        with pytest.raises(ValueError, match="page of the shop"):
            read_page(text)
    assert shorten("Hello [SEP] world") == "Hello [SEP] world"


def test_instructions() -> None:
    wish = read_instruction(INSTRUCTION)
    assert wish.words == ("soft", "shirt") and wish.options == {"color": "red", "size": "large"} and wish.bound == 40.0
    assert wish.affordable(40.0) and not wish.affordable(40.01)
    free = read_instruction("i would love a machine washable lamp, navy blue please.")
    assert free.words == ("machine", "washable", "lamp", "navy", "blue") and free.options == {}
    assert free.bound == float("inf")
    assert free.choice("color", ("blue", "navy blue", "red")) == "navy blue" and free.choice("x", ("pink",)) is None
    assert free.open_words("Machine-washable LAMPS") == ["navy", "blue"]


@pytest.mark.parametrize(("dollars", "steps"), [(0.5, 1), (10.0, 1), (10.01, 2), (39.99, 4), (40.0, 4), (40.5, 5)])
def test_tens_of_dollars_keep_what_is_within_a_bound(dollars: float, steps: int) -> None:
    assert reading.tens(dollars) == steps
    for bound in (10.0, 20.0, 40.0, 50.0):
        assert (dollars <= bound) == (steps <= reading.tens(bound))


# --------------------------------------------------------------------------------------------------------- compact
def test_compact_pages_are_short_and_say_what_matters() -> None:
    assert COMPACT.opening(observed()).text == (
        "Task: find me a soft shirt with color: red, and size: large, under price 4\nsearch page"
    )
    lines = COMPACT.follow_up(observed("search[x]")).text.split("\n")
    assert len(lines) == 11 and lines[:2] == ["results page 1", "item 1 Brand Soft Shirt price 4"]
    item = ("search[x]", "click[b000000003]")
    page = "Brand Soft Shirt, Number 3 price 4; color red, blue; size small, large"
    assert COMPACT.follow_up(observed(*item)).text == page
    assert COMPACT.follow_up(observed(*item, "click[red]")).text == "chosen red"
    assert COMPACT.follow_up(observed(*item, "click[red]", "click[large]")).text == "chosen red, large"
    assert COMPACT.follow_up(observed(*item, "click[features]")).text == "Soft. Warm"
    assert COMPACT.follow_up(observed(*item, "click[reviews]")).text == "nothing here"
    assert COMPACT.follow_up(observed(*item, "click[buy now]")).text == "order done"
    assert shorten_task("a lamp.") == "a lamp"


def test_per_step_prompts_hold_the_last_steps_and_the_whole_page() -> None:
    item = ("search[x]", "click[b000000003]")
    history = [(observed().text, "search[x]"), (observed("search[x]").text, "click[item 4]")]
    parts = COMPACT.per_step(observed(), [("old", "older"), *history], observed(*item, "click[red]"), 3)
    assert parts.text.startswith("Task: find me") and "old" not in parts.text
    assert parts.text.endswith(
        "> click[item 4]\nBrand Soft Shirt, Number 3 price 4; color red, blue; size small, large; chosen red"
    )
    none = replace(COMPACT, history=0).per_step(observed(), history, observed(*item), 2)
    assert "> " not in none.text


# ------------------------------------------------------------------------------------------------------------ full
@pytest.mark.parametrize("form", pages.FORMS)
def test_full_prompts_hold_role_task_page_and_commands(form: str) -> None:
    first = observed(form=form)
    parts = FULL.opening(first)
    assert parts.task == f"Your task is to: {INSTRUCTION}" and "<think>" in parts.turn
    assert parts.text.count(INSTRUCTION) == 1  # the page's own copy is left out
    assert "- search[<your query>]" in parts.turn
    later = FULL.follow_up(observed("search[x]", form=form))
    assert INSTRUCTION not in later.text and "- click[b000000009]" in later.turn and "Total results: 12" in later.text
    step = FULL.per_step(first, [(first.text, "search[x]")], observed("search[x]", form=form), 1)
    assert "Steps taken so far: 1. The last 1:" in step.text and "you did: search[x]" in step.text
    assert step.text.count(INSTRUCTION) == 1
    bare = WebshopPrompter("full", "bare", 2).opening(first)
    assert "nothing else" in bare.turn and "<think>" not in bare.text


# ---------------------------------------------------------------------------------------------------------- parser
@pytest.mark.parametrize(
    ("response", "action", "reason"),
    [
        ("<think>a</think><action>click[Red]</action>", "click[red]", None),
        ("click[red]", "click[red]", "missing_action_tag"),
        ("x" * 50 + " <action>click[red]", "x <action>click[red]", "missing_action_tag"),
        ("<action>click[red]</action>", "click[red]", "missing_think_tag"),
        ("<action>click[red]</action><think>a</think>", "click[red]", "tag_order"),
        ("<think>a</think><action>click[a]</action><action>click[b]</action>", "click[a]", "several_actions"),
        ("<think>a</think><action>click[a] click[b]</action>", "click[a] click[b]", "several_actions"),
        ("<think>a</think><action> </action>", "", "empty"),
        ("<think><think>a</think></think><action><action>x</action></action>", "<action>x", None),
        ("", "", "missing_action_tag"),
    ],
)
def test_tagged_answers(response: str, action: str, reason: str | None) -> None:
    parsed = parse_tagged(response)
    assert (parsed.action, parsed.reason, parsed.valid) == (action, reason, reason is None)
    assert FULL.parse(response) == parsed


@pytest.mark.parametrize(
    ("response", "action", "reason"),
    [
        ("search red shirt", "search[red shirt]", None),
        ("click item 3", "click[item 3]", None),
        (" CLICK[Buy Now] ", "click[buy now]", None),
        ("buy now", "buy now", None),  # well-formed; the shop refuses it
        ("search", "search", None),
        ("", "", "empty"),
        ("click item 3\nclick red", "click[item 3]", "several_lines"),
        ("click[a] click[b]", "click[a]", "several_actions"),
    ],
)
def test_bare_answers(response: str, action: str, reason: str | None) -> None:
    parsed = COMPACT.parse(response)
    assert (parsed.action, parsed.reason, parsed.valid) == (action, reason, reason is None)


def test_brackets_are_only_optional_in_compact_form() -> None:
    assert WebshopPrompter("full", "bare", 2).parse("click red").action == "click red"


def test_styles_are_checked_and_named() -> None:
    assert make_prompter(EnvConfig(prompt="full", response="tagged")).protocol == "full/tagged"
    with pytest.raises(ValueError, match=r"env\.prompt='ful' is unknown; did you mean 'full'"):
        make_prompter(EnvConfig(prompt="ful"))
    with pytest.raises(ValueError, match=r"env\.response='tag'"):
        make_prompter(EnvConfig(response="tag"))


# ------------------------------------------------------------------------------------------- hindsight and workflow
def transcript(*actions: str) -> list[tuple[str, str, bool]]:
    shopper = visit(SHELF)
    steps = []
    for action in actions:
        page = pages.render(shopper, INSTRUCTION, "text_rich")
        name = action.replace("item 4", "b000000003").replace("[prev]", "[< prev]")
        steps.append((page, action, shopper.act(name)))
    return steps


WORKFLOW = "search soft shirt red large, click item under price 4, click red, click large, click buy now"


def test_hindsight_of_a_good_episode_repeats_it() -> None:
    actions = ("search[soft shirt red]", "click[item 4]", "click[large]", "click[red]", "click[buy now]")
    skill, steps = make_hindsight(True)(INSTRUCTION, transcript(*actions), True, 10)
    assert skill == WORKFLOW and steps == dict(enumerate(actions))


def test_hindsight_names_what_was_missed_first() -> None:
    actions = ("search[soft shirt]", "click[item 4]", "click[blue]", "click[buy now]")
    skill, steps = make_hindsight(True)(INSTRUCTION, transcript(*actions), False, 2)
    assert skill == f"{WORKFLOW}; do not buy before you click red, large"
    assert steps == {2: "click[red]", 3: "click[red]"}
    _, more = make_hindsight(True)(INSTRUCTION, transcript(*actions), False, 3)
    assert more == {0: "search[soft shirt]", 2: "click[red]", 3: "click[red]"}


def test_hindsight_speaks_the_language_of_the_prompt() -> None:
    _, steps = make_hindsight(False)(INSTRUCTION, transcript("search[lamp]", "click[b000000003]", "dance"), False, 9)
    assert steps == {0: "search[soft shirt red large]", 1: "click[b000000003]", 2: "click[red]"}


def test_hindsight_leaves_other_pages_of_results_alone() -> None:
    skill, steps = make_hindsight(True)(INSTRUCTION, transcript("search[soft shirt]", "click[next >]"), False, 9)
    assert steps == {0: "search[soft shirt]"} and "do not click item without red, large" in skill
    assert make_hindsight(True)("a lamp", [], False, 3) == (
        "search lamp, click item, click buy now; do not stop before you buy",
        {},
    )


def test_the_workflow_of_a_task() -> None:
    slots = {"product": "shirt", "attributes": "soft", "options": "red; large", "bound": "40.00"}
    task = Task("t", "fashion", "0", slots)
    assert skill_for(task) == WORKFLOW.replace("soft shirt red large", "soft shirt red large")
    assert skill_for(Task("t", "x", "0", {"product": "lamp", "attributes": "", "options": ""})) == (
        "search lamp, click item, click buy now"
    )
    with pytest.raises(KeyError, match="task t: slot 'options' is missing"):
        skill_for(Task("t", "x", "0", {"product": "lamp"}))


def test_an_expert_that_forgets_buys_with_fewer_options(cache: Path) -> None:
    settings = config(cache)
    task = spec.load_panel(settings, "train").tasks[0]
    environment = spec.make(settings)
    memory = Memory(read_instruction(environment.reset(task).task))
    chosen: dict[int, int] = {}
    for forgets in (0, 1, 2):
        observation = environment.reset(task)
        memory = Memory(read_instruction(observation.task))
        memory.look(observation.text)
        done, clicks = False, 0
        while not done:
            decision = Expert(forgets).decide(memory)
            assert decision is not None
            clicks += memory.page.kind == ITEM and read_name(decision.command) in memory.page.values()
            result = environment.step(decision.command)
            memory.did(decision.command)
            done = result.done
            if not done:
                memory.look(result.observation.text)
        chosen[forgets] = clicks
        assert result.success == (forgets == 0)
    assert chosen[0] >= chosen[1] + 1 >= chosen[2] + 2


def read_name(command: str) -> str:
    return command.partition("[")[2].rstrip("]")


# ------------------------------------------------------------------------------------------- small models' vocabulary
def test_everything_that_a_small_model_reads_is_in_its_vocabulary(cache: Path) -> None:
    pytest.importorskip("transformers")
    from harness.backbones.tokenizer import build_tokenizer
    from harness.backbones.warmstart import encode

    tokenizer = build_tokenizer(lexicon())
    unknown = tokenizer.convert_tokens_to_ids("<unk>")
    demonstrate = make_demonstrations(config(cache))
    longest = 0
    for index in range(120):
        demonstration = demonstrate(0, index)
        ids, _ = encode(tokenizer, demonstration)
        assert unknown not in ids, tokenizer.convert_ids_to_tokens(ids)
        longest = max(longest, len(ids))
        for turn in demonstration.turns:
            assert len(tokenizer(turn.prompt.text)["input_ids"]) <= 100
            assert len(tokenizer(turn.action)["input_ids"]) <= 7  # and an end of turn
    assert longest <= 1000
    for kind in ("synthetic", "human"):
        settings = config(cache, knobs={"goals": kind}, train_per_type=10)
        for task in spec.load_panel(settings, "train").tasks:
            text = f"{shorten_task(spec.make(settings).reset(task).task)} {skill_for(task)}"
            assert unknown not in tokenizer(text)["input_ids"], text


def test_commands_survive_tokenizing(cache: Path) -> None:
    pytest.importorskip("transformers")
    from harness.backbones.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(lexicon())
    settings = config(cache)
    environment = spec.make(settings)
    for task in spec.load_panel(settings, "test").tasks:
        played = shop_expert(environment, task)
        assert succeeded(played)
        environment.reset(task)
        for command, result in played:
            spoken = tokenizer.decode(tokenizer(command)["input_ids"])
            parsed = COMPACT.parse(spoken)
            assert parsed.action == command and environment.step(parsed.action) == result


def test_demonstrations_are_deterministic_and_draw_from_shops_of_their_own(cache: Path, tmp_path: Path) -> None:
    here = make_demonstrations(config(cache))
    there = make_demonstrations(replace(config(tmp_path), world_seed=5, prompt="full"))
    assert [here(1, k) for k in range(20)] == [there(1, k) for k in range(20)]
    assert here(1, 0) != here(2, 0)
    some = [here(0, k) for k in range(200)]
    skills = [d for d in some if d.episode_skill]
    hinted = [d for d in some if d.episode_skill or any(t.step_skill for t in d.turns)]
    assert 0.2 < len(skills) / len(some) < 0.4 < len(hinted) / len(some) < 0.6
    assert any(not turn.imitate for d in some for turn in d.turns)
    bought = [d for d in some if d.turns[-1].action == "click[buy now]"]
    assert len(bought) > 0.8 * len(some)
    random.Random(0).shuffle(some)


def test_the_lexicon_is_closed_and_does_not_contradict_itself() -> None:
    words = lexicon()
    assert not set(words.words) & set(words.dropped)
    data = json.loads((Path(spec.__file__).parent / "data" / "words.json").read_text(encoding="utf-8"))
    assert {kind["query"] for kind in data["kinds"]} <= set(words.phrases)
    spoken = {word for pool in data["options"].values() for value in pool for word in value.split()}
    assert spoken <= set(words.words) and not spoken & set(words.dropped)
