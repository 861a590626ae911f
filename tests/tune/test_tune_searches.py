"""A search is planned and refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.errors import ConfigError

Asks = Callable[..., Any]


def refused(asking: Asks, *arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        asking("method=opid", *arguments).searches()
    return str(caught.value)


def test_one_search_per_row_and_place_with_its_own_space(asking: Asks) -> None:
    opid, gigpo = asking("method=opid,gigpo").searches()
    assert [d.key for d in opid.dimensions] == ["method.coef", "training.lr"]
    assert "method.advantage.gamma" in [d.key for d in gigpo.dimensions]
    assert opid.start == {"method.coef": 0.25, "training.lr": 3e-4} and opid.seeds == (0,) and opid.steps == 3
    assert opid.name != gigpo.name and opid.name.startswith("opid-alfworld-tiny-s-1-")


def test_a_start_outside_the_space_is_none(asking: Asks) -> None:
    (search,) = asking("method=opid", "sweep.tune.rows.opid={method.coef: {low: 0.5, high: 1}}").searches()
    assert search.start is None


def test_the_number_of_trials_makes_no_other_search_and_training_does(asking: Asks) -> None:
    one = asking("method=opid", "sweep.tune.trials=3", "sweep.tune.parallel=1")
    two = asking("method=opid", "sweep.tune.trials=9")
    other = asking("method=opid", "training.steps=7")
    assert one.plan.results == two.plan.results and one.searches()[0].name == two.searches()[0].name
    assert other.plan.results != one.plan.results and other.searches()[0].name != one.searches()[0].name


@pytest.mark.parametrize("panel", ["seen", "unseen"])
def test_a_panel_that_tables_are_judged_by_is_refused_with_the_reason(asking: Asks, panel: str) -> None:
    for text in (
        refused(asking, f"evaluation.panels=[{panel}]"),
        refused(asking, f"evaluation.panels=[validation,{panel}]"),
        refused(asking, f"sweep.tune.objectives={{{panel}/success: max}}"),
    ):
        assert f"{panel} is a panel that tables are judged by" in text and "would mean nothing" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep.tune.objectives={validation/succes: max}"], "did you mean 'validation/success'?"),
        (["sweep.tune.objectives={validation/success: maximum}"], "did you mean 'max'?"),
        (["sweep.tune.sampler=tpee"], "did you mean 'tpe'?"),
        (["sweep.tune.pruner=medean"], "did you mean 'median'?"),
        (["sweep.tune.trials=0"], "at least 1"),
        (["sweep.tune.objectives={cost/tokens: min}"], "with several objectives set sweep.tune.pruner=none"),
        (["evaluation.validate_every=0"], "gives the pruner nothing to judge by"),
        (["training.lr=1e-4"], "training.lr (command line): is searched, so that it cannot be set, too"),
        (["sweep.tune.rows.opdi={method.coef: {low: 0.1, high: 1}}"], "did you mean 'opid'?"),
        (["sweep.tune.rows.opid.method.coef.high=-1"], "low=0.01 must be below high=-1"),
        (["sweep.tune.rows.opid={training.clip_low: {low: 0.1, high: 1.5}}"], "training.clip_low=1.5"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(asking: Asks, arguments: list[str], said: str) -> None:
    assert said in refused(asking, *arguments)


def test_a_row_that_does_not_train_has_nothing_to_tune(asking: Asks) -> None:
    with pytest.raises(ConfigError, match="does not train, so that there is nothing to tune"):
        asking("method=vanilla").searches()


def test_a_trial_is_its_row_with_the_keys_set_once_per_seed(asking: Asks) -> None:
    ask = asking("method=opid", "sweep.axes.seed=[0,1]")
    (search,) = ask.searches()
    made = ask.trials.make(search.row, search.points, {"method.coef": 0.5, "training.lr": 2e-4}, "trial 7")
    assert [cell.point.seed for cell in made.cells] == [0, 1] and not made.teachers
    assert {(c.config.method.coef, c.config.training.lr) for c in made.cells} == {(0.5, 2e-4)}
    assert all(c.config.evaluation.panels == ["validation"] for c in made.cells)
    again = ask.trials.make(search.row, search.points, {"method.coef": 0.5, "training.lr": 2e-4}, "trial 8")
    assert [c.fingerprint for c in again.cells] == [c.fingerprint for c in made.cells]
    assert made.labels[made.cells[1].fingerprint] == "OPID (trial 7) seed 1"


def test_a_frozen_teacher_is_trained_with_the_trial(asking: Asks) -> None:
    ask = asking("method=grpo_opd")
    (search,) = ask.searches()
    made = ask.trials.make(search.row, search.points, {"method.coef": 0.5, "training.lr": 2e-4}, "trial 0")
    (teacher,) = made.teachers
    assert made.cells[0].requires == (teacher.fingerprint,) and teacher.config.training.lr == 2e-4
    assert made.all[0] is teacher
