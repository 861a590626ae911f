"""An agent loop answers whatever happens: verl would pass over an exception and go on with fewer rows."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import verl_helpers as helpers

from envs.interface import Task
from harness.training.episode import EpisodeRequest
from harness.training.verl.requests import Wanted
from harness.training.verl.sizes import sizes_of
from methods.interface import SkillConfig

NAME = "harness.training.verl.agent_loop"


@pytest.fixture
def loops(monkeypatch):
    """The module with something light in verl's place."""
    verl = ModuleType("verl.experimental.agent_loop.agent_loop")
    verl.AgentLoopBase = object
    verl.AgentLoopOutput = SimpleNamespace
    for name in ("verl", "verl.experimental", "verl.experimental.agent_loop"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, verl.__name__, verl)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


def answer(loops):
    config = SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(rollout=None), harness=SimpleNamespace(run_dir="nowhere")
    )
    loop = loops.PerStepLoop(SimpleNamespace(config=config), None, SimpleNamespace(eos_token_id=9))
    wanted = Wanted.of(EpisodeRequest(Task("t1", "kind", "0"), 0, 0, (0,)), 1.0, SkillConfig())
    outputs = asyncio.run(loop.run({}, episode=wanted.to_text()))
    return outputs, json.loads(outputs[0].extra_fields["harness_about"])


ActorDiedError = type("ActorDiedError", (Exception,), {})


@pytest.mark.parametrize(("error", "kind"), [(ValueError("no"), "crash"), (ActorDiedError("gone"), "infra")])
def test_what_breaks_before_an_episode_travels_with_it(loops, monkeypatch, error, kind):
    def broken(run_dir, tokenizer):
        raise error

    monkeypatch.setattr(loops, "_stage", broken)
    outputs, about = answer(loops)
    assert len(outputs) == 1 and outputs[0].response_mask == [0]
    assert about["fatal"] == f"{type(error).__name__}: {error}" and about["failure_class"] == kind


def test_what_breaks_after_an_episode_travels_with_it(loops, monkeypatch):
    async def played(self, stage, wanted, request, stats, sampling):
        made = request.trajectory(0)
        made.turns.append("not a turn")
        return made

    monkeypatch.setattr(loops, "_stage", lambda run_dir, tokenizer: None)
    monkeypatch.setattr(loops._Loop, "_play", played)
    outputs, about = answer(loops)
    assert len(outputs) == 1 and "AttributeError" in about["fatal"]


@pytest.mark.parametrize(("workers", "each"), [(0, 0), (1, 1), (8, 4), (5, 3)])
def test_agents_share_the_processes_that_step_environments(loops, monkeypatch, tmp_path, workers, each):
    config = helpers.run_config("grpo", Path("nowhere"))
    config = dataclasses.replace(config, verl=dataclasses.replace(config.verl, agent_workers=2))
    config.runtime.env_workers = workers
    assert sizes_of(config).agent_workers == 2
    made = []
    monkeypatch.setattr(loops, "EnvPool", lambda make, env, count: made.append(count))
    monkeypatch.setattr(loops, "Gateway", lambda pool: pool)
    monkeypatch.setattr(loops, "ChatFormat", lambda tokenizer: None)
    run = helpers.run_directory(tmp_path, config)
    loops._stage(str(run.path), None)
    assert made == [each]
