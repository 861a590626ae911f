"""Panels played with a policy that a vLLM server, or vLLM in this process, samples from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import tiny_env
import torch
from tiny_model import make_model, make_tokenizer
from vllm_double import Behaviour, FakeLLM, sampler, serving

from envs import registry as environments
from envs.interface import EnvConfig
from envs.pool import EnvPool, OrderedPool
from harness.config import BackboneConfig, EvaluationConfig, RunConfig, RuntimeConfig, TrainingConfig, VllmConfig
from harness.evaluation import play_panel
from harness.record import RunDirectory
from harness.run import execute
from harness.states import COMPLETE, classify
from harness.training.chat import ChatFormat
from harness.training.episode import Director
from harness.training.loop import rollout_settings
from harness.training.network import Network
from harness.training.rollout import Sampler
from harness.training.vllm_local import VllmLocal, VllmMissingError, llm_arguments, make_llm
from harness.training.vllm_player import Request, VllmPlayer
from harness.training.vllm_server import ServerError, VllmServer, WrongServerError
from harness.training.vllm_settings import problems
from methods.interface import AdvantageConfig, MethodConfig

TOKENIZER = make_tokenizer()
MODEL = make_model(TOKENIZER)
CHAT = ChatFormat(TOKENIZER)
SAMPLE = sampler(MODEL, CHAT.eos_id)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.set_num_threads(1)
    monkeypatch.setitem(environments.BUILTIN, "tiny", "tiny_env:SPEC")
    tiny_env.FAILURES.clear()
    yield
    tiny_env.FAILURES.clear()


def config_of(context: str = "per_step", **changes: Any) -> RunConfig:
    given: dict[str, Any] = {
        "method": MethodConfig(
            id="vanilla", name="vanilla", label="Vanilla", trains=False, advantage=AdvantageConfig(estimator="none")
        ),
        "env": EnvConfig(name="tiny", max_steps=4, history=2),
        "training": TrainingConfig(context=context, max_prompt_tokens=200, max_response_tokens=3),
        "evaluation": EvaluationConfig(panels=["seen", "unseen"], temperature=0.0),
        "backbone": BackboneConfig(name="random", kind="hub", max_positions=512),
        "runtime": RuntimeConfig(keep_trajectories=2),
        "engine": "vllm",
    }
    return RunConfig(**{**given, **changes})


def pool(config: RunConfig) -> OrderedPool:
    return OrderedPool(EnvPool(tiny_env.make, config.env, 0))


def player(config: RunConfig, completer: Any) -> VllmPlayer:
    return VllmPlayer(completer, Director(CHAT, tiny_env.prompter(config.env), rollout_settings(config)), pool(config))


def played(who: Any, config: RunConfig, temperature: float) -> list[Any]:
    panel = tiny_env.load_panel(config.env, "seen")
    return play_panel(who, panel, seed=0, repeats=2, temperature=temperature, batch=4)


def sampling(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(**given)


@pytest.mark.parametrize("context", ["growing", "per_step"])
def test_greedy_episodes_are_those_of_the_local_engine(context: str) -> None:
    config = config_of(context)
    local = Sampler(Network(MODEL), CHAT, pool(config), tiny_env.prompter(config.env), rollout_settings(config))
    wanted = [p.trajectory for p in played(local, config, 0.0)]
    with serving(SAMPLE, Behaviour()) as url:
        server = VllmServer(VllmConfig(base_url=url, model="policy"), "/weights")
        by_server = [p.trajectory for p in played(player(config, server), config, 0.0)]
        server.close()
    in_process = [p.trajectory for p in played(player(config, VllmLocal(FakeLLM(SAMPLE), sampling)), config, 0.0)]
    for ours, theirs, third in zip(wanted, by_server, in_process, strict=True):
        assert [t.response_ids for t in ours.turns] == [t.response_ids for t in theirs.turns]
        assert [t.prompt_ids for t in ours.turns] == [t.prompt_ids for t in theirs.turns]
        assert (ours.termination, ours.success, ours.score) == (theirs.termination, theirs.success, theirs.score)
        for mine, other in zip(ours.turns, theirs.turns, strict=True):
            assert mine.old_logprobs == pytest.approx(other.old_logprobs, abs=1e-4)
        assert [t.response_ids for t in theirs.turns] == [t.response_ids for t in third.turns]


def test_what_an_episode_samples_does_not_depend_on_its_batch() -> None:
    config = config_of()
    who = player(config, VllmLocal(FakeLLM(SAMPLE), sampling))
    panel = tiny_env.load_panel(config.env, "seen")

    def responses(batch: int, seed: int = 0) -> list[list[list[int]]]:
        found = play_panel(who, panel, seed=seed, repeats=2, temperature=1.0, batch=batch)
        return [[turn.response_ids for turn in p.trajectory.turns] for p in found]

    assert responses(1) == responses(6) != responses(6, seed=1)


def test_every_request_says_all_that_decides_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's own defaults, which vLLM takes from the model's files, must decide nothing."""
    behaviour = Behaviour()
    monkeypatch.setenv("MY_KEY", "sk-planted-secret")
    with serving(SAMPLE, behaviour) as url:
        server = VllmServer(VllmConfig(base_url=url, model="policy", api_key_env="MY_KEY"), "/weights")
        server.complete([Request([5, 6], 11, 0.4, 3)], CHAT.eos_id)
        server.close()
    path, body, headers = behaviour.asked[-1]
    assert path == "/v1/completions" and headers["Authorization"] == "Bearer sk-planted-secret"
    assert (body["prompt"], body["seed"], body["temperature"], body["max_tokens"]) == ([5, 6], 11, 0.4, 3)
    assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, -1, 0.0, 1.0)
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.0, 0.0)
    assert body["stop_token_ids"] == [CHAT.eos_id] and body["return_tokens_as_token_ids"] is True


def test_requests_go_side_by_side_up_to_the_limit_and_come_back_in_order() -> None:
    behaviour = Behaviour()
    with serving(SAMPLE, behaviour) as url:
        server = VllmServer(VllmConfig(base_url=url, model="policy", concurrency=3), "/weights")
        requests = [Request([4, 5, 6 + k], k, 0.0, 2) for k in range(12)]
        found = server.complete(requests, CHAT.eos_id)
        server.close()
    assert [r.ids for r in found] == [SAMPLE(q.prompt, 0, 0.0, 2)[0] for q in requests]
    assert behaviour.most_under_way <= 3


def test_a_broken_environment_is_tried_once_more_and_then_excluded() -> None:
    config = config_of()
    who = player(config, VllmLocal(FakeLLM(SAMPLE), sampling))
    panel = tiny_env.load_panel(config.env, "seen")
    tiny_env.FAILURES[panel.tasks[0].id, "step"] = 1
    assert all(p.trajectory.failure is None for p in play_panel(who, panel, seed=0, repeats=1, temperature=0, batch=3))
    tiny_env.FAILURES[panel.tasks[1].id, "reset"] = 2
    found = play_panel(who, panel, seed=0, repeats=1, temperature=0, batch=3)
    assert [p.trajectory.failure is None for p in found] == [True, False, True]


# ------------------------------------------------------------------------------------------------------- a sick server
def ask(behaviour: Behaviour, **settings: Any) -> Any:
    with serving(SAMPLE, behaviour) as url:
        server = VllmServer(VllmConfig(base_url=url, **{"model": "policy", "attempts": 2, **settings}), "/weights")
        try:
            return server.complete([Request([5, 6], 0, 0.0, 2)], CHAT.eos_id)
        finally:
            server.close()


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.training import vllm_server

    monkeypatch.setattr(vllm_server.time, "sleep", lambda seconds: None)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_passes_is_tried_again(status: int, no_waiting: None) -> None:
    assert ask(Behaviour(statuses=[200, status]))[0].ids
    with pytest.raises(ServerError, match=rf"completions: status {status}: .*played.*, 2 times; is the server running"):
        ask(Behaviour(statuses=[200, status, status]))


def test_what_does_not_pass_is_not_tried_again() -> None:
    behaviour = Behaviour(statuses=[200, 400])
    with pytest.raises(ServerError, match="status 400"):
        ask(behaviour)
    assert len(behaviour.asked) == 2


def test_no_server_at_all(no_waiting: None) -> None:
    with serving(SAMPLE, Behaviour()) as url:
        pass
    with pytest.raises(ServerError, match=r"/models: ConnectError.*2 times") as raised:
        VllmServer(VllmConfig(base_url=url, attempts=2), "/weights")
    assert classify(raised.value) == "infra"  # which the launcher tries again
    with pytest.raises(ValueError, match=r"vllm\.base_url=null"):
        VllmServer(VllmConfig(), "/weights")


def test_another_model_is_refused() -> None:
    with serving(SAMPLE, Behaviour(served={"policy": "/weights"})) as url:
        for wanted in ("/weights", "/weights/"):
            found = VllmServer(VllmConfig(base_url=url), wanted)
            assert found.model == "policy" and found.verified
        with pytest.raises(WrongServerError, match=r"serves policy \(/weights\), not '/other'"):
            VllmServer(VllmConfig(base_url=url), "/other")
        with pytest.raises(WrongServerError, match="not 'polcy'"):
            VllmServer(VllmConfig(base_url=url, model="polcy"), "/weights")
        # a name that the server has proves nothing: of an adapter, or of the model that was there before
        for settings, wanted in (({"model": "policy"}, "/other"), ({}, "policy")):
            with pytest.raises(
                WrongServerError, match=r"the weights of 'policy' are from /weights, not from"
            ) as raised:
                VllmServer(VllmConfig(base_url=url, **settings), wanted)
            assert classify(raised.value) == "config"


def test_a_server_that_does_not_say_where_its_weights_are_from_is_recorded(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    MODEL.save_pretrained(weights)
    TOKENIZER.save_pretrained(weights)
    backbone = BackboneConfig(name="random", kind="hub", path=str(weights), max_positions=512)
    with serving(SAMPLE, Behaviour(served={"policy": ""})) as url:
        config = config_of(backbone=backbone, vllm=VllmConfig(base_url=url, model="policy"))
        run = RunDirectory.create(tmp_path / "runs", config, "a" * 16)
        execute(run, lambda: False)
    (event,) = [e["data"] for e in run.spool.read() if e["name"] == "weights_not_verified"]
    assert event == {"server": url, "model": "policy"}


@pytest.mark.parametrize(
    "edit",
    [
        lambda answer: {"choices": []} if "choices" in answer else answer,
        lambda answer: {"choices": [{"text": "red", "logprobs": None}]} if "choices" in answer else answer,
        lambda answer: (
            {"choices": [{"logprobs": {"tokens": ["red"], "token_logprobs": [0.0]}}]} if "choices" in answer else answer
        ),
        lambda answer: (
            {"choices": [{"logprobs": {"tokens": [], "token_logprobs": []}}]} if "choices" in answer else answer
        ),
    ],
)
def test_answers_without_token_ids_stop_the_run(edit: Any) -> None:
    with pytest.raises(ServerError, match="without the sampled token ids"):
        ask(Behaviour(edit=edit))


@pytest.mark.parametrize("answer", ["no object", ["no object"]])
def test_answers_of_another_kind_stop_the_run(answer: Any) -> None:
    with pytest.raises(ServerError, match="answers no JSON object"):
        ask(Behaviour(edit=lambda given: answer if "choices" in given else given))


def test_answers_are_not_read_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.training import vllm_server

    monkeypatch.setattr(vllm_server, "MAX_RESPONSE_BYTES", 100)
    with pytest.raises(ServerError, match="more than 100 bytes"):
        ask(Behaviour(edit=lambda given: {**given, "x": "y" * 1000} if "choices" in given else given))


def test_an_end_of_turn_that_the_server_left_out_is_put_back() -> None:
    def cut(answer: dict[str, Any]) -> dict[str, Any]:
        if "choices" in answer:
            answer["choices"][0] = {
                "logprobs": {"tokens": ["token_id:7"], "token_logprobs": [-0.5]},
                "finish_reason": "stop",
            }
        return answer

    (response,) = ask(Behaviour(edit=cut))
    assert response.ids == [7, CHAT.eos_id] and response.logprobs == [-0.5, 0.0]


def test_the_key_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "played")  # which the server repeats in its error
    with pytest.raises(ServerError) as caught:
        ask(Behaviour(statuses=[200, 400]), api_key_env="MY_KEY")
    assert "played" not in str(caught.value) and "***" in str(caught.value)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ServerError, match=r"vllm\.api_key_env=MY_KEY: the environment has no such variable"):
        ask(Behaviour(), api_key_env="MY_KEY")


# ------------------------------------------------------------------------------------------------------- a whole run
def test_a_run_records_what_every_engine_records(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    MODEL.save_pretrained(weights)
    TOKENIZER.save_pretrained(weights)
    backbone = BackboneConfig(name="random", kind="hub", path=str(weights), max_positions=512)
    with serving(SAMPLE, Behaviour(served={"policy": str(weights)})) as url:
        by_server = config_of(backbone=backbone, vllm=VllmConfig(base_url=url))
        run = RunDirectory.create(tmp_path / "runs", by_server, "a" * 16)
        execute(run, lambda: False)
    here = RunDirectory.create(tmp_path / "runs", replace(by_server, engine="local"), "b" * 16)
    execute(here, lambda: False)
    for one in (run, here):
        assert one.state().state == COMPLETE
    ours, theirs = (pq.read_table(r.episodes_path).drop_columns(["run"]).to_pylist() for r in (run, here))
    assert ours == theirs  # greedy: the same episodes, whoever samples
    weights_of = [e["data"]["sha256"] for e in run.spool.read() if e["name"] == "initial_weights"]
    assert len(weights_of) == 1 and weights_of[0]
    assert "weights_not_verified" not in [e.get("name") for e in run.spool.read()]


def test_in_process_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    with pytest.raises(VllmMissingError, match=r"pip install .* or set vllm\.base_url"):
        make_llm(config_of(), "/weights")


def test_arguments_of_vllm_come_from_the_configuration() -> None:
    config = config_of()
    given = llm_arguments(replace(config, verl=replace(config.verl, tensor_parallel=2)), "/weights")
    assert (given["max_model_len"], given["tensor_parallel_size"], given["model"]) == (203, 2, "/weights")
    assert given["generation_config"] == "vllm"  # not the model's own top-p and penalties


# --------------------------------------------------------------------------------------------------------- validation
def said(config: RunConfig) -> str:
    return "\n".join(str(problem) for problem in problems(config, lambda key: "here"))


def test_what_is_refused_before_anything_starts() -> None:
    at = VllmConfig(base_url="http://127.0.0.1:8000/v1")
    sound = config_of(vllm=at)
    assert said(sound) == ""
    trains = replace(sound, method=replace(sound.method, trains=True, id="grpo"))
    assert "only evaluates, and row 'grpo' trains" in said(trains)
    assert "needs a GPU" in said(config_of())
    on_gpu = replace(config_of(), runtime=replace(sound.runtime, device="cuda"))
    assert "is more than the 0 GPUs" in said(on_gpu)
    small = replace(sound, backbone=replace(sound.backbone, max_positions=100))
    assert "less than the 203 tokens" in said(small)
    assert "must begin with http://" in said(replace(sound, vllm=replace(at, base_url="ftp://x/v1")))
    for url in ("http://user:secret@x/v1", "http://x/v1?key=secret"):
        refused = said(replace(sound, vllm=replace(at, base_url=url)))
        assert "must hold no user" in refused and "secret" not in refused
    refused = said(replace(sound, vllm=replace(at, api_key_env="sk-secret")))
    assert "must be the NAME" in refused and "secret" not in refused


# ----------------------------------------------------------------------------------------------- vLLM as an analyzer
def test_vllm_as_an_analyzer(tmp_path: Path) -> None:
    """analyzer=openai with base_url of a vLLM server: the question that it gets, and what comes of its answer."""
    from harness.analysis_setup import build_analyzer
    from methods.interface import SkillConfig

    behaviour = Behaviour(chat='{"episode_summary": "s", "episode_skill": "say red.", "step_skills": {"0": "say it"}}')
    config = config_of()
    panel = tiny_env.load_panel(config.env, "seen")
    who = player(config, VllmLocal(FakeLLM(SAMPLE), sampling))
    trajectories = [p.trajectory for p in play_panel(who, panel, seed=0, repeats=1, temperature=0.0, batch=3)]
    with serving(None, behaviour) as url:
        settings = replace(
            config.analyzer, name="openai", model="Qwen/Qwen2.5-7B-Instruct", base_url=url, api_key_env=None, cache=None
        )
        method = replace(config.method, skill=SkillConfig("own_trajectory", "critical_first", max_step_skills=2))
        analyzer = build_analyzer(replace(config, analyzer=settings, method=method), tmp_path / "runs" / "x", None)
        analyses = analyzer.analyze(trajectories).result(timeout=60)
        analyzer.close()
    assert [a.episode_skill for a in analyses if a is not None] == ["say red."] * 3
    path, body, _ = behaviour.asked[0]
    assert path == "/v1/chat/completions" and body["model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert body["response_format"]["type"] == "json_schema" and body["temperature"] == settings.temperature
