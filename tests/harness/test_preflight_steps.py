"""A step of each method before it is paid for: on shrunken cells, in a process apart, remembered by content."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import backbones
from harness.config import BackboneConfig
from harness.plan import Plan
from harness.preflight import steps
from harness.preflight.findings import OK, PROBLEM, WARNING, ProbeCache, Scope
from harness.preflight.steps import RANDOM, TASKS, plan_probes, remembered, shrink, shrunken
from harness.record import parse_config, planned_steps

PlanOf = Callable[..., Plan]


@pytest.fixture
def scope_of(plan_of: PlanOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scope]:
    monkeypatch.setattr(backbones, "find", lambda backbone, env: None)

    def make(*arguments: str) -> Scope:
        plan = plan_of(*arguments, f"out={tmp_path / 'out'}")
        return Scope(plan, plan.selected, ProbeCache(tmp_path / "cache"))

    return make


# --------------------------------------------------------------------------------------------------- what is looked at
def test_each_method_once_and_the_seeds_of_each_environment(scope_of: Callable[..., Scope]) -> None:
    probes = list(plan_probes(scope_of("method=vanilla,grpo,opid", "seed=0,1,2", "fraction=0.5,1.0")))
    assert [(probe.cell.row.id, probe.repeats) for probe in probes] == [
        ("vanilla", False),
        ("grpo", True),
        ("opid", False),
    ]
    varied = list(plan_probes(scope_of("method=grpo", "method.advantage.std=true,false", "training.lr=1e-4,3e-4")))
    assert len(varied) == 2  # another learning rate is no other method


def test_a_teacher_is_trained_first(scope_of: Callable[..., Scope]) -> None:
    scope = scope_of("method=opd")
    probes = {probe.cell.row.id: probe for probe in plan_probes(scope)}
    teacher, student = probes["opd"].configs
    assert (teacher.method.name, student.method.name) == ("skill_grpo", "opd")
    assert student.method.teacher.source == "0"  # the name of the teacher's folder
    assert len(probes["skill_grpo"].configs) == 1


def test_a_shrunken_cell_costs_nothing(scope_of: Callable[..., Scope], tmp_path: Path) -> None:
    scope = scope_of(
        "method=opid", "analyzer=openai", "analyzer.model=m", "engine=local", "runtime.device=cuda", "env.max_steps=50"
    )
    (config,) = shrunken(scope, scope.todo[0])
    assert (config.analyzer.name, config.runtime.device, config.engine) == ("rules", "cpu", "local")
    assert planned_steps(config) == 1 and config.env.max_steps <= 4 and config.env.train_per_type == 1
    assert (config.training.tasks_per_step, config.training.group_size) == (2, 2) and TASKS >= 2
    assert not config.tracking.enabled and config.method == scope.todo[0].config.method
    # The child gets it as text, and it is a run's configuration there.
    (probe,) = plan_probes(scope)
    assert parse_config(probe.order["configs"][0], "test") == config


def test_the_policy_is_the_embedded_one_where_it_reads_the_prompts(
    scope_of: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = scope_of("method=grpo").todo[0].config
    assert shrink(config).backbone.name == RANDOM  # none is there
    asked: list[str] = []

    def found(backbone: BackboneConfig, env: Any) -> Path | None:
        asked.append(backbone.name)
        return tmp_path if backbone.name == "tiny-s" else None

    monkeypatch.setattr(backbones, "find", found)
    assert shrink(config).backbone.path == str(tmp_path)
    large = replace(config, backbone=BackboneConfig("large", "hub", "org/large"))
    assert shrink(large).backbone.path == str(tmp_path) and set(asked) == {"tiny-s"}
    full = replace(config, env=replace(config.env, prompt="full"))
    small = shrink(full)
    assert small.backbone.name == RANDOM and small.env.max_steps == 2
    assert small.training.max_prompt_tokens + small.training.max_response_tokens <= small.backbone.max_positions


# ------------------------------------------------------------------------------------------------------------ judgement
def result(*digests: str, error: str | None = None) -> dict[str, Any]:
    return {"error": error} if error else {"seconds": 0.5, "digests": list(digests), "files": {__file__: "x"}}


@pytest.mark.parametrize(
    ("came", "status", "words"),
    [
        (result("a", "a", "b"), OK, "one seed repeats, two seeds differ"),
        (result("a", "c", "b"), PROBLEM, "one seed gave two results"),
        (result("a", "a", "a"), WARNING, "two seeds gave one result"),
        (result(error="ValueError: no such thing"), PROBLEM, "a step failed: ValueError: no such thing"),
    ],
)
def test_what_a_step_came_to(
    scope_of: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch, came: dict[str, Any], status: str, words: str
) -> None:
    def process(orders: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        yield came

    monkeypatch.setattr(steps, "_process", process)
    found = list(steps.steps(scope_of("method=grpo")))
    assert found[-1].status == status and words in found[-1].said
    assert bool(found[-1].fix) == (status != OK)


def test_a_process_that_dies_costs_one_probe(scope_of: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [[result("a", "a", "b"), {"stopped": "its process ended with status -9"}], [result("c")]]
    orders: list[int] = []

    def process(given: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        orders.append(len(given))
        yield from scripts.pop(0)

    monkeypatch.setattr(steps, "_process", process)
    found = list(steps.steps(scope_of("method=grpo,gigpo,rlsd")))
    assert [f.status for f in found] == [OK, OK, PROBLEM, OK] and orders == [3, 1]
    assert "status -9" in found[2].said and "gigpo" in found[2].said


def test_what_went_well_is_remembered_until_code_changes(
    scope_of: Callable[..., Scope], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = scope_of("method=grpo")
    (probe,) = plan_probes(scope)
    assert remembered(scope.cache, probe) is None
    code = tmp_path / "method.py"
    code.write_text("one")
    steps._file_digest.cache_clear()
    good = {**result("a", "a", "b"), "files": {str(code): steps._file_digest(str(code))}}
    scope.cache.put("step", steps.content(probe), good)
    assert remembered(scope.cache, probe) == good
    monkeypatch.setattr(steps, "_process", lambda orders: pytest.fail("asked again"))
    assert [f.status for f in steps.steps(scope)] == [OK, OK]
    code.write_text("two")
    steps._file_digest.cache_clear()
    assert remembered(scope.cache, probe) is None
    code.unlink()
    steps._file_digest.cache_clear()
    assert remembered(scope.cache, probe) is None
    (other,) = plan_probes(scope_of("method=grpo", "method.advantage.std=false"))
    assert steps.content(other) != steps.content(probe)


def test_a_process_that_cannot_read_its_order_or_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    (ended,) = steps._process([{"configs": ["no_such_key: 1"], "repeats": False}])
    assert ended["stopped"].startswith("its process ended with status 1: ") and "no_such_key" in ended["stopped"]
    monkeypatch.setattr(steps, "SILENT_SECONDS", 0.0)
    (hung,) = steps._process([{"configs": [], "repeats": False}])
    assert "was given up" in hung["stopped"]


# ------------------------------------------------------------------------------------------------------------- for real
def preflight(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from harness.cli import main; status = main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules and 'mlflow' not in sys.modules, 'imported'\nsys.exit(status)"
    )
    command = [sys.executable, "-c", code, *arguments, "do=preflight", f"out={folder / 'out'}"]
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[2]), str(folder)])
    env = {**os.environ, **environment, "PYTHONPATH": paths}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=550)


BROKEN = """
from dataclasses import replace

from methods.grpo import SPEC as GRPO


def refuses(*arguments, **named):
    raise ValueError("the shapes do not fit")


SPEC = replace(GRPO, name="broken_method:SPEC", build=refuses)
"""


@pytest.mark.slow
def test_a_plan_is_looked_at_and_a_second_look_takes_no_steps(tmp_path: Path) -> None:
    arguments = ("method=grpo,opd", "scale=test")
    (tmp_path / "out").mkdir()  # what is said of a folder names its nearest existing parent
    first = preflight(tmp_path, *arguments)
    assert first.returncode == 0, first.stderr
    assert "one seed repeats, two seeds differ" in first.stdout
    assert "opd on alfworld: a step and its evaluation in" in first.stdout
    assert "preflight: steps: 3 to take" in first.stderr and "(3 of 3)" in first.stderr
    assert not (tmp_path / "out" / "runs").exists()  # it starts nothing
    second = preflight(tmp_path, *arguments)
    assert second.returncode == 0 and "steps:" not in second.stderr
    told = [[line for line in found.stdout.splitlines() if " are free in" not in line] for found in (first, second)]
    assert told[0] == told[1]
    remembered_files = [json.loads(p.read_text())["result"] for p in (tmp_path / "out/cache/preflight").glob("step-*")]
    assert all(any(name.endswith("methods/grpo.py") for name in entry["files"]) for entry in remembered_files)


@pytest.mark.slow
def test_a_method_that_cannot_take_a_step_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "broken_method.py").write_text(BROKEN)
    found = preflight(tmp_path, "method=grpo", "method.name=broken_method:SPEC", "scale=test", "env.prompt=full")
    assert found.returncode == 3, found.stderr + found.stdout
    assert "a step failed: ValueError: the shapes do not fit" in found.stdout
