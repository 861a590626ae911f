"""Texts as vectors, for choosing skills by how near they are to a task.

`HashedNgrams` is the default. It needs nothing but numpy, is the same on every machine, and knows spelling only: TF-IDF
weights of words and of pieces of words, hashed into a fixed number of dimensions. Texts are near when they share rare
words or stems of them; it is no language model, so synonyms ("mug", "cup") are as far apart as any two words.
`SentenceEncoder` runs a sentence encoder from a local folder; nothing is ever downloaded.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Words that say nothing about what a text is about.
_COMMON = """
a an and are as at be by do for from has have how if in into is it its not of on or than that the their them then there
this to under was what when where which who will with you your
"""
_LEFT_OUT = frozenset(_COMMON.split())
_PIECES = (3, 4, 5)  # letters


class Embedder(Protocol):
    """Texts -> vectors. Deterministic, and a text's vector does not depend on the texts beside it."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """[texts, dimensions]; rows have length 1, or 0 where a text holds nothing to go by."""
        ...


class HashedNgrams:
    """TF-IDF of words and of their pieces of 3 to 5 letters, hashed. A word is as long a vector as its pieces together.

    corpus: texts that the document frequencies are counted over; dimensions: of a vector. Two features may share a
    dimension; signs from the hash let their sum vanish on average (feature hashing, arXiv:0902.2206).
    """

    def __init__(self, corpus: Sequence[str], dimensions: int = 4096) -> None:
        if not corpus:
            raise ValueError("HashedNgrams needs texts to count document frequencies over, it got none")
        if dimensions < 1:
            raise ValueError(f"dimensions={dimensions} must be at least 1")
        self._dimensions, self._documents = dimensions, len(corpus)
        self._frequency: Counter[str] = Counter()
        for text in corpus:
            self._frequency.update(set(_features(text)))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        import numpy as np

        out = np.zeros((len(texts), self._dimensions))
        for row, text in enumerate(texts):
            for feature, weight in _features(text).items():
                code = zlib.crc32(feature.encode())
                sign = 1.0 if code & 1 else -1.0
                out[row, (code >> 1) % self._dimensions] += sign * weight * self._idf(feature)
        norms = np.linalg.norm(out, axis=1, keepdims=True)
        unit: NDArray[np.float64] = out / np.where(norms > 0, norms, 1.0)
        return unit

    def _idf(self, feature: str) -> float:
        return math.log((1 + self._documents) / (1 + self._frequency[feature])) + 1


def _features(text: str) -> dict[str, float]:
    """Word or piece -> weight."""
    found: Counter[str] = Counter()
    weights: dict[str, float] = {}
    for word in re.findall(r"[^\W_]+", text.lower()):
        if word in _LEFT_OUT:
            continue
        found[f"w:{word}"] += 1
        padded = f"^{word}$"
        pieces = [padded[i : i + n] for n in _PIECES for i in range(len(padded) - n + 1)]
        for piece in pieces:
            weights[f"p:{piece}"] = weights.get(f"p:{piece}", 0.0) + 1 / math.sqrt(len(pieces))
    return {**{feature: 1 + math.log(count) for feature, count in found.items()}, **weights}


class SentenceEncoder:
    """A sentence encoder from a local transformers folder: mean of the last hidden states over the text's tokens.

    folder: with config.json, weights and tokenizer. max_tokens: longer texts are cut. prefix: put before every text,
    for models trained with one (E5: "query: "). Raises ValueError for a folder without a model; needs the extra `hf`.
    """

    def __init__(self, folder: str | Path, max_tokens: int = 256, prefix: str = "") -> None:
        self._folder = Path(folder).expanduser()
        if not (self._folder / "config.json").is_file():
            raise ValueError(
                f"method.skill.encoder={str(folder)!r} is no folder with a transformers model (no config.json in it); "
                "nothing is downloaded: give the folder of a local copy, or null for the built-in hashed n-grams"
            )
        self._max_tokens, self._prefix = max_tokens, prefix
        self._loaded: tuple[Any, Any] | None = None

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        import numpy as np
        import torch

        tokenizer, model = self._load()
        rows = []
        # One text at a time: padding, and with it the batch, would change a vector by rounding.
        for text in texts:
            inputs = tokenizer(self._prefix + text, truncation=True, max_length=self._max_tokens, return_tensors="pt")
            with torch.inference_mode():
                states = model(**inputs).last_hidden_state[0]
            mean = states.double().mean(0)
            rows.append((mean / mean.norm().clamp_min(1e-12)).numpy())
        return np.stack(rows) if rows else np.zeros((0, 1))

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from transformers import AutoModel, AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
            model = AutoModel.from_pretrained(self._folder, local_files_only=True)
            self._loaded = (tokenizer, model.eval())
        return self._loaded


class Ranking:
    """Texts in the order of their nearness to a query. They are embedded once."""

    def __init__(self, embedder: Embedder, texts: Sequence[str]) -> None:
        self._embedder, self._vectors = embedder, embedder.embed(texts)

    def nearest(self, query: str, most: int) -> list[int]:
        """Indices of the `most` texts with the highest cosine to `query`, highest first; ties in the order of texts."""
        import numpy as np

        scores = np.round(self._vectors @ self._embedder.embed([query])[0], 12)  # equal texts tie in any order of sums
        return [int(i) for i in np.argsort(-scores, kind="stable")[:most]]
