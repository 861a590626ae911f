"""The words of generated catalogues (data/words.json): product types, their attributes and options, brands, phrases.

Closed on purpose: small models know these words and no others. Attributes and option values are letters and blanks
only, no value is similar to another one (WebShop's reward would mix them up; a test checks every pair), and frames have
no word that is an option value. All of it is this project's own invention.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Kind:
    """A product type. query: also how titles and instructions call it; options: names of option pools;
    price: middle of its prices in dollars."""

    category: str
    query: str
    type_path: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price: float


_DATA = json.loads(resources.files("envs.webshop").joinpath("data/words.json").read_text(encoding="utf-8"))


def _pools(name: str) -> Mapping[str, tuple[str, ...]]:
    return {key: tuple(values) for key, values in _DATA[name].items()}


KINDS = tuple(
    Kind(**{**kind, "attributes": tuple(kind["attributes"]), "options": tuple(kind["options"])})
    for kind in _DATA["kinds"]
)
CATEGORIES = tuple(dict.fromkeys(kind.category for kind in KINDS))
OPTIONS = _pools("options")  # option name -> values that products choose from
USES = _pools("uses")  # category -> what titles and descriptions say products are for
BRANDS: tuple[str, ...] = tuple(_DATA["brands"])
PRAISE: tuple[str, ...] = tuple(_DATA["praise"])
# {what}: attributes and product type. Synthetic instructions are followed by the options and the price bound.
SYNTHETIC_FRAMES: tuple[str, ...] = tuple(_DATA["synthetic_frames"])
# {options}: the values wanted, joined by commas.
HUMAN_FRAMES: tuple[str, ...] = tuple(_DATA["human_frames"])
