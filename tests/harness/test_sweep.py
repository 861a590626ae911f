from __future__ import annotations

import re
from typing import Any

import pytest

from harness.commandline import CommandLine, parse
from harness.config import AxesConfig, RowConfig, SweepConfig
from harness.errors import ConfigError
from harness.sweep import Sweep, expand, results_name, single

GROUPS = {
    "sweep": ("t",),
    "method": ("grpo", "opid", "vanilla"),
    "env": ("alfworld", "webshop"),
    "backbone": ("tiny-s", "tiny-m"),
    "scale": ("local", "test"),
}


def sweep(command: CommandLine | None = None, **fields: Any) -> Sweep:
    fields.setdefault("rows", [RowConfig(method="vanilla", kind="baseline"), RowConfig(method="grpo")])
    fields.setdefault("axes", AxesConfig(env=["alfworld"], backbone=["tiny-s"], fraction=[1.0], seed=[0, 1]))
    return expand(SweepConfig(**fields), "t", command or CommandLine(sweep="t"), GROUPS)


def problem_of(command: CommandLine | None = None, **fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        sweep(command, **fields)
    return str(caught.value)


def test_rows_are_crossed_with_axes_in_order() -> None:
    made = sweep()
    assert [(p.row, p.seed) for p in made.points] == [("vanilla", 0), ("vanilla", 1), ("grpo", 0), ("grpo", 1)]
    assert made.selected == frozenset(made.points)
    assert (made.name, made.title) == ("t", "t")


def test_a_row_may_have_axes_settings_and_a_name_of_its_own() -> None:
    rows = [
        RowConfig(method="grpo"),
        RowConfig(method="grpo", id="half", label="GRPO, half", axes={"fraction": [0.5], "seed": 1}),
        RowConfig(method="grpo", id="long", set={"training.steps": 80}, base="grpo", delta=["training.steps"]),
    ]
    made = sweep(rows=rows, set={"scale": "test"})
    assert [(p.row, p.fraction, p.seed) for p in made.points if p.row == "half"] == [("half", 0.5, 1)]
    assert made.rows[2].overrides == {"scale": "scale='test'", "training.steps": "training.steps=80"}
    assert made.common == {"scale": "scale='test'"}


def test_exclusions_leave_cells_out() -> None:
    made = sweep(exclude=[{"row": "grpo", "seed": 1}, {"method": ["vanilla"], "seed": [0, 1]}])
    assert [(p.row, p.seed) for p in made.points] == [("grpo", 0)]


def test_axes_on_the_command_line_select() -> None:
    made = sweep(parse(["sweep=t", "method=grpo", "seed=1"], GROUPS))
    assert [(p.row, p.seed) for p in made.selected] == [("grpo", 1)]
    assert len(made.points) == 4


def test_method_also_finds_rows_by_name() -> None:
    rows = [RowConfig(method="grpo"), RowConfig(method="grpo", id="opid", set={"training.steps": 2})]
    made = sweep(parse(["sweep=t", "method=opid"], GROUPS), rows=rows)
    assert {p.row for p in made.selected} == {"opid"}


def test_other_keys_with_several_values_multiply_rows() -> None:
    rows = [RowConfig(method="grpo"), RowConfig(method="opid", base="grpo", delta=["method"])]
    made = sweep(parse(["sweep=t", "training.lr=1,2"], GROUPS), rows=rows)
    assert [row.id for row in made.rows][2:] == ["opid/training.lr=1", "opid/training.lr=2"]
    assert made.rows[3].base == "grpo/training.lr=2"
    assert made.rows[3].overrides == {"training.lr": "training.lr=2"}
    assert len(made.points) == 8


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rows": []}, "at least one row"),
        ({"name": "../elsewhere"}, "sweep.name=../elsewhere"),
        ({"rows": [RowConfig(method="grpo", id="a/b")]}, "sweep.rows[0].id=a/b"),
        ({"rows": [RowConfig(method="gpro")]}, "sweep.rows[0]): did you mean 'grpo'?"),
        ({"rows": [RowConfig(method="grpo", kind="contrl")]}, "did you mean 'control'?"),
        ({"rows": [RowConfig(method="grpo"), RowConfig(method="grpo")]}, "two rows have this name"),
        ({"rows": [RowConfig(method="grpo", base="opd")]}, "sweep.rows[0].base=opd"),
        ({"rows": [RowConfig(method="grpo", base="grpo")]}, "sweep.rows[0].base=grpo"),
        ({"rows": [RowConfig(method="grpo", delta=["seed"])]}, "has no `base`"),
        ({"rows": [RowConfig(method="grpo", delta=["method.skil"])]}, "did you mean method.skill?"),
        ({"rows": [RowConfig(method="grpo", axes={"sed": [1]})]}, "did you mean 'seed'?"),
        ({"rows": [RowConfig(method="grpo", axes={"seed": []})]}, "at least one seed"),
        ({"rows": [RowConfig(method="grpo", axes={"seed": [1, 1]})]}, "a value twice"),
        ({"rows": [RowConfig(method="grpo", axes={"env": ["alfwrld"]})]}, "did you mean 'alfworld'?"),
        ({"rows": [RowConfig(method="grpo", set={"training.lrr": 1})]}, "did you mean training.lr?"),
        ({"set": {"seed": 1}}, "put it under `axes`"),
        ({"set": {"scale": "tst"}}, "did you mean 'test'?"),
        ({"exclude": [{"row": "opid"}]}, "sweep.exclude[0]={row: opid} (sweeps/sweep/t.yaml): matches no cell"),
        ({"exclude": [{"seed": 0}, {"seed": 7}]}, "sweep.exclude[1]"),
        ({"exclude": [{"sed": 0}]}, "did you mean 'seed'?"),
        ({"exclude": [{}]}, "names nothing"),
        ({"exclude": [{"seed": [0, 1]}]}, "leaves out every cell"),
    ],
)
def test_mistakes_in_a_sweep_are_named(fields: dict[str, Any], said: str) -> None:
    problem = problem_of(**fields)
    assert said in problem and "sweeps/sweep/t.yaml" in problem, problem


def test_exclusions_hold_for_varied_rows_too() -> None:
    made = sweep(parse(["sweep=t", "training.lr=1,2"], GROUPS), exclude=[{"row": "grpo"}])
    assert {p.row for p in made.points} == {"vanilla/training.lr=1", "vanilla/training.lr=2"}


def test_an_exclusion_may_overlap_another() -> None:
    assert len(sweep(exclude=[{"seed": 0}, {"row": "grpo", "seed": 0}]).points) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["seed=7"], "seed=7 (command line): is not in sweep t (0, 1); widen it with sweep.axes.seed=[0,1,7]"),
        (
            ["method=opid"],
            "is no row of sweep t (vanilla, grpo); add it to sweeps/sweep/t.yaml, or to run it by itself",
        ),
        (["method=gpro"], "is neither a row of sweep t (vanilla, grpo) nor a method file; did you mean 'grpo'?"),
        (["method=zzz"], "nor a method file; available: grpo, opid, vanilla"),
        (["backbone=tiny-m"], "is not in sweep t (tiny-s)"),
        (["fraction=0.5"], "is not in sweep t (1.0)"),
        (["fraction=-1"], "fraction=-1.0 (command line): must be above 0 and at most 1"),
        (["seed=-3"], "seed=-3 (command line): must be at least 0"),
    ],
)
def test_selecting_what_is_not_there_is_an_error(arguments: list[str], said: str) -> None:
    assert said in problem_of(parse(["sweep=t", *arguments], GROUPS))


def test_what_no_sweep_can_hold_is_not_offered_as_an_axis() -> None:
    for argument in ("fraction=-1", "fraction=1.5", "seed=-3"):
        assert "widen" not in problem_of(parse(["sweep=t", argument], GROUPS))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "t"),
        (["method=grpo", "seed=0,1"], "t"),  # narrowing
        (["out=/tmp/x", "workers=2", "runtime.log_level=DEBUG"], "t"),  # where and how, not what
        (["sweep.title=Mine"], "t"),
        (["training.lr=1e-4"], "t+training.lr-0.0001"),
        (["training.lr=1e-4", "scale=test"], "t+scale-test+training.lr-0.0001"),
        (["scale=test", "training.lr=1e-4"], "t+scale-test+training.lr-0.0001"),
        (["training.lr=1e-4", "sweep.name=mine"], "mine"),
    ],
)
def test_changed_settings_have_a_folder_of_their_own(arguments: list[str], name: str) -> None:
    fields = {"name": "mine"} if "sweep.name=mine" in arguments else {}
    assert sweep(parse(["sweep=t", *arguments], GROUPS), **fields).name == name


def test_names_of_results_are_folders_and_distinct() -> None:
    several = [
        ["method.knobs.x=1,2"],
        ["method.knobs.x=[1,2]"],
        ["sweep.axes.seed=[0,1]"],
        ["sweep.axes.seed=[0,1,2]"],
        ["method.label='a b'"],
        ["method.label=ab"],
        ["method.label='1+scale-test'"],
        ["method.label=1", "scale=test"],
        [f"training.{key}=12345678" for key in ("lr", "steps", "grad_clip", "clip_low")],
        [f"training.{key}=12345678" for key in ("lr", "steps", "grad_clip", "clip_high")],
    ]
    names = [results_name("t", parse(["sweep=t", *a], GROUPS).changes) for a in several]
    assert len(set(names)) == len(names), names
    assert all(re.fullmatch(r"t\+[A-Za-z0-9_.+-]+", name) and len(name) < 80 for name in names), names
    assert names[2].startswith("t+sweep.axes.seed-0_1-")


def test_a_name_of_the_sweep_file_is_kept_apart_too() -> None:
    assert sweep(parse(["sweep=t", "training.lr=1"], GROUPS), name="file").name == "file+training.lr-1"


def test_selecting_nothing_is_an_error() -> None:
    command = parse(["sweep=t", "method=grpo", "seed=1"], GROUPS)
    assert "selects no cell" in problem_of(command, exclude=[{"row": "grpo", "seed": 1}])


def test_a_command_without_sweep_is_one_cell_or_a_small_grid() -> None:
    defaults = {"method": "grpo", "env": "alfworld", "backbone": "tiny-s"}
    one = single(parse(["method=opid", "seed=3"], GROUPS), defaults, 1.0, 0)
    assert [(p.row, p.env, p.backbone, p.fraction, p.seed) for p in one.points] == [
        ("opid", "alfworld", "tiny-s", 1.0, 3)
    ]
    assert one.name == "single"
    grid = single(parse(["method=opid,grpo", "seed=0,1", "training.lr=1,2"], GROUPS), defaults, 1.0, 0)
    assert len(grid.points) == 8
