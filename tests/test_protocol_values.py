"""sweeps/protocol: each value is of an existing key, has its source beside it, and fits the method of its row."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import sweeps
from harness.compose import Composer, composer
from harness.protocols import FAIR, Protocols, apply
from harness.schema import exists
from methods import registry

FOLDER = Path(next(iter(sweeps.__path__)))
FILES = sorted(p.stem for p in (FOLDER / "protocol").glob("*.yaml"))
METHODS = sorted(p.stem for p in (FOLDER / "method").glob("*.yaml"))
ENVS = sorted(p.stem for p in (FOLDER / "env").glob("*.yaml"))


def content(name: str) -> dict[str, Any]:
    read = OmegaConf.to_container(OmegaConf.load(FOLDER / "protocol" / f"{name}.yaml"))
    assert isinstance(read, dict)
    return read  # type: ignore[return-value]


def test_which_there_are() -> None:
    assert FILES == ["code", "fair", "paper"] and content(FAIR) == {}


@pytest.mark.parametrize("name", FILES)
def test_every_key_exists(name: str) -> None:
    read = content(name)
    sections = [*read.get("envs", {}).values(), *(s for m in read.get("methods", {}).values() for s in m.values())]
    for section in sections:
        for key in section:
            assert exists(key), key
    assert set(read.get("methods", {})) <= set(METHODS)


@pytest.mark.parametrize("name", FILES)
def test_every_value_has_its_source(name: str) -> None:
    text = (FOLDER / "protocol" / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    for line in text.splitlines():
        if not line.startswith("#") and not line.endswith(":") and line != "{}":
            assert len(line.partition("  # ")[2]) >= 3, f"{name}.yaml: no source in {line!r}"


@pytest.mark.parametrize("name", FILES)
def test_methods_accept_what_it_makes_of_their_rows(name: str) -> None:
    for method in METHODS:
        config = shared().config([f"method={method}"])[0]
        for env in ENVS:
            registry.validate(apply(config, values(name, method, env)).method)


@cache
def shared() -> Composer:
    return composer()


@cache
def protocols() -> Protocols:
    return Protocols(shared())


def values(name: str, method: str, env: str = "alfworld") -> dict[str, Any]:
    return dict(protocols().values(name, method, env))


def test_what_papers_and_code_differ_in() -> None:
    for env in ENVS:
        paper, code = values("paper", "grpo", env), values("code", "grpo", env)
        changed = {k for k in paper if paper[k] != code[k]}
        expected = {"method.advantage.stats_over", "training.dual_clip", "training.entropy_coef"}
        if env == "search_qa":
            expected |= {"training.kl_coef", "evaluation.temperature"}
        assert paper.keys() == code.keys() and changed == expected


def test_ablations_keep_what_makes_them_one() -> None:
    for name in ("paper", "code"):
        assert values(name, "opid_no_step") == values(name, "opid") == values(name, "opid_random")
        assert values(name, "sdar_entropy")["method.coef"] == 0.01
        assert "method.advantage.std" in values(name, "gigpo")
        assert values(name, "retire_opd_fixed")["method.knobs.stop_step"] == 60
        assert values(name, "grpo_opsd_released")["method.coef"] == 0.01
    assert values("code", "opid_additive")["method.advantage.std"] is False  # the released script's confound
    assert values("code", "opid")["method.advantage.std"] is True
