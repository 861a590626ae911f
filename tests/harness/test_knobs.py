"""Knobs of methods and environments, from the command line to the run's record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness import registry
from harness.errors import ConfigError
from harness.plan import Plan
from harness.record import RunDirectory

PlanOf = Callable[..., Plan]
Write = Callable[[str, str], None]

SWEEP = """
rows:
  - {method: grpo}
  - {method: opid, base: grpo, delta: [method]}
axes: {env: [alfworld], backbone: [tiny-s]}
"""


def problem_of(plan_of: PlanOf, *arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(*arguments)
    return str(caught.value)


def test_records_hold_every_knob_with_its_value(plan_of: PlanOf, tmp_path: Path) -> None:
    (cell,) = plan_of("method=opid", "method.knobs.weight_step=2").cells
    assert cell.config.method.knobs == {"weight_episode": 1.0, "weight_step": 2.0}
    run = RunDirectory.create(tmp_path, cell.config, cell.fingerprint)
    assert run.load_config().method.knobs == cell.config.method.knobs
    assert RunDirectory.create(tmp_path, cell.config, cell.fingerprint).load_config() == cell.config


def test_a_default_that_is_said_is_the_same_run(plan_of: PlanOf, write: Write) -> None:
    (plain,) = plan_of("method=opid").cells
    for spelt in ("1", "1.0", "1e0"):
        assert plan_of("method=opid", f"method.knobs.weight_step={spelt}").cells[0].fingerprint == plain.fingerprint
    assert plan_of("method=opid", "method.knobs.weight_step=0.5").cells[0].fingerprint != plain.fingerprint
    write("method/mine", "# a row that leaves its knobs to their defaults\ndefaults: [grpo, _self_]\nname: sdar\n"
          "skill: {source: library, router: task_type}\nteacher: {weights: old}\ncoef: 0.25\n"
          "schedule: {kind: linear}\n")  # fmt: skip
    assert plan_of("method=mine").cells[0].fingerprint == plan_of("method=sdar").cells[0].fingerprint


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("method.knobs.weight_stp=1", "method.knobs.weight_stp (command line): is no knob of method 'opid'"),
        ("method.knobs.weight_stp=1", "did you mean method.knobs.weight_step? Knobs: weight_episode, weight_step"),
        ("method.knobs.weight_step=much", "method.knobs.weight_step='much' must be of type float (command line)"),
        ("method.knobs={weight_stp: 1}", "method.knobs.weight_stp=1 (command line): is no knob of method 'opid'"),
        ("env.knobs.price=1", "env.knobs.price (command line): is no knob of environment 'alfworld'. Knobs: held"),
    ],
)
def test_mistakes_name_key_and_origin(plan_of: PlanOf, argument: str, said: str) -> None:
    assert said in problem_of(plan_of, "method=opid", argument)


def test_mistakes_in_files_name_the_file(plan_of: PlanOf, write: Write) -> None:
    write("method/mine", "# test\ndefaults: [opid, _self_]\nid: mine\nknobs: {weight_stp: 1}\n")
    assert "conf/method/mine.yaml): is no knob of method 'opid'" in problem_of(plan_of, "method=mine")
    row = "  - {method: opid, base: grpo, delta: [method], set: {method.knobs.weight_stp: 1}}"
    write("sweep/t", SWEEP.replace("  - {method: opid, base: grpo, delta: [method]}", row))
    problem = problem_of(plan_of, "sweep=t")
    assert problem.startswith("method.knobs.weight_stp=1 (") and "conf/sweep/t.yaml, row opid): is no knob" in problem


def test_a_knob_set_for_all_rows_concerns_those_that_have_it(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", SWEEP)
    plain, changed = plan_of("sweep=t"), plan_of("sweep=t", "method.knobs.weight_step=0.5")
    assert changed.cells[0].fingerprint == plain.cells[0].fingerprint and changed.cells[0].config.method.knobs == {}
    assert changed.cells[1].config.method.knobs["weight_step"] == 0.5
    assert "method.knobs.weight_step=0.5" in changed.title
    problem = problem_of(plan_of, "sweep=t", "method.knobs.weight_stp=1")
    assert problem.count("weight_stp") == 1 and "is no knob of any method here (grpo, opid)" in problem
    assert "is no knob of method 'grpo'" in problem_of(plan_of, "sweep=t", "method=grpo", "method.knobs.weight_step=1")
    write("sweep/t", SWEEP + "set: {method.knobs.weight_step: 0.5}\n")
    assert [c.fingerprint for c in plan_of("sweep=t").cells] == [c.fingerprint for c in changed.cells]


@dataclass(frozen=True)
class Shop:
    price: float = 1.0
    pages: int = 3


def test_knobs_of_an_environment(plan_of: PlanOf, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(registry.env_spec("alfworld"), knobs=Shop)
    monkeypatch.setattr(registry, "env_spec", lambda name: spec)
    write("env/shop", "# test\nname: alfworld\n")
    (cell,) = plan_of("method=grpo", "env=shop", "env.knobs.price=2").cells
    assert cell.config.env.knobs == {"price": 2.0, "pages": 3}
    assert "env.knobs.pages=2.5 must be of type int" in problem_of(plan_of, "env=shop", "env.knobs.pages=2.5")
