"""Search engines behind one interface: lexical in this process, or any server that speaks `/retrieve`.

    search(queries, k) -> one list of at most k hits per query, best first

One call takes all queries of a step. A retriever that cannot answer raises RetrieverDown: an outage is an
infrastructure failure and never an empty result. The protocol over HTTP is that of Search-R1's retrieval server:

    POST /retrieve {"queries": [...], "topk": k, "return_scores": true}
    -> {"result": [[{"document": {"id": ..., "contents": "\"Title\"\ntext"}, "score": s}, ...], ...]}
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urljoin

from envs.interface import EnvironmentFailure
from envs.pool import ANSWER_SECONDS
from envs.search_qa.corpus import Passage

if TYPE_CHECKING:
    import httpx

    from envs.search.rankers import Ranker

MOST_BYTES = 64 * 2**20  # of one answer
PAUSE = 0.5  # seconds before the second attempt; doubled before each further one
# Seconds that one search may take with all its attempts: a pool that waits longer takes its worker for hung, and its
# message does not know of the retriever. A request is given `timeout` for each of its parts, hence the room.
LONGEST = 0.8 * ANSWER_SECONDS


def longest(timeout: float, attempts: int, pause: float = PAUSE) -> float:
    """Seconds until a server that never answers is given up."""
    return attempts * timeout + pause * (2.0 ** min(attempts - 1, 64) - 1)


class RetrieverDown(EnvironmentFailure):
    """The search engine does not answer, or not in its protocol."""


@dataclass(frozen=True, slots=True)
class Hit:
    """score: as the engine gives it; larger is better."""

    passage: Passage
    score: float


class Retriever(Protocol):
    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """One list per query. Raises RetrieverDown."""
        ...


class LexicalRetriever:
    """Full-text search over passages in memory; the own index is a memory map that processes share."""

    def __init__(self, passages: Sequence[Passage], index: Ranker) -> None:
        self._passages, self._index = passages, index

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [self._one(query, k) for query in queries]

    def _one(self, query: str, k: int) -> list[Hit]:
        numbers, scores = self._index.ranked(query, k)
        return [Hit(self._passages[int(i)], float(score)) for i, score in zip(numbers, scores, strict=True)]


class HttpRetriever:
    """Client of a `/retrieve` server.

    url: where requests go, e.g. http://127.0.0.1:8000/retrieve;  timeout: seconds for one request
    attempts: requests in all, with pauses of 0.5, 1, 2, ... seconds between them
    single: the server takes one query at a time, under the key `query` (servers descended from OPID's code)

    A search that takes LONGEST seconds, whatever it is that takes them, is given up.
    """

    def __init__(
        self, url: str, timeout: float = 60.0, attempts: int = 4, single: bool = False, pause: float = PAUSE
    ) -> None:
        self.url, self.timeout, self.attempts, self.single, self.pause = url, timeout, attempts, single, pause
        self._client: httpx.Client | None = None

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if not queries:
            return []
        until = time.monotonic() + LONGEST
        if self.single:
            return [hits for query in queries for hits in self._ask({"query": query}, k, 1, until)]
        return self._ask({"queries": list(queries)}, k, len(queries), until)

    def digest(self) -> str | None:
        """What the server's /health says that it searches in, as a digest; None from servers that do not tell.

        Raises RetrieverDown.
        """
        answer = self._answer("GET", urljoin(self.url, "health"), None, time.monotonic() + LONGEST, lenient=True)
        told = answer.get("sha256") if isinstance(answer, dict) else None
        return told if isinstance(told, str) else None

    def _ask(self, what: dict[str, Any], k: int, wanted: int, until: float) -> list[list[Hit]]:
        answer = self._answer("POST", self.url, {**what, "topk": k, "return_scores": True}, until)
        return _hits(answer, wanted, k, self.url)

    def _answer(self, method: str, url: str, body: dict[str, Any] | None, until: float, lenient: bool = False) -> Any:
        """The server's answer, asked for until time.monotonic() is `until`. lenient: a server that knows no such
        address, or answers there with something else than JSON, gives None."""
        last = ""
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(min(self.pause * 2 ** (attempt - 1), max(until - time.monotonic(), 0.0)))
            if time.monotonic() >= until:
                last = f"not within {LONGEST:g} s" + (f", and before that {last}" if last else "")
                break
            answer, last, final = self._request(method, url, body, until, lenient)
            if not last:
                return answer
            if final:
                break
        raise RetrieverDown(f"the retriever at {url} does not answer: {last}; is it running? See env.knobs.retriever")

    def _request(
        self, method: str, url: str, body: dict[str, Any] | None, until: float, lenient: bool
    ) -> tuple[Any, str, bool]:
        """(answer, why there is none or "", whether asking again is pointless)."""
        import httpx

        if self._client is None:
            self._client = httpx.Client()
        seconds = max(min(self.timeout, until - time.monotonic()), 0.001)
        try:
            with self._client.stream(method, url, json=body, timeout=seconds) as response:
                if response.status_code != 200:
                    final = 400 <= response.status_code < 500 and response.status_code != 429
                    return None, "" if final and lenient else f"status {response.status_code}", final
                content = bytearray()
                for part in response.iter_bytes():
                    content += part
                    if time.monotonic() >= until:
                        return None, f"its answer is not complete after {LONGEST:g} s", True
                    if len(content) > MOST_BYTES:
                        return None, f"its answer is longer than {MOST_BYTES} bytes", True
            return json.loads(bytes(content)), "", False
        except httpx.HTTPError as error:
            return None, f"{type(error).__name__}: {error}", False
        except (ValueError, RecursionError) as error:
            return None, "" if lenient else f"its answer is no JSON ({type(error).__name__})", lenient


def _hits(answer: Any, wanted: int, k: int, url: str) -> list[list[Hit]]:
    """Read the protocol's answer. RetrieverDown saying what is wrong with it."""
    try:
        results = answer["result"]
        if len(results) != wanted:
            raise ValueError(f"{len(results)} lists for {wanted} queries")
        return [[_hit(entry) for entry in entries[:k]] for entries in results]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RetrieverDown(
            f"the retriever at {url} answers in another protocol: {type(error).__name__}: {error}"
        ) from error


def _hit(entry: Any) -> Hit:
    document = entry.get("document", entry)
    head, _, text = str(document["contents"]).partition("\n")
    return Hit(Passage(str(document.get("id", "")), head.strip().strip('"'), text), float(entry.get("score", 0.0)))
