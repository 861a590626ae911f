from __future__ import annotations

import pytest

from harness.commandline import CommandLine, check_once, parse
from harness.errors import ConfigError

GROUPS = {
    "sweep": ("main_table", "quick"),
    "method": ("grpo", "opid", "opid_random"),
    "env": ("alfworld",),
    "backbone": ("tiny-s", "tiny-m"),
    "scale": ("local", "test"),
    "analyzer": ("rules",),
    "launcher": ("local",),
    "tracking": ("none", "sqlite"),
}


def problem_of(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(arguments, GROUPS)
    return str(caught.value)


def test_nothing_given() -> None:
    assert parse([], GROUPS) == CommandLine()


def test_how_runs_execute_changes_no_cell() -> None:
    how = ["launcher=local", "launcher.requeues=1", "wait=true", "backbone.resources.mem_gb=6", "workers=2", "out=x"]
    assert parse([*how, "do=retry"], GROUPS).changes == ()
    assert parse(["backbone.hidden=32"], GROUPS).changes == ("backbone.hidden=32",)


def test_what_selects_and_what_changes_cells() -> None:
    command = parse(
        ["sweep=main_table", "do=plan", "method=grpo,opid", "seed=0,1", "fraction=1", "scale=test", "training.lr=1e-4"],
        GROUPS,
    )
    assert (command.sweep, command.do) == ("main_table", "plan")
    assert command.axes == {"method": ("grpo", "opid"), "seed": (0, 1), "fraction": (1.0,)}
    assert command.fixed == {"scale": "scale=test", "training.lr": "training.lr=0.0001"}
    assert command.changes == ("scale=test", "training.lr=0.0001")


@pytest.mark.parametrize(
    ("argument", "axis", "values"),
    [
        ("seed=range(3)", "seed", (0, 1, 2)),
        ("seed=[4,5]", "seed", (4, 5)),
        ("seed=choice(7)", "seed", (7,)),
        ("method=glob(opid*)", "method", ("opid", "opid_random")),
        ("fraction=0.2,1", "fraction", (0.2, 1.0)),
    ],
)
def test_ways_to_give_several_values(argument: str, axis: str, values: tuple[object, ...]) -> None:
    assert parse([argument], GROUPS).axes == {axis: values}


def test_several_values_of_other_keys_are_varied() -> None:
    command = parse(["training.lr=1e-4,3e-4", "scale=test,local"], GROUPS)
    assert command.varied == {
        "training.lr": ("training.lr=0.0001", "training.lr=0.0003"),
        "scale": ("scale=test", "scale=local"),
    }
    assert not command.fixed


def test_the_last_of_two_arguments_counts() -> None:
    command = parse(
        ["training.lr=1", "training.lr=2,3", "seed=1", "seed=2", "training.steps=1,2", "training.steps=4"], GROUPS
    )
    assert command.varied == {"training.lr": ("training.lr=2", "training.lr=3")}
    assert command.fixed == {"training.steps": "training.steps=4"}
    assert command.axes == {"seed": (2,)}


def test_short_names() -> None:
    assert parse(["out=/tmp/x", "workers=2"], GROUPS).fixed == {
        "runtime.out": "runtime.out=/tmp/x",
        "launcher.workers": "launcher.workers=2",
    }


@pytest.mark.parametrize(
    "path",
    ["~/x", "it's", "a,b", "a#b", "a=b", "run(1)", "x[1]", "naïve dir", "a;b", "a&b", "123", r"a\b", 'say "x"', "a b"],
)
def test_paths_are_taken_as_they_are_typed(path: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    text = parse([f"out={path}"], GROUPS).fixed["runtime.out"]
    assert str(OverridesParser.create().parse_override(text).value()) == path
    if "," not in path:
        text = parse([f"env.data={path}"], GROUPS).fixed["env.data"]
        assert str(OverridesParser.create().parse_override(text).value()) == path


def test_quoted_paths_and_references_are_hydras() -> None:
    fixed = parse(["out='a b'", "env.data=null", "backbone.path=${oc.env:HOME}/x"], GROUPS).fixed
    assert fixed["runtime.out"] == "runtime.out='a b'"
    assert fixed["env.data"] == "env.data=null"
    assert fixed["backbone.path"].replace("\\", "") == "backbone.path=${oc.env:HOME}/x"
    assert parse(["backbone.path=a,b"], GROUPS).varied["backbone.path"] == ("backbone.path=a", "backbone.path=b")


def test_a_key_typed_twice() -> None:
    for first, second, said in (
        ("sweep=quick", "sweep=main_table", "sweep=main_table (command line): is given twice, and sweep=quick before"),
        ("do=plan", "do=tables", "do=tables (command line): is given twice"),
        ("out=a", "runtime.out=b", "is given twice, and runtime.out=a before"),
        ("seed=0", "seed=1", "is given twice"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_once([first, second])
        assert said in str(caught.value)
    check_once(["do=plan", "do=plan", "seed=0"])


def test_plus_is_for_new_keys_only_where_the_schema_is_open() -> None:
    assert parse(["++training.lr=2"], GROUPS).fixed == {"training.lr": "training.lr=2"}
    assert parse(["+expected_seconds.grpo=2"], GROUPS).fixed == {"expected_seconds.grpo": "++expected_seconds.grpo=2"}


def test_knobs_need_no_plus() -> None:
    given = ["method.knobs.beta=3", "+env.knobs.price=1", "method.knobs.gate=gap,soft_or"]
    command = parse(given, GROUPS)
    assert command.fixed == {
        "method.knobs.beta": "++method.knobs.beta=3",
        "env.knobs.price": "++env.knobs.price=1",
    }
    assert command.varied == {"method.knobs.gate": ("++method.knobs.gate=gap", "++method.knobs.gate=soft_or")}
    assert command.changes == ("method.knobs.beta=3", "env.knobs.price=1", "method.knobs.gate=gap,soft_or")


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("training.stepz=1", "training.stepz=1 (command line): there is no such key; did you mean training.steps?"),
        ("+training.stepz=1", "did you mean training.steps?"),
        ("++foo=1", "foo=1 (command line): there is no such key; keys: "),
        ("lr=1", "did you mean training.lr?"),
        ("methd=opid", "did you mean method?"),
        ("method=opdi", "method=opdi (command line): did you mean 'opid'? available: grpo, opid, opid_random"),
        ("method=null", "method=None"),
        ("sweep=main", "did you mean 'main_table'?"),
        ("sweep=main_table,quick", "takes one value"),
        ("do=pln", "did you mean 'plan'?"),
        ("scale=locl", "did you mean 'local'?"),
        ("scale=test,locl", "did you mean 'local'?"),
        ("seed=abc", "seed=abc (command line): must be a whole number"),
        ("seed=1.5", "must be a whole number"),
        ("seed=true", "must be a whole number"),
        ("seed=interval(0,1)", "no list of values"),
        ("seed=[]", "names no value"),
        ("method=glob(x*)", "names no value"),
        ("fraction=much", "must be a number"),
        ("~training.lr", "cannot be deleted"),
        ("method@x=grpo", "not supported"),
        ("training=3", "is a section, not a value"),
        ("training.lr=[1,2", "cannot be read"),
        ("training.lr", "cannot be read"),
        ("hydra.run.dir=x", "only hydra.searchpath"),
        ("out=", "out (command line): names no folder; out=. is the current one"),
        ("out=~nobody-of-this-name/x", "a folder of that name is out=./~nobody-of-this-name/x"),
        ("sweep.title=it's", """text with special characters stands in quotes: 'sweep.title='"'"'it"""),
        ("seed=0,0", "seed=0,0 (command line): names a value twice"),
        ("method=opid,opid", "method=opid,opid (command line): names a value twice"),
        ("training.lr=1e-4,1e-4", "names a value twice"),
    ],
)
def test_bad_arguments_are_named(argument: str, said: str) -> None:
    assert said in problem_of(argument)


def test_all_bad_arguments_are_reported_at_once() -> None:
    assert len(problem_of("foo=1", "seed=x", "method=opdi").splitlines()) == 3
