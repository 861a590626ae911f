"""verl's configuration: where every value comes from, what is refused, and that verl itself accepts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from harness import registry
from harness.commandline import parse
from harness.compose import Composer, composer
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.plan import build_plan
from harness.schema import exists
from harness.training.verl import config as composing
from harness.training.verl import planning, validation
from harness.training.verl.attention import attention, memory_note, refuse_spread_rows
from harness.training.verl.config import VerlMissingError, compose, table_of
from harness.training.verl.settings import NO_DUAL_CLIP
from harness.training.verl.sizes import least_ray_cpus, problems, scoring_tokens, sizes_of
from harness.training.verl.validation import SOUND, ValidationError, validate

RUN = Path("runs", "0123456789abcdef")
PAPER = ("scale=paper", "launcher=local", "launcher.workers=1")


@pytest.fixture(scope="module")
def hydra() -> Composer:
    return composer()


@pytest.fixture(scope="module")
def cell(hydra: Composer) -> Callable[..., RunConfig]:
    def make(*arguments: str) -> RunConfig:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry, "panel_identity", lambda config, panel: panel)
            (found,) = build_plan(hydra, parse(["method=grpo", *arguments], hydra.groups())).selected
        return found.config

    return make


@pytest.fixture(scope="module")
def paper(cell: Callable[..., RunConfig]) -> RunConfig:
    return cell(*PAPER, "env=alfworld", "seed=3")


def with_(config: RunConfig, **sections: dict[str, Any]) -> RunConfig:
    return replace(config, **{name: replace(getattr(config, name), **given) for name, given in sections.items()})


# --------------------------------------------------------------------------------------------------------- the table
def test_every_value_has_a_source_and_no_key_is_set_twice(paper: RunConfig) -> None:
    table = table_of(paper, RUN)
    names = [setting.key for setting in table]
    assert len(set(names)) == len(names)
    for setting in table:
        assert len(setting.source) > 3, setting
        first = setting.source.split(",")[0].split(" ")[0].rstrip(";:")
        if "." in first and not first.startswith(("harness.", "...")):
            assert exists(first.split("=")[0]), f"{setting.key} names a source that is no key: {first}"


def test_values_follow_our_keys(paper: RunConfig) -> None:
    node = compose(paper, RUN)
    actor, rollout = node.actor_rollout_ref.actor, node.actor_rollout_ref.rollout
    assert (node.data.train_batch_size, rollout.n) == (16, 8)
    assert (node.data.max_prompt_length, node.data.max_response_length, rollout.max_model_len) == (2048, 512, 2560)
    assert (actor.optim.lr, actor.optim.weight_decay, list(actor.optim.betas)) == (1e-6, 0.01, [0.9, 0.999])
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.clip_ratio_c) == (True, 0.01, NO_DUAL_CLIP)
    assert (node.data.seed, rollout.seed, node.harness.seed) == (3, 3, 3)
    assert node.trainer.total_training_steps == 150 and node.trainer.n_gpus_per_node == 8
    assert node.trainer.default_local_dir.startswith(str(RUN)) and node.trainer.experiment_name == RUN.name
    assert rollout.name == node.reward.reward_model.rollout.name == "vllm"
    assert node.data.apply_chat_template_kwargs.enable_thinking is False
    assert node.actor_rollout_ref.model.path == "Qwen/Qwen2.5-3B-Instruct"
    assert node.ray_kwargs.ray_init.address == "local"  # never somebody else's Ray
    assert OmegaConf.to_container(node, resolve=True, throw_on_missing=True)


def test_what_changes_with_the_configuration(paper: RunConfig) -> None:
    plain = {s.key: s.value for s in table_of(paper, RUN)}

    def changes(other: RunConfig) -> dict[str, Any]:
        found = {s.key: s.value for s in table_of(other, RUN)}
        return {key: value for key, value in found.items() if plain.get(key, "none") != value}

    assert changes(with_(paper, training={"dual_clip": 3.0})) == {"actor_rollout_ref.actor.clip_ratio_c": 3.0}
    assert changes(with_(paper, training={"kl_coef": 0.0})) == {
        "actor_rollout_ref.actor.use_kl_loss": False,
        "actor_rollout_ref.actor.kl_loss_coef": 0.0,
    }
    assert (
        changes(with_(paper, evaluation={"temperature": 0.0}))["actor_rollout_ref.rollout.val_kwargs.do_sample"]
        is False
    )
    assert changes(with_(paper, training={"context": "growing"}))["data.max_response_length"] == 2560
    assert changes(with_(paper, backbone={"dtype": "float32"}))["actor_rollout_ref.rollout.dtype"] == "float32"
    several = changes(with_(paper, backbone={"resources": replace(paper.backbone.resources, nodes=2)}))
    assert several["trainer.nnodes"] == 2 and several["ray_kwargs.ray_init.num_cpus"] is None
    on_cpu = changes(with_(paper, runtime={"device": "cpu"}))
    assert on_cpu["trainer.device"] == "cpu" and on_cpu["actor_rollout_ref.rollout.name"] == "hf_cpu"
    assert on_cpu["ray_kwargs.ray_init.num_gpus"] == 1 and on_cpu["trainer.n_gpus_per_node"] == 1


def test_runtime_settings_are_no_part_of_a_runs_identity(cell: Callable[..., RunConfig]) -> None:
    from harness.fingerprint import identity

    one = cell(*PAPER, "env=alfworld")
    spread = with_(
        cell(*PAPER, "env=alfworld", "verl.micro_batch=2", "verl.gpu_memory=0.4"),
        backbone={"resources": replace(one.backbone.resources, nodes=2)},
    )
    extra = cell(*PAPER, "env=alfworld", "++verl.extra.actor_rollout_ref.rollout.skip_tokenizer_init=false")
    with pytest.raises(ConfigError):
        cell(*PAPER, "env=alfworld", "backbone.resources.nodes=0")
    assert identity(one) == identity(spread)
    assert identity(one) != identity(extra)


def test_the_backend_can_be_chosen(paper: RunConfig) -> None:
    assert compose(paper, RUN, "other").actor_rollout_ref.rollout.name == "other"


def flash_attention(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    from harness.training.verl import attention as module

    fake = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: object() if there else None))
    monkeypatch.setattr(module, "importlib", fake)


def test_attention_is_what_a_job_can_import(paper: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    flash_attention(monkeypatch, False)
    assert attention(paper) == "sdpa"
    flash_attention(monkeypatch, True)
    assert attention(paper) == "flash_attention_2"
    assert attention(with_(paper, runtime={"device": "cpu"})) == "sdpa"
    assert attention(with_(paper, verl={"attn_implementation": "eager"})) == "eager"


def test_composing_does_not_change_what_is_kept(paper: RunConfig) -> None:
    first = OmegaConf.to_yaml(compose(paper, RUN))
    compose(with_(paper, training={"lr": 1.0}), RUN)
    assert OmegaConf.to_yaml(compose(paper, RUN)) == first


def test_composing_inside_of_a_hydra_application(paper: RunConfig) -> None:
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    composing._composed_defaults.cache_clear()
    with initialize_config_module(config_module="sweeps", version_base="1.3"):
        compose(paper, RUN)
        assert GlobalHydra.instance().is_initialized()


# --------------------------------------------------------------------------------------------------------- extra keys
def test_rows_are_spread_over_gpus_with_flash_attention_only(paper: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl slices the tokens of a row and patches flash attention alone; others would train on parts of rows."""
    for given in ("sdpa", "eager"):
        alone = with_(paper, verl={"attn_implementation": given})
        assert said(alone) == ""
        refused = said(with_(alone, verl={"sequence_parallel": 2}))
        assert f"verl.attn_implementation={given} (here): cannot be: verl spreads a row's tokens" in refused
    spread = with_(paper, verl={"sequence_parallel": 2})
    assert said(spread) == ""  # whether a job can import flash_attn is not known here
    flash_attention(monkeypatch, True)
    refuse_spread_rows(spread)
    flash_attention(monkeypatch, False)
    refuse_spread_rows(paper)
    with pytest.raises(ConfigError, match=r"verl\.attn_implementation=auto: comes to sdpa here, because flash_attn"):
        refuse_spread_rows(spread)


def test_what_may_not_fit_without_flash_attention(
    cell: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    webshop = cell(*PAPER, "env=webshop")
    flash_attention(monkeypatch, True)
    assert memory_note(webshop) is None
    flash_attention(monkeypatch, False)
    note = memory_note(webshop)
    assert note is not None and "36,864 tokens" in note and "about 45 GB" in note
    advised = int(note.rpartition("verl.micro_batch=")[2])
    assert 1 < advised < 16 and memory_note(with_(webshop, verl={"micro_batch": advised})) is None
    assert memory_note(with_(webshop, verl={"micro_batch": advised + 1})) is not None
    assert memory_note(with_(webshop, verl={"attn_implementation": "flash_attention_2"})) is None
    assert memory_note(with_(webshop, runtime={"device": "cpu"})) is None


def test_scoring_has_room_for_the_longest_row() -> None:
    assert scoring_tokens(4096, 1000, 1) == 4096
    assert scoring_tokens(4096, 5001, 1) == 5001
    assert scoring_tokens(4096, 8193, 2) == 4097  # of each of two GPUs
    assert scoring_tokens(4096, 8192, 2) == 4096


def test_further_keys_of_verl(paper: RunConfig) -> None:
    extra = {"actor_rollout_ref.rollout.free_cache_engine": False, "trainer": {"esi_redundant_time": 5}}
    node = compose(with_(paper, verl={"extra": extra}), RUN)
    assert node.actor_rollout_ref.rollout.free_cache_engine is False and node.trainer.esi_redundant_time == 5


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"trainer.esi_redundent_time": 5}, r"verl 0\.\S+ has no such key; did you mean trainer\.esi_redundant_time\?"),
        ({"trainer.nnodes": 2}, r"verl\.extra\.trainer\.nnodes=2: is decided by the harness \(backbone\.resources"),
        ({"data": 3}, r"verl\.extra\.data=3: is decided by the harness"),
        ({"actor_rollout_ref": {"actor": {"optim": {"lr": 1.0}}}}, r"decided by the harness \(training\.lr\)"),
    ],
)
def test_further_keys_that_are_refused(paper: RunConfig, extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(with_(paper, verl={"extra": extra}), RUN)


def test_without_verl(paper: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composing.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(VerlMissingError, match="pip install"):
        compose(paper, RUN)
    assert table_of(paper, RUN)


# -------------------------------------------------------------------------------------------------------------- sizes
def said(config: RunConfig) -> str:
    return "\n".join(str(problem) for problem in problems(config, lambda key: "here"))


def test_sizes(paper: RunConfig) -> None:
    sizes = sizes_of(paper)
    assert (sizes.gpus, sizes.data_parallel, sizes.replicas, sizes.longest) == (8, 8, 8, 2560)
    assert (sizes.episodes, sizes.rows, sizes.mini_batches, sizes.mini_batch_rows) == (128, 128 * 16, 8, 256)
    assert sizes.update_tokens == 32 * 2560 // 2
    two = sizes_of(
        with_(
            paper,
            backbone={"resources": replace(paper.backbone.resources, nodes=2)},
            verl={"tensor_parallel": 4, "sequence_parallel": 2, "micro_batch": 1},
        )
    )
    assert (two.gpus, two.data_parallel, two.replicas) == (16, 8, 4)
    assert two.update_tokens == 1280  # a whole row, over two GPUs
    assert two.ray_cpus_per_node * 2 >= two.ray_cpus
    assert sizes_of(with_(paper, training={"context": "growing"})).rows == 128
    on_cpu = sizes_of(with_(paper, runtime={"device": "cpu"}))
    assert (on_cpu.gpus, on_cpu.on_gpu) == (1, False) and "CPU process" in on_cpu.text()


def test_sizes_follow_what_a_site_changes(paper: RunConfig) -> None:
    site = with_(paper, launcher={"name": "slurm", "resources": {"qwen2.5-3b/verl/alfworld": {"gpus_per_node": 4}}})
    assert sizes_of(site).gpus == 4 and compose(site, RUN).trainer.n_gpus_per_node == 4


def test_what_verl_would_notice_late_or_never(paper: RunConfig) -> None:
    assert said(paper) == ""
    few = replace(paper.backbone.resources, gpus_per_node=0)
    assert "needs at least one GPU" in said(with_(paper, backbone={"resources": few}))
    assert "must divide the 8 GPUs of a machine" in said(with_(paper, verl={"tensor_parallel": 3}))
    seven = with_(paper, backbone={"heads": 28})
    assert "attention heads" in said(with_(seven, verl={"tensor_parallel": 8}))
    assert "attention heads" in said(with_(seven, verl={"sequence_parallel": 8}))
    assert "must divide the 8 GPUs of a run" in said(with_(paper, verl={"sequence_parallel": 3}))
    assert "less than the 2560 tokens" in said(with_(paper, backbone={"max_positions": 1024}))
    assert "newest revision" in said(with_(paper, backbone={"revision": "abc"}))
    assert "rows an iteration for 8 workers" in said(
        with_(paper, training={"context": "growing", "tasks_per_step": 1, "group_size": 4})
    )
    needed = least_ray_cpus(paper)
    assert f"less than the {needed}" in said(with_(paper, verl={"ray_cpus": needed - 1}))
    assert said(with_(paper, verl={"ray_cpus": needed})) == ""
    assert "launcher.workers=1" in said(with_(paper, launcher={"workers": 2}))
    two = replace(paper.backbone.resources, nodes=2)
    assert "one machine" in said(with_(paper, backbone={"resources": two}))
    assert said(with_(paper, backbone={"resources": two}, launcher={"name": "slurm"})) == ""


def test_plans_report_them_with_their_origin(cell: Callable[..., RunConfig]) -> None:
    with pytest.raises(ConfigError, match=r"verl\.tensor_parallel=3 \(command line\): must divide the 8 GPUs"):
        cell(*PAPER, "env=alfworld", "verl.tensor_parallel=3")
    with pytest.raises(ConfigError, match=r"verl\.gpu_memory=1\.0 \(command line\): must be above 0 and below 1"):
        cell(*PAPER, "env=alfworld", "verl.gpu_memory=1.0")
    with pytest.raises(ConfigError, match=r"engine=vllm.*only evaluates"):
        cell(*PAPER, "env=alfworld", "engine=vllm")


# --------------------------------------------------------------------------------------------------- asking verl itself
def test_answers_are_kept_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def ask(texts: dict[str, str]) -> dict[str, str]:
        asked.append(sorted(texts.values()))
        return {key: SOUND if text == "good" else "ValueError: bad" for key, text in texts.items()}

    monkeypatch.setattr(validation, "_ask", ask)
    wanted = {"one": SOUND, "two": "ValueError: bad", "three": SOUND}
    texts = {"one": "good", "two": "bad", "three": "good"}
    assert validate(texts, "1", tmp_path) == wanted == validate(texts, "1", tmp_path)
    assert asked == [["bad", "good"]]  # equal texts once, and nothing twice
    assert validate({"new": "other", **texts}, "1", tmp_path)["new"] == "ValueError: bad" and asked[1:] == [["other"]]
    validate(texts, "2", tmp_path)
    assert len(asked) == 3  # another verl is asked again
    for file in tmp_path.glob("*.json"):
        file.write_text("{broken")
    assert validate(texts, "1", tmp_path) == wanted and len(asked) == 4


def test_a_child_that_dies_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(command: list[str], **given: Any) -> Any:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: no libcuda")

    monkeypatch.setattr(validation.subprocess, "run", dies)
    with pytest.raises(ValidationError, match=r"exit status 1.*no libcuda"):
        validate({"a": "b"}, "1", tmp_path)

    def hangs(command: list[str], **given: Any) -> Any:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(validation.subprocess, "run", hangs)
    with pytest.raises(ValidationError, match="within 600 s"):
        validate({"a": "b"}, "1", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.verl
def test_verl_accepts_ours_and_refuses_others(cell: Callable[..., RunConfig], paper: RunConfig, tmp_path: Path) -> None:
    """In verl's own process: configurations of GPUs and of a CPU are sound; what verl checks it refuses."""
    good = {
        "paper": paper,
        "cpu": cell("env=alfworld", "engine=verl"),
        "growing": with_(paper, training={"context": "growing"}),
        "machines": with_(paper, backbone={"resources": replace(paper.backbone.resources, nodes=2)}),
    }
    texts = {name: OmegaConf.to_yaml(compose(config, RUN)) for name, config in good.items()}
    bad = compose(paper, RUN)
    bad.actor_rollout_ref.rollout.mode = "sync"
    unset = compose(paper, RUN)
    unset.actor_rollout_ref.rollout.name = "???"
    refused = {"bad": OmegaConf.to_yaml(bad), "unset": OmegaConf.to_yaml(unset)}
    answers = validate({**texts, **refused}, composing.verl_version(), tmp_path)
    assert {name: answers[name] for name in good} == dict.fromkeys(good, SOUND)
    assert "Rollout mode 'sync' has been removed" in answers["bad"] and "MissingMandatoryValue" in answers["unset"]


# ---------------------------------------------------------------------------------------------------------- planning
@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "validate", lambda texts, version, cache: dict.fromkeys(texts, SOUND))
    monkeypatch.setattr(registry, "panel_identity", lambda config, panel: panel)


def plan_of(hydra: Composer, tmp_path: Path, *arguments: str) -> Any:
    return build_plan(hydra, parse([*arguments, f"runtime.out={tmp_path}"], hydra.groups()))


def test_a_plan_shows_each_configuration_once(
    hydra: Composer, tmp_path: Path, sound: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    flash_attention(monkeypatch, False)
    plan = plan_of(hydra, tmp_path, *PAPER, "method=grpo,sdar,opid", "env=alfworld", "seed=0,1")
    old = plan.results / "plan" / "verl-old.yaml"
    old.parent.mkdir(parents=True)
    old.write_text("of an earlier plan")
    lines = "\n".join(planning.section(plan))
    (file,) = sorted((plan.results / "plan").glob("verl-*.yaml"))
    assert f"{file}: 6 cells (grpo, sdar, opid)" in lines and "1 configuration, each validated by verl" in lines
    assert "dp 8" in lines and "19,200 analyzer calls each: opid" in lines and "expected in all" in lines
    assert "warning: verl.attn_implementation=auto comes to sdpa here" in lines
    assert "warning: alfworld-qwen2.5-3b: verl.attn_implementation=auto" in planning.notes(plan, plan.cells)[0]
    text = file.read_text()
    assert "#   actor_rollout_ref.actor.optim.lr = 1e-06  <- training.lr" in text
    assert OmegaConf.create(text).actor_rollout_ref.actor.optim.lr == 1e-6


def test_rows_that_verl_sees_differently_have_files_of_their_own(hydra: Composer, tmp_path: Path, sound: None) -> None:
    plan = plan_of(hydra, tmp_path, *PAPER, "method=grpo,opid", "env=search_qa")
    names = [variant.name for variant in planning.check(plan).variants]
    assert names == ["search_qa-qwen2.5-3b-grpo", "search_qa-qwen2.5-3b-opid"]


def test_only_what_is_selected_is_shown_and_the_teachers_of_it(hydra: Composer, tmp_path: Path, sound: None) -> None:
    narrow = ("sweep=retirement", "env=alfworld", "backbone=qwen2.5-3b", "method=retire_opd", "seed=0")
    plan = plan_of(hydra, tmp_path, *PAPER, "sweep.axes.env=[alfworld]", *narrow)
    shown = {cell.fingerprint for variant in planning.check(plan).variants for cell in variant.cells}
    wanted = {name for cell in plan.selected for name in (cell.fingerprint, *cell.requires)}
    assert shown == wanted and len(shown) == 2 < len(plan.cells)


def test_a_plan_without_verl_says_so(
    hydra: Composer, tmp_path: Path, sound: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composing.importlib.util, "find_spec", lambda name: None)
    plan = plan_of(hydra, tmp_path, *PAPER, "method=grpo", "env=alfworld")
    lines = "\n".join(planning.section(plan))
    assert "verl is not installed here: 1 configuration NOT VALIDATED" in lines
    assert "NOT VALIDATED" in planning.notes(plan, plan.cells)[-1]
    (file,) = (plan.results / "plan").glob("*.yaml")
    assert "not validated" in file.read_text() and OmegaConf.load(file).trainer.nnodes == 1


def test_what_verl_refuses_stops_the_plan(
    hydra: Composer, tmp_path: Path, sound: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "validate", lambda texts, version, cache: dict.fromkeys(texts, "ValueError: no"))
    plan = plan_of(hydra, tmp_path, *PAPER, "method=grpo", "env=alfworld")
    with pytest.raises(ConfigError, match=r"refuses the configuration of alfworld-qwen2\.5-3b: ValueError: no"):
        planning.section(plan)

    def silent(*_: Any) -> dict[str, str]:
        raise ValidationError("verl could not be asked")

    monkeypatch.setattr(planning, "validate", silent)
    with pytest.raises(ConfigError, match="verl could not be asked"):
        planning.notes(plan, plan.cells)


def test_other_engines_have_no_such_section(hydra: Composer, tmp_path: Path, sound: None) -> None:
    plan = plan_of(hydra, tmp_path, "method=grpo", "env=alfworld")
    assert planning.section(plan) == [] == planning.notes(plan, plan.cells)


@pytest.mark.slow
def test_planning_imports_nothing_heavy(tmp_path: Path) -> None:
    """Not Ray, verl or torch in the process that plans; a child of it may."""
    program = (
        "import json, sys\n"
        "from harness.training.verl import planning\n"
        "planning.validate = lambda texts, version, cache: dict.fromkeys(texts, '')\n"
        "from harness.cli import main\n"
        f"status = main(['method=grpo', 'env=alfworld', 'scale=paper', 'do=plan', 'runtime.out={tmp_path}'])\n"
        "print(json.dumps([status, [m for m in ('torch', 'verl', 'ray', 'vllm', 'transformers') if m in sys.modules]]))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(said.splitlines()[-1]) == [0, []]
