"""Dense retrieval in this process: vectors of a local sentence encoder, exact inner products.

For corpora that fit in memory (10,033 passages of 384 numbers: 8 MB in half precision); a corpus such as wiki-18 wants
a server. The encoder is a folder that transformers can load; a text's vector is the mean of its token states, scaled to
length 1 (MiniLM, E5 and their kind). Some models want words in front of texts: see env.knobs.query_prefix.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.cache import file_lock, write_atomically
from envs.interface import EnvironmentFailure
from envs.panels import digest
from envs.search_qa.corpus import Passage, digest_of
from envs.search_qa.retrieval import Hit

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 32
MOST_TOKENS = 256
Vectors = NDArray[np.float32]


class DenseRetriever:
    """Encodes the passages once; the vectors are kept in `cache` under the digests of all that decides them.

    query_prefix, passage_prefix: in front of every text. Raises FileNotFoundError if the encoder is no folder.
    """

    def __init__(
        self, passages: Sequence[Passage], encoder: Path, cache: Path, query_prefix: str = "", passage_prefix: str = ""
    ) -> None:
        from envs.search_qa.sources import encoder_sha256

        key = _key(tuple(passages), encoder_sha256(encoder, cache / "digests"), passage_prefix)
        self._passages, self._query_prefix = passages, query_prefix
        self._encode = _encoder(encoder)
        kept = cache / f"vectors-{key}.npy"
        with file_lock(cache / f"{kept.stem}.lock"):
            if not kept.exists():
                vectors = self._encode([passage_prefix + p.contents for p in passages]).astype(np.float16)
                buffer = io.BytesIO()
                np.save(buffer, vectors, allow_pickle=False)
                write_atomically(kept, buffer.getvalue())
        try:
            self._vectors: Vectors = np.load(kept, allow_pickle=False).astype(np.float32)
        except (OSError, ValueError, EOFError) as error:  # EOFError: a file without a byte
            raise EnvironmentFailure(f"{kept} cannot be read ({error}); delete it to have it made again") from error

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


def _key(passages: tuple[Passage, ...], encoder: str, prefix: str) -> str:
    """Of everything that decides the vectors. encoder: its digest."""
    return digest(digest_of(passages), encoder, prefix, str(MOST_TOKENS))[:16]
