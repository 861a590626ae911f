"""A server on loopback that speaks as vLLM's does, with a tiny model behind it; and objects that stand for vllm.LLM."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import torch

Sampled = tuple[list[int], list[float]]
Sample = Callable[[list[int], int, float, int], Sampled]


def sampler(model: Any, stop: int) -> Sample:
    """(prompt ids, seed, temperature, most tokens) -> ids and log-probs, one token after the other."""

    @torch.inference_mode()
    def sample(prompt: list[int], seed: int, temperature: float, most: int) -> Sampled:
        generator = torch.Generator().manual_seed(seed)
        ids, logprobs = list(prompt), []
        while len(ids) - len(prompt) < most:
            spread = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, -1].float(), -1)
            if temperature:
                token = int(torch.multinomial((spread / temperature).softmax(-1), 1, generator=generator))
            else:
                token = int(spread.argmax())
            ids.append(token)
            logprobs.append(float(spread[token]))
            if token == stop:
                break
        return ids[len(prompt) :], logprobs

    return sample


@dataclass
class Behaviour:
    """served: id -> root of each model; statuses: answered first, one per request; edit: changes an answer; asked: what
    came, (path, body, headers); chat: text of every chat answer."""

    served: dict[str, str] = field(default_factory=lambda: {"policy": "/weights"})
    statuses: list[int] = field(default_factory=list)
    edit: Callable[[dict[str, Any]], Any] = lambda answer: answer
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    chat: str = ""
    under_way: int = 0
    most_under_way: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def serving(sample: Sample | None, behaviour: Behaviour) -> Iterator[str]:
    """Address of a running server, ending in /v1."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            data = [{"id": name, "root": root} for name, root in behaviour.served.items()]
            self._answer({"data": data}, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with behaviour.lock:
                behaviour.under_way += 1
                behaviour.most_under_way = max(behaviour.most_under_way, behaviour.under_way)
            try:
                self._answer(self._chat(body) if self.path.endswith("/chat/completions") else self._text(body), body)
            finally:
                with behaviour.lock:
                    behaviour.under_way -= 1

        def _text(self, body: dict[str, Any]) -> dict[str, Any]:
            assert sample is not None
            ids, logprobs = sample(body["prompt"], body["seed"], body["temperature"], body["max_tokens"])
            ended = ids[-1] in body["stop_token_ids"]
            tokens = {"tokens": [f"token_id:{token}" for token in ids], "token_logprobs": logprobs}
            return {"choices": [{"text": "", "logprobs": tokens, "finish_reason": "stop" if ended else "length"}]}

        def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
            message = {"role": "assistant", "content": behaviour.chat}
            usage = {"prompt_tokens": 7, "completion_tokens": 5}
            return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}

        def _answer(self, answer: dict[str, Any], body: dict[str, Any]) -> None:
            with behaviour.lock:
                behaviour.asked.append((self.path, body, dict(self.headers)))
                status = behaviour.statuses.pop(0) if behaviour.statuses else 200
            content = json.dumps(behaviour.edit(answer)).encode() if status == 200 else b'{"error": "played"}'
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class FakeLLM:
    """Answers `generate` as vllm.LLM does."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def generate(self, prompts: list[dict[str, list[int]]], parameters: list[Any], use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        answers = []
        for prompt, given in zip(prompts, parameters, strict=True):
            ids, logprobs = self.sample(prompt["prompt_token_ids"], given.seed, given.temperature, given.max_tokens)
            entries = [{i: SimpleNamespace(logprob=p)} for i, p in zip(ids, logprobs, strict=True)]
            answers.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, logprobs=entries)]))
        return answers
