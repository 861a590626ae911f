"""What a shopper wants: goals from WebShop's own files, with fixed price bounds, stable ids and a fixed split.

Two kinds (princeton-nlp/WebShop): `synthetic` is the instruction of a product times every combination of its options,
each option with its name; `human` is a sentence that a person wrote, with a list of option values. Both get a price
bound: of the multiples of ten dollars (10 to 990) the first four above the price, two are drawn and the larger is the
bound; with fewer than two left there is no bound.

The original draws bounds before it seeds, so one goal has another text in every process, and the released training code
(arXiv:2606.26790) shuffles with each worker's own seed, so its test goals are other workers' training goals. Here a
bound is drawn from the goal's own name, and there is one split for all: the goals in the order of the original's
shuffle (seed 233); the first 500 are `test`, the next 1,000 `validation`, the rest `train`. A goal whose content came
before is left out. Generated catalogues say themselves which product belongs to which panel.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from envs.panels import digest
from envs.webshop.catalogue import CatalogueError, Product

KINDS = ("synthetic", "human")
PANELS = ("train", "validation", "test")
SPLIT_SEED = 233
TEST_GOALS, VALIDATION_GOALS = 500, 1000
NO_BOUND = 1_000_000.0  # dollars
_STEPS = tuple(10.0 * k for k in range(1, 100))


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal.

    id: asin and number, stable; instruction: what the shopper is told; attributes: wanted ones; options: (name, value),
    the name is "" where a person wrote it; price_upper: dollars; query, type_path, nouns: of the product it is about
    """

    id: str
    asin: str
    category: str
    query: str
    type_path: tuple[str, ...]
    nouns: tuple[str, ...]
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    price_upper: float

    def content_hash(self) -> str:
        """Over everything that defines the task but its name."""
        return digest(
            self.instruction,
            self.asin,
            self.query,
            "›".join(self.type_path),
            "|".join(self.nouns),
            "|".join(self.attributes),
            "|".join(f"{name}={value}" for name, value in self.options),
            f"{self.price_upper:.2f}",
        )

    def row(self) -> dict[str, Any]:
        """For JSON; `from_row` is the inverse."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Goal:
        lists = ("type_path", "nouns", "attributes")
        options = tuple((name, value) for name, value in row["options"])
        return cls(**{**row, **{name: tuple(row[name]) for name in lists}, "options": options})


def price_bound(price: float, name: str, seed: int) -> tuple[float, str]:
    """(bound in dollars, what the instruction says about it) of the goal called `name`."""
    above = [step for step in _STEPS if step > price][:4]
    if len(above) < 2:
        return NO_BOUND, ""
    upper = max(random.Random(f"bound|{seed}|{name}").sample(above, 2))
    return upper, f", and price lower than {upper:.2f} dollars"


def synthetic(products: Iterable[Product], entries: Mapping[str, Mapping[str, Any]], seed: int) -> Iterator[Goal]:
    """A goal for every combination of options of every product with an instruction, in the order of the products.

    entries: asin -> entry of items_ins_v2 (`instruction`, `instruction_attributes`). Raises CatalogueError for an
    instruction without attributes.
    """
    for product in products:
        entry = entries.get(product.asin, {})
        if entry.get("instruction") is None:
            continue
        attributes = entry.get("instruction_attributes")
        if not attributes:
            raise CatalogueError(f"the instruction of product {product.asin} comes without attributes")
        upper, text = price_bound(product.price, product.asin, seed)
        names = sorted(product.options)
        for number, values in enumerate(itertools.product(*(product.options[name] for name in names))):
            options = tuple(zip(names, values, strict=True))
            said = ", and ".join(f"{name}: {value}" for name, value in options)
            yield _goal(
                f"{product.asin}-{number}",
                product,
                f"{entry['instruction']}{' with ' + said if said else ''}{text}",
                attributes,
                options,
                upper,
            )


def human(products: Iterable[Product], entries: Mapping[str, Sequence[Mapping[str, Any]]], seed: int) -> Iterator[Goal]:
    """The goals that people wrote, in the order of the products; those without attributes are skipped.

    entries: asin -> list of entries of items_human_ins.
    """
    for product in products:
        for number, entry in enumerate(entries.get(product.asin, ())):
            attributes = entry["instruction_attributes"]
            if not attributes:
                continue
            name = f"{product.asin}-h{number}"
            upper, text = price_bound(product.price, name, seed)
            options = tuple(("", value) for value in entry["instruction_options"])
            yield _goal(name, product, entry["instruction"].strip(".") + text, attributes, options, upper)


def _goal(
    name: str,
    product: Product,
    instruction: str,
    attributes: Sequence[str],
    options: tuple[tuple[str, str], ...],
    upper: float,
) -> Goal:
    return Goal(
        name,
        product.asin,
        product.category,
        product.query,
        product.type_path,
        product.nouns,
        instruction,
        tuple(attributes),
        options,
        upper,
    )


def split(goals: Sequence[Goal], belongs: Mapping[str, str] | None = None) -> dict[str, list[Goal]]:
    """Panel -> its goals, disjoint by content.

    belongs: asin -> panel, of a generated catalogue; None takes the original's shuffle and its ranges.
    Raises ValueError if there are too few goals for the ranges, CatalogueError for a product that belongs nowhere.
    """
    shares: dict[str, list[Goal]] = {panel: [] for panel in PANELS}
    if belongs is not None:
        for goal in goals:
            if goal.asin not in belongs:
                raise CatalogueError(f"no panel is named for product {goal.asin}; panels.json must name one for each")
            shares[belongs[goal.asin]].append(goal)
    else:
        ordered = list(goals)
        random.Random(SPLIT_SEED).shuffle(ordered)
        if len(ordered) <= TEST_GOALS + VALIDATION_GOALS:
            raise ValueError(
                f"{len(ordered)} goals are too few: the first {TEST_GOALS} are the test panel, the next "
                f"{VALIDATION_GOALS} the validation panel, and training needs some too; take the full catalogue or "
                "another env.knobs.goals"
            )
        shares["test"] = ordered[:TEST_GOALS]
        shares["validation"] = ordered[TEST_GOALS : TEST_GOALS + VALIDATION_GOALS]
        shares["train"] = ordered[TEST_GOALS + VALIDATION_GOALS :]
    taken: set[str] = set()
    kept: dict[str, list[Goal]] = {}
    for panel in ("test", "validation", "train"):  # what is judged keeps its goals, training gives way
        kept[panel] = []
        for goal in shares[panel]:
            content = goal.content_hash()
            if content not in taken:
                taken.add(content)
                kept[panel].append(goal)
    return kept
