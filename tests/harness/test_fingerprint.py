from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from harness import fingerprint as module
from harness.config import AnalyzerConfig, RunConfig
from harness.fingerprint import ADDED_LATER, CLASSES, differences, fingerprint, identity
from harness.schema import leaves, value
from methods.interface import SkillConfig

PANELS = {"train": "a", "seen": "b", "unseen": "c"}
CODE = {"engine": 1, "method": 1}


def changed(config: RunConfig, name: str) -> RunConfig:
    """A copy with another value at a dotted key."""
    head, _, rest = name.partition(".")
    if rest:
        return dataclasses.replace(config, **{head: changed(getattr(config, head), rest)})  # type: ignore[type-var]
    return dataclasses.replace(config, **{name: another(getattr(config, name))})


def another(given: Any) -> Any:
    if isinstance(given, bool):
        return not given
    if isinstance(given, (int, float)):
        return given + 1
    if isinstance(given, list):
        return [*given, given[0] if given else "more"]
    if isinstance(given, dict):
        return {**given, "more": 1.0}
    return f"{given}x"


def analysed(config: RunConfig) -> RunConfig:
    """A copy whose method reads skills that an analyzer writes."""
    return dataclasses.replace(
        config, method=dataclasses.replace(config.method, skill=SkillConfig("own_trajectory", "critical_first"))
    )


def test_every_field_is_classed() -> None:
    """Class each new field of RunConfig in harness.fingerprint: can it change a result?"""
    assert set(CLASSES) == set(leaves(RunConfig))


def test_an_unclassed_field_counts_as_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(RunConfig())
    classes = {k: v for k, v in CLASSES.items() if k != "runtime.log_level"}
    monkeypatch.setattr(module, "CLASSES", classes)
    assert set(identity(RunConfig())) - set(before) == {"runtime.log_level"}


@pytest.mark.parametrize("name", leaves(RunConfig))
def test_identity_fields_change_the_fingerprint_and_runtime_fields_do_not(name: str) -> None:
    config = analysed(RunConfig()) if name.startswith("analyzer.") else RunConfig()
    other = changed(config, name)
    assert value(other, name) != value(config, name)
    same = fingerprint(config, CODE, "weights", PANELS) == fingerprint(other, CODE, "weights", PANELS)
    assert same == (CLASSES[name] == "runtime")


def test_golden_value() -> None:
    """If this fails, every earlier run is disowned: raise FINGERPRINT_VERSION and say so in the changelog, or class a
    new field in ADDED_LATER."""
    assert fingerprint(RunConfig(), CODE, "weights", PANELS) == "e2b6eee4ea6ce3f3"


def test_code_backbone_panels_and_version_count(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        fingerprint(RunConfig(), CODE, "weights", PANELS),
        fingerprint(RunConfig(), {**CODE, "method": 2}, "weights", PANELS),
    }
    names.add(fingerprint(RunConfig(), CODE, "weights", {**PANELS, "seen": "other"}))
    names.add(fingerprint(RunConfig(), CODE, "weights", {"seen": "b", "unseen": "c"}))
    names.add(fingerprint(RunConfig(), CODE, "other weights", PANELS))
    monkeypatch.setattr(module, "FINGERPRINT_VERSION", module.FINGERPRINT_VERSION + 1)
    names.add(fingerprint(RunConfig(), CODE, "weights", PANELS))
    assert len(names) == 6
    assert all(len(n) == 16 and set(n) <= set("0123456789abcdef") for n in names)


def test_the_analyzer_counts_only_where_there_is_one() -> None:
    """A table under another analyzer trains its other rows once; rows made before keep their names."""
    model = AnalyzerConfig(name="openai", model="m", temperature=0.1, skill_chars=500)

    def name(config: RunConfig) -> str:
        return fingerprint(config, CODE, "weights", PANELS)

    plain, other = RunConfig(), dataclasses.replace(RunConfig(), analyzer=model)
    assert name(plain) == name(other) and identity(other)["analyzer.name"] == "rules"
    assert name(analysed(plain)) != name(analysed(other))
    assert other.analyzer is model  # what a record says of the command stays


def test_the_kind_of_device_counts_and_its_number_does_not() -> None:
    def name(device: str) -> str:
        runtime = dataclasses.replace(RunConfig().runtime, device=device)
        return fingerprint(dataclasses.replace(RunConfig(), runtime=runtime), CODE, "weights", PANELS)

    assert name("cuda") == name("cuda:0") == name("cuda:3") != name("cpu")


def test_numbers_are_spelt_in_one_way() -> None:
    def name(**fields: Any) -> str:
        return fingerprint(dataclasses.replace(RunConfig(), **fields), CODE, "weights", PANELS)

    assert name(fraction=1) == name(fraction=1.0)
    training = RunConfig().training
    minus_zero = dataclasses.replace(training, kl_coef=-0.0)
    assert name(training=minus_zero) == name()
    betas = dataclasses.replace(training, betas=[0, 0.99])
    assert name(training=betas) == name(training=dataclasses.replace(training, betas=[0.0, 0.99]))

    def knobs(**given: Any) -> str:
        return name(method=dataclasses.replace(RunConfig().method, knobs=given))

    assert knobs(a=1, b=[2, -0.0]) == knobs(b=[2.0, 0.0], a=1.0)
    assert len({knobs(), knobs(a=1), knobs(a=True), knobs(a="1"), knobs(a=None), knobs(b=1)}) == 6


def test_each_knob_is_a_key_of_its_own() -> None:
    method = dataclasses.replace(RunConfig().method, knobs={"beta": 3, "gate": "gap"})
    found = identity(dataclasses.replace(RunConfig(), method=method))
    assert (found["method.knobs.beta"], found["method.knobs.gate"]) == (3.0, "gap")
    assert differences(identity(RunConfig()), found) == {
        "method.knobs.beta": (None, 3.0),
        "method.knobs.gate": (None, "gap"),
    }
    with pytest.raises(ValueError, match=r"method\.knobs\.beta=nan"):
        method.knobs["beta"] = math.nan
        identity(dataclasses.replace(RunConfig(), method=method))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_have_no_identity(bad: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        fingerprint(dataclasses.replace(RunConfig(), fraction=bad), CODE, "weights", PANELS)


def test_a_field_added_later_keeps_earlier_fingerprints(monkeypatch: pytest.MonkeyPatch) -> None:
    identities = {k for k, v in CLASSES.items() if v == "identity"}
    knobs = tuple(k for k in identities if k.endswith(".knobs"))  # a knob is named below its mapping
    assert all(k in identities or k.rpartition(".")[0] in knobs for k in ADDED_LATER)
    monkeypatch.setattr(module, "ADDED_LATER", {"training.kl_coef": 0.0})
    assert "training.kl_coef" not in identity(RunConfig())
    assert "training.kl_coef" in identity(changed(RunConfig(), "training.kl_coef"))


def test_a_knob_added_later_keeps_earlier_fingerprints() -> None:
    def name(**knobs: Any) -> str:
        env = dataclasses.replace(RunConfig().env, knobs=knobs)
        return fingerprint(dataclasses.replace(RunConfig(), env=env), CODE, "weights", PANELS)

    assert name(products=1000, ranker="own") == name(products=1000) != name(products=1000, ranker="tantivy")


def test_differences_name_both_values() -> None:
    ours, theirs = identity(changed(RunConfig(), "seed")), identity(RunConfig())
    assert differences(theirs, ours) == {"seed": (0, 1)}
