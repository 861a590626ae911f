"""Nouns of product titles, tagged once with spaCy and stored beside the catalogue, so that playing needs no tagger.

WebShop's reward counts the words that spaCy tags NOUN or PROPN (it also looks for a tag PNOUN, which spaCy does not
have). The model decides the result: the original takes en_core_web_lg, its set-up script installs en_core_web_sm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.cache import write_atomically

# titles -> nouns of each, in lower case and in order
Tagger = Callable[[Iterable[str]], Iterator[list[str]]]
TAGS = ("NOUN", "PROPN")


def spacy_tagger(model: str) -> Tagger:
    """Raises ValueError if spaCy or the model is not installed."""
    try:
        import spacy

        pipeline = spacy.load(model, exclude=["parser", "ner", "lemmatizer"])
    except (ImportError, OSError) as error:
        raise ValueError(
            f"spaCy's model {model!r} cannot be loaded ({error}); install both, or set env.knobs.nouns=words"
        ) from error

    def tag(titles: Iterable[str]) -> Iterator[list[str]]:
        for document in pipeline.pipe(titles):
            yield [token.text.lower() for token in document if token.pos_ in TAGS]

    return tag


def write_nouns(entries: Iterable[Mapping[str, Any]], tag: Tagger, target: Path) -> int:
    """Tags the title of every product of a product file into `target`; returns how many."""
    titles = {entry["asin"]: entry["name"] for entry in entries}
    found = dict(zip(titles, tag(titles.values()), strict=True))
    write_atomically(target, (json.dumps(found, ensure_ascii=False) + "\n").encode())
    return len(found)
