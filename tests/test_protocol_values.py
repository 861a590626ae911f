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
from methods.interface import SkillConfig

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


SWEEPS = sorted(p.stem for p in (FOLDER / "sweep").glob("*.yaml"))


@pytest.mark.parametrize("name", ["paper", "code"])
def test_teachers_that_are_compared_read_the_same_skills(name: str) -> None:
    """Self-taught rows share one router in each environment, and a frozen teacher reads skills as it learned to."""

    def skill(method: str, env: str) -> SkillConfig:
        return apply(shared().config([f"method={method}"])[0], values(name, method, env)).method.skill

    for env in ENVS:
        rows = [m for m in METHODS if shared().config([f"method={m}"])[0].method.teacher.weights == "old"]
        library = [m for m in rows if skill(m, env).source == "library" and not m.startswith("opid")]
        assert len({skill(m, env).router for m in library}) == len({skill(m, env).placement for m in library}) == 1
        assert {"opsd", "grpo_opsd", "skill_sd", "rlsd", "sdar", "sdar_entropy", "opsd_released"} <= set(library)
        for student in METHODS:
            teacher = shared().config([f"method={student}"])[0].method.teacher
            if teacher.weights == "frozen":
                assert skill(student, env) == skill(str(teacher.run), env), (student, env)
    if name == "code":
        assert [skill("sdar", env).router for env in ENVS] == ["task_type", "data_source", "keyword"]
        assert skill("skill_grpo", "search_qa").router == skill("vanilla_skill", "search_qa").router == "general"


def test_mini_batches_of_retire_opd() -> None:
    for name in ("paper", "code"):
        for method in ("grpo_opd", "retire_opd", "retire_opd_fixed", "retire_opd_no_progress"):
            assert [values(name, method, env)["training.mini_batches"] for env in ("alfworld", "webshop")] == [16, 8]


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("name", ["paper", "code"])
def test_what_is_set_for_a_base_is_set_for_its_ablation(name: str, sweep: str) -> None:
    """Of rows that share a method, so that an ablation differs in what it declares under a protocol, too."""
    rows = OmegaConf.to_container(OmegaConf.load(FOLDER / "sweep" / f"{sweep}.yaml"))["rows"]  # type: ignore[index,call-overload]
    for row in rows:
        if "base" not in row or "method" in row["delta"]:
            continue
        for env in ENVS:
            there, here = values(name, row["base"], env), values(name, row["method"], env)
            changed = {k for k in {*there, *here} if there.get(k) != here.get(k)}
            lost = {k for k in changed if k in there and k not in here}
            assert all(any(f"{k}.".startswith(f"{d}.") for d in row["delta"]) for k in lost), (row, env, lost)


def test_ablations_keep_what_makes_them_one() -> None:
    for name in ("paper", "code"):
        assert values(name, "opid_no_step") == values(name, "opid") == values(name, "opid_random")
        assert values(name, "sdar_entropy")["method.coef"] == 0.01
        assert "method.advantage.std" in values(name, "gigpo")
        assert values(name, "retire_opd_fixed")["method.knobs.stop_step"] == 60
        assert values(name, "grpo_opsd_released")["method.coef"] == 0.01
    assert values("code", "opid_additive")["method.advantage.std"] is False  # the released script's confound
    assert values("code", "opid")["method.advantage.std"] is True
