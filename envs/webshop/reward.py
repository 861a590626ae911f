"""WebShop's reward, as published (arXiv:2207.01206; princeton-nlp/WebShop, MIT).

    r = r_type * (matched attributes + matched options + [price <= bound]) / (|attributes| + |options| + 1)

r_type is 1 if the search terms are equal, or two parts of the category path are shared, or more than a fifth of the
goal title's nouns occur in the bought one; else 0.5. Where fewer than a tenth of them occur it is 0.1, where none do it
is 0, whatever else matches; a goal title without nouns counts as 0.2.

An attribute matches if one of the bought product's attributes is similar (token-set ratio above 85), or if it stands in
title, bullets or description. An option matches if a chosen value is similar after colours are normalised.

One looseness of the original is kept by default: a goal made from option combinations compares the *pair* (name, value)
with a chosen value, so that "large" fits ("size", "x large") and colours inside longer values are not normalised.
strict_options=True compares the goal's value with the value chosen for the same option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envs.webshop.catalogue import Product
from envs.webshop.fuzzy import token_set_ratio
from envs.webshop.goals import Goal

SIMILAR = 85  # on thefuzz's scale of 0 to 100; more than this is a match

# A value is replaced by the first of these that it contains (WebShop's own order, which is alphabetical).
_COLOUR_TEXT = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory
ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire
seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white
wine yellow
"""
COLOURS = tuple(_COLOUR_TEXT.split())


@dataclass(frozen=True, slots=True)
class Score:
    """total in [0, 1]; kind: r_type; attributes, options: how many matched; price: whether within the bound."""

    total: float
    kind: float
    attributes: int
    options: int
    price: bool


def score(product: Product, goal: Goal, chosen: Mapping[str, str], strict_options: bool = False) -> Score:
    """Of buying `product` with the options `chosen` (name -> value)."""
    kind = type_factor(product, goal)
    attributes = sum(attribute_matches(product, wanted) for wanted in goal.attributes)
    options = matched_options(goal, chosen, strict_options)
    within = product.price <= goal.price_upper
    parts = len(goal.attributes) + len(goal.options) + 1
    return Score(kind * (attributes + options + within) / parts, kind, attributes, options, within)


def noun_share(product: Product, goal: Goal) -> float:
    """Distinct common nouns over the nouns of the goal's title (with repetitions); 0.2 if that has none."""
    if not goal.nouns:
        return 0.2
    return len(set(product.nouns) & set(goal.nouns)) / len(goal.nouns)


def type_factor(product: Product, goal: Goal) -> float:
    """r_type: 1, 0.5, 0.1 or 0."""
    share = noun_share(product, goal)
    if share == 0:
        return 0.0
    if share < 0.1:
        return 0.1
    same_path = len(set(product.type_path) & set(goal.type_path)) >= 2
    return 1.0 if product.query == goal.query or same_path or share > 0.2 else 0.5


def attribute_matches(product: Product, wanted: str) -> bool:
    if any(token_set_ratio(has, wanted) > SIMILAR for has in product.attributes):
        return True
    return (
        wanted in product.title.lower()
        or wanted in " ".join(product.bullets).lower()
        or wanted in product.description.lower()
    )


def matched_options(goal: Goal, chosen: Mapping[str, str], strict: bool = False) -> int:
    """How many of the goal's options some chosen value fits."""
    if strict:
        return sum(
            any(
                (not name or name == key) and token_set_ratio(normal(value), normal(has)) > SIMILAR
                for key, has in chosen.items()
            )
            for name, value in goal.options
        )
    values = [normal(value) for value in chosen.values()]
    return sum(
        any(token_set_ratio(has, wanted) > SIMILAR for has in values)
        for wanted in (_as_published(name, value) for name, value in goal.options)
    )


def normal(value: str) -> str:
    """The first colour word that the value contains, or the value."""
    return next((colour for colour in COLOURS if colour in value), value)


def _as_published(name: str, value: str) -> object:
    """What the original compares with: the pair if the option has a name, unless its value is a colour word itself."""
    if not name:
        return normal(value)
    return next((colour for colour in COLOURS if colour in (name, value)), (name, value))
