"""What cannot work with engine=vllm, known before anything starts. Imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from harness.config import RunConfig
from harness.errors import Problem
from harness.launch.shapes import shape_of

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")


def problems(config: RunConfig, origin: Callable[[str], str]) -> Iterator[Problem]:
    """vLLM plays panels with weights that are there; it trains nothing."""

    def wrong(key: str, given: object, fix: str) -> Problem:
        return Problem(key, str(given), origin(key), fix)

    if config.method.trains:
        fix = (
            f"only evaluates, and row {config.method.id!r} trains; train with engine=local or engine=verl, then "
            "evaluate its weights with method=vanilla backbone=hub backbone.path=FOLDER"
        )
        yield wrong("engine", config.engine, fix)
        return
    longest = config.training.max_prompt_tokens + config.training.max_response_tokens
    if config.backbone.kind == "hub" and longest > config.backbone.max_positions:
        fix = f"is less than the {longest} tokens of the longest row (training.max_prompt_tokens + max_response_tokens)"
        yield wrong("backbone.max_positions", config.backbone.max_positions, fix)
    name = config.vllm.api_key_env
    if name is not None and not _VARIABLE.fullmatch(name):
        fix = "must be the NAME of an environment variable (upper case); it is not repeated here, it may be the key"
        yield Problem("vllm.api_key_env", "", origin("vllm.api_key_env"), fix)
    if config.vllm.base_url is None:
        yield from _in_process(config, wrong)
    else:
        yield from _address(config.vllm.base_url, origin)


def _in_process(config: RunConfig, wrong: Callable[[str, object, str], Problem]) -> Iterator[Problem]:
    if config.runtime.device.partition(":")[0] == "cpu":
        fix = "vLLM in the run's own process needs a GPU: set runtime.device=cuda, or vllm.base_url of a running server"
        yield wrong("runtime.device", config.runtime.device, fix)
        return
    gpus = shape_of(config).gpus_per_node
    if gpus < config.verl.tensor_parallel:
        fix = f"is more than the {gpus} GPUs of a job; see backbone.resources.gpus_per_node"
        yield wrong("verl.tensor_parallel", config.verl.tensor_parallel, fix)


def _address(url: str, origin: Callable[[str], str]) -> Iterator[Problem]:
    where = origin("vllm.base_url")
    if "@" in url or "?" in url or "#" in url:
        fix = "must hold no user, password, ? or #: records keep it; put a key into the variable vllm.api_key_env names"
        yield Problem("vllm.base_url", "", where, fix)
    elif not url.startswith(("http://", "https://")):
        fix = "must begin with http:// or https:// and end before /completions, such as http://127.0.0.1:8000/v1"
        yield Problem("vllm.base_url", url, where, fix)
