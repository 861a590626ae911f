"""Responses from a running vLLM server: POST <base_url>/completions with token ids, one request per response.

Everything that decides what is sampled is sent with the request: a server's own defaults (vLLM takes them from the
model's generation_config.json) must not decide a number. Tried again: connections that fail or break, time-outs, 429
and 5xx. What the server says is data of unknown origin: bounded in size, and without the key before it reaches a
message.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from harness.config import VllmConfig
from harness.training.vllm_player import Request, Response

MAX_RESPONSE_BYTES = 8_000_000
_QUOTED = 300  # characters of what a server says, in a message
_ID = "token_id:"  # how vLLM writes a token with return_tokens_as_token_ids


class ServerError(RuntimeError):
    """The server cannot be used, or not now; the message names it and is safe to log."""

    failure_class = "infra"


class WrongServerError(ServerError):
    """The settings are wrong, not the server: asking again does not help."""

    failure_class = "config"


class _Again(Exception):  # noqa: N818  (a signal, not an error that anybody sees)
    """Try again; what was wrong."""


class VllmServer:
    """Asks one server. Raises WrongServerError if it does not serve the wanted model, or its key is not set.

    wanted: the policy's folder or hub id, which its weights must come from. verified: the server said that they do;
    False if it does not say where its weights are from.
    """

    verified = False

    def __init__(self, config: VllmConfig, wanted: str) -> None:
        if config.base_url is None:
            raise ValueError("vllm.base_url=null: there is no server to ask")
        self.config, self.url = config, config.base_url.rstrip("/")
        self._key = _key(config.api_key_env)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx.Limits(max_connections=config.concurrency, max_keepalive_connections=config.concurrency)
        self._client = httpx.Client(timeout=config.timeout, limits=limits, headers=headers, follow_redirects=False)
        self._pool = ThreadPoolExecutor(config.concurrency, thread_name_prefix="vllm")
        self.model = self._model(wanted)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def complete(self, requests: Sequence[Request], stop: int) -> list[Response]:
        """As vllm_player.Completer. Raises ServerError."""
        return list(self._pool.map(lambda request: self._complete(request, stop), requests))

    # ------------------------------------------------------------------------------------------------------ questions
    def _complete(self, request: Request, stop: int) -> Response:
        body = {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": [stop],
            "skip_special_tokens": False,
            "logprobs": 0,
            "return_tokens_as_token_ids": True,
        }
        answer = self._ask("POST", "/completions", body)
        try:
            return _response(answer["choices"][0], stop)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            said = str(answer)[:_QUOTED]
            raise ServerError(
                f"{self.url}/completions answered without the sampled token ids ({type(error).__name__}: {error}); "
                f"engine=vllm needs vLLM's own server, which writes them as '{_ID}N'. It said: {said}"
            ) from error

    def _model(self, wanted: str) -> str:
        """The name that the server has for the policy. Raises WrongServerError if it serves another."""
        answer = self._ask("GET", "/models", None)
        served = {str(entry.get("id")): str(entry.get("root") or "") for entry in answer.get("data", [])}
        listed = ", ".join(f"{key} ({root})" if root else key for key, root in sorted(served.items())) or "nothing"
        name = self.config.model or next((key for key, root in served.items() if _same(root, wanted)), wanted)
        if name not in served:
            raise WrongServerError(
                f"{self.url} serves {listed}, not {name!r}: start it with the weights that backbone.path names, or set "
                "vllm.model to the name that it has for them"
            )
        root = served[name]
        if root and not _same(root, wanted):
            raise WrongServerError(
                f"{self.url} serves {listed}: the weights of {name!r} are from {root}, not from {wanted} as "
                "backbone.path says; start the server with that folder or hub id, or set backbone.path to the server's"
            )
        self.verified = bool(root)
        return name

    def _ask(self, verb: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        problem = ""
        for attempt in range(self.config.attempts):
            if attempt:
                time.sleep(min(30.0, 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0))
            try:
                return self._once(verb, path, body)
            except _Again as error:
                problem = str(error)
        raise ServerError(f"{self.url}{path}: {problem}, {self.config.attempts} times; is the server running?")

    def _once(self, verb: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        try:
            with self._client.stream(verb, self.url + path, json=body) as reply:
                content = bytearray()
                for chunk in reply.iter_bytes():
                    content += chunk
                    if len(content) > MAX_RESPONSE_BYTES:
                        raise ServerError(f"{self.url}{path} answers more than {MAX_RESPONSE_BYTES} bytes")
                status = reply.status_code
        except httpx.HTTPError as error:
            raise _Again(self._safe(f"{type(error).__name__}: {error}")) from None
        said = self._safe(content[: 4 * _QUOTED].decode(errors="replace"))[:_QUOTED]
        if status == 429 or status >= 500:
            raise _Again(f"status {status}: {said}")
        if status != 200:
            raise ServerError(f"{self.url}{path}: status {status}: {said}")
        try:
            answer = json.loads(content)
        except ValueError as error:
            raise ServerError(f"{self.url}{path} answers no JSON: {said}") from error
        if not isinstance(answer, dict):
            raise ServerError(f"{self.url}{path} answers no JSON object: {said}")
        return answer

    def _safe(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _response(choice: dict[str, Any], stop: int) -> Response:
    """Ids and log-probs of one choice. Raises KeyError, TypeError or ValueError for another form."""
    found = choice["logprobs"]
    ids = [int(str(token).removeprefix(_ID)) for token in found["tokens"] if str(token).startswith(_ID)]
    logprobs = [float(value) for value in found["token_logprobs"]]
    if len(ids) != len(found["tokens"]) or len(ids) != len(logprobs):
        raise ValueError(f"{len(found['tokens'])} tokens, {len(ids)} ids, {len(logprobs)} log-probs")
    if choice.get("finish_reason") == "stop" and (not ids or ids[-1] != stop):  # some versions leave it out
        ids, logprobs = [*ids, stop], [*logprobs, 0.0]
    if not ids:
        raise ValueError("an empty response")
    return Response(ids, logprobs)


def _same(root: str, wanted: str) -> bool:
    """Whether two names are of one folder or hub id. The server may be on a machine with other disks, so that a folder
    need not be here."""
    return bool(root) and (root == wanted or Path(root).resolve() == Path(wanted).resolve())


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise WrongServerError(
            f"vllm.api_key_env={variable}: the environment has no such variable; export it, or set null"
        )
    return key
