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

from envs.interface import EnvironmentFailure
from envs.search_qa.corpus import Passage

if TYPE_CHECKING:
    import httpx

    from envs.search.rankers import Ranker

MOST_BYTES = 64 * 2**20  # of one answer


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
    """

    def __init__(
        self, url: str, timeout: float = 60.0, attempts: int = 4, single: bool = False, pause: float = 0.5
    ) -> None:
        self.url, self.timeout, self.attempts, self.single, self.pause = url, timeout, attempts, single, pause
        self._client: httpx.Client | None = None

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if not queries:
            return []
        if self.single:
            return [hits for query in queries for hits in self._ask({"query": query}, k, 1)]
        return self._ask({"queries": list(queries)}, k, len(queries))

    def _ask(self, what: dict[str, Any], k: int, wanted: int) -> list[list[Hit]]:
        body = {**what, "topk": k, "return_scores": True}
        last = ""
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(self.pause * 2 ** (attempt - 1))
            answer, last, final = self._post(body)
            if answer is not None:
                return _hits(answer, wanted, k, self.url)
            if final:
                break
        raise RetrieverDown(
            f"the retriever at {self.url} does not answer: {last}; is it running? See env.knobs.retriever"
        )

    def _post(self, body: dict[str, Any]) -> tuple[Any, str, bool]:
        """(answer or None, why there is none, whether asking again is pointless)."""
        import httpx

        if self._client is None:
            self._client = httpx.Client(timeout=self.timeout)
        try:
            with self._client.stream("POST", self.url, json=body) as response:
                if response.status_code != 200:
                    return (
                        None,
                        f"status {response.status_code}",
                        400 <= response.status_code < 500 and response.status_code != 429,
                    )
                content = bytearray()
                for part in response.iter_bytes():
                    content += part
                    if len(content) > MOST_BYTES:
                        return None, f"its answer is longer than {MOST_BYTES} bytes", True
            return json.loads(bytes(content)), "", False
        except httpx.HTTPError as error:
            return None, f"{type(error).__name__}: {error}", False
        except (ValueError, RecursionError) as error:
            return None, f"its answer is no JSON ({type(error).__name__})", False


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
