"""pyserini behind `rankers.Engine`: Anserini's default English analysis and BM25 with k1 = 0.9, b = 0.4.

Written from pyserini's documented interface (LuceneIndexer.add_doc_dict, LuceneSearcher.set_bm25 and .search); it needs
Java and has never been run here: tests play it through a stand-in with the same signatures.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from envs.search.bm25 import K1, B

_DIGITS = 9  # of a place in a document's name: Anserini orders equal scores by name


def build(package: tuple[Any, Any], documents: Iterable[tuple[int, str]], folder: Path) -> None:
    """Writes the index of (place, text) into an empty folder. package: (pyserini.search.lucene, .index.lucene)."""
    indexer = package[1].LuceneIndexer(str(folder))
    try:
        for place, text in documents:
            indexer.add_doc_dict({"id": f"{place:0{_DIGITS}}", "contents": text})
    finally:
        indexer.close()


def open_index(package: tuple[Any, Any], folder: Path) -> Searcher:
    searcher = package[0].LuceneSearcher(str(folder))
    searcher.set_bm25(K1, B)
    return Searcher(searcher)


class Searcher:
    """A `rankers.Engine`. A plain query is a bag of words to pyserini, after its analysis."""

    def __init__(self, searcher: Any) -> None:
        self._searcher = searcher

    def best(self, query: str, k: int) -> list[tuple[int, float]]:
        if not query.strip() or k < 1:
            return []
        return [(int(hit.docid), float(hit.score)) for hit in self._searcher.search(query, k)]
