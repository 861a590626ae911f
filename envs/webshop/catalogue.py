"""Products as the shop sells them, read from WebShop's own files.

Load rules (princeton-nlp/WebShop, MIT; files `items_shuffle*.json` and `items_ins_v2*.json`; arXiv:2207.01206): a
product without a usable asin ("nan", or longer than ten characters) is skipped, so is one whose asin came before;
option names and values are in lower case, "/" in a value becomes " | "; no price means 100 dollars, two prices are a
range whose true price is drawn. WebShop draws it from unseeded random state, so it differs from start to start; here it
is drawn once from the asin and a seed, and is part of the catalogue.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

NO_ATTRIBUTE = "DUMMY_ATTR"  # the attribute list of a product that has none, as in WebShop
DEFAULT_PRICE = 100.0  # dollars
LONGEST_ASIN = 10
_NO_NOUNS = frozenset(("a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "or", "the", "to", "with"))


class CatalogueError(ValueError):
    """A product file breaks WebShop's format; the message names file and product."""


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    query: the search term it was found with; type_path: category names from general to special; prices: one or two
    dollars amounts; price: what it costs; price_tag: what pages show; options: name -> values; attributes: what the
    reward compares; nouns: of its title, in lower case, with repetitions; reviews: (title, stars, text)
    """

    asin: str
    category: str
    query: str
    type_path: tuple[str, ...]
    title: str
    description: str
    bullets: tuple[str, ...]
    price: float
    price_tag: str
    rating: str
    options: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    nouns: tuple[str, ...]
    reviews: tuple[tuple[str, str, str], ...] = ()

    def document(self) -> str:
        """What the search engine knows of it: title, description, first bullet and options, in lower case."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join((self.title, self.description, self.bullets[0] if self.bullets else "", options)).lower()

    def row(self) -> dict[str, Any]:
        """For JSON; `from_row` is the inverse."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Product:
        lists = ("type_path", "bullets", "attributes", "nouns")
        return cls(
            **{
                **row,
                **{name: tuple(row[name]) for name in lists},
                "options": {name: tuple(values) for name, values in row["options"].items()},
                "reviews": tuple((r[0], r[1], r[2]) for r in row["reviews"]),
            }
        )


def products(
    raw: Iterable[Mapping[str, Any]],
    attributes: Mapping[str, Mapping[str, Any]],
    nouns: Mapping[str, Sequence[str]] | None,
    price_seed: int,
    reviews: Mapping[str, Mapping[str, Any]] | None = None,
    source: str = "the product file",
) -> Iterator[Product]:
    """Products in the order of the file, by the load rules above.

    attributes: asin -> entry of items_ins_v2; nouns: asin -> nouns of its title, None for
    all its words in their place; reviews: asin -> entry of reviews.json
    Raises CatalogueError for an entry that lacks a key or has a price that is no number, and for one without nouns.
    """
    seen: set[str] = set()
    for number, entry in enumerate(raw):
        asin = entry.get("asin")
        if not isinstance(asin, str):
            raise CatalogueError(f"{source}: entry {number} has no asin")
        if asin == "nan" or len(asin) > LONGEST_ASIN or asin in seen:
            continue
        seen.add(asin)
        if nouns is not None and asin not in nouns:
            raise CatalogueError(
                f"{source}: no nouns are stored for product {asin} (entry {number}); `python -m envs.webshop nouns` "
                "tags all titles of a product file, env.knobs.nouns=words needs none"
            )
        try:
            yield _product(
                asin,
                entry,
                attributes.get(asin, {}),
                title_words(entry["name"]) if nouns is None else nouns[asin],
                price_seed,
                (reviews or {}).get(asin),
            )
        except (KeyError, TypeError, AttributeError, InvalidOperation) as error:
            raise CatalogueError(
                f"{source}: product {asin} (entry {number}) is not in WebShop's format: {type(error).__name__} {error}"
            ) from error


def _product(
    asin: str,
    entry: Mapping[str, Any],
    known: Mapping[str, Any],
    nouns: Sequence[str],
    price_seed: int,
    review: Mapping[str, Any] | None,
) -> Product:
    price, tag = price_of(asin, entry.get("pricing"), price_seed)
    small = entry["small_description"]
    found = known.get("attributes")
    return Product(
        asin=asin,
        category=entry["category"],
        query=entry["query"].lower().strip(),
        type_path=tuple(part.strip() for part in entry["product_category"].split("›")),
        title=entry["name"],
        description=entry["full_description"] or "",
        bullets=tuple(small) if isinstance(small, list) else (small,),
        price=price,
        price_tag=tag,
        rating=str(review["average_rating"]) if review else "N.A.",
        options=options_of(entry.get("customization_options")),
        attributes=tuple(found) if found is not None else (NO_ATTRIBUTE,),
        nouns=tuple(nouns),
        reviews=tuple(
            (str(r.get("title", "")), str(r.get("score", r.get("stars", ""))), str(r.get("review", r.get("body", ""))))
            for r in (review["reviews"] if review else ())
        ),
    )


def price_of(asin: str, pricing: str | None, seed: int) -> tuple[float, str]:
    """(price in dollars, what pages show) from a text like "$12.99" or "$10.5$20.0"."""
    if not pricing:
        return DEFAULT_PRICE, f"${DEFAULT_PRICE}"
    amounts = [float(Decimal(re.sub(r"[^\d.]", "", part))) for part in pricing.split("$")[1:]]
    if not amounts:
        return DEFAULT_PRICE, f"${DEFAULT_PRICE}"
    if len(amounts) == 1:
        return amounts[0], f"${amounts[0]}"
    low, high = amounts[:2]
    # its own stream: a product costs the same whichever others are loaded with it
    return random.Random(f"price|{seed}|{asin}").uniform(low, high), f"${low} to ${high}"


def options_of(customization: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """Option name -> values, in lower case."""
    found: dict[str, tuple[str, ...]] = {}
    for name, values in (customization or {}).items():
        if values is not None:
            found[name.lower()] = tuple(v["value"].strip().replace("/", " | ").lower() for v in values)
    return found


def title_words(title: str) -> list[str]:
    """Words of a title in lower case, without those that hardly ever are nouns: where there is no tagger."""
    return [word for word in re.findall(r"[a-z0-9']+", title.lower()) if word not in _NO_NOUNS]
