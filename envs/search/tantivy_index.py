"""tantivy behind `rankers.Engine`: words as its `simple` tokenizer cuts them, Lucene's stop words, English stems."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from envs.search.bm25 import STOP_WORDS

_ANALYSIS = "english"
_MEMORY = 128_000_000  # bytes that the writer may fill before it writes a segment


def build(tantivy: Any, documents: Iterable[tuple[int, str]], folder: Path) -> None:
    """Writes the index of (place, text) into an empty folder. One thread, so that segments do not depend on timing."""
    index = _index(tantivy, folder)
    writer = index.writer(_MEMORY, 1)
    try:
        for place, text in documents:
            document = tantivy.Document()
            document.add_text("text", text)
            document.add_unsigned("place", place)
            writer.add_document(document)
        writer.commit()
    finally:
        writer.wait_merging_threads()  # afterwards nobody writes into the folder


def open_index(tantivy: Any, folder: Path) -> Searcher:
    return Searcher(tantivy, _index(tantivy, folder))


class Searcher:
    """A `rankers.Engine`. Queries are bags of words: signs of tantivy's own query language are none."""

    def __init__(self, tantivy: Any, index: Any) -> None:
        self._tantivy, self._schema, self._analyzer = tantivy, index.schema, _analyzer(tantivy)
        self._searcher = index.searcher()

    def best(self, query: str, k: int) -> list[tuple[int, float]]:
        parts = [
            (self._tantivy.Occur.Should, self._tantivy.Query.term_query(self._schema, "text", term))
            for term in self._analyzer.analyze(query)
        ]
        if not parts or k < 1:
            return []
        bag = self._tantivy.Query.boolean_query(parts)
        wanted = 2 * k
        while True:  # until all that equal the last one wanted are seen
            hits = self._searcher.search(bag, wanted, count=False).hits
            if len(hits) < wanted or hits[-1][0] < hits[k - 1][0]:
                break
            wanted *= 2
        found = [(self._searcher.doc(address)["place"][0], float(score)) for score, address in hits]
        return sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k]


def _index(tantivy: Any, folder: Path) -> Any:
    """Opens the folder's index, or begins one."""
    schema = (
        tantivy.SchemaBuilder()
        .add_text_field("text", stored=False, tokenizer_name=_ANALYSIS, index_option="freq")
        .add_unsigned_field("place", stored=True)
        .build()
    )
    index = tantivy.Index(schema, path=str(folder))
    index.register_tokenizer(_ANALYSIS, _analyzer(tantivy))
    index.config_reader(reload_policy="manual")  # the index never changes; no thread watches it
    index.reload()
    return index


def _analyzer(tantivy: Any) -> Any:
    filters = tantivy.Filter
    return (
        tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
        .filter(filters.remove_long(255))
        .filter(filters.lowercase())
        .filter(filters.custom_stopword(sorted(STOP_WORDS)))
        .filter(filters.stemmer("english"))
        .build()
    )
