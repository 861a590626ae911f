"""Responses from vLLM in this process, on this job's GPUs. vLLM is imported when a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.config import RunConfig
from harness.training.vllm_player import Request, Response


class VllmMissingError(ImportError):
    """vLLM is not installed."""

    failure_class = "config"


def make_llm(config: RunConfig, source: str) -> Any:
    """A `vllm.LLM` of the weights in `source`. Raises VllmMissingError."""
    try:
        from vllm import LLM
    except ImportError as error:
        raise VllmMissingError(
            f"engine=vllm without vllm.base_url needs the package vllm ({error}): pip install -e '.[gpu]' in the "
            "clone, or set vllm.base_url to a running server"
        ) from error
    return LLM(**llm_arguments(config, source))


def llm_arguments(config: RunConfig, source: str) -> dict[str, Any]:
    """Named arguments of `vllm.LLM`, each from a key of the configuration."""
    training, verl = config.training, config.verl
    return {
        "model": source,
        "revision": config.backbone.revision,
        "dtype": config.backbone.dtype,
        "seed": config.seed,
        "max_model_len": training.max_prompt_tokens + training.max_response_tokens,
        "tensor_parallel_size": verl.tensor_parallel,
        "gpu_memory_utilization": verl.gpu_memory,
        "max_num_seqs": verl.sequences,
        "enforce_eager": verl.eager,
        "enable_prefix_caching": True,
        "generation_config": "vllm",  # not the model's own defaults of sampling
    }


class VllmLocal:
    """Samples with one `vllm.LLM`. sampling: makes its SamplingParams, vLLM's own unless a test brings another."""

    def __init__(self, llm: Any, sampling: Any = None) -> None:
        if sampling is None:
            from vllm import SamplingParams

            sampling = SamplingParams
        self._llm, self._sampling = llm, sampling

    def close(self) -> None:
        self._llm = None

    def complete(self, requests: Sequence[Request], stop: int) -> list[Response]:
        """As vllm_player.Completer."""
        parameters = [
            self._sampling(
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                seed=request.seed,
                top_p=1.0,
                top_k=-1,
                min_p=0.0,
                repetition_penalty=1.0,
                stop_token_ids=[stop],
                logprobs=0,
                detokenize=False,
            )
            for request in requests
        ]
        prompts = [{"prompt_token_ids": request.prompt} for request in requests]
        answers = self._llm.generate(prompts, parameters, use_tqdm=False)
        return [_response(answer.outputs[0]) for answer in answers]


def _response(output: Any) -> Response:
    ids = [int(token) for token in output.token_ids]
    logprobs = [float(entry[token].logprob) for token, entry in zip(ids, output.logprobs, strict=True)]
    return Response(ids, logprobs)
