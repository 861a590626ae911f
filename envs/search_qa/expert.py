"""What to do next, from what compact prompts show: a scripted reader of numbered names.

It plays by the question's relation: look the name up, look up what its passage points to, and answer. The same rules
show policies how to play (`demos`), and say in hindsight what a trajectory should have done (`hindsight`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAKERS = ("director", "author", "maker", "composer", "performer")
_RELATIONS = (  # compact question -> relation
    (r"year (director|author|maker|composer|performer) of name \d+ was born", "{0}-birth"),
    (r"year (director|author|maker|composer|performer) of name \d+ died", "{0}-death"),
    (r"capital of country of name \d+", "place-capital"),
    (r"who was born first name \d+ name \d+", "first-birth"),
    (r"who died first name \d+ name \d+", "first-death"),
    (r"year name \d+ was born", "birth"),
    (r"year name \d+ died", "death"),
    (r"who directed name \d+", "director"),
    (r"who wrote name \d+", "author"),
    (r"who made name \d+", "maker"),
    (r"who composed name \d+", "composer"),
    (r"who recorded name \d+", "performer"),
    (r"country of name \d+", "place"),
    (r"capital of name \d+", "capital"),
    (r"atomic number of name \d+", "number"),
)
_WORKS = {"author": "novel", "director": "film", "maker": "painting", "composer": "opera", "performer": "song"}
_YEAR = re.compile(r"(name \d+) century (\d+) year (\d+)")
_NAME = re.compile(r"name \d+")


def relation_of(question: str) -> str | None:
    """The relation that a compact question asks for; None if it is none of the derived ones."""
    for pattern, relation in _RELATIONS:
        if match := re.search(pattern, question):
            return relation.format(*match.groups())
    return None


def names_in(text: str) -> list[str]:
    return _NAME.findall(text)


@dataclass(frozen=True, slots=True)
class Entry:
    """One passage of a compact search result."""

    head: str
    about: str

    @property
    def years(self) -> list[tuple[str, int]]:
        """(name, year) of each year it mentions."""
        return [(name, int(century) * 100 + int(year) % 100) for name, century, year in _YEAR.findall(self.about)]


def entries(observation: str) -> list[Entry]:
    """The passages that a compact observation shows."""
    found = []
    for part in observation.removeprefix("found ").split(" ; "):
        head, _, about = part.partition(" : ")
        if names := names_in(head):
            found.append(Entry(names[0], about))
    return found if observation.startswith("found ") else []


class Reader:
    """One episode as the expert sees it. naive: it answers after its first search, whatever the question needs."""

    def __init__(self, question: str, naive: bool = False) -> None:
        self.question, self.naive = question, naive
        self.relation = relation_of(question)
        self.names = names_in(question)
        self.known: list[Entry] = []  # every passage seen, in order
        self.shown: list[Entry] = []  # of the last search
        self.searched: list[str] = []

    def observe(self, action: str, observation: str) -> None:
        """Take in what an action showed."""
        if action.startswith("search "):
            self.searched.append(action.removeprefix("search ").strip())
            self.shown = entries(observation)
            self.known += self.shown

    def decide(self) -> str | None:
        """The next action in compact words; None if the expert does not know."""
        if self.relation is None or not self.names:
            return None
        if self.relation.startswith("first-"):
            return self._compare()
        if self.relation == "capital":
            return self._capital_of(self.names[0])
        maker, _, event = self.relation.partition("-")
        about = self._look_up(self.names[0], " by " if maker in MAKERS else "")
        if isinstance(about, str):
            return about
        if self.relation == "place-capital":
            country = self._last_name(about)
            if self.naive or country is None:
                return _answer(country)
            return self._capital_of(country)
        if maker in MAKERS and event:
            person = self._after_by(about)
            if self.naive or person is None:
                return _answer(person)
            life = self._look_up(person, "century")
            return life if isinstance(life, str) else self._year(life, event)
        if maker in MAKERS:
            return _answer(self._after_by(about))
        if self.relation in ("birth", "death"):
            return self._year(about, self.relation)
        return _answer(self._last_name(about) if self.relation == "place" else self._number(about))

    def _look_up(self, name: str, saying: str) -> Entry | str:
        """The passage about `name`, by preference one that says `saying`; or the search for it."""
        about = [entry for entry in self.known if entry.head == name]
        fitting = [entry for entry in about if saying in f" {entry.about} "]
        if fitting or (about and name in self.searched):
            return (fitting or about)[0]
        if name not in self.searched:
            return f"search {name}"
        work = _WORKS.get(str(self.relation).partition("-")[0])
        if work is not None and name == self.names[0] and f"{work} {name}" not in self.searched:
            return f"search {work} {name}"  # a title of common words is not found by itself
        return self.shown[0] if self.shown else Entry(name, "")

    def _capital_of(self, country: str) -> str:
        """A country's capital is the capital of nothing smaller: the country is all that its passage names."""
        capitals = [e for e in self.known if "capital" in e.about.split() and country in names_in(e.about)]
        for entry in capitals:
            if set(names_in(entry.about)) == {country}:
                return f"answer {entry.head}"
        for query in (f"capital city of {country}", f"national capital {country}"):
            if query not in self.searched:
                return f"search {query}"
        heads = [e.head for e in (*capitals, *self.shown) if e.head != country]
        return f"answer {heads[0]}" if heads else f"answer {country}"

    def _compare(self) -> str | None:
        event = str(self.relation).removeprefix("first-")
        years = []
        for name in self.names[:2]:
            entry = self._look_up(name, "century")
            if isinstance(entry, str):
                return entry
            if self.naive:
                return f"answer {name}"
            year = _of_event(entry.years, event)
            if year is None:
                return f"answer {name}"
            years.append((year[1], name))
        return f"answer {min(years)[1]}"

    @staticmethod
    def _year(entry: Entry, event: str) -> str | None:
        year = _of_event(entry.years, event)
        return _answer(year[0] if year else None)

    @staticmethod
    def _after_by(entry: Entry) -> str | None:
        _, found, rest = f" {entry.about}".partition(" by ")
        names = names_in(rest)
        return names[0] if found and names else None

    @staticmethod
    def _last_name(entry: Entry) -> str | None:
        names = names_in(entry.about)
        return names[-1] if names else None

    @staticmethod
    def _number(entry: Entry) -> str | None:
        names = names_in(entry.about.partition("number")[2])
        return names[0] if names else None


def _answer(name: str | None) -> str | None:
    return None if name is None else f"answer {name}"


def _of_event(years: Sequence[tuple[str, int]], event: str) -> tuple[str, int] | None:
    """The last two years of a life are birth and death (an earlier number belongs to something else)."""
    if len(years) < 2:
        return None
    return years[-2] if event == "birth" else years[-1]
