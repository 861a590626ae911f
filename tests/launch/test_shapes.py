"""What a run asks for: backbone, then the site's entries, then what the engine can use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness import registry
from harness.commandline import parse
from harness.compose import composer
from harness.config import ResourcesConfig, RunConfig
from harness.errors import ConfigError
from harness.launch.limits import Limits, NodeGroup, Partition
from harness.launch.shapes import Shape, gpu_hours, misfit, problems, shape_of
from harness.plan import build_plan


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ENGINES", {"local": frozenset(), "verl": frozenset()})


@pytest.fixture
def config() -> Callable[..., RunConfig]:
    def make(engine: str = "local", device: str = "cpu", entries: dict[str, Any] | None = None) -> RunConfig:
        config = RunConfig(engine=engine)
        config.runtime.device = device
        config.env.name = "alfworld"
        config.backbone.name = "big"
        config.backbone.resources = ResourcesConfig(2, 8, 64, 800, 240)
        config.launcher.resources = entries or {}
        return config

    return make


def test_the_backbone_decides(config: Callable[..., RunConfig]) -> None:
    assert shape_of(config("verl", "cuda")) == Shape(2, 8, 64, 800.0, 240)
    assert shape_of(RunConfig()) == Shape(1, 0, 1, 3.0, 60)


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0), ("cuda", 1), ("cuda:3", 1)])
def test_the_local_engine_gets_one_process_worth(config: Callable[..., RunConfig], device: str, gpus: int) -> None:
    assert shape_of(config("local", device)) == Shape(1, gpus, 8, 100.0, 240)


def test_the_local_engine_never_gets_more(config: Callable[..., RunConfig]) -> None:
    entries = {"big/local": {"nodes": 4, "gpus_per_node": 8, "mem_gb": 33}}
    assert shape_of(config("local", "cuda", entries)) == Shape(1, 1, 8, 33.0, 240)
    assert shape_of(config("local", "cpu", entries)).gpus == 0


def test_a_gpu_is_asked_for_where_the_backbone_names_none() -> None:
    config = RunConfig()
    config.runtime.device = "cuda"
    assert shape_of(config).gpus_per_node == 1


def test_the_more_special_entry_counts(config: Callable[..., RunConfig]) -> None:
    entries = {
        "big/verl/alfworld": {"minutes": 30},
        "big/verl": {"minutes": 20, "mem_gb": 500},
        "big": {"minutes": 10, "mem_gb": 400, "nodes": 1},
        "big/verl/webshop": {"minutes": 99},
        "big/local": {"minutes": 98},
        "other": {"minutes": 97},
        "empty": None,
    }
    assert shape_of(config("verl", "cuda", entries)) == Shape(1, 8, 64, 500.0, 30)


def test_entries_are_read_as_the_configuration_gives_them(config: Callable[..., RunConfig]) -> None:
    from omegaconf import OmegaConf

    made = OmegaConf.structured(RunConfig(engine="verl"))
    made.launcher.resources = {"tiny-s": {"minutes": 7}}
    read = OmegaConf.to_object(made)
    assert isinstance(read, RunConfig)
    assert shape_of(read).minutes == 7


@pytest.mark.parametrize(
    ("entry", "key", "says"),
    [
        ({"big/vrel": {}}, "launcher.resources.big/vrel", "no engine 'vrel'; did you mean 'verl'?"),
        ({"big/verl/alfword": {}}, "launcher.resources.big/verl/alfword", "did you mean 'alfworld'?"),
        ({"bgi": {}}, "launcher.resources.bgi", "no backbone 'bgi'; did you mean 'big'?"),
        ({"big/verl/alfworld/x": {}}, "launcher.resources.big/verl/alfworld/x", "<backbone>/<engine>/<env>"),
        ({"big//alfworld": {}}, "launcher.resources.big//alfworld", "<backbone>/<engine>/<env>"),
        ({"big": 4}, "launcher.resources.big", "must name what changes"),
        ({"big": {"minuets": 4}}, "launcher.resources.big.minuets", "did you mean 'minutes'?"),
        ({"big": {"minutes": 0}}, "launcher.resources.big.minutes", "at least 1"),
        ({"big": {"minutes": 1.5}}, "launcher.resources.big.minutes", "whole number"),
        ({"big": {"nodes": True}}, "launcher.resources.big.nodes", "whole number"),
        ({"big": {"gpus_per_node": -1}}, "launcher.resources.big.gpus_per_node", "at least 0"),
        ({"big": {"mem_gb": 0}}, "launcher.resources.big.mem_gb", "above 0"),
        ({"big": {"mem_gb": "8G"}}, "launcher.resources.big.mem_gb", "above 0"),
        ({"big": {"mem_gb": float("inf")}}, "launcher.resources.big.mem_gb", "above 0"),
    ],
)
def test_entries_that_make_no_sense(entry: dict[str, Any], key: str, says: str) -> None:
    (problem,) = problems(entry, ["big", "small"], "sweeps/launcher/slurm.yaml")
    assert problem.key == key
    assert says in problem.fix
    assert problem.origin == "sweeps/launcher/slurm.yaml"


def test_a_shape_of_nonsense_is_refused(config: Callable[..., RunConfig]) -> None:
    with pytest.raises(ConfigError, match=r"launcher\.resources\.big\.minutes=0"):
        shape_of(config("verl", "cuda", {"big": {"minutes": 0}}))
    # Which backbones exist is known to whoever composes; a run knows its own.
    assert shape_of(config("verl", "cuda", {"of another package": {"minutes": 1}})).minutes == 240


def test_gpu_hours() -> None:
    assert gpu_hours([Shape(2, 8, 1, 1.0, 30), Shape(1, 1, 1, 1.0, 60), Shape()]) == 9.0


def test_words_for_a_shape() -> None:
    assert str(Shape()) == "1 node, 1 core and 3 GB per node, 60 min"
    assert str(Shape(2, 8, 64, 1.5, 240)) == "2 nodes x 8 GPUs, 64 cores and 1.5 GB per node, 240 min"
    assert str(Shape(gpus_per_node=1)).startswith("1 node x 1 GPU, ")


@pytest.mark.parametrize(
    ("shape", "partition", "says"),
    [
        (Shape(), None, None),
        (Shape(4, 8, 16, 195.0, 1440), "main", None),
        (Shape(minutes=1441), "main", "1441 minutes are asked for, partition main allows 1440"),
        (Shape(5, 8), "main", "has 4 such nodes"),
        (Shape(1, 8, 17), "main", "has 0 such nodes (its 5 nodes have up to 8 GPUs, 128 cores and 977 GB)"),
        (Shape(), "mian", "no partition 'mian'; did you mean 'main'?"),
    ],
)
def test_shapes_that_no_partition_takes(shape: Shape, partition: str | None, says: str | None) -> None:
    groups = (NodeGroup(4, 8, 16, 200_000), NodeGroup(1, 0, 128, 1_000_000))
    limits = Limits(1001, None, 10_000, {"main": Partition("main", 1440, 5, 8, 128, 1_000_000, "up", groups)}, "main")
    found = misfit(shape, limits, partition)
    assert (found is None) if says is None else (found is not None and says in found)


def test_a_site_without_default_partition() -> None:
    limits = Limits(1001, None, 10_000, {"a": Partition("a", None, 1, 0, 1, 1, "up")})
    assert "set launcher.partition to one of a" in (misfit(Shape(), limits, None) or "")


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("launcher.resources={tiny_s: {minutes: 4}}", "no backbone 'tiny_s'; did you mean 'tiny-s'?"),
        ("launcher.resources={tiny-s/locl: {minutes: 4}}", "no engine 'locl'; did you mean 'local'?"),
        ("launcher.resources={tiny-m: {minuets: 4}}", "did you mean 'minutes'?"),
    ],
)
def test_the_planner_refuses_entries_that_make_no_sense(argument: str, says: str) -> None:
    made = composer()
    with pytest.raises(ConfigError) as caught:
        build_plan(made, parse(["method=vanilla", "env=alfworld", argument], made.groups()))
    assert says in str(caught.value)
    assert "(command line)" in str(caught.value)
