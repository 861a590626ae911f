"""The walkthrough of a goal, by one who knows the product: search its title, open it, choose, buy."""

from __future__ import annotations

from envs.webshop.shop import MOST_RESULTS, PER_PAGE
from envs.webshop.store import Store


def actions_for(store: Store, number: int) -> list[str]:
    """Actions with the names of the pages. Raises ValueError if the product is not among the results for its title."""
    goal = store.goal(number)
    for query in (goal.instruction, *_titles(store, goal.asin)):
        query = "".join(c for c in query.lower() if c not in "[]")
        hits = [store.product(i) for i in store.index.search(query, MOST_RESULTS)]
        place = next((k for k, product in enumerate(hits) if product.asin == goal.asin), None)
        if place is not None:
            break
    else:
        raise ValueError(f"goal {goal.id}: product {goal.asin} is not found by its title")
    product = hits[place]
    wanted: dict[str, str] = {}
    for name, value in goal.options:
        names = [name] if name else [n for n, values in product.options.items() if value in values]
        if names:
            wanted[names[-1]] = value
    return [
        f"search[{query}]",
        *["click[next >]"] * (place // PER_PAGE),
        f"click[{product.asin.lower()}]",
        *(f"click[{value}]" for value in wanted.values()),
        "click[buy now]",
    ]


def _titles(store: Store, asin: str) -> list[str]:
    return [store.product(i).title for i in range(len(store)) if store.product(i).asin == asin]
