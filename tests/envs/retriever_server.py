"""A retriever's server for tests: it answers with what it was told to."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """Answers with what `script` says, one entry per request; the last entry repeats."""

    def __init__(self, script: list[Any]) -> None:
        self.script, self.requests = script, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer({"get": self.path})

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, request: dict[str, Any]) -> None:
                outer.requests.append(request)
                step = outer.script[min(len(outer.requests), len(outer.script)) - 1]
                answer = step(request) if callable(step) else step
                status, content = answer if isinstance(answer, tuple) else (200, answer)
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                if status == 0:  # hang
                    time.sleep(0.5)
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/retrieve"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


def good(request: dict[str, Any]) -> dict[str, Any]:
    queries = request.get("queries") or [request["query"]]
    entry = {"document": {"id": "7", "contents": '"Paris"\nParis is a city.'}, "score": 1.5}
    return {"result": [[entry] * request["topk"] for _ in queries]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
