"""A library of skills: what an environment knows by hand, and what methods choose from.

The parts follow SkillRL's skill bank (arXiv:2602.08234): general skills, skills per category of task, and common
mistakes. The texts are the environments' own. A library is a JSON file beside its environment's code:

    {"name": "...", "version": 1,
     "general": [{"id": "...", "title": "...", "principle": "...", "when": "..."}, ...],
     "specific": {"<category>": [<skills as above>], ...},
     "mistakes": [{"id": "...", "description": "...", "why": "...", "avoid": "..."}, ...],
     "categories": {"<task type or data source>": "<category>", ...},
     "keywords": {"<category>": ["<lower-case word or phrase>", ...], ...}}
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from core.names import unknown_name

# What a language model writes when it has nothing to say; a skill of this kind is a fault, not a skill.
# In the spelling of plain_words, of which nothing at all is one.
_SAID = (
    ", none, null, nil, nan, na, n a, undefined, string, text, nothing, tbd, todo, empty, blank, placeholder, "
    "no skill, no skills, no advice, not applicable, not available"
)
_NOTHING = frozenset(_SAID.split(", "))


def plain_words(text: str) -> str:
    """`text` in lower case, its words (runs of letters and digits) separated by single blanks; nothing else of it.

    Characters that nobody sees (format characters such as a zero-width space) do not part a word.
    """
    seen = (sign for sign in text.casefold() if unicodedata.category(sign) != "Cf")
    return " ".join("".join(sign if sign.isalnum() else " " for sign in seen).split())


def is_blank(text: object) -> bool:
    """Whether `text` says nothing: no string, without a letter or digit, or a word for "nothing" (none, null, n/a, tbd,
    ...), whatever signs stand around it."""
    return not isinstance(text, str) or _says_nothing(text)


@lru_cache(maxsize=4096)  # the same few skills are put into thousands of prompts
def _says_nothing(text: str) -> bool:
    return plain_words(text) in _NOTHING


@dataclass(frozen=True, slots=True)
class Skill:
    """id: unique in the library; principle: what to do; when: the situation it applies to."""

    id: str
    title: str
    principle: str
    when: str


@dataclass(frozen=True, slots=True)
class Mistake:
    """id: unique in the library; why: how it comes about; avoid: what to do instead."""

    id: str
    description: str
    why: str
    avoid: str


@dataclass(frozen=True)
class SkillLibrary:
    """general: for every task; specific: category -> skills; categories: task type or data source -> category;
    keywords: category -> words of a task that point to it (lower case)."""

    name: str
    version: int
    general: tuple[Skill, ...]
    specific: Mapping[str, tuple[Skill, ...]]
    mistakes: tuple[Mistake, ...]
    categories: Mapping[str, str]
    keywords: Mapping[str, tuple[str, ...]]

    @property
    def digest(self) -> str:
        """16 hex digits over everything the library says: equal texts have equal digests."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


T = TypeVar("T", Skill, Mistake)
_PARTS = tuple(field.name for field in dataclasses.fields(SkillLibrary))


def read_library(text: str, where: str, required: Iterable[str] = ()) -> SkillLibrary:
    """The library in a JSON text, checked.

    where: the file, for errors. required: task types and data sources that must have a category.
    Raises ValueError naming the file and the entry for: no JSON, a key twice, a key missing or unknown, a text that is
    blank, an id twice, a category without skills, and one of `required` without a category.
    """
    try:
        raw = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, where))
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is no JSON: {error}") from error
    _check_keys(raw, _PARTS, where, "the library")
    version = raw["version"]
    if type(version) is not int or version < 1:
        raise ValueError(f"{where}: version={version!r} must be a whole number of at least 1")
    library = SkillLibrary(
        name=_text(raw["name"], where, "name"),
        version=version,
        general=_entries(Skill, raw["general"], where, "general"),
        specific={
            _text(category, where, "a category of specific"): _entries(Skill, skills, where, f"specific[{category!r}]")
            for category, skills in _mapping(raw["specific"], where, "specific").items()
        },
        mistakes=_entries(Mistake, raw["mistakes"], where, "mistakes"),
        categories={
            name: _text(category, where, f"categories[{name!r}]")
            for name, category in _mapping(raw["categories"], where, "categories").items()
        },
        keywords={
            category: _words(words, where, f"keywords[{category!r}]")
            for category, words in _mapping(raw["keywords"], where, "keywords").items()
        },
    )
    _check_references(library, where, tuple(required))
    return library


def _check_references(library: SkillLibrary, where: str, required: tuple[str, ...]) -> None:
    seen: set[str] = set()
    skills = [*library.general, *(skill for group in library.specific.values() for skill in group)]
    for ident in [*(skill.id for skill in skills), *(mistake.id for mistake in library.mistakes)]:
        if ident in seen:
            raise ValueError(f"{where}: the id {ident!r} occurs twice; ids are unique in a library")
        seen.add(ident)
    for name, category in library.categories.items():
        if category not in library.specific:
            raise ValueError(f"{where}: {unknown_name(f'categories[{name!r}]', category, library.specific)}")
    for category in library.keywords:
        if category not in library.specific:
            raise ValueError(f"{where}: {unknown_name('the category of keywords', category, library.specific)}")
    missing = [name for name in required if name not in library.categories]
    if missing:
        raise ValueError(f"{where}: categories has no entry for {', '.join(missing)}; every task needs a category")


def _unique(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(
            f"{where}: the key {twice!r} occurs twice in one object; JSON would keep the last of them only"
        )
    return found


def _mapping(value: Any, where: str, entry: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{where}: {entry} must be an object with at least one entry, it is {_short(value)}")
    return value


def _check_keys(value: Any, wanted: tuple[str, ...], where: str, entry: str) -> None:
    for key in _mapping(value, where, entry):
        if key not in wanted:
            raise ValueError(f"{where}: {unknown_name(f'a key of {entry}', key, wanted)}")
    missing = [key for key in wanted if key not in value]
    if missing:
        raise ValueError(f"{where}: {entry} lacks {', '.join(missing)}")


def _entries(kind: type[T], value: Any, where: str, entry: str) -> tuple[T, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: {entry} must be a list of at least one entry, it is {_short(value)}")
    wanted = tuple(field.name for field in dataclasses.fields(kind))
    found = []
    for number, item in enumerate(value):
        name = item.get("id") if isinstance(item, dict) else None
        place = f"{entry}[{number}]" + (f" ({name})" if isinstance(name, str) else "")
        _check_keys(item, wanted, where, place)
        found.append(kind(**{key: _text(item[key], where, f"{place}.{key}") for key in wanted}))
    return tuple(found)


def _words(value: Any, where: str, entry: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: {entry} must be a list of at least one word, it is {_short(value)}")
    words = tuple(_text(word, where, f"{entry}[{number}]") for number, word in enumerate(value))
    for word in words:
        if word != word.lower():
            raise ValueError(f"{where}: {entry} has {word!r}, but keywords are matched in lower case: {word.lower()!r}")
    return words


def _text(value: Any, where: str, entry: str) -> str:
    if is_blank(value):
        raise ValueError(f"{where}: {entry} is {_short(value)}, but it must say something")
    return str(value).strip()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
