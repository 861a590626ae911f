"""Settings of Search-QA alone (`env.knobs`), and the retriever that they ask for."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from core.knobs import read_knobs
from envs.cache import cache_root, file_lock
from envs.interface import EnvConfig
from envs.search import names as rankers
from envs.search_qa import corpus
from envs.search_qa.corpus import Passage
from envs.search_qa.retrieval import HttpRetriever, LexicalRetriever, Retriever

INFORMATION = ("plain", "json")


@dataclass(frozen=True)
class Knobs:
    """retriever: `lexical` (BM25 in this process), `dense` (sentence vectors in this process), or the URL of a
        `/retrieve` server
    ranker: who ranks for `lexical`: own, or an installed engine (envs.search.rankers)
    encoder: dense: folder of a sentence encoder that transformers can load
    topk: passages per search
    single_query: the server takes one query per request (`query`), not a list (`queries`)
    timeout: seconds for one request; attempts: requests before the episode counts as broken
    passages: JSON-lines file of the corpus of a retriever in this process; None: the embedded one
    information: how passages are shown: plain (`Doc 1(Title: t) text`, as Search-R1) or json (as OPID's release)
    """

    retriever: str = "lexical"
    topk: int = 3
    single_query: bool = False
    timeout: float = 60.0
    attempts: int = 4
    passages: str | None = None
    information: str = "plain"
    encoder: str | None = None
    ranker: str = "own"


def knobs_of(config: EnvConfig) -> Knobs:
    """Checked settings. Raises ValueError naming the key."""
    knobs = read_knobs(Knobs, config.knobs, "env.knobs")
    if (knobs.retriever == "dense") != (knobs.encoder is not None):
        raise ValueError(
            f"env.knobs.encoder={knobs.encoder} does not fit env.knobs.retriever={knobs.retriever}: a dense retriever, "
            "and no other, needs the folder of a sentence encoder"
        )
    if knobs.retriever not in ("lexical", "dense") and not knobs.retriever.startswith(("http://", "https://")):
        raise ValueError(
            f"env.knobs.retriever={knobs.retriever!r} must be lexical, dense or the URL of a /retrieve server"
        )
    rankers.check("env.knobs.ranker", knobs.ranker)
    if knobs.ranker != rankers.OWN and knobs.retriever != "lexical":
        raise ValueError(
            f"env.knobs.ranker={knobs.ranker} does not fit env.knobs.retriever={knobs.retriever}: only a lexical "
            "retriever ranks with it"
        )
    for name, value in (("topk", knobs.topk), ("attempts", knobs.attempts)):
        if value < 1:
            raise ValueError(f"env.knobs.{name}={value} must be at least 1")
    if knobs.timeout <= 0:
        raise ValueError(f"env.knobs.timeout={knobs.timeout} must be a positive number of seconds")
    if knobs.information not in INFORMATION:
        raise ValueError(f"env.knobs.information={knobs.information!r} must be one of {', '.join(INFORMATION)}")
    return knobs


def retriever_of(config: EnvConfig) -> Retriever:
    """The retriever of a configuration; one per process and setting."""
    knobs, cache = knobs_of(config), str(cache_root(config) / "search_qa")
    if knobs.retriever == "lexical":
        return _lexical(knobs.passages, cache, knobs.ranker)
    if knobs.retriever == "dense":
        return _dense(knobs.passages, str(knobs.encoder), cache)
    return _http(knobs.retriever, knobs.timeout, knobs.attempts, knobs.single_query)


def passages_of(file: str | None) -> tuple[Passage, ...]:
    return corpus.embedded() if file is None else tuple(corpus.read_jsonl(Path(file).expanduser()))


@lru_cache(maxsize=4)
def _lexical(file: str | None, cache: str, ranker: str) -> LexicalRetriever:
    from envs.search import INDEX_VERSION, bm25

    passages = passages_of(file)
    folder = Path(cache) / f"index-{INDEX_VERSION}-{corpus.digest_of(passages)[:16]}"
    if ranker != rankers.OWN:
        folder.parent.mkdir(parents=True, exist_ok=True)
        from envs.search.rankers import open_ranker

        texts, names = (p.contents for p in passages), [p.id for p in passages]
        return LexicalRetriever(passages, open_ranker(ranker, folder, lambda: texts, lambda: names))
    if not folder.exists():
        with file_lock(folder.parent / f"{folder.name}.lock"):
            if not folder.exists():
                made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
                bm25.build((p.contents for p in passages), [p.id for p in passages], made)
                made.rename(folder)
    return LexicalRetriever(passages, bm25.Index(folder))


@lru_cache(maxsize=1)
def _dense(file: str | None, encoder: str, cache: str) -> Retriever:
    from envs.search_qa.dense import DenseRetriever

    return DenseRetriever(passages_of(file), Path(encoder).expanduser(), Path(cache))


@lru_cache(maxsize=4)
def _http(url: str, timeout: float, attempts: int, single: bool) -> HttpRetriever:
    return HttpRetriever(url, timeout, attempts, single)
