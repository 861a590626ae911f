"""Code that can change a number stands behind a version; the versions that a run uses are in its fingerprint."""

from __future__ import annotations

import ast
import copy
import dataclasses

import code_pins
import pytest

from envs.alfworld import spec as alfworld
from harness import registry
from harness.config import RunConfig
from harness.versions import versions
from methods.interface import MethodConfig, SkillConfig
from methods.skills import analyzer, injection, library


def config(source: str = "none") -> RunConfig:
    return RunConfig(method=MethodConfig(skill=SkillConfig(source=source)))


def test_code_changes_are_decided_upon() -> None:
    """If this fails: raise the named version if a run could get another result, then run the named command."""
    assert code_pins.complaints(code_pins.current(), code_pins.recorded()) == []


def test_every_file_is_pinned_or_free() -> None:
    """A new file of these folders: name it in code_pins.PINNED, or in FREE if no number can depend on it."""
    pinned = {file for entry in code_pins.PINNED for file in entry.files}
    assert not pinned & set(code_pins.FREE)
    for folder in code_pins.FOLDERS:
        files = {str(p.relative_to(code_pins.ROOT)) for p in (code_pins.ROOT / folder).rglob("*.py")}
        assert files <= pinned | set(code_pins.FREE), folder
    assert all((code_pins.ROOT / file).is_file() for file in {*pinned, *code_pins.FREE})


def test_complaints_say_what_to_do() -> None:
    now = code_pins.current()
    name = "methods.skills.injection:INJECTION_VERSION"
    other = copy.deepcopy(now)
    other[name]["files"]["methods/skills/injection.py"] = "0"
    (complaint,) = code_pins.complaints(now, other)
    assert "methods/skills/injection.py changed" in complaint and f"raise {name}" in complaint
    other[name]["version"] = 0
    assert code_pins.complaints(now, other) == [f"{name} is 1, pinned was 0: `{code_pins.REFRESH}`"]
    assert "no longer exists" in code_pins.complaints({}, {"gone": now[name]})[0]
    assert len(code_pins.complaints(now, {})) == len(now)


def test_a_digest_is_of_code_alone() -> None:
    def normal(text: str) -> str:
        return "".join(code_pins._normal(ast.parse(text)))

    plain = normal("def f(x):\n    return x + 1\n")
    assert normal('"""Doc."""\nDEVIATIONS = (1,)\ndef f( x ):  # why\n    """What."""\n    return (x\n + 1)\n') == plain
    assert normal("def f(x):\n    return x + 2\n") != plain
    assert normal("def f(x, y=1):\n    return x + 1\n") != plain


def test_versions_of_what_a_run_uses() -> None:
    always = {"engine", "method", "env.play", "env.prompts"}
    assert set(versions(config())) == always
    assert set(versions(config("library"))) == always | {"env.rules", "injection", "selection", "env.library"}
    assert set(versions(config("own_trajectory"))) == always | {"env.rules", "injection", "analyzer"}
    assert all(isinstance(v, int) for v in versions(config("own_trajectory")).values())


@pytest.mark.parametrize("name", ["engine", "method", "env.play", "env.prompts", "env.rules", "injection", "analyzer"])
def test_each_version_is_read_from_its_constant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions(config("own_trajectory"))
    if name == "engine":
        monkeypatch.setattr("harness.training.ENGINE_VERSION", 99)
    elif name == "injection":
        monkeypatch.setattr(injection, "INJECTION_VERSION", 99)
    elif name == "analyzer":
        monkeypatch.setitem(analyzer._ANALYZERS, "rules", dataclasses.replace(analyzer.get("rules"), version=99))
    elif name == "method":
        spec = dataclasses.replace(registry.method_spec("grpo"), version=99)
        monkeypatch.setattr(registry, "method_spec", lambda _: spec)
    else:
        key = name.removeprefix("env.") + "_version"
        spec = dataclasses.replace(alfworld.SPEC, metadata={**alfworld.SPEC.metadata, key: 99})
        monkeypatch.setattr(registry, "env_spec", lambda _: spec)
    after = versions(config("own_trajectory"))
    assert {k for k in after if after[k] != before[k]} == {name} and after[name] == 99


def test_versions_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions(config("library"))
    monkeypatch.setattr(library, "SELECTION_VERSION", 99)
    assert versions(config("library")) == {**before, "selection": 99}
    texts = alfworld.SPEC.library(config().env)  # type: ignore[misc]
    reworded = dataclasses.replace(texts, general=texts.general[1:])
    spec = dataclasses.replace(alfworld.SPEC, library=lambda _: reworded)
    monkeypatch.setattr(registry, "env_spec", lambda _: spec)
    assert versions(config("library"))["env.library"] == reworded.digest != before["env.library"]


def test_an_environment_without_versions_can_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = dataclasses.replace(alfworld.SPEC, metadata={}, library=None)
    monkeypatch.setattr(registry, "env_spec", lambda _: bare)
    found = versions(config("library"))
    assert found["env.rules"] is None and found["env.library"] is None
