"""What is looked at before a sweep is paid for: each check fires, and each is quiet where nothing is wrong."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import sqlite3
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs import registry as environments
from harness import actions_preflight, registry
from harness.backbones import snapshots
from harness.backbones.snapshots import SnapshotError, hub_cache, parameters, snapshot, snapshot_problems, token_limit
from harness.config import BackboneConfig, ResourcesConfig
from harness.launch.limits import Limits, NodeGroup, Partition
from harness.launch.scheduler import SchedulerError
from harness.plan import Plan
from harness.preflight import Finding, Preflight, check, cluster, data, endpoint, money, paid, tracker
from harness.preflight.findings import OK, PROBLEM, WARNING, ProbeCache, Scope
from harness.stages import Cell
from harness.training.verl.cost import Cost

PlanOf = Callable[..., Plan]


@pytest.fixture(autouse=True)
def no_tracker_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def scope_of(plan_of: PlanOf, tmp_path: Path) -> Callable[..., Scope]:
    """Arguments of a command line -> Scope; `change` is applied to each cell's configuration."""

    def make(*arguments: str, change: Callable[[Any], Any] = lambda config: config, seconds: Any = None) -> Scope:
        plan = plan_of(*arguments, f"out={tmp_path / 'out'}")
        cells = tuple(replace(c, config=change(c.config), expected_seconds=seconds) for c in plan.cells)
        plan = replace(plan, cells=cells)
        return Scope(plan, plan.selected, ProbeCache(tmp_path / "cache"))

    return make


def of(findings: Iterable[Finding], status: str) -> list[str]:
    return [f"{f.key}={f.value} ({f.origin}): {f.said} -> {f.fix}" for f in findings if f.status == status]


def only(findings: Iterable[Finding]) -> Finding:
    (found,) = findings
    return found


# ------------------------------------------------------------------------------------------------------------- findings
def test_results_are_remembered_by_content_and_for_as_long_as_is_asked(tmp_path: Path) -> None:
    cache = ProbeCache(tmp_path / "new")
    assert cache.get("kind", ["a", 1]) is None
    cache.put("kind", ["a", 1], {"x": 2})
    assert cache.get("kind", ["a", 1]) == {"x": 2} == cache.get("kind", ["a", 1], 100)
    assert cache.get("kind", ["a", 2]) is None and cache.get("other", ["a", 1]) is None
    assert cache.get("kind", ["a", 1], 0) is None  # too old
    (file,) = (tmp_path / "new").iterdir()
    file.write_text("{torn")
    assert cache.get("kind", ["a", 1]) is None
    file.write_text('{"result": 3}')
    assert cache.get("kind", ["a", 1]) is None
    (tmp_path / "file").touch()
    ProbeCache(tmp_path / "file").put("kind", [], {})  # no place to remember anything: not the checks' business


def test_findings_say_where_from_and_hide_secrets(
    scope_of: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_API_KEY", "planted-secret-1234")
    scope = scope_of("method=grpo", "training.lr=1e-4")
    found = scope.finding(PROBLEM, None, "training.lr", 1e-4, "said planted-secret-1234", "use planted-secret-1234")
    assert (found.origin, found.said, found.fix) == ("command line", "said ***", "use ***")
    assert scope.finding(OK, None, "env.data", None, "").value == "null"
    assert scope.finding(OK, None, "env.data", None, "").origin == "sweeps/env/alfworld.yaml"


def test_the_table_has_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    findings = (
        Finding(OK, "seed", "0", "sweeps/config.yaml", "one seed repeats"),
        Finding(PROBLEM, "launcher.qos", "night", "command line", "there is none", "choose another " * 20),
    )
    text = actions_preflight.findings_text(findings)
    assert "PROBLEM  launcher.qos=night  command line" in text
    assert "ok       seed=0" in text and "-> choose another" in text
    assert max(map(len, text.splitlines())) <= 120
    bad, good = Preflight(findings, 3), Preflight(findings[:1], 1)
    assert not bad.ready and bad.problems == findings[1:] and good.ready
    assert actions_preflight.summary(bad) == "preflight of 3 cells: 1 problem, 1 ok"
    for found, status in ((bad, 3), (good, 0)):
        monkeypatch.setattr("harness.preflight.preflight", lambda plan, say, found=found: found)
        assert actions_preflight.preflight(None) == status  # type: ignore[arg-type]
        assert actions_preflight.summary(found) in capsys.readouterr().out


def test_a_sweep_that_costs_nothing_is_not_held_up(plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.preflight.preflight", lambda *_: pytest.fail("looked"))
    assert actions_preflight.gate(plan_of("method=grpo,opid"), pytest.fail)


def test_a_paid_sweep_with_a_problem_does_not_start(plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding(PROBLEM, "a", "b", "c", "bad", "fix it"), Finding(OK, "d", "e", "f", "good")]
    monkeypatch.setattr("harness.preflight.paid", lambda plan: True)
    monkeypatch.setattr("harness.preflight.preflight", lambda plan, say: Preflight(tuple(findings), 2))
    said: list[str] = []
    assert not actions_preflight.gate(plan_of("method=grpo"), said.append)
    assert "bad" in said[0] and "good" not in said[0] and "nothing was started" in said[-1]
    findings.pop(0)
    assert actions_preflight.gate(plan_of("method=grpo"), said.append)


# ---------------------------------------------------------------------------------------------------------------- money
PRICED = ("analyzer=openai", "analyzer.model=m", "analyzer.price_prompt=2", "analyzer.price_completion=10")


def test_what_is_paid_for(plan_of: PlanOf) -> None:
    assert not paid(plan_of("method=grpo,opid"))
    assert not paid(plan_of("method=opid", "analyzer=openai", "analyzer.model=m"))
    assert paid(plan_of("method=opid", *PRICED))
    assert not paid(plan_of("method=grpo", *PRICED))  # it asks nobody
    assert paid(plan_of("method=grpo", "launcher=slurm"))
    assert not paid(plan_of("method=grpo", "launcher=slurm"), [])


def gpus(nodes: int = 1, per_node: int = 4, minutes: int = 90) -> Callable[[Any], Any]:
    def change(config: Any) -> Any:
        shape = ResourcesConfig(nodes, per_node, 8, 64.0, minutes)
        return replace(
            config,
            backbone=replace(config.backbone, resources=shape),
            engine="verl",
            runtime=replace(config.runtime, device="cuda"),
        )

    return change


def test_a_plan_beyond_its_budget_is_refused(scope_of: Callable[..., Scope]) -> None:
    def judged(*arguments: str, **more: Any) -> Finding:
        return only(money.budget(scope_of("method=grpo", "seed=0,1,2", *arguments, change=gpus(), **more)))

    over = judged("launcher.budget_gpu_hours=17")
    assert (over.status, over.key, over.value, over.origin) == (
        PROBLEM,
        "launcher.budget_gpu_hours",
        "17",
        "command line",
    )
    assert "3 cells take at most 18.00 GPU hours if every job uses its whole time limit once (each" in over.said
    assert "launcher.requeues" in over.said and over.fix
    assert judged("launcher.budget_gpu_hours=18").status == OK
    assert judged("launcher.budget_gpu_hours=17", seconds=1.0).status == PROBLEM  # seconds of a core are none of a GPU
    assert "no budget is set" in judged().said
    assert list(money.budget(scope_of("method=grpo"))) == []  # no GPU, no budget: nothing to say


def test_resources_that_make_no_sense_are_named(scope_of: Callable[..., Scope]) -> None:
    wrong = {"tiny-s": {"hours": 3}}
    scope = scope_of("method=grpo", change=lambda c: replace(c, launcher=replace(c.launcher, resources=wrong)))
    (found,) = money.budget(scope)
    assert found.status == PROBLEM and found.key == "launcher.resources.tiny-s.hours"


def test_check_refuses_a_plan_beyond_its_budget_before_anything_is_submitted(
    scope_of: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "Slurm", lambda: FakeSlurm())
    scope = scope_of("method=grpo", "launcher=slurm", "launcher.budget_gpu_hours=1", change=gpus())
    told = check(scope.plan)
    assert [f.key for f in told if f.status == PROBLEM][:1] == ["launcher.budget_gpu_hours"]


def test_questions_and_their_price(scope_of: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "set-for-the-test")
    scope = scope_of("method=opid,grpo", "seed=0,1", *PRICED, "training.steps=10", "env.max_steps=5")
    (found,) = money.analyzer_cost(scope)
    config = scope.todo[0].config
    prompt, answer = money.tokens_at_most(config)
    calls = 2 * 10 * config.training.tasks_per_step * config.training.group_size
    assert f"{calls} questions to m" in found.said and (found.status, found.value) == (OK, "10")
    assert f"at most {calls * (2 * prompt + 10 * answer) / 1e6:.2f}" in found.said
    assert prompt > 5 * config.analyzer.observation_chars // 4 and answer == config.analyzer.max_output_tokens


def test_what_was_trained_already_is_not_asked_again(scope_of: Callable[..., Scope]) -> None:
    from harness.record import RunDirectory

    scope = scope_of("method=opid", "training.steps=10")
    (cell,) = scope.todo
    whole = money.analyzer_calls(scope.plan, cell)
    run = RunDirectory.create(scope.plan.runs, cell.config, cell.fingerprint)
    run.write_state(last_step=4)
    assert money.analyzer_calls(scope.plan, cell) == whole * 6 // 10


def test_a_missing_key_a_missing_price_and_free_analyzers(
    scope_of: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    remote = ("method=opid", "analyzer=openai", "analyzer.model=m", "analyzer.base_url=https://models.example/v1")
    missing, price = money.analyzer_cost(scope_of(*remote))
    assert (
        missing.status == PROBLEM and missing.key == "analyzer.api_key_env" and "export OPENAI_API_KEY" in missing.fix
    )
    assert price.status == WARNING and "no price is set" in price.said and "price_prompt" in price.fix
    (own,) = money.analyzer_cost(scope_of(*remote[:3], "analyzer.api_key_env=null"))
    assert own.status == OK  # a server of this machine
    (rules,) = money.analyzer_cost(scope_of("method=opid"))
    assert rules.status == OK and "costs nothing" in rules.said
    assert list(money.analyzer_cost(scope_of("method=grpo"))) == []


# ----------------------------------------------------------------------------------------------------------------- disk
Usage = namedtuple("Usage", "total used free")


def test_room_for_what_runs_leave(
    scope_of: Callable[..., Scope], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub(tmp_path / "model", size=1000_000_000, dtype="bfloat16")

    def big(config: Any) -> Any:
        backbone = BackboneConfig("big", "hub", str(tmp_path / "model"), dtype="bfloat16")
        return replace(config, backbone=backbone)

    scope = scope_of("method=grpo", "seed=0,1", change=big)
    assert money.run_bytes(scope.todo[0].config) == pytest.approx(3 * 3 * 1e9, rel=0.01)  # two and a new one, AdamW
    sharded = gpus()(scope.todo[0].config)
    assert money.run_bytes(sharded) == pytest.approx(3 * 12 * 0.5e9, rel=0.01)  # in float32
    follows = replace(sharded.method, teacher=replace(sharded.method.teacher, weights="ema"))
    assert money.run_bytes(replace(sharded, method=follows)) == pytest.approx(3 * 16 * 0.5e9, rel=0.01)
    for free, status in ((100e9, OK), (20e9, WARNING), (18e9, PROBLEM)):
        monkeypatch.setattr(shutil, "disk_usage", lambda place, free=free: Usage(0, 0, int(free)))
        found = only(money.disk(scope))
        assert (found.status, found.key, bool(found.fix)) == (status, "runtime.out", status != OK)
    assert "up to 18.04 GB" in found.said
    unknown = scope_of("method=grpo", change=lambda c: replace(c, backbone=BackboneConfig("x", "hub", "org/absent")))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0, 0, int(100e9)))
    assert only(money.disk(unknown)).status == WARNING
    untrained = scope_of("method=vanilla", change=big)
    assert money.run_bytes(untrained.todo[0].config) == 20e6


# -------------------------------------------------------------------------------------------------------------- cluster
def site(**changes: Any) -> Limits:
    group = NodeGroup(4, 8, 64, 512 * 1024)
    main = Partition("main", 120, 4, 8, 64, 512 * 1024, "up", (group,))
    drained = replace(main, name="old", state="drain")
    values = {"max_array_size": 1001, "max_submit_jobs": None, "max_job_count": 10_000, "default_partition": "main"}
    return Limits(**{**values, "partitions": {"main": main, "old": drained}, "cluster": "lab", **changes})


class FakeSlurm:
    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or site()

    def limits(self, account: str | None, qos: str | None) -> Limits:
        return self._limits


def judged(scope: Scope, limits: Limits | None = None) -> list[Finding]:
    return list(cluster.slurm(scope, rehearse=False, scheduler=FakeSlurm(limits)))  # type: ignore[arg-type]


def test_a_plan_that_fits_the_site(scope_of: Callable[..., Scope]) -> None:
    scope = scope_of("method=grpo", "seed=0,1,2", "launcher=slurm", change=gpus())
    found = judged(scope)
    assert [f.status for f in found] == [OK] * 3
    assert "partition main is up: 4 nodes, up to 8 GPUs" in found[0].said
    assert "1 node x 4 GPUs" in found[1].said and found[1].said.endswith("fit")
    assert "3 jobs of 1 shapes, arrays of up to 3 elements" in found[2].said
    assert judged(scope_of("method=grpo")) == []  # launcher=local asks no scheduler


@pytest.mark.parametrize(
    ("arguments", "limits", "key", "words"),
    [
        (("launcher.partition=mian",), site(), "launcher.partition", "did you mean 'main'"),
        ((), site(default_partition=None), "launcher.partition", "set launcher.partition to one of main, old"),
        (("launcher.max_array=5000",), site(), "launcher.max_array", "arrays of 1001 elements at most"),
        (
            ("launcher.max_submitted=500",),
            site(max_submit_jobs=100),
            "launcher.max_submitted",
            "you may have 100 jobs in the queue",
        ),
    ],
)
def test_what_the_site_does_not_have(
    scope_of: Callable[..., Scope], arguments: tuple[str, ...], limits: Limits, key: str, words: str
) -> None:
    found = [f for f in judged(scope_of("method=grpo", "launcher=slurm", *arguments), limits) if f.status == PROBLEM]
    assert [f.key for f in found] == [key] and words in f"{found[0].said} {found[0].fix}"


def test_shapes_that_no_node_has_and_partitions_that_are_down(scope_of: Callable[..., Scope]) -> None:
    (found,) = of(judged(scope_of("method=grpo", "launcher=slurm", change=gpus(minutes=200))), PROBLEM)
    assert "200 minutes are asked for, partition main allows 120" in found
    (found,) = of(judged(scope_of("method=grpo", "launcher=slurm", change=gpus(5, 8))), PROBLEM)
    assert "has 4 such nodes" in found and "launcher.resources" in found
    (found,) = of(judged(scope_of("method=grpo", "launcher=slurm", "launcher.partition=old")), WARNING)
    assert "partition old is drain" in found
    (found,) = of(judged(scope_of("method=grpo", "launcher=slurm", change=gpus(minutes=3))), WARNING)
    assert "launcher.signal_seconds=120" in found


def test_a_warning_that_comes_later_than_a_step_is_long(
    scope_of: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = scope_of("method=grpo", "launcher=slurm", change=gpus())
    for iteration, status in ((50.0, OK), (70.0, WARNING)):
        monkeypatch.setattr(cluster, "cost_of", lambda config, seconds=iteration: Cost(seconds, 1.0, 0))
        assert status in {f.status for f in judged(scope) if f.key in ("launcher.signal_seconds", "backbone.resources")}
    (found,) = of(judged(scope), WARNING)
    assert "launcher.signal_seconds=120" in found and "expected to take 70 s" in found and "at least 140" in found
    (on_cpu,) = [f for f in judged(scope_of("method=grpo", "launcher=slurm")) if f.key == "backbone.resources"]
    assert on_cpu.status == OK


def test_more_jobs_than_the_queue_takes_come_in_waves(scope_of: Callable[..., Scope]) -> None:
    seeds = ",".join(map(str, range(25)))
    scope = scope_of("method=grpo", f"seed={seeds}", "launcher=slurm")
    (found,) = of(judged(scope, site(max_submit_jobs=10)), WARNING)
    assert "about 3 waves" in found


def test_a_scheduler_that_does_not_answer(scope_of: Callable[..., Scope]) -> None:
    class Away:
        def limits(self, account: str | None, qos: str | None) -> Limits:
            raise SchedulerError("`scontrol show config` cannot be run")

    (found,) = cluster.slurm(scope_of("method=grpo", "launcher=slurm"), scheduler=Away())  # type: ignore[arg-type]
    assert found.status == PROBLEM and found.key == "launcher.name" and "cannot be run" in found.said


@pytest.mark.parametrize(
    ("answer", "status"), [("exit 0", OK), ("echo Invalid account or partition >&2; exit 1", PROBLEM)]
)
def test_sbatch_itself_is_asked_and_submits_nothing(
    scope_of: Callable[..., Scope], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: str
) -> None:
    (tmp_path / "bin").mkdir()
    client = tmp_path / "bin" / "sbatch"
    client.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked; cat "$2" > {tmp_path}/script\n{answer}\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}{os.pathsep}{os.environ['PATH']}")
    scope = scope_of("method=grpo,gigpo", "launcher=slurm", "launcher.account=lab", change=gpus())
    found = [f for f in cluster.slurm(scope, scheduler=FakeSlurm()) if f.key == "launcher.account"]  # type: ignore[arg-type]
    assert [f.status for f in found] == [status]  # one shape: asked once
    assert (tmp_path / "asked").read_text().startswith("--test-only ")
    script = (tmp_path / "script").read_text()
    assert "--account=lab" in script and "--time=90" in script


def test_a_client_that_is_missing_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster._ask([str(tmp_path / "none")])[0] == 1
    monkeypatch.setattr(cluster, "_CLIENT_SECONDS", 0.1)
    assert cluster._ask(["sleep", "5"]) == (1, "no answer within 0.1 s")


# ----------------------------------------------------------------------------------------------------------------- data
@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tests' small environment, known under its name."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    import tiny_env

    real = environments.get
    specs = {"tiny": tiny_env.SPEC}
    monkeypatch.setattr(environments, "get", lambda name: specs.get(name) or real(name))
    monkeypatch.setattr(registry, "env_spec", lambda name: environments.get(name))
    monkeypatch.setattr(registry, "panel_identity", lambda config, panel: f"identity of {panel}")
    yield specs


def on_tiny(config: Any) -> Any:
    return replace(
        config,
        env=replace(config.env, name="tiny"),
        evaluation=replace(config.evaluation, panels=["seen", "unseen"]),
    )


def test_panels_are_loaded_hashed_and_remembered(scope_of: Callable[..., Scope], tiny: Any) -> None:
    scope = scope_of("method=grpo,retire_opd", change=on_tiny)
    found = list(data.panels(scope))
    assert [f.status for f in found] == [OK] * 4
    panel = tiny["tiny"].load_panel(scope.todo[0].config.env, "seen")
    assert any(f"tiny seen: 3 tasks of 1, sha256 {panel.hash[:16]}" in f.said for f in found)
    loads: list[str] = []
    tiny["tiny"] = replace(tiny["tiny"], load_panel=lambda config, name: loads.append(name))
    assert list(data.panels(scope)) == found and loads == []


def test_missing_data_and_overlapping_panels(
    scope_of: Callable[..., Scope], tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny["tiny"]

    def load(config: Any, name: str) -> Any:
        if name == "unseen":
            raise FileNotFoundError("task unseen-3 is missing")
        return replace(spec.load_panel(config, "train"), name=name)  # the same tasks under another name

    tiny["tiny"] = replace(spec, load_panel=load)
    found = list(data.panels(scope_of("method=grpo", change=on_tiny)))
    missing, overlap = (f for f in found if f.status == PROBLEM)
    assert missing.key == "env.data" and "task unseen-3 is missing" in missing.said and missing.fix
    assert overlap.key == "evaluation.panels" and "would be training scores" in overlap.said


# ------------------------------------------------------------------------------------------------------------- weights
def hub(folder: Path, size: int = 64, dtype: str = "float32", **config: Any) -> Path:
    folder.mkdir(parents=True)
    content = {"max_position_embeddings": 4096, "dtype": dtype, **config}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "tokenizer.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return folder


def test_a_snapshot_is_whole_or_says_what_is_missing(tmp_path: Path) -> None:
    folder = hub(tmp_path / "model")
    assert snapshot_problems(folder) == [] and token_limit(folder) == 4096 and parameters(folder) == 16
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").unlink()
    (folder / "model.safetensors").write_bytes(b"")
    told = snapshot_problems(folder)
    assert [words.partition(" ")[0] for words in told] == ["config.json", "there", "there"]
    assert token_limit(folder) is None and parameters(folder) is None
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").write_bytes(b"x")
    assert "model-2.safetensors" in snapshot_problems(folder)[-1]
    (folder / "model.safetensors.index.json").write_text("[")
    assert "none at all" in snapshot_problems(folder)[-1]


def test_where_the_hubs_downloads_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert hub_cache() == Path.home() / ".cache/huggingface/hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert hub_cache() == tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "mine"))
    assert hub_cache() == tmp_path / "mine"


def test_hub_ids_need_a_local_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "hub_cache", lambda: tmp_path)
    backbone = BackboneConfig("q", "hub", "org/model", "abc")
    with pytest.raises(SnapshotError, match=r"org/model \(revision abc\) is not in the hub's cache") as error:
        snapshot(backbone)
    assert "hf download org/model --revision abc" in error.value.fix
    folder = hub(tmp_path / "models--org--model" / "snapshots" / "abc")
    assert snapshot(backbone) == folder == snapshot(replace(backbone, path=str(folder)))
    with pytest.raises(SnapshotError):
        snapshot(replace(backbone, revision=None))
    (tmp_path / "models--org--model" / "refs").mkdir()
    (tmp_path / "models--org--model" / "refs" / "main").write_text("abc\n")
    assert snapshot(replace(backbone, revision=None)) == folder
    for path in ("", "/no/such/folder", "./none"):
        with pytest.raises(SnapshotError, match="is no folder"):
            snapshot(replace(backbone, path=path))


def test_findings_about_snapshots(
    scope_of: Callable[..., Scope], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "hub_cache", lambda: tmp_path)
    whole = hub(tmp_path / "models--org--model" / "snapshots" / "abc")

    def told(path: str, revision: str | None = "abc", **config: Any) -> list[Finding]:
        if config:
            shutil.rmtree(whole)
            hub(whole, **config)
        backbone = BackboneConfig("q", "hub", path, revision)
        return list(data.weights(scope_of("method=grpo", change=lambda c: replace(c, backbone=backbone))))

    assert [f.status for f in told("org/model")] == [OK]
    assert "folder:" in only(told(str(whole))).said
    assert only(told("org/other")).status == PROBLEM
    (whole.parent.parent / "refs").mkdir()
    (whole.parent.parent / "refs" / "main").write_text("abc")
    unpinned = only(told("org/model", None))
    assert unpinned.status == WARNING and "backbone.revision=abc" in unpinned.fix
    short = told("org/model", max_position_embeddings=100)
    assert short[0].status == PROBLEM and short[0].key == "training.max_prompt_tokens"
    (whole / "model.safetensors").unlink()
    assert "no whole snapshot" in only(told("org/model")).said


def test_embedded_weights_are_those_of_their_recipe(
    scope_of: Callable[..., Scope], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness import backbones
    from harness.backbones.content import file_sha256

    scope = scope_of("method=grpo")
    monkeypatch.setattr(backbones, "find", lambda backbone, env: None)
    absent = only(data.weights(scope))
    assert absent.status == WARNING and "harness.backbones build" in absent.fix
    (tmp_path / backbones.MODEL).write_bytes(b"weights")
    recipe = {backbones.DIGEST: file_sha256(tmp_path / backbones.MODEL)}
    (tmp_path / backbones.RECIPE).write_text(json.dumps(recipe))
    monkeypatch.setattr(backbones, "find", lambda backbone, env: tmp_path)
    assert only(data.weights(scope)).status == only(data.weights(scope, hashed=False)).status == OK
    (tmp_path / backbones.MODEL).write_bytes(b"other weights")
    assert only(data.weights(scope)).status == PROBLEM

    def refuses(backbone: Any, env: Any) -> None:
        raise backbones.BackboneError("offers no lexicon")

    monkeypatch.setattr(backbones, "find", refuses)
    assert "offers no lexicon" in only(data.weights(scope)).said


# -------------------------------------------------------------------------------------------------------------- tracker
def test_a_store_in_a_file(scope_of: Callable[..., Scope], tmp_path: Path) -> None:
    scope = scope_of("method=grpo")
    fresh = only(tracker.tracking(scope))
    assert fresh.status == OK and fresh.value == f"sqlite:///{tmp_path}/out/mlflow.db"
    (tmp_path / "out").mkdir()
    connection = sqlite3.connect(tmp_path / "out" / "mlflow.db")
    connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    connection.execute("INSERT INTO alembic_version VALUES ('x')")
    connection.commit()
    assert only(tracker.tracking(scope)).status == OK
    connection.execute("DELETE FROM alembic_version")
    connection.commit()
    connection.close()
    broken = only(tracker.tracking(scope))
    assert broken.status == WARNING and "no whole MLflow store" in broken.said and "do=sync" in broken.fix
    (tmp_path / "file").touch()
    elsewhere = scope_of("method=grpo", f"tracking.uri='sqlite:///{tmp_path}/file/mlflow.db'")
    assert only(tracker.tracking(elsewhere)).status == WARNING
    assert "nowhere" in only(tracker.tracking(scope_of("method=grpo", "tracking=none"))).said


@pytest.mark.slow
def test_a_server_that_is_away_is_a_warning_without_its_password(
    scope_of: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret-word@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    found = only(tracker.tracking(scope_of("method=grpo")))
    assert (found.status, found.origin) == (WARNING, "$MLFLOW_TRACKING_URI")
    assert "does not take records" in found.said and "secret-word" not in str(found)
    assert list(tracker.tracking(scope_of("method=grpo"), ask_server=False)) == []


# ------------------------------------------------------------------------------------------------------------- endpoint
@pytest.fixture
def answering() -> Iterator[tuple[str, list[dict[str, Any]], dict[str, Any]]]:
    """(address, requests seen, what it says) of an endpoint on this machine."""
    seen: list[dict[str, Any]] = []
    says: dict[str, Any] = {"status": 200, "body": {"choices": [{"message": {"content": "{}"}}], "usage": {}}}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps(says["body"]).encode()
            self.send_response(says["status"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", seen, says
    server.shutdown()
    server.server_close()
    thread.join()


def test_one_short_question_to_each_endpoint(
    scope_of: Callable[..., Scope], answering: tuple[str, list[dict[str, Any]], dict[str, Any]]
) -> None:
    url, seen, says = answering
    arguments = ("analyzer=openai", "analyzer.model=m", f"analyzer.base_url={url}", "analyzer.api_key_env=null")
    scope = scope_of("method=opid,grpo", "seed=0,1", *arguments)
    says["status"] = 500
    assert only(endpoint.endpoints(scope)).status == PROBLEM and len(seen) == 1  # no retries
    says.update(status=200, body={"error": "busy"})
    assert only(endpoint.endpoints(scope)).status == WARNING
    says["body"] = {"choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}], "usage": {}}
    assert only(endpoint.endpoints(scope)).status == OK and len(seen) == 3
    assert all(request["max_completion_tokens"] == 64 for request in seen)
    assert "a few minutes ago" in only(endpoint.endpoints(scope)).said and len(seen) == 3


def test_who_is_not_asked(scope_of: Callable[..., Scope], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(endpoint, "_ask", lambda *_: pytest.fail("asked"))
    assert list(endpoint.endpoints(scope_of("method=opid", "analyzer=openai", "analyzer.model=m"))) == []  # no key
    assert list(endpoint.endpoints(scope_of("method=opid"))) == []
    assert list(endpoint.endpoints(scope_of("method=grpo", *PRICED))) == []


def test_cells_are_those_that_are_missing(plan_of: PlanOf, tmp_path: Path) -> None:
    from harness.preflight import scope_of as scope

    plan = plan_of("method=grpo,gigpo", f"out={tmp_path}")
    cells: tuple[Cell, ...] = scope(plan, lambda text: None).todo
    assert cells == plan.selected
