"""Skill libraries as files: what the reader accepts, and what the three environments' libraries say."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from core.skills import Skill, SkillLibrary, is_blank, read_library
from envs.alfworld.facts import TASK_TYPES, facts
from envs.interface import EnvConfig
from methods.skills.library import _pointed_to

GOOD: dict[str, Any] = {
    "name": "toy",
    "version": 2,
    "general": [{"id": "g1", "title": "Look", "principle": " Look around. ", "when": "always"}],
    "specific": {"put": [{"id": "p1", "title": "Put", "principle": "Put it there.", "when": "you hold it"}]},
    "mistakes": [{"id": "m1", "description": "Waiting.", "why": "Fear.", "avoid": "Act."}],
    "categories": {"put_simple": "put"},
    "keywords": {"put": ["put", "place it"]},
}


def read(raw: dict[str, Any], required: tuple[str, ...] = ()) -> SkillLibrary:
    return read_library(json.dumps(raw), "toy.json", required)


def test_a_good_library() -> None:
    library = read(GOOD, ("put_simple",))
    assert library.general == (Skill("g1", "Look", "Look around.", "always"),) and library.version == 2
    assert library.keywords == {"put": ("put", "place it")} and library.categories == {"put_simple": "put"}
    assert list(library.specific) == ["put"] and library.mistakes[0].avoid == "Act."


def edited(edit: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    raw = copy.deepcopy(GOOD)
    edit(raw)
    return raw


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        (lambda r: r.pop("mistakes"), r"the library lacks mistakes"),
        (lambda r: r.update(generel=[]), r"a key of the library='generel' is unknown; did you mean 'general'"),
        (lambda r: r.update(version="1"), r"version='1' must be a whole number"),
        (lambda r: r.update(version=True), r"version=True must be a whole number"),
        (lambda r: r.update(version=0), r"version=0 must be a whole number of at least 1"),
        (lambda r: r.update(name=" "), r"name is ' ', but it must say something"),
        (lambda r: r.update(general=[]), r"general must be a list of at least one entry, it is \[\]"),
        (lambda r: r.update(general={}), r"general must be a list"),
        (lambda r: r.update(general=["x"]), r"general\[0\] must be an object"),
        (lambda r: r.update(specific={}), r"specific must be an object with at least one entry"),
        (lambda r: r["specific"].update(put=[]), r"specific\['put'\] must be a list"),
        (lambda r: r["general"][0].pop("when"), r"general\[0\] \(g1\) lacks when"),
        (lambda r: r["general"][0].update(wen="x"), r"a key of general\[0\] \(g1\)='wen' .* did you mean 'when'"),
        (lambda r: r["general"][0].update(principle="None"), r"general\[0\] \(g1\).principle is 'None'"),
        (lambda r: r["mistakes"][0].update(avoid=3), r"mistakes\[0\] \(m1\).avoid is 3"),
        (lambda r: r["mistakes"][0].update(id="g1"), r"the id 'g1' occurs twice"),
        (lambda r: r["categories"].update(put_simple="putt"), r"categories\['put_simple'\]='putt' .* mean 'put'"),
        (lambda r: r["keywords"].update(pot=["x"]), r"the category of keywords='pot' is unknown; did you mean 'put'"),
        (lambda r: r["keywords"].update(put=["Put"]), r"keywords\['put'\] has 'Put', but .* lower case: 'put'"),
        (lambda r: r["keywords"].update(put=[]), r"keywords\['put'\] must be a list of at least one word"),
        (lambda r: r["keywords"].update(put=["", "a"]), r"keywords\['put'\]\[0\] is ''"),
    ],
)
def test_errors_name_the_file_and_the_entry(edit: Callable[[dict[str, Any]], Any], error: str) -> None:
    with pytest.raises(ValueError, match=f"^toy.json: .*{error}"):
        read(edited(edit))


def test_other_errors_of_a_file() -> None:
    with pytest.raises(ValueError, match=r"toy.json is no JSON: .*line 1"):
        read_library("{", "toy.json")
    with pytest.raises(ValueError, match=r"toy.json: the library must be an object"):
        read_library("[]", "toy.json")
    with pytest.raises(ValueError, match=r"toy.json: the key 'a' occurs twice in one object"):
        read_library('{"a": 1, "a": 2}', "toy.json")
    with pytest.raises(ValueError, match=r"toy.json: categories has no entry for cool, heat;"):
        read(GOOD, ("cool", "put_simple", "heat"))


def test_the_digest_is_of_every_text() -> None:
    digest = read(GOOD).digest
    assert re.fullmatch("[0-9a-f]{16}", digest) and read(copy.deepcopy(GOOD)).digest == digest
    for edit in (
        lambda r: r["general"][0].update(when="never"),
        lambda r: r["keywords"].update(put=["put"]),
        lambda r: r.update(version=3),
        lambda r: r["mistakes"][0].update(why="Hope."),
    ):
        assert read(edited(edit)).digest != digest


# ------------------------------------------------------------------------------------------------- the three libraries
ENVIRONMENTS = {
    "alfworld": TASK_TYPES,
    "webshop": ("fashion", "beauty", "electronics", "garden", "grocery"),
    "search_qa": (
        *("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"),
        *("wikilead-1hop", "wikilead-bridge", "wikilead-compare"),
    ),
}


def library_of(name: str) -> SkillLibrary:
    library: SkillLibrary = import_module(f"envs.{name}.skills").library(EnvConfig(name=name))
    return library


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_library_is_complete(name: str) -> None:
    library = library_of(name)
    assert library is library_of(name) and library.name == name
    assert set(ENVIRONMENTS[name]) <= set(library.categories)
    assert set(library.categories.values()) == set(library.specific) == set(library.keywords)
    assert len(library.general) == 10 and len(library.mistakes) == 8
    assert all(len(skills) == 5 for skills in library.specific.values())


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_texts_are_sentences_of_bounded_length(name: str) -> None:
    library = library_of(name)
    skills = [*library.general, *(skill for group in library.specific.values() for skill in group)]
    for skill in skills:
        assert skill.principle.endswith(".") and len(skill.principle.split()) <= 40, skill
        assert not skill.when.endswith(".") and len(skill.when.split()) <= 15, skill
    texts = [skill.principle for skill in skills]
    texts += [f"{m.description} {m.why} {m.avoid}" for m in library.mistakes]
    assert len(set(texts)) == len(texts)
    assert not any(is_blank(text) for text in texts)
    assert all(text.isascii() for text in texts)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_broken_file_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(f"envs.{name}.skills")
    path = Path(module.__file__ or "").parent / "data" / "skills.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["categories"].pop(ENVIRONMENTS[name][0])
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: json.dumps(raw))
    module._library.cache_clear()
    try:
        with pytest.raises(ValueError, match=rf"envs/{name}/data/skills.json: categories has no entry for"):
            module.library(EnvConfig(name=name))
    finally:
        module._library.cache_clear()


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_alfworld_keywords_find_the_type_of_every_wording(task_type: str) -> None:
    library = library_of("alfworld")
    own = library.categories[task_type]
    for wording in facts().instructions[task_type]:
        text = wording.format(obj="mug", recep="shelf", toggle="desklamp")
        assert _pointed_to(text, library.keywords) == {own}, text


def test_alfworld_commands_are_the_engines() -> None:
    """Words in code quotes that look like commands begin with a verb that the engine knows."""
    verbs = {"go", "take", "move", "open", "close", "use", "clean", "heat", "cool", "examine", "look", "inventory"}
    library = library_of("alfworld")
    texts = [s.principle for group in (library.general, *library.specific.values()) for s in group]
    texts += [f"{m.why} {m.avoid}" for m in library.mistakes]
    quoted = {q for text in texts for q in re.findall(r"`([^`]+)`", text)}
    names = {"Nothing happens"}
    assert {q for q in quoted - names if not re.search(r" \d$", q) and q.split()[0] not in verbs} == set()
    assert not any("put in" in text or " in/on " in text for text in texts)  # the command of older engines
