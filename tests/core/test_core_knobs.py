"""Knobs: what is accepted, what is an error, and that every default is written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import pytest

from core.knobs import read_knobs, resolve_knobs


@dataclass(frozen=True)
class Knobs:
    beta: float = 5.0
    steps: int = 3
    kind: str = "gap"
    on: bool = False
    limit: int | None = None
    older: Optional[float] = None  # noqa: UP045  (both spellings of a union are read)
    sizes: tuple[int, ...] = (1, 2)
    names: list[str] | None = None


def test_nothing_given_is_the_defaults() -> None:
    assert read_knobs(Knobs, {}, "method.knobs") == Knobs()


def test_values_of_each_type() -> None:
    given: dict[str, Any] = {
        "beta": 2, "steps": 4, "kind": "entropy", "on": True, "limit": 7, "older": 1, "sizes": [3], "names": ["a", "b"],
    }  # fmt: skip
    found = read_knobs(Knobs, given, "method.knobs")
    assert found == Knobs(2.0, 4, "entropy", True, 7, 1.0, (3,), ["a", "b"])
    assert type(found.beta) is float and type(found.older) is float and type(found.sizes) is tuple


def test_null_where_it_may_stand() -> None:
    assert read_knobs(Knobs, {"limit": None, "older": None, "names": None}, "k") == Knobs()
    with pytest.raises(ValueError, match=r"k.steps=None must be of type int"):
        read_knobs(Knobs, {"steps": None}, "k")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bta": 1.0}, r"method.knobs key='bta' is unknown; did you mean 'beta'\?"),
        ({"beta": "much"}, r"method.knobs.beta='much' must be of type float"),
        ({"beta": True}, r"method.knobs.beta=True must be of type float"),
        ({"beta": float("nan")}, r"method.knobs.beta=nan must be a finite number"),
        ({"older": float("inf")}, r"method.knobs.older=inf must be a finite number"),
        ({"steps": 1.5}, r"method.knobs.steps=1.5 must be of type int"),
        ({"steps": True}, r"method.knobs.steps=True must be of type int"),
        ({"kind": 3}, r"method.knobs.kind=3 must be of type str"),
        ({"on": 1}, r"method.knobs.on=1 must be of type bool"),
        ({"limit": "x"}, r"method.knobs.limit='x' must be of type int or null"),
        ({"sizes": 3}, r"method.knobs.sizes=3 must be of type tuple"),
        ({"sizes": ["x"]}, r"method.knobs.sizes='x' must be of type int"),
        ({"names": [1]}, r"method.knobs.names=1 must be of type str"),
    ],
)
def test_each_bad_value_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_knobs(Knobs, given, "method.knobs")


def test_resolved_knobs_hold_every_value_in_order() -> None:
    found = resolve_knobs(Knobs, {"kind": "soft_or"}, "method.knobs")
    assert list(found) == ["beta", "steps", "kind", "on", "limit", "older", "sizes", "names"]
    assert found["kind"] == "soft_or" and found["beta"] == 5.0


def test_without_a_declaration_there_are_none() -> None:
    assert resolve_knobs(None, {}, "env.knobs") == {}
    with pytest.raises(ValueError, match=r"env.knobs={'a': 1} sets knobs, but none are declared here; drop them"):
        resolve_knobs(None, {"a": 1}, "env.knobs")
