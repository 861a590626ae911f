from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.compose import GROUPS, Composer, composer, package_files, render
from harness.config import CommandConfig
from harness.errors import ConfigError
from harness.schema import exists, keys, leaves, nearest_key

Write = Callable[[str, str], None]


def problem_of(hydra: Composer, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        hydra.config(overrides)
    return str(caught.value)


def test_defaults_of_files_and_of_the_schema_agree(hydra: Composer) -> None:
    """The schema's defaults are what `--help` shows and what code that makes a RunConfig by hand gets."""
    config, choices = hydra.config([])
    config.expected_seconds = {}  # measured per row and scale: the schema knows none
    config.env.knobs = {}  # those of one environment: it declares them, the schema does not
    assert config == CommandConfig()
    assert set(choices) == set(GROUPS) - {"sweep"}


def test_every_file_of_every_group_composes(hydra: Composer) -> None:
    for group, files in package_files().items():
        assert set(files) <= set(hydra.groups()[group])
        for name, comment in files.items():
            assert comment, f"sweeps/{group}/{name}.yaml begins with a comment saying what it is; --help shows it"
            assert isinstance(hydra.config([f"{group}={name}"])[0], CommandConfig)


def test_every_knob_in_the_files_has_a_comment() -> None:
    """Meaning, unit or source of each value stand beside it."""
    for path in sorted((Path(__file__).parents[2] / "sweeps").rglob("*.yaml")):
        if path.parent.name == "sweep":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            key, colon, rest = line.partition(":")
            if colon and rest.strip() and key != "defaults" and not key.lstrip().startswith(("#", "-")):
                assert "#" in rest, f"{path.name}:{number} says no word about {key.strip()}"


def test_equal_requests_are_composed_once(hydra: Composer) -> None:
    hydra.config(["seed=1"])
    hydra.config(["seed=1"])
    assert hydra.compositions == 1


def test_compositions_equal_those_of_hydra_itself(hydra: Composer, write: Write, config_dir: Path) -> None:
    """Files are read once for many compositions; nothing of one may leak into another."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    write("method/mine", "# test\ndefaults: [opid, _self_]\nid: mine\nskill: {router: random}\n")
    requests = [
        ["method=mine", "scale=test", "sweep=quick"],
        ["method=opid"],
        ["backbone=tiny-m", "training.lr=1"],
        ["method=mine", "backbone=tiny"],
        [],
        ["method=opid"],
    ]
    ours = [OmegaConf.to_yaml(hydra.compose(r).copy()) for r in requests]
    with initialize_config_module(config_module="sweeps", version_base="1.3"):
        place = f"hydra.searchpath=['file://{config_dir}']"
        theirs = [OmegaConf.to_yaml(compose("config", [place, *r], return_hydra_config=True)) for r in requests]
    assert ours == theirs


def test_backbone_tiny_is_tiny_s(hydra: Composer) -> None:
    small = hydra.config(["backbone=tiny-s"])[0].backbone
    assert hydra.config(["backbone=tiny"])[0].backbone == small
    medium = hydra.config(["backbone=tiny-m"])[0].backbone
    assert (medium.hidden, medium.layers, medium.heads) == (128, 4, small.heads)


def test_scale_test_is_small(hydra: Composer) -> None:
    config, _ = hydra.config(["scale=test"])
    assert (config.scale, config.training.steps, config.env.train_per_type) == ("test", 3, 1)
    assert config.training.lr == CommandConfig().training.lr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nam: opid\n", ["method.nam", "conf/method/mine.yaml", "did you mean method.name"]),
        ("coef: much\n", ["method.coef=much", "conf/method/mine.yaml", "a number"]),
        ("skill: {router: [a]}\n", ["method.skill.router", "conf/method/mine.yaml"]),
        ("coef: [1\n", ["mine.yaml", "line"]),
    ],
)
def test_mistakes_in_files_name_the_file(hydra: Composer, write: Write, text: str, said: list[str]) -> None:
    write("method/mine", text)
    problem = problem_of(hydra, "method=mine")
    assert all(word in problem for word in said), problem


def test_mistakes_in_values_name_the_key(hydra: Composer) -> None:
    assert "training.steps=abc (command line): must be a whole number" in problem_of(hydra, "training.steps=abc")
    assert "training.lr=x (command line): must be a number" in problem_of(hydra, "training.lr=x")
    assert "training.stepz" in problem_of(hydra, "training.stepz=1")
    assert "did you mean 'opid'" in problem_of(hydra, "method=opidd")
    assert "evaluation.panels" in problem_of(hydra, "evaluation.panels=seen")


def test_own_folder_of_configuration_files(hydra: Composer, write: Write) -> None:
    write("method/mine", "# a row of my own\nid: mine\nname: grpo\nlabel: Mine\n")
    assert "mine" in hydra.groups()["method"]
    assert hydra.config(["method=mine"])[0].method.label == "Mine"


def test_a_missing_folder_of_configuration_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        composer(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="one search path only"):
        composer(str(tmp_path), ["hydra.searchpath=[]"])


def test_text_shows_the_composed_configuration(hydra: Composer) -> None:
    shown = hydra.text(["training.steps=7"], "job", resolve=False)
    assert "steps: 7" in shown and "hydra:" not in shown
    assert "hydra:" in hydra.text([], "all", resolve=False)


@pytest.mark.parametrize(
    "given", [None, True, 3, -0.5, 1e-7, "a b", "it's", 'say "x"', "a,b=c", "on", [1, "x", None], {"a": [True, 2.5]}]
)
def test_rendered_values_survive_hydra(given: object) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_override(f"k={render(given)}").value()
    assert parsed == given and type(parsed) is type(given)


def test_schema_keys() -> None:
    assert keys()["training"].branch and not keys()["training.lr"].branch
    assert exists("training.lr") and exists("sweep.rows") and exists("expected_seconds.grpo")
    assert not exists("training.lrr") and not exists("training.lr.x") and not exists("lr")
    assert nearest_key("lr") == "training.lr"
    assert nearest_key("training.stepz") == "training.steps"
    assert nearest_key("qqqqqq") is None
    assert set(leaves(CommandConfig)) == {k for k, key in keys().items() if not key.branch}
    assert len(leaves()) < len(leaves(CommandConfig))
    assert {f.name for f in dataclasses.fields(CommandConfig)} == {k for k in keys() if "." not in k}
