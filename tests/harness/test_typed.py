"""One key of each type of the schema, given something of another type: on the command line, in a file, in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from harness.commandline import parse
from harness.compose import Composer, render
from harness.errors import ConfigError
from harness.schema import keys
from harness.typed import checked

Write = Callable[[str, str], None]

# key, a value of another type, what is said of it. Every type of the schema's leaves is among them; a test compares.
WRONG: list[tuple[str, Any, str]] = [
    ("training.steps", "abc", "training.steps=abc: must be a whole number"),
    ("training.steps", 1.5, "training.steps=1.5: must be a whole number"),
    ("training.steps", None, "training.steps=null: cannot be null; it must be a whole number"),
    ("training.lr", "much", "training.lr=much: must be a number"),
    ("training.dual_clip", "x", "training.dual_clip=x: must be a number"),
    ("method.advantage.std", "ja", "method.advantage.std=ja: must be true or false"),
    ("tracking.enabled", "maybe", "tracking.enabled=maybe: must be true or false"),
    ("wait", "maybe", "wait=maybe: must be true or false"),
    ("runtime.log_level", [1], "runtime.log_level=[1]: must be text"),
    ("runtime.device", None, "runtime.device=null: cannot be null; it must be text"),
    ("tracking.uri", {"a": 1}, "tracking.uri={a: 1}: must be text"),
    ("method.schedule.length", "x", "method.schedule.length=x: must be a whole number"),
    ("evaluation.panels", "seen", "evaluation.panels=seen: must be a list: [seen]"),
    ("evaluation.panels", None, "evaluation.panels=null: cannot be null; it must be a list"),
    ("evaluation.panels", [["seen"]], "evaluation.panels[0]=[seen]: must be text"),
    ("training.betas", 0.9, "training.betas=0.9: must be a list: [0.9]"),
    ("training.betas", ["a", 0.9], "training.betas[0]=a: must be a number"),
    ("sweep.axes.seed", ["a"], "sweep.axes.seed[0]=a: must be a whole number"),
    ("method.knobs", 3, "method.knobs=3: must be a mapping of names and values, such as {NAME: VALUE}"),
    ("launcher.environment", {"A": [1]}, "launcher.environment.A=[1]: must be text"),
    ("expected_seconds", {"grpo": "x"}, "expected_seconds.grpo=x: must be a number"),
    ("sweep.exclude", [3], "sweep.exclude[0]=3: must be a mapping of names and values"),
    (
        "sweep.rows",
        [{"method": "grpo", "seed": 3}],
        "sweep.rows[0].seed=3: there is no such key here; did you mean axes: {seed: [3]}?",
    ),
    (
        "sweep.rows",
        [["grpo"]],
        "sweep.rows[0]=[grpo]: must be a mapping of keys and values, such as method, not a list",
    ),
]


def test_every_type_of_the_schema_is_tried() -> None:
    tried = {str(keys()[key].type) for key, *_ in WRONG}
    assert {str(key.type) for key in keys().values() if not key.branch} <= tried


@pytest.mark.parametrize(("key", "given", "said"), WRONG)
def test_a_value_of_another_type_is_named(key: str, given: Any, said: str) -> None:
    fault = checked(key, given)[1][0]
    assert f"{fault.key}={fault.value}: {fault.fix}".startswith(said)


@pytest.mark.parametrize(("key", "given", "said"), WRONG)
def test_so_it_is_on_the_command_line(hydra: Composer, key: str, given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([f"{key}={render(given)}"], hydra.groups())
    fault = checked(key, given)[1][0]
    assert f"{fault.key}={fault.value} (command line): {fault.fix}" in str(caught.value)


@pytest.mark.parametrize("key", ["method.coef", "method.advantage.std", "method.knobs", "method.rollout_skills_eval"])
def test_so_it_is_in_a_file(hydra: Composer, write: Write, key: str) -> None:
    content: Any = {"a": 1} if key != "method.knobs" else 3
    for part in reversed(key.split(".")[1:]):
        content = {part: content}
    write("method/mine", yaml.safe_dump({"defaults": ["grpo", "_self_"], **content}))
    with pytest.raises(ConfigError) as caught:
        hydra.config(["method=mine"])
    assert f"{key}=" in str(caught.value) and "conf/method/mine.yaml): must be " in str(caught.value)


@pytest.mark.parametrize(
    ("key", "given", "typed"),
    [
        ("training.steps", "3", 3),
        ("training.lr", 1, 1.0),
        ("training.dual_clip", None, None),
        ("training.betas", [0, 0.5], [0.0, 0.5]),
        ("wait", "yes", True),
        ("training.steps", "${seed}", "${seed}"),
        ("method.knobs.anything", [1], [1]),
        ("sweep.rows", [{"method": "grpo", "axes": {"seed": 3}}], [{"method": "grpo", "axes": {"seed": 3}}]),
    ],
)
def test_what_fits_is_converted(key: str, given: Any, typed: Any) -> None:
    assert checked(key, given) == (typed, [])


def test_a_file_that_holds_a_list(hydra: Composer, write: Write) -> None:
    write("method/mine", "- a\n- b\n")
    with pytest.raises(ConfigError) as caught:
        hydra.config(["method=mine"])
    assert "method=[a, b] (" in str(caught.value) and "mine.yaml): must be a mapping of keys" in str(caught.value)


def test_a_misspelt_parent(hydra: Composer, write: Write) -> None:
    write("method/mine", "defaults: [grpoo, _self_]\n")
    with pytest.raises(ConfigError) as caught:
        hydra.config(["method=mine"])
    text = str(caught.value)
    assert "defaults=grpoo (" in text and "conf/method/mine.yaml): there is no such file; did you mean 'grpo'?" in text


def test_settings_of_a_sweep_are_its_files_fault(write: Write, plan_of: Callable[..., object]) -> None:
    write(
        "sweep/t", "rows: [{method: grpo, set: {training.steps: many}}]\naxes: {env: [alfworld], backbone: [tiny-s]}\n"
    )
    with pytest.raises(ConfigError) as caught:
        plan_of("sweep=t")
    assert "training.steps=many (" in str(caught.value)
    assert "conf/sweep/t.yaml, sweep.rows[0].set): must be a whole number" in str(caught.value)
