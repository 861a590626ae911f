"""verl's own process: how Ray is started, what a job refuses, and what a teacher may read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import verl_helpers as helpers
from omegaconf import OmegaConf

from harness.config import RunConfig
from harness.errors import ConfigError
from harness.training.verl import attention, driver, session
from harness.training.verl.engine import SCRATCH


@pytest.fixture
def ray(monkeypatch):
    """A module in Ray's place that notes what it is started with."""
    started = []
    monkeypatch.setitem(
        sys.modules, "ray", SimpleNamespace(init=lambda **given: started.append((given, dict(os.environ))))
    )
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(driver, "verl_variables", lambda given: {"VLLM_DISABLE_COMPILE_CACHE": "1", "HSA_SOME": "1"})
    return started


def config_of(nodes):
    return OmegaConf.create({"trainer": {"nnodes": nodes}, "ray_kwargs": {"ray_init": {"num_cpus": 9}}})


def test_rays_processes_inherit_verls_variables_on_one_machine(ray, monkeypatch):
    monkeypatch.setitem(os.environ, SCRATCH, "/somewhere/short")
    driver._start_ray(config_of(1), SimpleNamespace(install=lambda: None))
    ((given, environment),) = ray
    assert environment["VLLM_DISABLE_COMPILE_CACHE"] == "1"
    assert given["address"] == "local" and given["_node_ip_address"] == "127.0.0.1"
    assert given["_temp_dir"] == "/somewhere/short" and given["num_cpus"] == 9


def test_rays_processes_are_told_of_them_on_several(ray, monkeypatch):
    monkeypatch.setitem(os.environ, "RAY_ADDRESS", "first:6379")
    monkeypatch.setitem(os.environ, "NCCL_DEBUG", "INFO")
    driver._start_ray(config_of(2), SimpleNamespace(install=lambda: None))
    ((given, _),) = ray
    told = given["runtime_env"]["env_vars"]
    assert (told["VLLM_DISABLE_COMPILE_CACHE"], told["HSA_SOME"], told["NCCL_DEBUG"]) == ("1", "1", "INFO")
    assert given["address"] == "first:6379" and "num_cpus" not in given


@pytest.mark.slow
@pytest.mark.verl
def test_no_variable_of_verls_own_program_is_missing():
    """In a process of its own, on the platform without a GPU: importing verl takes ten seconds."""
    pytest.importorskip("verl")
    program = """
import json, os
from omegaconf import OmegaConf
from harness.training.verl.driver import verl_variables
from verl.trainer.constants_ppo import PPO_RAY_RUNTIME_ENV, get_ppo_ray_runtime_env
given = OmegaConf.create({"actor_rollout_ref": {"rollout": {"full_determinism": True, "seed": 7}}})
wanted = {*PPO_RAY_RUNTIME_ENV["env_vars"], *get_ppo_ray_runtime_env(given)["env_vars"]}
found = verl_variables(given)
print(json.dumps([sorted(wanted - found.keys()), found]))
"""
    environment = {**os.environ, "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "NCCL_DEBUG": "INFO"}
    environment["VERL_USE_EXTERNAL_MODULES"] = "harness.training.verl.cpu"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    missing, found = json.loads(done.stdout.splitlines()[-1])
    assert missing == []
    assert found["VLLM_DISABLE_COMPILE_CACHE"] == "1"
    assert found["NCCL_DEBUG"] == "INFO"  # what a site sets stays
    # what verl's program does for full determinism before it starts Ray
    assert (found["VERL_FULL_DETERMINISM"], found["VLLM_BATCH_INVARIANT"], found["PYTHONHASHSEED"]) == ("1", "1", "7")


def test_a_job_that_would_attend_to_parts_of_rows_does_not_start(monkeypatch):
    monkeypatch.setattr(attention, "attention", lambda config: "sdpa")
    verl = dataclasses.replace(RunConfig().verl, sequence_parallel=2)
    with pytest.raises(ConfigError, match=r"verl\.attn_implementation"):
        driver._conduct(None, dataclasses.replace(RunConfig(), verl=verl), None)


def test_what_a_teacher_may_read_is_the_models_and_no_budget(monkeypatch, tmp_path):
    """A key that spreads work (verl.score_micro_batch) must not shorten prompts."""
    asked = []

    @contextlib.contextmanager
    def parts(config, tokenizer, positions):
        asked.append(positions)
        raise RuntimeError("far enough")
        yield

    monkeypatch.setattr(session, "verl_parts", parts)
    model = {"path": str(helpers.save_backbone(tmp_path / "model"))}
    given = {"actor_rollout_ref": {"model": model, "rollout": {"log_prob_max_token_len_per_gpu": 100}}}
    trainer = SimpleNamespace(config=OmegaConf.create(given), tokenizer=None)
    with pytest.raises(RuntimeError, match="far enough"):
        driver._session(SimpleNamespace(path=tmp_path), RunConfig(), trainer, None)
    assert asked == [1024]
