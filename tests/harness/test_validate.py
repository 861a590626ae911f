from __future__ import annotations

import dataclasses
import math
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from conftest import stand_in_spec

from harness import folders, registry
from harness.config import EvaluationConfig, RunConfig
from harness.errors import ConfigError, describe
from harness.fingerprint import CLASSES
from harness.folders import check_writable
from harness.schema import keys, leaves
from harness.validate import NAMES, RANGES, Range, problems


def changed(config: Any, name: str, new: Any) -> Any:
    head, _, rest = name.partition(".")
    return dataclasses.replace(config, **{head: changed(getattr(config, head), rest, new) if rest else new})


def told(**fields: Any) -> list[str]:
    """What is said about a configuration with these dotted keys (dots written as two underscores)."""
    config = RunConfig(evaluation=EvaluationConfig(panels=["seen", "unseen"]))
    for name, new in fields.items():
        config = changed(config, name.replace("__", "."), new)
    return [str(p) for p in problems(config, lambda key: f"origin of {key}")]


def test_the_defaults_are_fine(stand_in_env: None) -> None:
    assert told() == []


def test_every_number_has_a_range() -> None:
    """A new number needs a line in RANGES (or here, if the method's own check knows it)."""
    numbers = {k for k in leaves(RunConfig) if any(t in str(keys(RunConfig)[k].type) for t in ("int", "float"))}
    assert {k for k in numbers if not k.startswith("method.")} == set(RANGES)
    assert set(NAMES) <= set(CLASSES)


@pytest.mark.parametrize("key", sorted(RANGES))
def test_every_range_fires(stand_in_env: None, key: str) -> None:
    bad = RANGES[key].low - 1
    given: Any = [bad, 0.5] if key == "training.betas" else bad
    (text,) = told(**{key.replace(".", "__"): given})
    assert text.startswith(f"{key}={given} (origin of {key}): must be ")


def test_fewest_demonstrations_are_one_shard() -> None:
    from harness.backbones.warmstart import SHARD

    assert RANGES["backbone.demos"].low == SHARD


@pytest.mark.parametrize("key", sorted(NAMES))
def test_every_choice_fires(stand_in_env: None, key: str) -> None:
    wrong = f"{NAMES[key][0]}x"
    (text,) = told(**{key.replace(".", "__"): wrong})
    assert text.startswith(f"{key}={wrong} (origin of {key}): did you mean {NAMES[key][0]!r}?")


def test_ranges() -> None:
    share = Range(0, 1, above=True)
    assert [share.holds(x) for x in (0, 0.1, 1, 1.1)] == [False, True, True, False]
    assert [Range(0, 1, below=True).holds(x) for x in (0, 1)] == [True, False]
    assert not Range(0).holds(math.inf)
    assert (str(share), str(Range(1)), str(Range(0, 1, below=True))) == (
        "must be above 0 and at most 1",
        "must be at least 1",
        "must be at least 0 and below 1",
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"fraction": math.nan}, "fraction=nan (origin of fraction): must be a finite number"),
        ({"method__coef": math.inf}, "must be a finite number"),
        ({"training__betas": [0.9]}, "must be two numbers"),
        ({"training__group_size": 1}, "training.group_size=1 (origin of training.group_size): must be at least 2"),
        ({"training__mini_batches": 33}, "cannot be more than the 32 episodes"),
        ({"backbone__kind": "hub"}, "backbone.path=null"),
        ({"backbone__heads": 3}, "must be an even multiple"),
        ({"training__max_prompt_tokens": 2000}, "makes 2016 tokens, more than backbone.max_positions=1024"),
        ({"training__max_prompt_tokens": 2000}, "set less here or backbone.max_positions=2016, or choose a backbone"),
        ({"evaluation__panels": []}, "must name at least one panel"),
        ({"evaluation__panels": ["seen", "seen"]}, "each once"),
        (
            {"evaluation__panels": ["sen"]},
            "did you mean 'seen'? panels of env=alfworld: seen, train, unseen, validation",
        ),
        ({"env__engine": "natve"}, "did you mean 'native'? engines of env=alfworld: native, textworld"),
        ({"env__data": "/nowhere/at/all"}, "env.data=/nowhere/at/all (origin of env.data): is not a folder"),
        ({"runtime__device": "gpu"}, "must be cpu, cuda or cuda:N"),
        (
            {"tracking__uri": "http://me:hunter2@host:5000"},
            "tracking.uri=http://me:***@host:5000 (origin of tracking.uri): must hold no password",
        ),
        (
            {"method__advantage__estimator": "gpro"},
            "method.advantage.estimator='gpro' is unknown; did you mean 'grpo'?",
        ),
        ({"method__name": "gpro"}, "method.name='gpro' is unknown; did you mean 'grpo'?"),
    ],
)
def test_bad_values_and_combinations_are_named(stand_in_env: None, fields: dict[str, Any], said: str) -> None:
    found = told(**fields)
    assert len(found) == 1 and said in found[0], found


def test_the_panel_of_training_is_no_evaluation_of_a_row_that_trains(stand_in_env: None) -> None:
    assert told(evaluation__panels=["train", "seen"]) == [
        "evaluation.panels=train (origin of evaluation.panels): is what row 'grpo' trains on; "
        "evaluate it on seen, unseen"
    ]
    vanilla = {"method__name": "vanilla", "method__trains": False, "method__advantage__estimator": "none"}
    assert told(evaluation__panels=["train", "seen"], **vanilla) == []


def test_what_does_not_train_needs_no_groups(stand_in_env: None) -> None:
    vanilla = {"method__name": "vanilla", "method__trains": False, "method__advantage__estimator": "none"}
    assert told(training__group_size=1, training__mini_batches=1, **vanilla) == []


def test_a_hub_model_need_not_fit_the_embedded_sizes(stand_in_env: None) -> None:
    assert told(backbone__kind="hub", backbone__path="some/model", training__max_prompt_tokens=4096) == []


# ------------------------------------------------------------------------------------------------------- capabilities
def _opid() -> dict[str, Any]:
    method = dataclasses.replace(
        RunConfig().method,
        id="opid",
        name="opid",
        coef=0.1,
        teacher=dataclasses.replace(RunConfig().method.teacher, weights="old"),
        skill=dataclasses.replace(
            RunConfig().method.skill, source="own_trajectory", router="critical_first", max_step_skills=2
        ),
    )
    return {"method": method}


def test_skills_are_exchanged_between_tasks_of_a_step(stand_in_env: None) -> None:
    given = _opid() | {"method__skill__router": "random", "training__tasks_per_step": 1}
    (found,) = (text for text in told(**given) if text.startswith("training."))
    assert found.startswith("training.tasks_per_step=1 (origin of training.tasks_per_step): must be at least 2")
    assert not [t for t in told(**given | {"training__tasks_per_step": 2}) if t.startswith("training.")]


def test_an_environment_without_hindsight_cannot_carry_opid(
    stand_in_env: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(**_opid()) == []
    monkeypatch.setattr(registry, "env_spec", lambda name: stand_in_spec())
    (text,) = told(**_opid())
    assert text == "method=opid: row 'opid' needs the capability env:hindsight, which env=alfworld does not offer"


def test_an_engine_without_teacher_cannot_carry_opid(stand_in_env: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ENGINES", {"local": frozenset()})
    assert "needs the capability engine:teacher, which engine=local does not offer" in told(**_opid())[0]


def test_an_unknown_analyzer_is_named(stand_in_env: None) -> None:
    assert "did you mean 'rules'?" in told(analyzer__name="rulez", **_opid())[0]
    assert told(analyzer__name="rulez") == []  # GRPO analyses nothing


def test_an_unknown_environment_is_named() -> None:
    (text,) = told(env__name="alfwrld")
    assert text.startswith("env.name=alfwrld (origin of env.name)") and "alfworld" in text


def test_an_environment_without_validation_tasks_cannot_carry_a_method_that_is_validated(
    stand_in_env: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    retire = {**_opid(), "method__name": "opid"}
    spec = dataclasses.replace(registry.method_spec("opid"), validates=True)
    monkeypatch.setattr("methods.registry.get", lambda name: spec)
    assert told(**retire) == []
    env = dataclasses.replace(registry.env_spec("alfworld"), panels=("train", "seen", "unseen"))
    monkeypatch.setattr(registry, "env_spec", lambda name: env)
    (text,) = told(**retire)
    assert text.startswith("method.name=opid (panel validation)") and "env=alfworld has no such panel" in text


# -------------------------------------------------------------------------------------------------------------- knobs
@dataclasses.dataclass(frozen=True)
class Knobs:
    beta: float = 5.0
    gate: str = "gap"


def test_knobs_are_checked_one_by_one_with_their_origin(stand_in_env: None, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dataclasses.replace(registry.method_spec("grpo"), knobs=Knobs)
    monkeypatch.setattr("methods.registry.get", lambda name: spec)
    assert told(method__knobs={"beta": 3}) == []
    assert told(method__knobs={"bta": 3, "gate": 7, "beta": math.nan}) == [
        "method.knobs.bta=3 (origin of method.knobs.bta): is no knob of method 'grpo'; did you mean method.knobs.beta? "
        "Knobs: beta, gate",
        "method.knobs.gate=7 must be of type str (origin of method.knobs.gate)",
        "method.knobs.beta=nan must be a finite number (origin of method.knobs.beta)",
    ]


def test_a_method_and_an_environment_without_knobs_take_none(stand_in_env: None) -> None:
    assert told(method__knobs={"beta": 3}, env__knobs={"price": 1}) == [
        "env.knobs.price=1 (origin of env.knobs.price): is no knob of environment 'alfworld'. Knobs: held_out_types",
        "method.knobs.beta=3 (origin of method.knobs.beta): is no knob of method 'grpo'. Knobs: none",
    ]


def test_values_are_described_as_files_spell_them() -> None:
    assert [describe(v) for v in (None, True, ["off", "on"], 0.5, "x")] == ["null", "true", "[off, on]", "0.5", "x"]
    assert describe({"a": None, "b": [False]}) == "{a: null, b: [false]}" and describe({}) == "{}"


def test_an_address_without_a_password_is_fine(stand_in_env: None) -> None:
    assert told(tracking__uri="postgresql://me@host/mlflow") == []


# ------------------------------------------------------------------------------------------------------------ folders
def check(folder: Path, min_free_gb: float = 0.0) -> None:
    check_writable(folder, "runtime.out", "command line", min_free_gb)


def refused(folder: Path, min_free_gb: float = 0.0) -> str:
    with pytest.raises(ConfigError) as caught:
        check(folder, min_free_gb)
    return str(caught.value)


def test_a_writable_folder_is_left_as_it_was(tmp_path: Path) -> None:
    check(tmp_path)
    check(tmp_path / "not" / "there" / "yet")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert f"{tmp_path / 'file'} is not a folder" in refused(tmp_path / "file" / "out")
    (tmp_path / "runs").write_text("x")
    assert f"{tmp_path / 'runs'} is not a folder" in refused(tmp_path)


@pytest.mark.parametrize("number", [13, 30, 28])  # EACCES, EROFS, ENOSPC
def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    import os

    def fail(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folders.tempfile, "NamedTemporaryFile", fail)
    text = refused(tmp_path)
    assert text.startswith(f"runtime.out={tmp_path} (command line): cannot write in {tmp_path} ({os.strerror(number)})")


def test_a_disk_that_fills_while_it_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.os, "fsync", full)
    assert "No space left on device" in refused(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12, 10**7))
    text = refused(tmp_path, 0.5)
    assert "only 0.01 GB are free" in text and "0.5 GB are asked for (runtime.min_free_gb)" in text
    check(tmp_path, 0.01)


def test_subfolders_are_tried_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Path] = []
    monkeypatch.setattr(folders, "_probe", tried.append)
    (tmp_path / "runs").mkdir()
    check(tmp_path)
    assert tried == [tmp_path, tmp_path / "runs"]
