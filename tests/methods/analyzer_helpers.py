"""A chat endpoint on this machine that misbehaves as a test tells it to, and trajectories to ask it about."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from methods.interface import Trajectory, Turn
from methods.skills.analyzer import AnalyzerContext
from methods.skills.analyzers.remote import RemoteAnalyzer
from methods.skills.analyzers.settings import AnalyzerConfig

GOOD = {"episode_summary": "It went well.", "episode_skill": "look before you go", "step_skills": {"1": "go east"}}
WAIT = 20.0  # seconds; far more than anything here takes


def played(count: int = 1, steps: int = 3, first: int = 0) -> list[Trajectory]:
    """Trajectories of different content: task k, whose second action the environment refused. No torch is imported."""
    return [
        Trajectory(
            index=k - first,
            group=k,
            sample=0,
            task_id=f"task {k}",
            task_type="put",
            task_text=f"text of task {k}",
            turns=[
                Turn(_NoPrompt(), f"observation {t}", [], [], [], f"action {t}", valid=t != 1) for t in range(steps)
            ],
            success=True,
        )
        for k in range(first, first + count)
    ]


@dataclass(frozen=True)
class _NoPrompt:
    """Analyzers look at observations and actions, not at prompts."""

    before: str = ""
    task: str = ""
    after: str = ""
    turn: str = ""


@dataclass
class Reply:
    """One response. length: Content-Length, if it is to lie; stream: parts, sent one by one without a length."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    length: int | None = None
    stream: Iterator[bytes] | None = None
    hang: bool = False
    delay: float = 0.0


def completion(content: Any = GOOD, usage: Any = (10, 20), finish: str = "stop", **reply: Any) -> Reply:
    """A well-formed response; content other than text is written as JSON."""
    text = content if isinstance(content, str) else json.dumps(content)
    message = {"role": "assistant", "content": text}
    body: dict[str, Any] = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    if isinstance(usage, tuple):
        usage = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    if usage is not None:
        body["usage"] = usage
    return Reply(json.dumps(body).encode(), **reply)


Script = Callable[[int, dict[str, Any]], Reply]  # (number of the request from 0, its payload) -> what to answer


class FakeEndpoint:
    """requests, headers: of every request so far. active: requests that wait for a reply now; most: the highest."""

    def __init__(self, script: Script) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.paths: list[str] = []
        self.active = self.most = 0
        self.changed = threading.Condition()
        self.release = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with endpoint.changed:
                    number = len(endpoint.requests)
                    endpoint.requests.append(payload)
                    endpoint.headers.append(dict(self.headers))
                    endpoint.paths.append(self.path)
                    endpoint.active += 1
                    endpoint.most = max(endpoint.most, endpoint.active)
                    endpoint.changed.notify_all()
                try:
                    reply = script(number, payload)
                    endpoint.release.wait(WAIT if reply.hang else reply.delay)
                finally:
                    with endpoint.changed:
                        endpoint.active -= 1
                with contextlib.suppress(OSError):  # the client hung up
                    self._send(reply)

            def _send(self, reply: Reply) -> None:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if reply.stream is None:
                    self.send_header("Content-Length", str(len(reply.body) if reply.length is None else reply.length))
                self.end_headers()
                for part in reply.stream if reply.stream is not None else [reply.body]:
                    self.wfile.write(part)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def wait_for(self, requests: int) -> None:
        """Until so many requests are waiting for their replies."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.active >= requests, WAIT), (
                f"only {self.active} of {requests} came"
            )

    def stop(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT)


def in_turn(*replies: Reply) -> Script:
    """These replies in the order of the requests, the last one for ever."""
    return lambda number, _: replies[min(number, len(replies) - 1)]


def settings(url: str = "http://127.0.0.1:9/v1", **changes: Any) -> AnalyzerConfig:
    """Short waits and time limits."""
    values: dict[str, Any] = {
        "name": "openai",
        "model": "tiny-judge",
        "base_url": url,
        "api_key_env": None,
        "retries": 2,
        "retry_delay": 0.01,
        "retry_delay_max": 0.02,
        "connect_timeout": 5.0,
        "read_timeout": 10.0,
        "concurrency": 4,
        "cache": None,
    }
    return AnalyzerConfig(**(values | changes))


def remote(
    endpoint: FakeEndpoint | str,
    most: int = 5,
    max_failure_rate: float | None = None,
    cache: Path | None = None,
    record: Path | None = None,
    **changes: Any,
) -> RemoteAnalyzer:
    url = endpoint if isinstance(endpoint, str) else endpoint.url
    config = settings(url, **changes)
    context = AnalyzerContext(most, config=config, max_failure_rate=max_failure_rate, cache=cache, record=record)
    return RemoteAnalyzer(context)
