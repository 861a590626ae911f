"""Retrievers of Search-QA: the client against servers that misbehave, our own server, official files, dense vectors."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from retriever_server import Server, free_port, good

from envs.interface import EnvConfig, EnvironmentFailure
from envs.pool import ANSWER_SECONDS, EnvPool, OrderedPool
from envs.search_qa import corpus, retrieval
from envs.search_qa.retrieval import HttpRetriever, RetrieverDown
from envs.search_qa.settings import knobs_of
from envs.search_qa.spec import SPEC

httpx = pytest.importorskip("httpx")


# ------------------------------------------------------------------------------------------------- a misbehaving server
@pytest.fixture
def serve() -> Iterator[Any]:
    started: list[Server] = []

    def start(*script: Any) -> Server:
        started.append(Server(list(script)))
        return started[-1]

    yield start
    for server in started:
        server.close()


def client(server: Server, **changes: Any) -> HttpRetriever:
    return HttpRetriever(server.url, **{"timeout": 0.2, "attempts": 3, "pause": 0.01, **changes})


def test_one_request_for_all_queries(serve: Any) -> None:
    server = serve(good)
    hits = client(server).search(["a", "b", "c"], 2)
    assert [len(h) for h in hits] == [2, 2, 2]
    assert (hits[0][0].passage.title, hits[0][0].passage.text, hits[0][0].score) == ("Paris", "Paris is a city.", 1.5)
    assert server.requests == [{"queries": ["a", "b", "c"], "topk": 2, "return_scores": True}]
    assert client(server).search([], 2) == []


def test_a_server_of_single_queries(serve: Any) -> None:
    server = serve(good)
    assert len(client(server, single=True).search(["a", "b"], 1)) == 2
    assert [r["query"] for r in server.requests] == ["a", "b"]


@pytest.mark.parametrize("trouble", [(500, {}), (429, {}), (200, b"{truncated"), (0, b"")])
def test_passing_trouble_is_ridden_out(serve: Any, trouble: tuple[int, Any]) -> None:
    server = serve(trouble, good)
    assert len(client(server).search(["a"], 1)) == 1
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "said", "requests"),
    [
        ((500, {}), "status 500", 3),
        ((404, {}), "status 404", 1),
        ((0, b""), "Timeout", 3),
        ((200, {"results": []}), "another protocol", 1),
        ((200, {"result": []}), "0 lists for 1 queries", 1),
        ((200, {"result": [["text"]]}), "another protocol", 1),
        ((200, b"[" * 100_000), "no JSON", 3),
    ],
)
def test_lasting_trouble_is_an_environment_failure(serve: Any, answer: Any, said: str, requests: int) -> None:
    server = serve(answer)
    with pytest.raises(RetrieverDown, match=said) as raised:
        client(server).search(["a"], 1)
    assert isinstance(raised.value, EnvironmentFailure)
    assert len(server.requests) == requests


def test_an_endless_answer_is_cut(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "MOST_BYTES", 1000)
    server = serve({"result": ["x" * 2000]})
    with pytest.raises(RetrieverDown, match="longer than 1000 bytes"):
        client(server).search(["a"], 1)


def test_an_outage_costs_the_attempts_of_one_search(serve: Any) -> None:
    """Not of one per episode: the worker would be taken for hung, and nobody told of the retriever."""
    server = serve((500, {}))
    knobs = {"retriever": server.url, "attempts": 2, "timeout": 5.0}
    config = EnvConfig(name="search_qa", max_steps=4, prompt="full", knobs=knobs)
    pool = OrderedPool(EnvPool(SPEC.make, config, 0))
    pool.reset(SPEC.load_panel(config, "test").tasks[:5])
    results = pool.step(range(5), [f"search[{k}]" for k in range(4)] + ["answer[x]"])
    assert len(server.requests) == 2
    for result in results[:4]:
        assert isinstance(result, EnvironmentFailure) and f"retriever at {server.url} does not answer" in str(result)
    assert not isinstance(results[4], EnvironmentFailure)


def test_what_takes_too_long_in_all_is_given_up(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(request: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.1)
        return good(request)

    monkeypatch.setattr(retrieval, "LONGEST", 0.25)
    server = serve(slowly)
    with pytest.raises(RetrieverDown, match=r"(not within|not complete after) 0\.25 s|Timeout"):
        client(server, single=True, timeout=10.0).search(["a", "b", "c", "d", "e"], 1)
    assert len(server.requests) < 5


@pytest.mark.parametrize(("timeout", "attempts"), [(600.0, 1), (60.0, 9), (0.1, 30), (1.0, 10**9)])
def test_more_patience_than_a_pool_has_is_refused(timeout: float, attempts: int) -> None:
    knobs = {"retriever": "http://127.0.0.1:1/retrieve", "timeout": timeout, "attempts": attempts}
    with pytest.raises(ValueError, match=rf"env\.knobs\.attempts={attempts} of env\.knobs\.timeout={timeout:g} s"):
        knobs_of(EnvConfig(name="search_qa", knobs=knobs))
    assert retrieval.longest(60.0, 4) == 243.5 < retrieval.LONGEST < ANSWER_SECONDS


def test_a_dead_retriever_never_scores_an_episode() -> None:
    knobs = {"retriever": f"http://127.0.0.1:{free_port()}/retrieve", "attempts": 1, "timeout": 0.2}
    config = EnvConfig(name="search_qa", engine="native", max_steps=4, knobs=knobs)
    pool = OrderedPool(EnvPool(SPEC.make, config, 0))
    pool.reset(SPEC.load_panel(config, "test").tasks[:2])
    searched, answered = pool.step([0, 1], ["search[name 1]", "answer[x]"])
    assert isinstance(searched, EnvironmentFailure) and "does not answer" in str(searched)
    assert not isinstance(answered, EnvironmentFailure) and answered.done


# ------------------------------------------------------------------------------------------------------- our own server
@pytest.mark.slow
def test_the_server_of_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    passages = tmp_path / "passages with space.jsonl"
    lines = [{"id": str(k), "contents": f'"Title {k}"\nword{k} common'} for k in range(30)]
    passages.write_text("\n".join(json.dumps(line) for line in lines))
    port = free_port()
    command = [sys.executable, "-m", "envs.search_qa", "serve", "--port", str(port), "--passages", str(passages)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=None)
    try:
        for _ in range(200):
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/health").json()["status"] == "ok"
                break
            except httpx.HTTPError:
                assert process.poll() is None
                time.sleep(0.1)
        hits = HttpRetriever(f"http://127.0.0.1:{port}/retrieve").search(["word7", "word8 common"], 3)
        assert hits[0][0].passage.title == "Title 7" and len(hits[1]) == 3 and hits[1][0].passage.id == "8"
        single = HttpRetriever(f"http://127.0.0.1:{port}/retrieve", single=True).search(["word9"], 1)
        assert single[0][0].passage.id == "9"
        assert len(HttpRetriever(f"http://127.0.0.1:{port}/retrieve").digest() or "") == 64
        bad = httpx.post(f"http://127.0.0.1:{port}/retrieve", json={"topk": 3})
        assert bad.status_code == 422 and "queries" in bad.text
    finally:
        process.terminate()
        process.wait(timeout=20)


def test_a_corpus_line_that_is_no_passage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": 1, "contents": "\\"A\\"\\ntext"}\n\n{"id": 2}\n')
    with pytest.raises(ValueError, match="line 3"):
        list(corpus.read_jsonl(path))


# --------------------------------------------------------------------------------------------------------------- dense
def test_dense_retrieval_with_a_small_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from envs.search_qa import dense
    from envs.search_qa.dense import DenseRetriever

    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", "river", "city", "poet", "king", "of", "a"]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "encoder"
    transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]").save_pretrained(folder)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **shape)).save_pretrained(folder)
    passages = [corpus.Passage(str(k), word, f"a {word}") for k, word in enumerate(("river", "city", "poet", "king"))]
    made = DenseRetriever(passages, folder, tmp_path / "cache")
    query = passages[2].contents
    assert made.search([query], 2)[0][0].passage.title == "poet"  # a text is nearest to itself
    again = DenseRetriever(passages, folder, tmp_path / "cache")
    assert [h.passage.id for h in again.search([query], 4)[0]] == [h.passage.id for h in made.search([query], 4)[0]]
    assert len(list((tmp_path / "cache").glob("vectors-*.npy"))) == 1
    assert again.search([], 3) == []
    prefixed = DenseRetriever(passages, folder, tmp_path / "cache", "of ", "of a ")
    assert len(list((tmp_path / "cache").glob("vectors-*.npy"))) == 2  # other vectors, and other queries
    assert prefixed.search([query], 1)[0][0].score != made.search([query], 1)[0][0].score
    monkeypatch.setattr(dense, "MOST_TOKENS", 1)
    DenseRetriever(passages, folder, tmp_path / "cache")
    kept = sorted((tmp_path / "cache").glob("vectors-*.npy"))
    assert len(kept) == 3
    for path in kept:
        path.write_bytes(b"")
    with pytest.raises(EnvironmentFailure, match="delete it to have it made again"):
        DenseRetriever(passages, folder, tmp_path / "cache")
    with pytest.raises(FileNotFoundError, match=r"env\.knobs\.encoder"):
        DenseRetriever(passages, tmp_path / "none", tmp_path)
