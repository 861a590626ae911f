"""What can be searched, and what cannot, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from harness.tune.space import Dimension, space_of


def read(space: dict[str, Any], row: dict[str, Any] | None = None, method: str = "opid") -> tuple[Dimension, ...]:
    found, problems = space_of(space, row, method, "here")
    assert not problems, problems
    return found


def wrong(space: dict[str, Any], method: str = "opid") -> str:
    _, problems = space_of(space, None, method, "sweeps/sweep/t.yaml")
    return "\n".join(map(str, problems))


def test_keys_stand_dotted_or_nested_and_a_row_has_the_last_word() -> None:
    space = {"training": {"lr": {"low": 1e-4, "high": 1e-3, "log": True}}, "method.coef": {"low": 0, "high": 1}}
    both = read(space)
    assert [d.key for d in both] == ["method.coef", "training.lr"] and both[1].log
    assert [d.key for d in read(space, {"training.lr": None})] == ["method.coef"]
    assert read(space, {"training.lr": {"low": 1, "high": 2}})[1].low == 1.0


def test_one_bound_may_be_changed_by_itself() -> None:
    (d,) = read({"training.lr": {"low": 1e-4, "high": 1e-3}, "training": {"lr": {"high": 5e-3}}})
    assert (d.low, d.high) == (1e-4, 5e-3)


def test_whole_numbers_are_those_of_the_schema_and_of_knobs() -> None:
    (steps,) = read({"training.warmup_steps": {"low": 0, "high": 4}})
    (window,) = read({"method.knobs.window": {"low": 1, "high": 9, "step": 2}}, method="retire_opd")
    (beta,) = read({"method.knobs.beta": {"low": 1, "high": 10}}, method="sdar")
    assert steps.whole and window.whole and not beta.whole
    assert steps.ends() == (0, 4) and beta.ends() == (1.0, 10.0)
    assert window.holds(3) and not window.holds(4) and not window.holds(11)


def test_choices() -> None:
    (d,) = read({"method.advantage.estimator": {"choices": ["grpo", "gigpo"]}})
    assert d.ends() == ("grpo", "gigpo") and d.holds("grpo") and not d.holds("none")
    assert d.describe() == "grpo | gigpo"
    (clip,) = read({"method.signal.clip": {"choices": [None, 2.0]}})
    assert clip.holds(None) and clip.describe() == "null | 2.0"


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"training.lrr": {"low": 1, "high": 2}}, "there is no such key; did you mean training.lr?"),
        ({"training": {"low": 1, "high": 2}}, "is a section, not a value"),
        ({"seed": {"choices": [0, 1]}}, "is an axis of the table"),
        ({"evaluation.temperature": {"low": 0, "high": 1}}, "decides what is measured"),
        ({"env.max_steps": {"low": 5, "high": 9}}, "decides what is measured"),
        ({"runtime.threads": {"low": 1, "high": 2}}, "cannot be searched"),
        ({"analyzer.retries": {"low": 1, "high": 2}}, "changes no result"),
        ({"method.name": {"choices": ["grpo", "opid"]}}, "cannot be searched"),
        ({"training.lr": 3}, "says no space"),
        ({"training.lr": {"low": 1, "high": 2, "logg": True}}, "did you mean 'log'?"),
        ({"training.lr": {"low": 2, "high": 1}}, "low=2 must be below high=1"),
        ({"training.lr": {"low": 0, "high": 1, "log": True}}, "begins above 0"),
        ({"training.lr": {"low": 1}}, "high must be a finite number"),
        ({"training.lr": {"low": 1, "high": float("inf")}}, "high must be a finite number"),
        ({"training.lr": {"low": 1, "high": 2, "step": 0}}, "step must be above 0"),
        ({"training.lr": {"low": 1, "high": 2, "step": 1, "log": True}}, "no meaning with log"),
        ({"training.warmup_steps": {"low": 0.5, "high": 2}}, "is a whole number"),
        ({"training.context": {"low": 0, "high": 2}}, "is no number; give it choices"),
        ({"training.context": {"choices": ["growing"]}}, "at least two values"),
        ({"training.context": {"choices": ["growing", "growing"]}}, "names a value twice"),
        ({"training.betas": {"choices": [[0.9, 0.99], [0.9, 0.9]]}}, "numbers, words, true, false or null"),
        ({"training.lr": {"choices": [1, 2], "low": 1}}, "choices stand alone"),
    ],
)
def test_mistakes_are_named(space: dict[str, Any], said: str) -> None:
    text = wrong(space)
    assert said in text and "sweeps/sweep/t.yaml" in text
