"""What the shopper reads: pages as text, in the two forms of the original.

text       the parts of a page joined by " [SEP] "
text_rich  one part a line; what can be clicked between [button] and [button_], or [clicked button] and [clicked
           button_] once it was; "You have clicked x." in front for every chosen option value

The parts and their order are the original's; white space that its templates leave around parts is not reproduced.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from core.names import require_known
from envs.webshop.shop import END, ITEM, RESULTS, SEARCH, Visit

FORMS = ("text", "text_rich")
SEPARATOR = " [SEP] "
ORDERED = "Thank you for your order"
PLAIN, BUTTON, OPTION, PRODUCT = "plain", "button", "option", "product"


@dataclass(frozen=True, slots=True)
class Part:
    """text: as shown; kind: plain, button, option (a value) or product (an asin); clicked: chosen or visited."""

    text: str
    kind: str = PLAIN
    clicked: bool = False


def parts(visit: Visit, instruction: str) -> list[Part]:
    """The page in the order of reading."""
    if visit.page == SEARCH:
        return [Part("WebShop"), Part("Instruction:"), Part(instruction), Part("Search", BUTTON)]
    if visit.page == END:
        return [Part(ORDERED)]
    found = [Part("Instruction:"), Part(instruction), Part("Back to Search", BUTTON)]
    if visit.page == RESULTS:
        found.append(Part(f"Page {visit.number} (Total results: {len(visit.hits)})"))
        if visit.number > 1:
            found.append(Part("< Prev", BUTTON))
        found.append(Part("Next >", BUTTON))
        for number in visit.shown():
            product = visit.products(number)
            found += [
                Part(product.asin, PRODUCT, number in visit.seen),
                Part(product.title.strip()),
                Part(product.price_tag),
            ]
        return found
    found.append(Part("< Prev", BUTTON))
    return found + (_item(visit) if visit.page == ITEM else _sub(visit))


def _item(visit: Visit) -> list[Part]:
    product = visit.product()
    # The original looks for the quoted value in the page's address, which holds the query and the chosen options.
    address = f"{'+'.join(visit.query.split(' '))}/{visit.number}/{json.dumps(visit.chosen)}"
    found = []
    for name, values in product.options.items():
        found.append(Part(name))
        found += [Part(value, OPTION, f'"{value}"' in address) for value in values]
    found += [Part(product.title.strip()), Part(f"Price: {product.price_tag}"), Part(f"Rating: {product.rating}")]
    buttons = ["Description", "Features", "Reviews", *(["Attributes"] if visit.attributes_page else []), "Buy Now"]
    return found + [Part(button, BUTTON) for button in buttons]


def _sub(visit: Visit) -> list[Part]:
    product = visit.product()
    if visit.sub == "description":
        return [Part(product.description.strip())]
    if visit.sub == "features":
        return [Part(bullet.strip()) for bullet in product.bullets]
    if visit.sub == "attributes":
        shown = (*product.attributes, product.category, product.query, " › ".join(product.type_path))
        return [Part(text) for text in shown]
    return [Part(text) for title, stars, body in product.reviews for text in (f'"{title}"', stars, body)]


def _text(page: list[Part]) -> str:
    return SEPARATOR.join(part.text for part in page)


def _text_rich(page: list[Part]) -> str:
    lines: list[str] = []
    for part in page:
        text = " ".join(part.text.splitlines()) if "\n" in part.text else part.text
        if part.kind == PLAIN:
            lines.append(text)
            continue
        mark = "clicked button" if part.clicked else "button"
        lead = {OPTION: "  ", PRODUCT: "\n"}.get(part.kind, "")
        lines.append(f"{lead}[{mark}] {text} [{mark}_]")
        if part.kind == OPTION and part.clicked:
            lines.insert(0, f"You have clicked {text}.")
    return "\n".join(lines)


_RENDER: dict[str, Callable[[list[Part]], str]] = {"text": _text, "text_rich": _text_rich}


def render(visit: Visit, instruction: str, form: str) -> str:
    """The page as text. ValueError for an unknown form."""
    require_known("env.knobs.text", form, FORMS)
    return _RENDER[form](parts(visit, instruction))


def commands(visit: Visit) -> tuple[str, ...]:
    """What would be accepted, in the order of the page; the search bar counts where it is shown."""
    names = ["search[<your query>]"] if visit.page == SEARCH else []
    return tuple(names + [f"click[{name}]" for name in visit.clickable() if name != "search"])
