"""Settings of Search-QA alone (`env.knobs`), and the retriever that they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from core.knobs import read_knobs
from envs.cache import cache_root, made_once
from envs.interface import EnvConfig, EnvironmentFailure
from envs.search import names as rankers
from envs.search_qa import corpus
from envs.search_qa.corpus import Passage
from envs.search_qa.retrieval import LONGEST, HttpRetriever, LexicalRetriever, Retriever, longest

INFORMATION = ("plain", "json")


@dataclass(frozen=True)
class Knobs:
    """retriever: `lexical` (BM25 in this process), `dense` (sentence vectors in this process), or the URL of a
        `/retrieve` server
    ranker: who ranks for `lexical`: own, or an installed engine (envs.search.rankers)
    encoder: dense: folder of a sentence encoder that transformers can load
    query_prefix, passage_prefix: dense: what the encoder wants in front of texts; None: nothing. Encoders of the E5
        family want "query: " and "passage: "
    topk: passages per search
    single_query: the server takes one query per request (`query`), not a list (`queries`)
    timeout: seconds for one request; attempts: requests before the episode counts as broken. Together with the pauses
        between them they must stay below retrieval.LONGEST
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
    query_prefix: str | None = None
    passage_prefix: str | None = None
    ranker: str = "own"


def knobs_of(config: EnvConfig) -> Knobs:
    """Checked settings. Raises ValueError naming the key."""
    knobs = read_knobs(Knobs, config.knobs, "env.knobs")
    if (knobs.retriever == "dense") != (knobs.encoder is not None):
        raise ValueError(
            f"env.knobs.encoder={knobs.encoder} does not fit env.knobs.retriever={knobs.retriever}: a dense retriever, "
            "and no other, needs the folder of a sentence encoder"
        )
    for name, prefix in (("query_prefix", knobs.query_prefix), ("passage_prefix", knobs.passage_prefix)):
        if prefix is not None and knobs.retriever != "dense":
            raise ValueError(
                f"env.knobs.{name}={prefix!r} does not fit env.knobs.retriever={knobs.retriever}: only a dense "
                "retriever encodes texts"
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
    if (seconds := longest(knobs.timeout, knobs.attempts)) > LONGEST:
        raise ValueError(
            f"env.knobs.attempts={knobs.attempts} of env.knobs.timeout={knobs.timeout:g} s may take {seconds:.0f} s "
            f"with the pauses between them, and a step may wait {LONGEST:g} s for passages; lower one of them"
        )
    if knobs.information not in INFORMATION:
        raise ValueError(f"env.knobs.information={knobs.information!r} must be one of {', '.join(INFORMATION)}")
    return knobs


def retriever_of(config: EnvConfig) -> Retriever:
    """The retriever of a configuration; one per process and setting."""
    knobs, cache = knobs_of(config), str(cache_root(config) / "search_qa")
    if knobs.retriever == "lexical":
        return _lexical(knobs.passages, cache, knobs.ranker)
    if knobs.retriever == "dense":
        prefixes = (knobs.query_prefix or "", knobs.passage_prefix or "")
        return _dense(knobs.passages, str(knobs.encoder), prefixes, cache)
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
    # bm25.build writes the terms last
    made_once(
        folder, "terms.txt", lambda new: bm25.build((p.contents for p in passages), [p.id for p in passages], new)
    )
    try:
        return LexicalRetriever(passages, bm25.Index(folder))
    except (OSError, ValueError, EOFError, KeyError) as error:  # EOFError: an array file without a byte
        raise EnvironmentFailure(
            f"the index in {folder} cannot be opened ({error}); delete the folder to have it made again"
        ) from error


@lru_cache(maxsize=1)
def _dense(file: str | None, encoder: str, prefixes: tuple[str, str], cache: str) -> Retriever:
    from envs.search_qa.dense import DenseRetriever

    return DenseRetriever(passages_of(file), Path(encoder).expanduser(), Path(cache), *prefixes)


@lru_cache(maxsize=4)
def _http(url: str, timeout: float, attempts: int, single: bool) -> HttpRetriever:
    return HttpRetriever(url, timeout, attempts, single)
