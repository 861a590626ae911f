"""Which skills a task gets from a library, and how they read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from core.skills import SkillLibrary, is_blank, read_library
from envs.alfworld.facts import TASK_TYPES, facts
from envs.alfworld.skills import library as alfworld_library
from envs.interface import EnvConfig
from methods.interface import SkillConfig
from methods.skills.embedding import SentenceEncoder
from methods.skills.injection import STYLES, inject
from methods.skills.library import Selection, Selector, _pointed_to, build, render
from methods.validation import LIBRARY_ROUTERS, check_library_router


def _skills(prefix: str, number: int) -> list[dict[str, str]]:
    return [
        {"id": f"{prefix}{k}", "title": f"{prefix}-title-{k}", "principle": f"{prefix} principle {k}.", "when": "w"}
        for k in range(number)
    ]


LIBRARY = read_library(
    json.dumps(
        {
            "name": "toy",
            "version": 1,
            "general": _skills("general", 3),
            "specific": {"wash": _skills("wash", 2), "warm": _skills("warm", 2), "put": _skills("put", 2)},
            "mistakes": [
                {"id": f"m{k}", "description": f"mistake {k}.", "why": "It happens.", "avoid": f"do {k}."}
                for k in range(3)
            ],
            "categories": {"clean": "wash", "heat": "warm", "place": "put", "nq": "put"},
            "keywords": {"wash": ["clean", "rinse off"], "warm": ["hot", "c++"]},
        }
    ),
    "toy.json",
)


@dataclass(frozen=True)
class Thing:
    id: str
    type: str


TASKS = [Thing(f"{kind}/{k}", kind) for kind in ("clean", "heat", "place") for k in range(4)]


def workflow(task: Thing) -> str:
    return f" line of {task.id} "


def sections(router: str, top_k: int = 0, seed: int = 0, **more: Any) -> Selector:
    return Selector(LIBRARY, router, top_k, seed, None, "sections", **more)


def compact(router: str, top_k: int = 0, seed: int = 0, **more: Any) -> Selector:
    return Selector(more.pop("library", LIBRARY), router, top_k, seed, workflow, "compact", TASKS, **more)


def ids(text: str) -> list[str]:
    """`wash-title-0` -> `wash0`, in the order of the text; mistakes as m0, m1, ..."""
    found = re.findall(r"(\w+)-title-(\d)|mistake (\d)", text)
    return [f"{word}{number}" if word else f"m{mistake}" for word, number, mistake in found]


GENERAL, MISTAKES = ["general0", "general1", "general2"], ["m0", "m1", "m2"]


# ------------------------------------------------------------------------------------------------------------- routers
def test_task_type_gives_general_own_category_and_mistakes() -> None:
    text = sections("task_type").choose("t", "clean")
    assert ids(text) == [*GENERAL, "wash0", "wash1", *MISTAKES]
    assert text.startswith("### In every task\n- general-title-0: general principle 0. (w)\n")
    assert "\n\n### In tasks of this kind: wash\n- wash-title-0: wash principle 0. (w)\n" in text
    assert text.endswith(
        "\n\n### Mistakes to avoid\n" + "\n".join(f"- mistake {k}. It happens. Instead: do {k}." for k in range(3))
    )


def test_data_source_goes_by_the_source_and_not_by_the_type() -> None:
    assert ids(sections("data_source").choose("t", "clean", data_source="nq"))[3:5] == ["put0", "put1"]
    with pytest.raises(ValueError, match=r"no skill for the task t \(clean\): .*needs the task's data source"):
        sections("data_source").choose("t", "clean")
    with pytest.raises(ValueError, match=r"no skill for the task t .*'nqq' is unknown; did you mean 'nq'"):
        sections("data_source").choose("t", "clean", data_source="nqq")


def test_keyword_finds_every_category_with_a_keyword_in_the_text() -> None:
    choose = sections("keyword").choose
    assert ids(choose("t", "place", "Put a CLEAN, hot mug there")) == [
        *GENERAL, "wash0", "wash1", "warm0", "warm1", *MISTAKES
    ]  # fmt: skip
    assert ids(choose("t", "clean", "Rinse off the mug"))[3:-3] == ["wash0", "wash1"]
    assert ids(choose("t", "clean", "learn c++"))[3:-3] == ["warm0", "warm1"]
    for text in ("unclean cleaner", "put it down", "rinse it off"):  # a word is not found inside of others
        assert ids(choose("t", "clean", text)) == [*GENERAL, *MISTAKES]


def test_general_gives_no_category() -> None:
    assert ids(sections("general").choose("t", "clean", "clean and hot")) == [*GENERAL, *MISTAKES]
    assert ids(sections("general", 2).choose("t", "clean")) == ["general0", "general1", "m0", "m1"]
    with pytest.raises(ValueError, match=r"router=general has no workflow line.*set env.prompt=full"):
        compact("general")


def test_all_begins_with_the_own_category() -> None:
    assert ids(sections("all").choose("t", "heat"))[3:-3] == ["warm0", "warm1", "wash0", "wash1", "put0", "put1"]


def test_random_gives_another_category_by_seed_and_task_alone() -> None:
    def drawn(seed: int) -> list[str]:
        selector = sections("random", seed=seed)
        return [ids(selector.choose(f"task {k}", "clean"))[3] for k in range(40)]

    assert set(drawn(1)) == {"warm0", "put0"}  # both of the others, never the own
    assert drawn(1) == drawn(1) != drawn(2)
    backwards = sections("random", seed=1)
    assert [ids(backwards.choose(f"task {k}", "clean"))[3] for k in reversed(range(40))][::-1] == drawn(1)
    assert drawn(0)[:8] == RECORDED  # the same in every process


RECORDED = ["warm0", "warm0", "put0", "warm0", "put0", "put0", "put0", "warm0"]


def test_random_needs_a_second_category() -> None:
    one = SkillLibrary("one", 1, LIBRARY.general, {"wash": LIBRARY.specific["wash"]}, (), {"clean": "wash"}, {})
    with pytest.raises(ValueError, match=r"no skill for the task t \(clean\): .*random needs a second category"):
        Selector(one, "random", 0, 0, None, "sections").choose("t", "clean")


class Letters:
    """Near to what has the same word of this library's texts."""

    def __init__(self) -> None:
        self.calls = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        self.calls += 1
        words = ["wash", "warm", "put", "general", "mistake 1"]
        return np.array([[float(word in text) for word in words] for text in texts])


def test_embedding_gives_the_nearest_skills() -> None:
    embedder = Letters()
    selector = sections("embedding", 3, embedder=embedder)
    assert ids(selector.choose("t", "clean", "warm")) == ["general0", "warm0", "warm1", *MISTAKES]  # ties: in order
    assert ids(selector.choose("u", "clean", "warm, general and mistake 1")) == [*GENERAL, "m1", "m0", "m2"]
    before = embedder.calls
    selector.choose("v", "clean", "put")
    assert embedder.calls == before + 2  # the library itself is embedded once


def test_embedding_on_the_real_library() -> None:
    library = alfworld_library(EnvConfig())
    selector = Selector(library, "embedding", 4, 0, None, "sections")
    for kind in TASK_TYPES:
        text = facts().instructions[kind][0].format(obj="mug", recep="shelf", toggle="desklamp")
        assert f"kind: {library.categories[kind]}\n" in selector.choose(text, kind, text)


def test_the_longer_of_two_keywords_counts() -> None:
    words = {"put": ["put a", "mug"], "wash": ["put a clean"], "two": ["a clean mug"]}
    assert _pointed_to("put a mug", words) == {"put"}
    assert _pointed_to("put a clean cup", words) == {"wash"}
    assert _pointed_to("put a clean mug", words) == {"wash", "two"}  # neither is inside the other
    assert _pointed_to("put a clean cup, then put a cup", words) == {"wash", "put"}
    assert _pointed_to("a a", {"x": ["a"], "y": ["a"]}) == {"x", "y"}  # of equal length


@pytest.mark.parametrize("router", ["keyword", "embedding"])
def test_routers_that_read_the_task_need_its_text(router: str) -> None:
    with pytest.raises(ValueError, match=rf"no skill for the task t \(clean\): .*router={router} goes by the task's"):
        sections(router, 2).choose("t", "clean", " ")


@pytest.mark.parametrize("router", LIBRARY_ROUTERS)
def test_a_type_without_category_names_the_task(router: str) -> None:
    with pytest.raises(ValueError, match=r"no skill for the task t \(cleen\): .*'cleen' is unknown; did you mean"):
        sections(router, 2).choose("t", "cleen", "clean", "cleen")


# --------------------------------------------------------------------------------------------------------------- top_k
@pytest.mark.parametrize(
    ("router", "top_k", "expected"),
    [
        ("task_type", 1, ["wash0", "m0"]),
        ("task_type", 3, ["general0", "wash0", "wash1", "m0", "m1", "m2"]),
        ("task_type", 99, [*GENERAL, "wash0", "wash1", *MISTAKES]),
        ("all", 3, ["wash0", "wash1", "warm0", *MISTAKES]),
        ("keyword", 2, ["warm0", "warm1", "m0", "m1"]),
    ],
)
def test_top_k_keeps_found_categories_before_general_skills(router: str, top_k: int, expected: list[str]) -> None:
    assert ids(sections(router, top_k).choose("t", "clean", "hot")) == expected


@given(st.sampled_from(LIBRARY_ROUTERS), st.integers(0, 12), st.sampled_from(["clean", "heat", "place"]), st.integers())
def test_selections_are_bounded_and_never_blank(router: str, top_k: int, kind: str, seed: int) -> None:
    if router == "embedding" and top_k == 0:
        return
    for style, make in (("sections", sections), ("compact", compact)):
        if (style, router) == ("compact", "general"):
            continue
        text = make(router, top_k, seed).choose(f"{kind}/0", kind, f"{kind} hot", kind)
        assert not is_blank(text) and text == text.strip()
        assert text == make(router, top_k, seed).choose(f"{kind}/0", kind, f"{kind} hot", kind)
        if top_k and style == "sections":
            found = ids(text)
            assert sum(f.startswith("m") for f in found) <= top_k
            assert sum(not f.startswith("m") for f in found) <= top_k
        if top_k and style == "compact":
            assert len(text.splitlines()) <= top_k


# ------------------------------------------------------------------------------------------------------------- compact
def test_compact_is_the_workflow_line_of_the_task() -> None:
    for router in ("task_type", "data_source"):
        assert compact(router).choose("clean/2", "clean", data_source="clean") == "line of clean/2"
    assert compact("keyword").choose("clean/2", "clean", "nothing known") == "line of clean/2"
    assert compact("keyword").choose("clean/2", "clean", "clean it") == "line of clean/2"


def test_compact_takes_lines_of_other_categories_from_donors() -> None:
    own, *others = compact("all").choose("heat/1", "heat").splitlines()
    assert own == "line of heat/1"
    assert [re.sub(r"\d", "", line) for line in others] == ["line of clean/", "line of place/"]
    assert re.fullmatch(r"line of heat/\d", compact("keyword").choose("clean/1", "clean", "a hot mug"))
    assert compact("keyword", 1).choose("clean/1", "clean", "clean and hot") == "line of clean/1"
    lines = compact("embedding", 2, embedder=Letters()).choose("clean/1", "clean", "warm").splitlines()
    assert len(lines) == 1 and lines[0].startswith("line of heat/")
    assert compact("embedding", 2, embedder=Letters()).choose("clean/1", "clean", "general") == "line of clean/1"


def test_compact_random_is_the_line_of_a_task_of_another_type() -> None:
    for library in (LIBRARY, None):
        selector = compact("random", library=library)
        lines = {task.id: selector.choose(task.id, task.type) for task in TASKS}
        for task in TASKS:
            assert lines[task.id].startswith("line of ") and task.type not in lines[task.id]
        assert len(set(lines.values())) > 4  # any of the others, of any type
        assert lines == {t.id: compact("random", library=library).choose(t.id, t.type) for t in reversed(TASKS)}
    assert lines != {t.id: compact("random", seed=1).choose(t.id, t.type) for t in TASKS}


def test_tasks_that_become_known_later_are_no_donors() -> None:
    selector, later = compact("random"), compact("random")
    later.know([Thing("heat/late", "heat"), Thing("clean/late", "clean")])
    for task in TASKS:
        assert selector.choose(task.id, task.type) == later.choose(task.id, task.type)
    own = compact("task_type")
    with pytest.raises(ValueError, match=r"no skill for the task heat/late \(heat\): .*Selector.know"):
        own.choose("heat/late", "heat")
    own.know([Thing("heat/late", "heat")])
    assert own.choose("heat/late", "heat") == "line of heat/late"


def test_compact_random_needs_another_type() -> None:
    selector = Selector(LIBRARY, "random", 0, 0, workflow, "compact", TASKS[:4])
    with pytest.raises(ValueError, match=r"no skill for the task clean/0 .*tasks of several types"):
        selector.choose("clean/0", "clean")
    # without donors of a category `all` has no line of it
    assert (
        Selector(LIBRARY, "all", 0, 0, workflow, "compact", TASKS[:4]).choose("clean/0", "clean") == "line of clean/0"
    )


@pytest.mark.parametrize("line", ["", " \n", "None", "n/a"])
def test_a_blank_line_names_the_task(line: str) -> None:
    selector = Selector(LIBRARY, "task_type", 0, 0, lambda _: line, "compact", TASKS)
    with pytest.raises(ValueError, match=r"no skill for the task clean/0 \(clean\): the workflow line .*say something"):
        selector.choose("clean/0", "clean")


def test_what_a_workflow_misses_names_the_task() -> None:
    def missing(_: Thing) -> str:
        raise KeyError("slot 'object' is missing")

    selector = Selector(LIBRARY, "task_type", 0, 0, missing, "compact", TASKS)
    with pytest.raises(ValueError, match=r"no skill for the task clean/0 \(clean\): slot 'object' is missing"):
        selector.choose("clean/0", "clean")


def test_a_text_is_made_once() -> None:
    made: list[str] = []

    def counting(task: Thing) -> str:
        made.append(task.id)
        return "go"

    selector = Selector(LIBRARY, "task_type", 0, 0, counting, "compact", TASKS)
    for _ in range(50):
        selector.choose("clean/0", "clean", "text")
    assert made == ["clean/0"]


# ----------------------------------------------------------------------------------------- rendering and configuration
def test_rendering_says_something_or_fails() -> None:
    assert render(Selection(lines=("a", "b")), "compact") == "a\nb"
    assert render(Selection(general=LIBRARY.general[:1]), "sections").count("\n") == 1
    with pytest.raises(ValueError, match="without lines has no text in compact"):
        render(Selection(general=LIBRARY.general), "compact")
    with pytest.raises(ValueError, match="without skills has no text in sections"):
        render(Selection(lines=("a",)), "sections")
    with pytest.raises(ValueError, match="did you mean 'sections'"):
        render(Selection(lines=("a",)), "section")


def test_what_a_selector_needs() -> None:
    with pytest.raises(ValueError, match=r"router=task_type in skill style sections needs a skill library.*EnvSpec"):
        Selector(None, "task_type", 0, 0, workflow, "sections")
    with pytest.raises(ValueError, match=r"router=keyword in skill style compact needs a skill library"):
        Selector(None, "keyword", 0, 0, workflow, "compact")
    with pytest.raises(ValueError, match=r"compact needs workflow lines.*set env.prompt=full"):
        Selector(LIBRARY, "task_type", 0, 0, None, "compact")
    with pytest.raises(ValueError, match="did you mean 'keyword'"):
        sections("keywords")
    with pytest.raises(ValueError, match="did you mean 'compact'"):
        Selector(LIBRARY, "all", 0, 0, workflow, "compakt")
    with pytest.raises(ValueError, match=r"router=embedding ranks .*method.skill.top_k"):
        sections("embedding")
    with pytest.raises(ValueError, match="'cook' is unknown"):
        Selector(LIBRARY, "all", 0, 0, workflow, "compact", [Thing("x", "cook")])


def test_routers_and_encoders_that_contradict() -> None:
    check_library_router("embedding", 3, "folder")
    check_library_router("all", 0, None)
    with pytest.raises(
        ValueError, match=r"method.skill.encoder='folder' is used by .* the router is 'all'; .* \(row x\)"
    ):
        check_library_router("all", 0, "folder", "(row x)")
    with pytest.raises(ValueError, match=r"method.skill.router='critical_first' is unknown"):
        check_library_router("critical_first", 0, None)


def test_a_run_builds_its_selector_from_the_configuration(tmp_path: Any) -> None:
    selector = build(SkillConfig("library", "random", top_k=2), LIBRARY, workflow, "compact", 7, TASKS)
    assert (selector.router, selector.top_k, selector.seed, selector.style) == ("random", 2, 7, "compact")
    assert selector.choose("clean/0", "clean") == compact("random", 2, 7).choose("clean/0", "clean")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    skill = SkillConfig("library", "embedding", top_k=2, encoder=str(tmp_path))
    assert isinstance(build(skill, LIBRARY, None, "sections", 0).embedder, SentenceEncoder)
    with pytest.raises(ValueError, match="no folder with a transformers model"):
        build(SkillConfig("library", "embedding", top_k=2, encoder="e5"), LIBRARY, None, "sections", 0)


@pytest.mark.parametrize("style", STYLES)
def test_a_choice_can_be_injected(style: str) -> None:
    from methods_helpers import Message

    text = {"compact": compact("all"), "sections": sections("all")}[style].choose("heat/1", "heat")
    assert text in inject(Message(), text, None, style)
