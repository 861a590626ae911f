"""The state machine, one transition at a time, and the pages it shows."""

from __future__ import annotations

import pytest
from webshop_helpers import product, visit

from envs.webshop import pages
from envs.webshop.shop import END, ITEM, RESULTS, SEARCH, SUB, Visit, read_action

INSTRUCTION = "i want a shirt"
SHELF = [product(f"B{k:09}", title=f"Shirt {k}") for k in range(60)]


def fresh(**changes: object) -> Visit:
    return visit(SHELF, {"two": [3, 1], "none": []}, **changes)


def after(*actions: str, **changes: object) -> Visit:
    """A visit after actions that were all possible."""
    shopper = fresh(**changes)
    for action in actions:
        assert shopper.act(action), action
    return shopper


ON_ITEM = ("search[two]", "click[b000000003]")


@pytest.mark.parametrize(
    ("action", "read"),
    [
        ("search[Red Shirt]", ("search", "red shirt")),
        ("click[Buy Now]", ("click", "buy now")),
        ("search[a[b]]", ("search[a", "b]")),  # greedy, as in the original
        ("search[a] and more", ("search", "a")),
        ("search[]", ("search[]", "")),
        ("nothing", ("nothing", "")),
        ("", ("", "")),
    ],
)
def test_actions_are_read_as_in_the_original(action: str, read: tuple[str, str]) -> None:
    assert read_action(action) == read


# ----------------------------------------------------------------------------------------------------- transitions
def test_a_search_shows_results_from_the_first_page() -> None:
    shopper = after("search[two]")
    assert (shopper.page, shopper.number, shopper.hits, shopper.shown()) == (RESULTS, 1, (3, 1), (3, 1))


@pytest.mark.parametrize("actions", [(), ("search[two]",), ON_ITEM, (*ON_ITEM, "click[features]")])
def test_a_search_works_from_every_page_and_forgets_the_item(actions: tuple[str, ...]) -> None:
    shopper = after(*actions, "search[anything]")
    assert (shopper.page, shopper.number, len(shopper.hits)) == (RESULTS, 1, 50)
    assert shopper.item is None and not shopper.chosen


def test_pages_of_results() -> None:
    shopper = after("search[all]")
    assert "< prev" not in shopper.clickable() and "next >" in shopper.clickable()
    for number in range(2, 6):
        assert shopper.act("click[next >]") and shopper.number == number
        assert shopper.shown() == tuple(range(number * 10 - 10, number * 10))
    assert "next >" in shopper.clickable()  # also on the last page
    assert shopper.act("click[next >]") and shopper.shown() == ()
    assert shopper.act("click[< prev]") and shopper.number == 5
    assert not fresh().act("click[< prev]")


def test_a_product_is_opened_by_its_asin_on_the_page_where_it_stands() -> None:
    shopper = after("search[all]", "click[next >]")
    assert not shopper.act("click[b000000003]")  # it stands on page 1
    assert shopper.act("click[B000000013]")  # in any case
    assert (shopper.page, shopper.item) == (ITEM, 13)


def test_options_are_chosen_and_chosen_anew() -> None:
    shopper = after(*ON_ITEM, "click[red]", "click[large]", "click[blue]")
    assert shopper.page == ITEM and shopper.chosen == {"color": "blue", "size": "large"}
    assert not shopper.act("click[green]")


def test_a_value_of_two_options_belongs_to_the_later_one() -> None:
    shelf = [product(options={"inner": ("red", "white"), "outer": ("red", "black")})]
    shopper = visit(shelf)
    assert shopper.act("search[x]") and shopper.act("click[b000000001]") and shopper.act("click[red]")
    assert shopper.chosen == {"outer": "red"}


@pytest.mark.parametrize("sub", ["description", "features", "reviews"])
def test_sub_pages_keep_what_was_chosen(sub: str) -> None:
    shopper = after(*ON_ITEM, "click[red]", f"click[{sub}]")
    assert (shopper.page, shopper.sub) == (SUB, sub)
    assert list(shopper.clickable()) == ["back to search", "< prev"]
    assert shopper.act("click[< prev]") and shopper.page == ITEM and shopper.chosen == {"color": "red"}


def test_the_attributes_page_is_there_only_where_it_is_wanted() -> None:
    assert not after(*ON_ITEM).act("click[attributes]")
    assert after(*ON_ITEM, "click[attributes]", attributes_page=True).sub == "attributes"


@pytest.mark.parametrize("action", ["click[< prev]", "search[two]", "click[back to search]"])
def test_leaving_an_item_forgets_its_options(action: str) -> None:
    shopper = after(*ON_ITEM, "click[red]", action)
    assert not shopper.chosen and shopper.item is None


def test_going_back_to_the_results_keeps_their_page() -> None:
    shopper = after("search[all]", "click[next >]", "click[b000000011]", "click[< prev]")
    assert (shopper.page, shopper.number) == (RESULTS, 2)


@pytest.mark.parametrize("actions", [("search[two]",), ON_ITEM, (*ON_ITEM, "click[reviews]")])
def test_back_to_search_forgets_everything(actions: tuple[str, ...]) -> None:
    shopper = after(*actions, "click[back to search]")
    assert shopper == fresh() or (shopper.page, shopper.hits, shopper.query, shopper.seen) == (SEARCH, (), "", set())


@pytest.mark.parametrize(
    ("actions", "refused"),
    [
        ((), "click[search]"),  # the search button is no action
        ((), "click[buy now]"),
        ((), "click[next >]"),
        ((), "search[]"),
        ((), "dance"),
        (("search[two]",), "click[description]"),
        (("search[two]",), "click[b000000009]"),
        (ON_ITEM, "click[next >]"),
        (ON_ITEM, "click[b000000003]"),
        ((*ON_ITEM, "click[features]"), "click[buy now]"),
        ((*ON_ITEM, "click[features]"), "click[red]"),
        ((*ON_ITEM, "click[buy now]"), "search[two]"),
        ((*ON_ITEM, "click[buy now]"), "click[buy now]"),
    ],
)
def test_what_cannot_be_done_changes_nothing(actions: tuple[str, ...], refused: str) -> None:
    shopper, same = after(*actions), after(*actions)
    assert not shopper.act(refused)
    for name in ("page", "number", "hits", "item", "sub", "chosen", "seen", "query"):
        assert getattr(shopper, name) == getattr(same, name)


def test_buying_ends_the_visit() -> None:
    shopper = after(*ON_ITEM, "click[buy now]")
    assert shopper.page == END and shopper.clickable() == {} and shopper.product() is SHELF[3]


def test_a_button_comes_before_an_option_value_of_its_name() -> None:
    shelf = [product(options={"kind": ("description", "buy now", "next >")})]
    shopper = visit(shelf)
    shopper.act("search[x]")
    shopper.act("click[b000000001]")
    assert shopper.act("click[next >]") and shopper.chosen == {"kind": "next >"}  # no such button on an item
    assert shopper.act("click[description]") and shopper.page == SUB
    shopper.act("click[< prev]")
    assert shopper.act("click[buy now]") and shopper.page == END


def test_no_product_is_open_on_the_search_page() -> None:
    with pytest.raises(ValueError, match="no product is open"):
        fresh().product()


# ----------------------------------------------------------------------------------------------------------- pages
def text(shopper: Visit, form: str = "text") -> str:
    return pages.render(shopper, INSTRUCTION, form)


def test_texts_of_all_pages() -> None:
    start = f"Instruction: [SEP] {INSTRUCTION} [SEP] Back to Search"
    assert text(fresh()) == f"WebShop [SEP] Instruction: [SEP] {INSTRUCTION} [SEP] Search"
    assert text(after("search[two]")) == (
        f"{start} [SEP] Page 1 (Total results: 2) [SEP] Next > [SEP] B000000003 [SEP] Shirt 3 [SEP] $20.0 [SEP] "
        "B000000001 [SEP] Shirt 1 [SEP] $20.0"
    )
    assert text(after("search[none]", "click[next >]")) == (
        f"{start} [SEP] Page 2 (Total results: 0) [SEP] < Prev [SEP] Next >"
    )
    item = (
        f"{start} [SEP] < Prev [SEP] color [SEP] red [SEP] blue [SEP] size [SEP] small [SEP] large [SEP] Shirt 3 [SEP] "
        "Price: $20.0 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert text(after(*ON_ITEM)) == text(after(*ON_ITEM, "click[red]")) == item  # choices do not show in this form
    assert text(after(*ON_ITEM, attributes_page=True)) == item.replace("Reviews", "Reviews [SEP] Attributes")
    assert text(after(*ON_ITEM, "click[description]")) == f"{start} [SEP] < Prev [SEP] A shirt."
    assert text(after(*ON_ITEM, "click[features]")) == f"{start} [SEP] < Prev [SEP] Soft [SEP] Warm"
    assert text(after(*ON_ITEM, "click[reviews]")) == f"{start} [SEP] < Prev"


def test_reviews_and_attributes() -> None:
    shelf = [product(reviews=(("Good", "4", "I like it."),), rating="4.1")]
    shopper = visit(shelf, attributes_page=True)
    for action in ("search[x]", "click[b000000001]"):
        shopper.act(action)
    assert "Rating: 4.1" in text(shopper)
    shopper.act("click[reviews]")
    assert text(shopper).endswith('< Prev [SEP] "Good" [SEP] 4 [SEP] I like it.')
    shopper.act("click[< prev]")
    shopper.act("click[attributes]")
    assert text(shopper).endswith("machine wash [SEP] fashion [SEP] shirts [SEP] Clothing › Men › Shirts")


def test_rich_text_marks_buttons_and_choices() -> None:
    shopper = after("search[two]", "click[b000000003]", "click[< prev]")
    lines = text(shopper, "text_rich").split("\n")
    assert "[clicked button] B000000003 [clicked button_]" in lines  # it was looked at
    assert "[button] B000000001 [button_]" in lines and "[button] Next > [button_]" in lines
    shopper.act("click[b000000003]")
    shopper.act("click[red]")
    shopper.act("click[large]")
    lines = text(shopper, "text_rich").split("\n")
    assert lines[:2] == ["You have clicked large.", "You have clicked red."]
    assert "  [clicked button] red [clicked button_]" in lines and "  [button] blue [button_]" in lines
    assert "color" in lines and "[button] Buy Now [button_]" in lines


def test_a_quoted_value_in_the_query_looks_chosen_as_in_the_original() -> None:
    shopper = after('search["red" shirt]', "click[b000000003]")
    assert "[clicked button] red" in text(shopper, "text_rich") and not shopper.chosen


def test_commands_of_a_page() -> None:
    assert pages.commands(fresh()) == ("search[<your query>]",)
    assert pages.commands(after("search[two]")) == (
        "click[back to search]",
        "click[next >]",
        "click[b000000003]",
        "click[b000000001]",
    )
    assert pages.commands(after(*ON_ITEM, "click[buy now]")) == ()


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(ValueError, match=r"env\.knobs\.text='txt' is unknown; did you mean 'text'"):
        text(fresh(), "txt")
