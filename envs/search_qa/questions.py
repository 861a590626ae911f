"""Questions derived from the embedded passages, with answers that stand in the passages.

What is asked comes from an article's short description (`1899 novella by Joseph Conrad`); a question is kept only if
its answer occurs in the passage that the search engine would show. Three kinds, each named for what it is:

    wikilead-1hop      one passage answers
    wikilead-bridge    the first passage names what has to be looked up next
    wikilead-compare   two passages have to be compared

A question to which the articles give two answers (the capital of Yemen) is not asked.

Articles are divided once and for all into those that training may read and those kept for evaluation; articles that a
bridge connects are on the same side, and no question crosses.

They are questions of this project's own, and no Natural Questions, HotpotQA or any other published set.
"""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from envs.search_qa.corpus import Passage, embedded

ONE_HOP, BRIDGE, COMPARE = "wikilead-1hop", "wikilead-bridge", "wikilead-compare"
KINDS = (ONE_HOP, BRIDGE, COMPARE)
QUESTIONS_VERSION = 2  # raised whenever the same corpus would give other questions

# kind of work in a description -> (relation, noun of the question)
_WORKS = {
    "film": ("director", "directed the film"),
    "novel": ("author", "wrote the novel"),
    "novella": ("author", "wrote the novella"),
    "book": ("author", "wrote the book"),
    "poem": ("author", "wrote the poem"),
    "play": ("author", "wrote the play"),
    "tragedy": ("author", "wrote the tragedy"),
    "comedy": ("author", "wrote the comedy"),
    "treatise": ("author", "wrote the treatise"),
    "painting": ("maker", "painted"),
    "sculpture": ("maker", "made the sculpture"),
    "statue": ("maker", "made the statue"),
    "opera": ("composer", "composed the opera"),
    "ballet": ("composer", "composed the ballet"),
    "symphony": ("composer", "composed the symphony"),
    "musical": ("composer", "composed the musical"),
    "composition": ("composer", "composed"),
    "concertos": ("composer", "composed the"),
    "album": ("performer", "recorded the album"),
    "song": ("performer", "recorded the song"),
}
_PLACES = re.compile(
    "river|lake|mountains?|volcano|desert|island|city|town|archipelago|sea|waterfall|temple|palace|museum|bridge|tower|"
    "castle|cathedral|mausoleum|strait|canal|dam|stadium|port|region"
)
# relation -> how one says "the ... of X", for questions with two steps
_OF = {"director": "director of", "author": "author of", "maker": "maker of", "composer": "composer of"}
_OF["performer"] = "performer of"
_FIRST = {"birth": "was born", "death": "died"}
_COMPARISONS = 600  # pairs drawn; those too close in time are left out
_HELD_OUT = 3  # of ten groups of connected articles are kept for evaluation
_DATES_KEPT = 8  # one in so many questions about a single person's year is kept: they would be most of all questions
_LEAST_GAP = 2  # years between two births or deaths that are compared


@dataclass(frozen=True, slots=True)
class Question:
    """relation: what is asked, a word; names: what the question is about, in its order; hops: titles of the passages
    that have to be read, in order; answers: golden answers, any of which is right; held_out: its articles are kept for
    evaluation."""

    id: str
    kind: str
    text: str
    answers: tuple[str, ...]
    relation: str
    names: tuple[str, ...]
    hops: tuple[str, ...]
    held_out: bool = False


def plain(text: str) -> str:
    """Letters without accents, for comparing names."""
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).lower()


def base(title: str) -> str:
    """A title without what tells it from others of its name: `Mercury (planet)` -> `Mercury`."""
    return re.sub(r" \([^()]*\)$", "", title)


@dataclass(frozen=True, slots=True)
class _Fact:
    """One thing that an article's description says: relation of its title to `value`."""

    title: str
    relation: str
    value: str
    question: str


def _facts(passage: Passage) -> list[_Fact]:
    name, about, found = base(passage.title), passage.description, []
    if match := re.match(
        r"^(?:\d{4} )?(?:[\w-]+ ){0,3}?(\w+) (?:directed |written )?by ([A-Z][\w.'’-]+(?: [\w.'’-]+){0,3})$", about
    ):
        work, maker = match.group(1).lower(), match.group(2)
        if work in _WORKS and maker.split()[-1][0].isupper() and " and " not in maker:
            relation, verb = _WORKS[work]
            found.append(_Fact(passage.title, relation, maker, f"Who {verb} {name}?"))
    if match := re.match(r"^(?:[\w ]+ )?[Cc]apital(?: and [\w ]+?)?(?: city)? (?:of|in) ([A-Z][\w’' -]+)$", about):
        found.append(_Fact(passage.title, "capital", match.group(1), f"What is the capital of {match.group(1)}?"))
    if match := re.match(r"^(\w+)(?: [\w]+){0,2} in (?:[A-Z][\w’' -]+, )?([A-Z][\w’' -]+)$", about):
        what = match.group(1).lower()
        if _PLACES.fullmatch(what):
            found.append(
                _Fact(passage.title, "place", match.group(2), f"In which country or region is the {what} {name}?")
            )
    if match := re.match(r"^Chemical element with atomic number (\d+) \((\w+)\)$", about):
        found.append(_Fact(passage.title, "number", match.group(1), f"What is the atomic number of {name.lower()}?"))
    years = re.match(r"^[^()\d]+ \((\d{3,4})[–-](\d{3,4})\)$", about)
    if years is not None and passage.topic == "People":
        found.append(_Fact(passage.title, "birth", years.group(1), f"In what year was {name} born?"))
        found.append(_Fact(passage.title, "death", years.group(2), f"In what year did {name} die?"))
    return found


def _stands_in(passage: Passage, answer: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(plain(answer))}(?!\w)", plain(passage.text)) is not None


def _question(
    kind: str, text: str, answers: Sequence[str], relation: str, names: Sequence[str], hops: Sequence[str]
) -> Question:
    number = hashlib.sha256(f"{kind}|{text}".encode()).hexdigest()[:12]
    return Question(f"{kind}/{number}", kind, text, tuple(answers), relation, tuple(names), tuple(hops))


def derive(passages: Sequence[Passage], seed: int = 0) -> tuple[Question, ...]:
    """All questions, sorted by id; comparisons are drawn with `seed`. The same passages give the same questions."""
    by_title = {p.title: p for p in passages}
    by_name: dict[str, list[str]] = defaultdict(list)
    for passage in passages:
        by_name[plain(base(passage.title))].append(passage.title)
    facts = [fact for passage in passages for fact in _facts(passage)]
    known: dict[str, dict[str, _Fact]] = defaultdict(dict)  # title -> relation -> fact
    capitals: dict[str, list[_Fact]] = defaultdict(list)  # country -> facts about its capital, or its capitals
    for fact in facts:
        known[fact.title][fact.relation] = fact
        if fact.relation == "capital":
            capitals[plain(fact.value)].append(fact)
    if not any(f.relation in _FIRST for f in facts):
        raise ValueError("no passage says when anybody was born or died; is this the embedded corpus?")
    sure = {country: told[0] for country, told in capitals.items() if len(told) == 1}
    found = [*_one_hop(facts, by_title), *_bridges(facts, known, sure, by_title, by_name)]
    held_out = _held_out(found, passages)
    for side in (False, True):
        here = {title: own for title, own in known.items() if held_out[title] == side}
        rng = random.Random(f"compare|{QUESTIONS_VERSION}|{seed}|{side}")
        found += _comparisons(here, by_title, rng)
    sided = {q.id: replace(q, held_out=held_out[q.hops[0]]) for q in _with_one_answer(found, facts)}
    return tuple(sorted(sided.values(), key=lambda q: q.id))


def _with_one_answer(found: Iterable[Question], facts: Iterable[_Fact]) -> list[Question]:
    """Without the questions that have another answer elsewhere, be it one that no passage would have been kept for."""
    answers: dict[str, set[str]] = defaultdict(set)
    for fact in facts:
        answers[fact.question].add(plain(base(fact.title) if fact.relation == "capital" else fact.value))
    kept = list(found)
    for question in kept:
        answers[question.text].update(plain(answer) for answer in question.answers)
    return [question for question in kept if len(answers[question.text]) == 1]


def _held_out(bridges: Iterable[Question], passages: Sequence[Passage]) -> dict[str, bool]:
    """Title -> whether it is kept for evaluation; the same for all titles that bridges connect."""
    leader = {passage.title: passage.title for passage in passages}

    def find(title: str) -> str:
        while leader[title] != title:
            title = leader[title]
        return title

    for question in bridges:
        first, *others = (find(title) for title in question.hops)
        for other in others:
            leader[max(first, other)] = leader[min(first, other)] = min(first, other)
            first = min(first, other)
    return {
        title: hashlib.sha256(f"side|{find(title)}".encode()).digest()[0] % 10 < _HELD_OUT for title in sorted(leader)
    }


def _one_hop(facts: Sequence[_Fact], by_title: dict[str, Passage]) -> list[Question]:
    found = []
    for fact in facts:
        name = base(fact.title)
        if fact.relation == "capital":
            if _stands_in(by_title[fact.title], fact.value):
                found.append(_question(ONE_HOP, fact.question, [name], "capital", [fact.value], [fact.title]))
        elif fact.relation in _FIRST and hashlib.sha256(fact.question.encode()).digest()[0] % _DATES_KEPT:
            continue
        elif _stands_in(by_title[fact.title], fact.value):
            found.append(_question(ONE_HOP, fact.question, [fact.value], fact.relation, [name], [fact.title]))
    return found


def _bridges(
    facts: Sequence[_Fact],
    known: dict[str, dict[str, _Fact]],
    capitals: dict[str, _Fact],
    by_title: dict[str, Passage],
    by_name: dict[str, list[str]],
) -> list[Question]:
    """What links to what: a work to its maker's years, a place to its country's capital."""
    found = []
    for fact in facts:
        name = base(fact.title)
        if fact.relation in _OF:
            for maker in by_name.get(plain(fact.value), []):
                for relation, verb in (("birth", "was the {} {} born"), ("death", "did the {} {} die")):
                    year = known[maker].get(relation)
                    if year is not None and _both(by_title, fact, year):
                        text = f"In what year {verb.format(_OF[fact.relation], name)}?"
                        hops = [fact.title, maker]
                        found.append(_question(BRIDGE, text, [year.value], f"{fact.relation}-{relation}", [name], hops))
        capital = capitals.get(plain(fact.value)) if fact.relation == "place" else None
        if capital is None or capital.title == fact.title or not _stands_in(by_title[fact.title], fact.value):
            continue
        text = f"What is the capital of the country that {name} is in?"
        hops = [fact.title, capital.title]
        found.append(_question(BRIDGE, text, [base(capital.title)], "place-capital", [name], hops))
    return found


def _both(by_title: dict[str, Passage], one: _Fact, other: _Fact) -> bool:
    return _stands_in(by_title[one.title], one.value) and _stands_in(by_title[other.title], other.value)


def _comparisons(
    known: dict[str, dict[str, _Fact]], by_title: dict[str, Passage], rng: random.Random
) -> list[Question]:
    dated = {
        relation: sorted(
            title
            for title, facts in known.items()
            if relation in facts and _stands_in(by_title[title], facts[relation].value)
        )
        for relation in _FIRST
    }
    found = []
    for _ in range(_COMPARISONS):
        relation = rng.choice(sorted(r for r in _FIRST if len(dated[r]) > 1))
        verb = _FIRST[relation]
        one, other = rng.sample(dated[relation], 2)
        first, second = int(known[one][relation].value), int(known[other][relation].value)
        if abs(first - second) <= _LEAST_GAP:
            continue
        right = one if first < second else other
        names = [base(one), base(other)]
        text = f"Who {verb} first, {names[0]} or {names[1]}?"
        found.append(_question(COMPARE, text, [base(right)], f"first-{relation}", names, [one, other]))
    return found


@lru_cache(maxsize=1)
def embedded_questions() -> tuple[Question, ...]:
    """The questions of the embedded corpus."""
    return derive(embedded())
