"""The shop's state machine: one visit of one shopper, from the search page to Buy Now.

    page      buttons                                                  leads to
    search    (search bar)                                             results
    results   Back to Search, < Prev (from page 2), Next >, products   search, results, item
    item      Back to Search, < Prev, option values, Description,      search, results, itself, sub page,
              Features, Reviews (, Attributes), Buy Now                end
    sub page  Back to Search, < Prev                                   search, item

As in the original (princeton-nlp/WebShop, text mode): `search[...]` works from every page; Next > is there even past
the last result, where pages are empty; a new search, Next > and going back from an item to the results forget the
chosen options, going back from a sub page keeps them, Back to Search forgets everything; a value that two options share
belongs to the later one. Whatever cannot be done changes nothing. Queries that begin with `<r>`, `<a>`, `<c>` or `<q>`
are words like others here; there they are a debugging aid that is random or crashes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from envs.webshop.catalogue import Product

PER_PAGE = 10  # products on a page of results
MOST_RESULTS = 50
SEARCH, RESULTS, ITEM, SUB, END = "search", "results", "item", "sub", "end"
BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
SUB_PAGES = ("description", "features", "reviews", "attributes")
_ACTION = re.compile(r"(.+)\[(.+)\]")

# query -> numbers of the products found, best first
Search = Callable[[str], tuple[int, ...]]
Products = Callable[[int], Product]


def read_action(action: str) -> tuple[str, str]:
    """(name, argument in lower case); the argument is "" for whatever is not `name[argument]`."""
    match = _ACTION.match(action)
    return (match.group(1), match.group(2).lower()) if match else (action, "")


@dataclass(slots=True)
class Visit:
    """One visit. products, search: of the shop, shared by all visits; attributes_page: items have an Attributes page.

    page: where the shopper is; hits: what the last search found; number: of the page of results, from 1; item: number
    of the product looked at; sub: which sub page; chosen: option -> value, in the order of choosing; seen: products
    that were clicked since the search page
    """

    products: Products
    find: Search
    attributes_page: bool = False
    page: str = SEARCH
    query: str = ""
    hits: tuple[int, ...] = ()
    number: int = 1
    item: int | None = None
    sub: str = ""
    chosen: dict[str, str] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def product(self) -> Product:
        """The product looked at. ValueError where there is none."""
        if self.item is None:
            raise ValueError(f"no product is open on page {self.page!r}")
        return self.products(self.item)

    def shown(self) -> tuple[int, ...]:
        """Products on the page of results."""
        return self.hits[(self.number - 1) * PER_PAGE : self.number * PER_PAGE]

    def clickable(self) -> dict[str, int | str | None]:
        """What a click can name, in the order of the page -> product number, or option name, or None for a button."""
        if self.page == SEARCH:
            return {"search": None}
        if self.page == END:
            return {}
        found: dict[str, int | str | None] = {BACK: None}
        if self.page == RESULTS:
            if self.number > 1:
                found[PREVIOUS] = None
            found[NEXT] = None
            found.update({self.products(i).asin.lower(): i for i in self.shown()})
            return found
        found[PREVIOUS] = None
        if self.page == ITEM:
            found.update(dict.fromkeys(SUB_PAGES if self.attributes_page else SUB_PAGES[:3]))
            found[BUY] = None
            for name, values in self.product().options.items():
                found.update(dict.fromkeys(values, name))
        return found

    def act(self, action: str) -> bool:
        """Do it; whether that was possible."""
        name, argument = read_action(action)
        if name == "search" and argument and self.page != END:
            self._search(argument)
            return True
        if name != "click" or argument == "search":
            return False
        clickable = self.clickable()
        if argument not in clickable:
            return False
        self._click(argument, clickable)
        return True

    def _search(self, query: str) -> None:
        self.page, self.query, self.hits, self.number = RESULTS, query, self.find(query), 1
        self._forget_item()

    def _forget_item(self) -> None:
        self.item, self.sub = None, ""
        self.chosen.clear()

    def _click(self, name: str, clickable: Mapping[str, int | str | None]) -> None:
        # Buttons come before option values of the same name: the original looks at the name alone.
        if name == BUY:
            self.page = END
        elif name == BACK:
            self.page, self.query, self.hits, self.number = SEARCH, "", (), 1
            self._forget_item()
            self.seen.clear()
        elif self.page == RESULTS and name in (NEXT, PREVIOUS):
            self.number += 1 if name == NEXT else -1
            self._forget_item()
        elif name == PREVIOUS and self.page == SUB:
            self.page, self.sub = ITEM, ""
        elif name == PREVIOUS:
            self.page = RESULTS
            self._forget_item()
        elif name in SUB_PAGES and self.page == ITEM:
            self.page, self.sub = SUB, name
        else:
            target = clickable[name]
            if isinstance(target, int):
                self.page, self.item = ITEM, target
                self.seen.add(target)
            elif isinstance(target, str):
                self.chosen[target] = name
