"""Dense retrieval in this process: vectors of a local sentence encoder, exact inner products.

For corpora that fit in memory (10,033 passages of 384 numbers: 8 MB in half precision); a corpus such as wiki-18 wants
a server. The encoder is a folder that transformers can load; a text's vector is the mean of its token states, scaled to
length 1 (MiniLM, E5 and their kind). E5 models expect `query: ` and `passage: ` in front of texts: see `prefixes`.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.cache import file_lock, write_atomically
from envs.search_qa.corpus import Passage, digest_of
from envs.search_qa.retrieval import Hit

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 32
MOST_TOKENS = 256
Vectors = NDArray[np.float32]


def prefixes(encoder: Path) -> tuple[str, str]:
    """(of queries, of passages): E5's if the folder's name says that it is one, else none."""
    return ("query: ", "passage: ") if "e5" in encoder.name.lower() else ("", "")


class DenseRetriever:
    """Encodes the passages once; the vectors are kept in `cache` under the digests of passages and encoder."""

    def __init__(self, passages: Sequence[Passage], encoder: Path, cache: Path) -> None:
        if not encoder.is_dir():
            raise ValueError(f"env.knobs.encoder={encoder} is not a folder")
        self._passages = passages
        self._query_prefix, passage_prefix = prefixes(encoder)
        self._encode = _encoder(encoder)
        kept = cache / f"vectors-{_key(tuple(passages), encoder)}.npy"
        with file_lock(cache / f"{kept.stem}.lock"):
            if not kept.exists():
                vectors = self._encode([passage_prefix + p.contents for p in passages]).astype(np.float16)
                buffer = io.BytesIO()
                np.save(buffer, vectors, allow_pickle=False)
                write_atomically(kept, buffer.getvalue())
        self._vectors: Vectors = np.load(kept, allow_pickle=False).astype(np.float32)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Best first; ties in the order of the passages."""
        if not queries:
            return []
        scores = self._encode([self._query_prefix + q for q in queries]) @ self._vectors.T
        found = []
        for row in scores:
            order = np.argsort(-row, kind="stable")[:k]
            found.append([Hit(self._passages[i], float(row[i])) for i in order])
        return found


def _encoder(folder: Path) -> Any:
    """texts -> [texts, width] vectors of length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    def batches(texts: Sequence[str]) -> Iterator[Tensor]:
        for start in range(0, len(texts), BATCH):
            given = tokenizer(
                list(texts[start : start + BATCH]),
                padding=True,
                truncation=True,
                max_length=MOST_TOKENS,
                return_tensors="pt",
            )
            states = model(**given).last_hidden_state
            mask = given["attention_mask"][..., None].to(states.dtype)
            mean = (states * mask).sum(1) / mask.sum(1)
            yield torch.nn.functional.normalize(mean, dim=-1)

    def encode(texts: Sequence[str]) -> Vectors:
        with torch.no_grad():
            found: Vectors = torch.cat(list(batches(texts))).numpy()
            return found

    return encode


def _key(passages: tuple[Passage, ...], encoder: Path) -> str:
    """Passages, and size and time of each file of the encoder."""
    total = hashlib.sha256(digest_of(passages).encode())
    for path in sorted(encoder.iterdir()):
        if path.is_file():
            about = path.stat()
            total.update(f"{path.name}|{about.st_size}|{about.st_mtime_ns}".encode())
    return total.hexdigest()[:16]
