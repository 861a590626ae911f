"""A catalogue from a seed, in the formats of WebShop's own files, with near misses that search alone cannot tell apart.

Products come in families: one brand, one type, and siblings that differ in one respect: an attribute in the title, an
attribute that only the features tell, the option values on offer, or the price. A family belongs to one panel, so no
test goal is about a product that was trained on. Nothing depends on how many products are made before or after a family
(each has a random stream of its own), nor on the process.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.webshop.sources import PANEL_FILE
from envs.webshop.words import BRANDS, CATEGORIES, HUMAN_FRAMES, KINDS, OPTIONS, PRAISE, SYNTHETIC_FRAMES, USES, Kind

SIBLINGS = 5
_MOST_VALUES = (4, 3)  # of a product's first and second option, so that it has at most twelve combinations
FEWEST_PRODUCTS = 25  # one per type
# Which panel has the goals about a family, by family and type; a small shop has some of each in every category.
_SHARES = ("train", "test", "train", "train", "validation", "train", "test", "train", "train", "test")
_TYPES = len(KINDS) // len(CATEGORIES)  # per category
_CHARACTERS = "0123456789ABCDEFGHJKLMNPQRSTVWXYZ"
_CHEAPEST, _DEAREST = 4.0, 110.0  # dollars; with a range and a bound above it this stays below 200
_RANGE = 0.15  # share of products with two prices
_HIDDEN = 0.06  # share of instructions with two attributes that name one which only the features tell


@dataclass(frozen=True)
class RawCatalogue:
    """products, attributes, human: contents of items_shuffle, items_ins_v2 and items_human_ins; nouns: asin -> nouns of
    its title; panels: asin -> panel whose goals may be about it."""

    products: list[dict[str, Any]]
    attributes: dict[str, dict[str, Any]]
    human: dict[str, list[dict[str, Any]]]
    nouns: dict[str, list[str]]
    panels: dict[str, str]


@dataclass(frozen=True)
class _Item:
    """A sibling. attributes: the first leads the title, the second ends it, the third stands in the description, all in
    the features, of which only the first line is searched; series: option values that most of the family offer, which
    the description names whether this sibling offers them or not."""

    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: float
    series: tuple[str, ...]


def generate(seed: int, products: int) -> RawCatalogue:
    """ValueError for fewer products than there are types."""
    if products < FEWEST_PRODUCTS:
        raise ValueError(
            f"env.knobs.products={products} is fewer than the {FEWEST_PRODUCTS} product types of a generated catalogue"
        )
    catalogue = RawCatalogue([], {}, {}, {}, {})
    taken: set[str] = set()
    family = 0
    while len(catalogue.products) < products:
        kind, number = KINDS[family % len(KINDS)], family // len(KINDS)
        rng = random.Random(f"webshop|{seed}|{kind.query}|{number}")
        share = _SHARES[(number + KINDS.index(kind) % _TYPES) % len(_SHARES)]
        brand = BRANDS[(number * 7 + KINDS.index(kind) * 3 + seed) % len(BRANDS)]
        for item in _siblings(kind, rng)[: products - len(catalogue.products)]:
            _add(catalogue, kind, brand, item, share, taken, rng)
        family += 1
    random.Random(f"webshop|{seed}|order").shuffle(catalogue.products)
    return catalogue


def _siblings(kind: Kind, rng: random.Random) -> list[_Item]:
    """The first of the family and its near misses, in random order."""
    pool = list(kind.attributes)
    rng.shuffle(pool)
    has, others = pool[:4], pool[4:]
    options = {name: _values(name, most, rng) for name, most in zip(kind.options, _MOST_VALUES, strict=True)}
    price = min(max(kind.price * rng.lognormvariate(0.0, 0.35), _CHEAPEST), _DEAREST / 2)
    price = round(price) - rng.choice((0.01, 0.05, 0.5))
    series = tuple(value for values in options.values() for value in values)

    name = rng.choice(kind.options)  # the option of which one sibling offers other values

    def near() -> float:
        return round(price * rng.uniform(0.9, 1.1), 2)

    siblings = [
        _Item(tuple(has), options, price, series),
        _Item((others[0], *has[1:]), options, near(), series),
        _Item((*has[:3], others[1]), options, near(), series),
        _Item(tuple(has), {**options, name: _other_values(options[name], OPTIONS[name], rng)}, near(), series),
        _Item(tuple(has), options, round(min(price * rng.uniform(1.8, 2.6) + 10, _DEAREST), 2), series),
    ]
    rng.shuffle(siblings)
    return siblings


def _other_values(taken: tuple[str, ...], pool: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    """As many values, if there are, none of them among `taken` but perhaps the last."""
    rest = [value for value in pool if value not in taken[:-1]]
    chosen = rng.sample(range(len(rest)), min(len(taken), len(rest)))
    return tuple(rest[i] for i in sorted(chosen))


def _values(name: str, most: int, rng: random.Random) -> tuple[str, ...]:
    """Two values to `most`, in the order of the pool."""
    pool = OPTIONS[name]
    chosen = rng.sample(range(len(pool)), rng.randint(2, min(most, len(pool))))
    return tuple(pool[i] for i in sorted(chosen))


def _add(
    catalogue: RawCatalogue, kind: Kind, brand: str, item: _Item, panel: str, taken: set[str], rng: random.Random
) -> None:
    asin = _asin(rng, taken)
    shown, also, told, hidden = item.attributes
    use = rng.choice(USES[kind.category])
    attributes = sorted(item.attributes)
    options = {name: [{"value": value, "image": None} for value in values] for name, values in item.options.items()}
    catalogue.products.append(
        {
            "asin": asin,
            "category": kind.category,
            "query": kind.query,
            "name": f"{brand} {shown} {kind.query}, {also}, for {use}".title(),
            "product_category": kind.type_path,
            "full_description": (
                f"This {kind.query} by {brand.title()} is {rng.choice(PRAISE)}. It offers {told} and is fit for {use}. "
                f"The series comes in {', '.join(item.series)}.{_asked_for(item)}"
            ),
            "small_description": [f"With {shown} and {also}", f"Comes with {told}", f"Comes with {hidden}"],
            "pricing": _pricing(item.price, rng),
            "customization_options": options,
            "images": [f"{asin}.jpg"],
        }
    )
    wanted = _wanted(item, rng.choice((1, 2, 2)), rng)
    catalogue.attributes[asin] = {
        "attributes": attributes,
        "instruction": rng.choice(SYNTHETIC_FRAMES).format(what=f"{', '.join(wanted)} {kind.query}"),
        "instruction_attributes": wanted,
    }
    catalogue.human[asin] = [_human(kind, item, rng)]
    catalogue.nouns[asin] = [brand, *kind.query.split(), shown.split()[-1], use.split()[-1]]
    catalogue.panels[asin] = panel


def _asked_for(item: _Item) -> str:
    """Names the values of the series that this sibling lacks, so that search finds it as well as the others."""
    offered = {value for values in item.options.values() for value in values}
    lacking = [value for value in item.series if value not in offered]
    return f" Often asked for {'in ' + ', '.join(lacking) if lacking else 'as a gift by our customers'}."


def _wanted(item: _Item, count: int, rng: random.Random) -> list[str]:
    """Attributes of an instruction, now and then one that search cannot find beside one that it can."""
    *found, hidden = item.attributes
    chosen = rng.sample(found, count)
    if count > 1 and rng.random() < _HIDDEN:
        chosen[-1] = hidden
    return sorted(chosen)


def _human(kind: Kind, item: _Item, rng: random.Random) -> dict[str, Any]:
    wanted = _wanted(item, rng.choice((1, 2)), rng)
    names = sorted(item.options)
    options = [(name, rng.choice(item.options[name])) for name in names]
    what = f"{' and '.join(wanted)} {kind.query}"
    said = ", ".join(value for _, value in options)
    return {
        "instruction": rng.choice(HUMAN_FRAMES).format(what=what, options=said),
        "instruction_attributes": wanted,
        "instruction_options": [value for _, value in options],
        "options": [f"{name}: {value}" for name, value in options],
    }


def _pricing(price: float, rng: random.Random) -> str:
    if rng.random() >= _RANGE:
        return f"${price:.2f}"
    return f"${price:.2f}${price * rng.uniform(1.05, 1.2):.2f}"


def _asin(rng: random.Random, taken: set[str]) -> str:
    while True:
        asin = "B0" + "".join(rng.choice(_CHARACTERS) for _ in range(8))
        if asin not in taken:
            taken.add(asin)
            return asin


def files(catalogue: RawCatalogue) -> dict[str, bytes]:
    """File name -> content, named as WebShop names them, with the nouns and the panels beside them."""
    contents: dict[str, Any] = {
        "items_shuffle.json": catalogue.products,
        "items_ins_v2.json": catalogue.attributes,
        "items_human_ins.json": catalogue.human,
        "nouns.json": catalogue.nouns,
        PANEL_FILE: catalogue.panels,
    }
    return {name: (json.dumps(value, ensure_ascii=False) + "\n").encode() for name, value in contents.items()}
