"""Pages and instructions read back from their text: for compact prompts, the expert and hindsight.

Only what a policy is shown is used. Both forms of pages are understood; in the form `text` nothing tells option names
from values, so all of them stand under the name "".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from envs.search.porter import stem
from envs.webshop.pages import ORDERED, SEPARATOR
from envs.webshop.shop import END, ITEM, RESULTS, SEARCH, SUB

_CLICKED = re.compile(r"You have clicked (.*)\.")
_BUTTON = re.compile(r"\[(?:clicked )?button\] (.*) \[(?:clicked )?button_\]")
_PAGE = re.compile(r"Page (\d+) \(Total results: (\d+)\)")
_AMOUNT = re.compile(r"\d+(?:\.\d+)?")
_BOUND = re.compile(r",? and price lower than (\d+(?:\.\d+)?) dollars\.?\s*$")
_NAMED = re.compile(r" with (\w[\w &'-]*: .*)$")
_WORDS = re.compile(r"[a-z0-9']+")
TENS = 10.0  # dollars; bounds are multiples of it
# What instructions say around what they are about.
_FUNCTION_TEXT = """
a an and any are as asked at be buy can could do dollars find for from friend get give has have i i'd i'm in is it
like looking look love lower me my need of on or please prefer price search should show some than that the their them
to under want with would you your am
"""
FUNCTION_WORDS = frozenset(_FUNCTION_TEXT.split())


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a page of results; low, high: dollars."""

    asin: str
    title: str
    low: float
    high: float

    @property
    def short_title(self) -> str:
        """Up to the first comma: what compact prompts show."""
        return self.title.split(",")[0].strip()


@dataclass(frozen=True, slots=True)
class Page:
    """kind: search, results, item, sub or end. results: of a page of results, with its number and the total;
    options: name -> values, title, low, high, chosen: of an item; texts: of a sub page."""

    kind: str
    number: int = 1
    total: int = 0
    results: tuple[Result, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    title: str = ""
    low: float = 0.0
    high: float = 0.0
    chosen: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def values(self) -> list[str]:
        return [value for values in self.options.values() for value in values]


def read_page(text: str) -> Page:
    """Raises ValueError for a text that is no page."""
    chosen, found, rich = _parts(text)
    if found[0][0] == "WebShop":
        return Page(SEARCH)
    if found[0][0] == ORDERED:
        return Page(END)
    if found[0][0] != "Instruction:" or len(found) < 4:
        raise ValueError(f"no page of the shop begins like {text[:80]!r}")
    rest = found[3:]  # after instruction and Back to Search
    head = _PAGE.fullmatch(rest[0][0])
    if head:
        return _results(int(head[1]), int(head[2]), [part for part, _ in rest[1:] if part not in ("< Prev", "Next >")])
    rest = rest[1:]  # after < Prev
    prices = [i for i, (part, _) in enumerate(rest) if part.startswith("Price: ")]
    if rest and rest[-1][0] == "Buy Now" and prices and prices[-1] > 0:
        at = prices[-1]
        low, high = amounts(rest[at][0])
        return Page(
            ITEM, options=_options(rest[: at - 1], rich), title=rest[at - 1][0], low=low, high=high, chosen=chosen
        )
    return Page(SUB, texts=tuple(part for part, _ in rest))


def _parts(text: str) -> tuple[tuple[str, ...], list[tuple[str, bool]], bool]:
    """(values said to be clicked, [(part, whether it is a button)], whether the form is text_rich)."""
    if SEPARATOR in text or "\n" not in text:
        return (), [(part.strip(), False) for part in text.split(SEPARATOR)], False
    chosen: list[str] = []
    found: list[tuple[str, bool]] = []
    for line in filter(None, (line.strip() for line in text.split("\n"))):
        said = _CLICKED.fullmatch(line) if not found else None
        if said:
            chosen.insert(0, said[1])
            continue
        button = _BUTTON.fullmatch(line)
        found.append((button[1], True) if button else (line, False))
    return tuple(chosen), found or [("", False)], True


def _results(number: int, total: int, rest: list[str]) -> Page:
    found = []
    for asin, title, price in zip(rest[::3], rest[1::3], rest[2::3], strict=False):
        found.append(Result(asin, title, *amounts(price)))
    return Page(RESULTS, number, total, tuple(found))


def _options(rest: list[tuple[str, bool]], rich: bool) -> dict[str, tuple[str, ...]]:
    if not rich:
        return {"": tuple(part for part, _ in rest)} if rest else {}
    found: dict[str, list[str]] = {}
    name = ""
    for part, button in rest:
        if button:
            found.setdefault(name, []).append(part)
        else:
            name = part
    return {name: tuple(values) for name, values in found.items()}


def amounts(tag: str) -> tuple[float, float]:
    """(lowest, highest) of the dollar amounts in a price tag; (0, 0) if there is none."""
    found = [float(amount) for amount in _AMOUNT.findall(tag)]
    return (min(found), max(found)) if found else (0.0, 0.0)


def tens(dollars: float) -> int:
    """Dollars in tens, rounded up: a price is within a bound exactly if its tens are."""
    return math.ceil(dollars / TENS)


@dataclass(frozen=True, slots=True)
class Wish:
    """What an instruction asks for.

    words: what the product is like, in order; options: name -> value, where they are named; body: instruction without
    the price; bound: dollars, infinite if none
    """

    words: tuple[str, ...]
    options: Mapping[str, str]
    body: str
    bound: float

    def affordable(self, low: float) -> bool:
        return low <= self.bound

    def choice(self, name: str, values: tuple[str, ...]) -> str | None:
        """The value wanted for an option, None if none of the values is. Without a name: the longest that is said."""
        if name in self.options:
            return self.options[name] if self.options[name] in values else None
        said = f" {plain(self.body)} "
        fits = [value for value in values if plain(value) and f" {plain(value)} " in said]
        return max(fits, key=len) if fits else None

    def open_words(self, *texts: str) -> list[str]:
        """Words of the wish that none of the texts has, compared by stem."""
        have = stems(" ".join(texts))
        return [word for word in self.words if stem(word) not in have]


def stems(text: str) -> set[str]:
    """Stems of the words of a text."""
    return {stem(word) for word in _WORDS.findall(text.lower())}


def plain(text: str) -> str:
    return " ".join(_WORDS.findall(text.lower()))


def read_instruction(text: str) -> Wish:
    """Of any instruction; what is not understood counts as words of the product."""
    bound = _BOUND.search(text)
    body = text[: bound.start()] if bound else text
    named = _NAMED.search(body)
    options: dict[str, str] = {}
    about = body
    if named:
        about = body[: named.start()]
        for pair in named[1].split(", and "):
            name, _, value = pair.partition(": ")
            options[name.strip().lower()] = value.strip().lower()
    words = tuple(word for word in _WORDS.findall(about.lower()) if word not in FUNCTION_WORDS)
    return Wish(words, options, body, float(bound[1]) if bound else math.inf)
