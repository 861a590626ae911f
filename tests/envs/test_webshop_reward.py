"""The reward: cases of the original's own tests in other words, and cases computed by hand."""

from __future__ import annotations

import pytest
from webshop_helpers import goal, product

from envs.webshop.fuzzy import token_set_ratio
from envs.webshop.reward import COLOURS, attribute_matches, matched_options, normal, noun_share, score, type_factor


@pytest.mark.parametrize(
    ("first", "second", "ratio"),
    [  # values that thefuzz 0.22.1 gave
        ("essential oil", "essential oils", 96),
        ("tea bag", "tea tree", 60),
        ("cool powder snow", "powder snow", 100),
        ("xl", "x-large", 22),
        ("dark", ("color", "dark red"), 100),
        ("large", ("size", "x large"), 100),
        ("", "x", 0),
        ("...", "x", 0),
        ("Naïve CAFÉ", "nave caf", 100),
        ("a_b", "a b", 100),
        ("pack of 12", "12 pack", 100),
    ],
)
def test_similarity_is_thefuzzs(first: object, second: object, ratio: int) -> None:
    assert token_set_ratio(first, second) == token_set_ratio(second, first) == ratio


# ------------------------------------------------------------------------------------------------------------ type
def test_the_same_type_counts_in_full() -> None:
    assert type_factor(product(), goal()) == 1.0


@pytest.mark.parametrize(
    ("path", "factor"),
    [
        (("Shirts", "Clothing", "Men"), 1.0),  # order does not count
        (("Clothing", "Women", "Men"), 1.0),  # two shared parts are enough
        (("Clothing", "Clothing", "Dresses"), 0.5),  # one part, twice
        (("Garden", "Tools", "Rakes"), 0.5),
    ],
)
def test_without_the_query_two_parts_of_the_path_must_be_shared(path: tuple[str, ...], factor: float) -> None:
    bought = product(query="tops", type_path=path, nouns=("shirt", "x"))
    wanted = goal(nouns=("shirt", "a", "b", "c", "d"))  # a fifth of the nouns: not more than .2
    assert noun_share(bought, wanted) == pytest.approx(0.2)
    assert type_factor(bought, wanted) == factor


@pytest.mark.parametrize(
    ("shared", "of", "factor"),
    [(3, 10, 1.0), (2, 10, 0.5), (1, 10, 0.5), (1, 11, 0.1), (0, 4, 0.0), (0, 0, 0.5)],
)
def test_nouns_of_the_title(shared: int, of: int, factor: float) -> None:
    nouns = tuple(f"n{k}" for k in range(of))
    bought = product(query="other", type_path=("x",), nouns=nouns[:shared] or ("else",))
    assert type_factor(bought, goal(nouns=nouns)) == factor


def test_titles_without_a_common_noun_are_worth_nothing_even_for_the_same_query() -> None:
    assert type_factor(product(nouns=("lamp",)), goal()) == 0.0
    assert type_factor(product(nouns=("n0",)), goal(nouns=tuple(f"n{k}" for k in range(11)))) == 0.1


def test_repeated_nouns_of_the_goal_count_below_the_line_only() -> None:
    assert noun_share(product(nouns=("cord", "cord")), goal(nouns=("cord", "cord", "bar", "bar"))) == 0.25


# ------------------------------------------------------------------------------------------------------ attributes
WANTED = ("tea tree", "essential oils", "natural ingredients")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"attributes": ("tea tree", "essential oil", "natural ingredients")}, 3),
        ({"attributes": ("essential oil", "natural ingredients")}, 2),
        (
            {
                "attributes": (),
                "bullets": ("Smells of lemons and has essential oils",),
                "description": "Made with natural ingredients only",
            },
            2,
        ),
        ({"attributes": (), "title": "Tea Tree Shampoo"}, 1),
        ({"attributes": ("tea bag", "earl gray"), "title": "English tea", "bullets": ("Calm", "Soothing aroma")}, 0),
        ({"attributes": (), "bullets": ("first essential", "oils second")}, 1),  # bullets are joined by a blank
    ],
)
def test_attributes(changes: dict[str, object], found: int) -> None:
    assert sum(attribute_matches(product(**changes), wanted) for wanted in WANTED) == found


# --------------------------------------------------------------------------------------------------------- options
@pytest.mark.parametrize(
    ("wanted", "chosen", "matches"),
    [
        (("grey", "XL", "pack of 12"), ("pack of 12", "grey", "XL"), 3),
        (("grey", "XL", "pack of 12"), ("pack of 12", "blue", "XL"), 2),
        (("cool powder snow", "XL", "pack of 12"), ("pack of 12", "powder snow", "XL"), 3),
        ((), ("one", "two"), 0),
        (("one", "two"), (), 0),
        (("dark red",), ("light red",), 0),  # normalised to dark and light: the list is alphabetical
        (("navy blue",), ("sky blue",), 1),  # both are blue, as blue comes before navy
    ],
)
def test_options_that_people_wrote(wanted: tuple[str, ...], chosen: tuple[str, ...], matches: int) -> None:
    aim = goal(options=tuple(("", value) for value in wanted))
    assert matched_options(aim, {f"o{k}": value for k, value in enumerate(chosen)}) == matches


@pytest.mark.parametrize(
    ("option", "chosen", "loose", "strict"),
    [
        (("size", "x large"), {"size": "large"}, 1, 1),
        (("size", "large"), {"style": "large"}, 1, 0),  # strict looks at the option's own choice
        (("color", "navy"), {"color": "navy blue"}, 0, 0),  # blue, for blue is found first
        (("color", "dark red"), {"color": "dark green"}, 1, 1),  # dark in both
        (("color", "wine red"), {"color": "red wine"}, 1, 1),
        (("color", "light blue"), {"color": "light green"}, 0, 0),
        (("size", "7"), {"size": "8"}, 0, 0),
    ],
)
def test_named_options_compare_the_pair_unless_strict(
    option: tuple[str, str], chosen: dict[str, str], loose: int, strict: int
) -> None:
    aim = goal(options=(option,))
    assert matched_options(aim, chosen) == loose
    assert matched_options(aim, chosen, strict=True) == strict


def test_colours_are_the_originals() -> None:
    assert len(COLOURS) == len(set(COLOURS)) == 102 and list(COLOURS) == sorted(COLOURS)
    assert normal("matte black and white") == "black" and normal("plaid") == "plaid"


# ---------------------------------------------------------------------------------------------------------- total
def test_everything_right_is_exactly_one() -> None:
    result = score(product(), goal(), {"color": "red", "size": "large"})
    assert (result.total, result.kind, result.attributes, result.options, result.price) == (1.0, 1.0, 1, 2, True)


@pytest.mark.parametrize(
    ("changes", "aim", "chosen", "total"),
    [  # by hand: type * (attributes + options + price) / (all)
        ({}, {}, {}, 2 / 4),
        ({}, {}, {"color": "red"}, 3 / 4),
        ({}, {}, {"color": "blue", "size": "large"}, 3 / 4),
        ({"price": 30.0}, {}, {"color": "red", "size": "large"}, 1.0),  # the bound itself is within
        ({"price": 30.01}, {}, {"color": "red", "size": "large"}, 3 / 4),
        ({"attributes": ()}, {}, {"color": "red", "size": "large"}, 3 / 4),
        ({}, {"options": ()}, {"color": "red"}, 1.0),
        ({}, {"attributes": ("silk", "linen", "machine wash")}, {"color": "red", "size": "large"}, 4 / 6),
        (
            {"query": "x", "type_path": ("y",), "nouns": ("shirt",)},
            {"nouns": ("shirt", *"abcd")},
            {"color": "red"},
            3 / 8,
        ),
        ({"nouns": ("lamp",)}, {}, {"color": "red", "size": "large"}, 0.0),
        ({"price": 99.0, "attributes": ()}, {}, {}, 0.0),
    ],
)
def test_totals(changes: dict[str, object], aim: dict[str, object], chosen: dict[str, str], total: float) -> None:
    assert score(product(**changes), goal(**aim), chosen).total == pytest.approx(total, abs=1e-12)


def test_a_worked_case_of_three_attributes_and_options_of_another_type() -> None:
    aim = goal(
        attributes=WANTED,
        options=(("color", "grey"), ("size", "XL"), ("amount", "pack of 12")),
        price_upper=40.0,
        nouns=("cord", *"abcde"),  # one of six: less than a fifth, more than a tenth
    )
    bought = product(
        attributes=(),
        title="",
        bullets=("This shampoo has essential oils and smells like lemons",),
        description="The best on the market, made with natural ingredients",
        query="other",
        type_path=("Clothing", "x"),
        nouns=("cord",),
        price=35.0,
    )
    result = score(bought, aim, {"color": "grey", "size": "XL"})
    assert (result.attributes, result.options, result.price, result.kind) == (2, 2, True, 0.5)
    assert result.total == pytest.approx(0.5 * 5 / 7)
