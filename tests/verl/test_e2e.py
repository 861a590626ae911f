"""verl's real trainer, with Ray and its queue, on a random Qwen2 of a few thousand parameters on a CPU.

Each run costs about a minute, nearly all of it verl's start; so each serves several tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("verl")
pytest.importorskip("transfer_queue")

import pyarrow.parquet as pq
import torch
import verl_helpers as helpers
from safetensors.torch import load_file

from harness.config import RunConfig
from harness.evaluation import SCHEMA
from harness.record import RunDirectory
from harness.states import COMPLETE, Interrupted
from harness.training import trajectories
from harness.training.checkpoint import STATE
from harness.training.verl import engine, store
from harness.training.verl.outcome import VerlError

pytestmark = [pytest.mark.slow, pytest.mark.verl, pytest.mark.timeout(600)]

STEPS = 4  # of the runs that are compared: enough for one to be stopped between two of them
NOT_COMPARED = ("time/", "memory/")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return helpers.save_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out") / "runs"


def finished(root: Path, config: RunConfig, name: str) -> RunDirectory:
    run = helpers.run_directory(root, config, name)
    engine.execute(run, lambda: False)
    return run


def opid(backbone: Path) -> RunConfig:
    """OPID, because a random policy earns nothing: only the skills' term moves its weights."""
    return helpers.run_config("opid", backbone, steps=STEPS)


@pytest.fixture(scope="module")
def unbroken(root: Path, backbone: Path) -> RunDirectory:
    folders: list[Path] = []
    start = engine._start

    def noting(run: Any, config: Any, folder: Path, environment: dict[str, str]) -> Any:
        folders.append(Path(environment[engine.SCRATCH]))
        return start(run, config, folder, environment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_start", noting)
        run = finished(root, opid(backbone), "unbroken00000000")
    assert folders and not folders[0].exists(), "Ray's files stay behind"
    return run


def compared(run: RunDirectory) -> list[dict[str, float]]:
    return [{n: v for n, v in m.items() if not n.startswith(NOT_COMPARED)} for m in helpers.metrics(run)]


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return dict(load_file(run.path / store.EXPORT / "model.safetensors"))


def processes_of(run: RunDirectory) -> list[psutil.Process]:
    """Processes that were started for a run, wherever they hang now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and str(run.path) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


# ----------------------------------------------------------------------------------------------------------- OPID
def test_a_run_is_complete_and_leaves_no_process(unbroken):
    state = unbroken.state()
    assert (state.state, state.last_step) == (COMPLETE, STEPS)
    assert dict(state.evaluations["unseen/off"]) == {"requested": 6, "graded": 6, "excluded": 0}
    assert processes_of(unbroken) == []


def test_metrics_have_the_names_of_the_local_engine(unbroken):
    recorded = helpers.metrics(unbroken)
    assert len(recorded) == STEPS
    for values in recorded:
        assert {"train/success", "train/entropy", "tokens/teacher", "cost/teacher_rows", "method/shift"} <= set(values)
        assert values["train/rows"] == 16 and values["train/grad_norm"] > 0 and values["method/skill_tokens"] == 1
        # Samplers and trainer are two programs; with equal weights they must say the same of a token.
        assert values["train/sampler_gap_max"] < 1e-4
    assert recorded[0]["method/skill_abs"] > 0


def test_evaluations_are_the_records_of_every_engine(unbroken):
    table = pq.read_table(unbroken.episodes_path)
    assert table.schema.names == SCHEMA.names
    rows = table.to_pylist()
    assert len({row["task_id"] for row in rows}) == len(rows) == 6
    assert {row["checkpoint_step"] for row in rows} == {STEPS}
    assert all(row["prompt_tokens"] > 0 and row["response_tokens"] > 0 for row in rows)
    lines = list(trajectories.read(unbroken.trajectories_path))
    assert {line["phase"] for line in lines} == {"train", "evaluation"}
    assert all(turn["response"] for line in lines for turn in line["turns"])


def test_the_policy_learnt_and_its_export_is_an_ordinary_folder(unbroken, backbone):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = unbroken.path / store.EXPORT
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == helpers.tokenizer().get_vocab()
    first = AutoModelForCausalLM.from_pretrained(backbone)
    moved = [not torch.equal(a, b) for a, b in zip(model.parameters(), first.parameters(), strict=True)]
    assert all(moved)
    assert store.exported(unbroken.path) is not None


def test_the_sampler_draws_what_the_local_engine_draws(unbroken, backbone):
    from harness.parts import analysis_of, parts_of, trainer_of

    config = unbroken.load_config()
    with parts_of(config) as parts, analysis_of(config, parts, unbroken.path) as analysis:
        trainer = trainer_of(config, parts, analysis)
        played, _ = trainer.sampler.play(trainer.requests(1), config.training.temperature)
    recorded = [line for line in trajectories.read(unbroken.trajectories_path) if line.get("step") == 1]
    assert [[t.response_ids for t in one.turns] for one in played] == [
        [turn["response_ids"] for turn in line["turns"]] for line in recorded
    ]


@pytest.fixture(scope="module")
def resumed(root: Path, backbone: Path) -> RunDirectory:
    run = helpers.run_directory(root, opid(backbone), "resumed000000000")
    with pytest.raises(Interrupted, match=f"of {STEPS}"):
        engine.execute(run, lambda: run.stored_state().last_step >= 1)
    assert 1 <= run.stored_state().last_step < STEPS
    assert processes_of(run) == []
    engine.execute(run, lambda: False)
    return run


def test_a_resumed_run_equals_an_unbroken_one(unbroken, resumed):
    assert next(event["step"] for event in helpers.events(resumed, "resumed")) >= 1
    assert compared(resumed) == compared(unbroken)
    assert (
        pq.read_table(resumed.episodes_path)
        .drop_columns(["run"])
        .equals(pq.read_table(unbroken.episodes_path).drop_columns(["run"]))
    )
    ours, theirs = weights(resumed), weights(unbroken)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_an_analyzer_outage_stops_the_run_with_the_reason(root, backbone):
    config = opid(backbone)
    config.analyzer = helpers.analyzer("openai", "analyzer.model=any", "analyzer.base_url=http://127.0.0.1:9/v1")
    config.analyzer.retries, config.analyzer.api_key_env = 0, None
    run = helpers.run_directory(root, config, "outage0000000000")
    with pytest.raises(VerlError, match="analyses failed") as raised:
        engine.execute(run, lambda: False)
    assert raised.value.failure_class == "analyzer"
    assert helpers.metrics(run) == []
    assert processes_of(run) == []


# ------------------------------------------------------------------------------------------------- the other methods
def test_grpo_survives_environments_that_break(root, backbone, monkeypatch):
    monkeypatch.setenv("FLAKY", "2")
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "flaky_env")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    run = finished(root, helpers.run_config("grpo", backbone), "grpo000000000000")
    excluded = helpers.events(run, "episodes_excluded")
    assert excluded and "the engine broke" in str(excluded[0]["reasons"])
    for values in helpers.metrics(run):
        assert 0 <= values["train/excluded"] <= 0.5
        assert values["train/rows"] < 16 or values["train/excluded"] == 0
    assert sum(values["rollout/retried"] for values in helpers.metrics(run)) > 0
    counts = run.state().evaluations["unseen/off"]
    assert counts["excluded"] > 0 and counts["graded"] > 0


def test_sdar_with_a_moving_teacher_and_a_reference_in_one_conversation(root, backbone):
    config = helpers.run_config("sdar", backbone, context="growing", kl_coef=0.01, mini_batches=2)
    config.method.teacher.weights, config.method.teacher.decay = "ema", 0.5
    run = finished(root, config, "sdar000000000000")
    first, second = helpers.metrics(run)
    assert (first["train/rows"], second["train/rows"]) == (4, 4)
    assert second["train/kl_reference"] > 0  # after the first step the policy is another than the reference
    assert 0 < first["method/gate"] < 1 and first["train/grad_norm"] > 0
    assert (run.checkpoints_dir / "step_000002" / store.TEACHER).is_dir()


def test_retire_opd_with_a_frozen_teacher(root, backbone, tmp_path):
    teacher = helpers.run_config("skill_grpo", backbone)
    other = helpers.run_directory(root, teacher, "teacher000000000")
    store.seal_export(helpers.save_backbone(other.path / store.EXPORT, seed=1))
    config = helpers.run_config("retire_opd", backbone)
    config.method.teacher.source = other.fingerprint
    config.method.knobs["window"] = 1
    run = finished(root, config, "retire0000000000")
    (measured,) = helpers.events(run, "teacher_measured")
    assert measured["episodes"] == 6
    (source,) = helpers.events(run, "teacher_weights")
    assert source["run"] == other.fingerprint
    first = helpers.metrics(run)[0]
    assert first["tokens/teacher"] > 0 and first["validation/episodes"] == 6
    assert abs(first["method/shift"]) > 0.01  # the teacher is another network
    state: dict[str, Any] = json.loads((run.checkpoints_dir / "step_000002" / STATE).read_text())
    assert state["method"], "the checkpoint keeps what the method knows of windows"


# -------------------------------------------------------------------------------------------------------- the command
def test_the_quick_sweep_makes_records_and_a_table_with_this_engine(tmp_path):
    arguments = ["sweep=quick", "engine=verl", "backbone=tiny", "method=vanilla", "tracking=none"]
    command = [sys.executable, "-m", "harness", *arguments, f"runtime.out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert "Vanilla seed 0: complete" in done.stdout + done.stderr, done.stdout[-2000:] + done.stderr[-2000:]
    (folder,) = (tmp_path / "runs").iterdir()
    run = RunDirectory(folder)
    assert run.state().state == COMPLETE and run.load_config().engine == "verl"
    table = (tmp_path / "results" / "quick+engine-verl" / "main_table.csv").read_text()
    assert "Vanilla" in table
