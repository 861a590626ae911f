"""scale=paper and scale=device, backbones of the papers, and what is set in one environment only."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import sweeps
from harness import by_env, registry
from harness.commandline import parse
from harness.compose import Composer, composer
from harness.config import CommandConfig
from harness.errors import ConfigError
from harness.fingerprint import CLASSES
from harness.plan import Plan, build_plan
from harness.protocols import Protocols
from harness.schema import value
from harness.training.verl.cost import Assumptions, cost_of, parameters, scoring_forwards
from harness.training.verl.sizes import problems, sizes_of
from harness.training.vllm_settings import problems as vllm_problems

FOLDER = Path(next(iter(sweeps.__path__)))
ENVS = ("alfworld", "webshop", "search_qa")
BACKBONES = ("qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen3-1.7b")
PUBLISHED = {"qwen2.5-1.5b": 1.54e9, "qwen2.5-3b": 3.09e9, "qwen2.5-7b": 7.62e9, "qwen3-1.7b": 1.72e9}  # model cards
PlanOf = Callable[..., Plan]


@pytest.fixture(scope="module")
def hydra() -> Composer:
    return composer()


@pytest.fixture
def plan_of(hydra: Composer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanOf:
    monkeypatch.setattr(registry, "panel_identity", lambda config, panel: panel)

    def make(*arguments: str, folder: Path | None = None) -> Plan:
        made = hydra if folder is None else composer(str(folder))
        return build_plan(made, parse([*arguments, f"runtime.out={tmp_path}"], made.groups()))

    return make


@pytest.fixture
def paper(plan_of: PlanOf) -> PlanOf:
    return lambda *arguments: plan_of("scale=paper", "launcher.name=slurm", *arguments)


# --------------------------------------------------------------------------------------------------------- the scales
def test_the_main_table_at_the_papers_scale(paper: PlanOf) -> None:
    plan = paper("sweep=main_table", "seed=0")
    assert {cell.point.backbone for cell in plan.cells} == {"qwen3-1.7b", "qwen2.5-3b", "qwen2.5-7b"}
    assert {cell.config.engine for cell in plan.cells} == {"verl"}
    assert {cell.config.protocol for cell in plan.cells} == {"paper"}
    assert {cell.config.runtime.device for cell in plan.cells} == {"cuda"}
    assert len(plan.selected) == 11 * 3 * 3
    opid = next(c for c in plan.cells if c.row.id == "opid" and c.point.env == "alfworld")
    assert (opid.config.method.coef, opid.config.method.signal.clip) == (0.001, None)  # not those of small models


def test_backbones_of_a_scale_give_way_to_the_command_line(plan_of: PlanOf, paper: PlanOf) -> None:
    only = paper("sweep=main_table", "sweep.axes.backbone=[qwen2.5-1.5b]", "seed=0", "method=grpo")
    assert {cell.point.backbone for cell in only.cells} == {"qwen2.5-1.5b"}
    some = paper("sweep=main_table", "backbone=qwen2.5-7b", "seed=0", "method=grpo")
    assert {cell.point.backbone for cell in some.selected} == {"qwen2.5-7b"}
    assert {cell.point.backbone for cell in plan_of("sweep=main_table", "seed=0").cells} == {"tiny-s"}


def test_a_single_run_has_a_backbone_of_its_scale(paper: PlanOf, plan_of: PlanOf) -> None:
    (cell,) = paper("method=grpo", "env=alfworld").cells
    assert cell.config.backbone.name == "qwen2.5-3b"
    (cell,) = paper("method=grpo", "env=alfworld", "backbone=qwen2.5-1.5b").cells
    assert cell.config.backbone.name == "qwen2.5-1.5b"
    (cell,) = plan_of("method=grpo", "env=alfworld", "scale=device").cells
    config = cell.config
    assert (config.backbone.name, config.engine, config.protocol) == ("qwen2.5-0.5b", "local", "fair")
    assert config.training.max_prompt_tokens + config.training.max_response_tokens <= config.backbone.max_positions


def test_the_scale_says_what_the_protocol_says(hydra: Composer) -> None:
    """With protocol=fair the papers' sizes stay: only what methods have for themselves goes."""
    protocol = Protocols(hydra)
    config = hydra.config(["scale=paper", "method=grpo"])[0]
    for env in ENVS:
        with_env = hydra.config(["scale=paper", "method=grpo", f"env={env}"])[0]
        of_scale = by_env.values(config, env)
        for key, wanted in protocol.values("paper", "grpo", env).items():
            if not key.startswith(("method.", "env.knobs.")):
                assert of_scale.get(key, value(with_env, key)) == wanted, (env, key)


def test_precedence(plan_of: PlanOf, tmp_path: Path) -> None:
    """scale < its by_env < protocol < sweep < row < command line."""

    def found(*arguments: str) -> Any:
        (cell,) = plan_of("scale=mine", "env=alfworld", "method=opid", *arguments, folder=tmp_path / "conf").cells
        return cell.config.env.max_steps, cell.config.env.history

    folder = tmp_path / "conf" / "scale"
    folder.mkdir(parents=True)
    text = "# @package _global_\n# test\ndefaults: [local, _self_]\nscale: mine\n"
    (folder / "mine.yaml").write_text(text + "by_env: {alfworld: {env.max_steps: 7}, webshop: {env.max_steps: 8}}\n")
    assert found() == (7, 5)
    assert found("env.max_steps=9") == (9, 5)
    assert found("protocol=paper", "backbone.max_positions=8192") == (30, 5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("{alfwrld: {env.max_steps: 7}}", r"by_env\.alfwrld \(.*conf/scale/mine\.yaml\): did you mean 'alfworld'\?"),
        (
            "{alfworld: {env.max_step: 7}}",
            r"env\.max_step=7 \(.*mine\.yaml\): there is no such key; did you mean env\.max_s",
        ),
        (
            "{alfworld: {method.coef: 7}}",
            r"method\.coef=7 .*cannot be set here; keys of training, evaluation, env, verl",
        ),
        ("{alfworld: {env.name: webshop}}", "cannot be set here"),
        ("{alfworld: {env.max_steps: many}}", "env.max_steps=many .*: must be a whole number"),
        ("{alfworld: {verl.extra: {}}}", "cannot be set here"),
        ("{alfworld: {backbone.resources: 3}}", "cannot be set here"),
        ("{webshop: 3}", "must be a mapping"),
    ],
)
def test_what_may_not_be_set_in_one_environment(plan_of: PlanOf, tmp_path: Path, table: str, message: str) -> None:
    folder = tmp_path / "conf" / "scale"
    folder.mkdir(parents=True)
    text = "# @package _global_\n# test\ndefaults: [local, _self_]\nscale: mine\n"
    (folder / "mine.yaml").write_text(f"{text}by_env: {table}\n")
    with pytest.raises(ConfigError, match=message):
        plan_of("scale=mine", "env=alfworld", "method=grpo", folder=tmp_path / "conf")


def test_errors_name_the_file_that_sets_a_value(plan_of: PlanOf, tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "scale"
    folder.mkdir(parents=True)
    text = (
        "# @package _global_\n# test\ndefaults: [local, _self_]\nscale: mine\nby_env: {alfworld: {env.max_steps: 0}}\n"
    )
    (folder / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"env\.max_steps=0 \(.*conf/scale/mine\.yaml, by_env\.alfworld\): must be"):
        plan_of("scale=mine", "env=alfworld", "method=grpo", folder=tmp_path / "conf")


def test_a_backbone_decides_only_how_work_is_spread(hydra: Composer) -> None:
    for name in BACKBONES:
        config = hydra.config(["scale=paper", f"backbone={name}"])[0]
        for env in ENVS:
            found = by_env.values(replace(config, by_env={}), env)
            assert found and all(CLASSES[key] == "runtime" for key in found), (name, env)
    broken = replace(config.backbone, by_env={"alfworld": {"training.lr": 1.0}})
    with pytest.raises(
        ConfigError, match=r"backbone\.by_env\.alfworld: training\.lr=1\.0 \(.*cannot be set here; keys of verl, back"
    ):
        by_env.values(replace(config, backbone=broken), "alfworld")


# ------------------------------------------------------------------------------------------------------- the backbones
def test_which_backbones_there_are(hydra: Composer) -> None:
    assert set(BACKBONES) <= set(hydra.groups()["backbone"])


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_fits_in_every_environment(paper: PlanOf, name: str) -> None:
    plan = paper("method=grpo,opid", f"env={','.join(ENVS)}", f"backbone={name}")
    for cell in plan.cells:
        assert list(problems(cell.config, lambda key: "")) == []
        assert cell.config.backbone.dtype == "bfloat16"


@pytest.mark.parametrize("name", BACKBONES)
def test_sizes_that_estimates_use_are_those_of_the_models(hydra: Composer, name: str) -> None:
    config = replace(hydra.config([f"backbone={name}"])[0])
    assert parameters(config) == pytest.approx(PUBLISHED[name], rel=0.1)


def test_every_value_of_backbones_and_scales_has_its_source() -> None:
    files = [*(FOLDER / "backbone").glob("qwen*.yaml"), FOLDER / "backbone" / "hub.yaml"]
    files += [FOLDER / "scale" / "paper.yaml", FOLDER / "scale" / "device.yaml"]
    for path in sorted(files):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.lstrip().startswith(("#", "-")) and not line.endswith(":"):
                assert len(line.partition(" # ")[2]) >= 3, f"{path.name}: no source in {line!r}"


def test_every_key_of_the_new_sections_stands_in_the_files() -> None:
    """`--help` and readers of sweeps/config.yaml must find them."""
    told = OmegaConf.to_container(OmegaConf.load(FOLDER / "config.yaml"))
    assert isinstance(told, dict)
    schema = OmegaConf.to_container(OmegaConf.structured(CommandConfig))
    assert isinstance(schema, dict)
    for section in ("verl", "vllm"):
        assert told[section] == schema[section], section
    assert (told["by_env"], told["backbones"]) == ({}, [])


# ------------------------------------------------------------------------------------------------------ evaluated again
@pytest.mark.parametrize(("row", "env"), [("grpo", env) for env in ENVS] + [("opid", "alfworld")])
def test_the_documented_evaluation_plays_as_the_run_that_trained(
    plan_of: PlanOf, paper: PlanOf, monkeypatch: pytest.MonkeyPatch, row: str, env: str
) -> None:
    """docs/paper_scale.md, step 10: prompts, lengths and rules of evaluation are those of the training run."""
    text = (FOLDER.parent / "docs" / "paper_scale.md").read_text(encoding="utf-8")
    step = text[text.index("10. **A checkpoint, evaluated again**") : text.index("## What is set")]
    command = re.findall(r"python -m harness (.*)", step)
    assert len(command) == 1
    arguments = command[0].replace("env=alfworld", f"env={env}").split()
    if row == "opid":
        arguments += re.findall(r"add `(env\.\S+ env\.\S+)` for theirs", step)[0].split()
    monkeypatch.setattr(registry, "backbone_identity", lambda backbone, env: "weights")
    (again,), (trained,) = plan_of(*arguments).cells, paper(f"method={row}", f"env={env}").cells
    assert again.config.engine == "vllm" and again.config.launcher.name == "local"
    assert again.config.env == trained.config.env
    assert again.config.evaluation == trained.config.evaluation
    assert again.config.backbone.dtype == trained.config.backbone.dtype
    for name in ("context", "max_prompt_tokens", "max_response_tokens"):
        assert getattr(again.config.training, name) == getattr(trained.config.training, name), name
    assert list(vllm_problems(again.config, lambda key: "")) == []


def test_a_job_is_warned_early_enough_to_save_what_it_has(paper: PlanOf) -> None:
    plan = paper("sweep=main_table", "seed=0")
    longest = max(cost_of(cell.config).iteration_s for cell in plan.cells)
    assert all(cell.config.launcher.signal_seconds >= 2 * longest for cell in plan.cells)


def test_environments_have_no_more_processes_than_a_job_has_cores(paper: PlanOf) -> None:
    for cell in paper("method=grpo", f"env={','.join(ENVS)}", f"backbone={','.join(BACKBONES)}").cells:
        agents = sizes_of(cell.config).agent_workers
        processes = agents * -(-cell.config.runtime.env_workers // agents)
        assert 0 < processes <= cell.config.backbone.resources.cpus_per_node


# ---------------------------------------------------------------------------------------------------------------- cost
def test_costs_follow_the_formula(paper: PlanOf) -> None:
    (cell,) = paper("method=grpo", "env=alfworld").cells
    config, given = cell.config, Assumptions()
    rows, prompt, answer = 128 * 16, 0.5 * 2048, 0.3 * 512
    computing = rows * parameters(config) * (2 * prompt + (2 * 2 + 8) * (prompt + answer))
    seconds = computing / (8 * given.peak * given.efficiency) + 50 * answer / given.speed + given.overhead
    cost = cost_of(config)
    assert cost.iteration_s == pytest.approx(seconds)
    evaluations = 2 * 2 * 50 * answer / given.speed  # two panels, each about two batches of episodes
    assert cost.gpu_hours == pytest.approx(8 * (150 * seconds + evaluations) / 3600)
    assert cost_of(config, replace(given, efficiency=0.7)).gpu_hours < cost.gpu_hours
    assert 100 < cost.iteration_s < 1000  # GiGPO: 363 s


def test_forwards_and_calls_of_methods(paper: PlanOf) -> None:
    plan = paper("method=vanilla,grpo,sdar,opid,opid_additive,grpo_opd", "env=search_qa")
    of = {cell.row.id: cell.config for cell in plan.cells}
    assert [scoring_forwards(of[n]) for n in ("grpo", "sdar", "opid", "opid_additive")] == [2, 3, 3, 4]
    assert cost_of(of["opid"]).analyzer_calls == 153_600  # as counted for the paper's scripts
    assert cost_of(of["grpo"]).analyzer_calls == cost_of(of["vanilla"]).analyzer_calls == 0
    assert 0 < cost_of(of["vanilla"]).gpu_hours < cost_of(of["grpo"]).gpu_hours
