"""Vectors of texts: the built-in hashed n-grams, a local sentence encoder, and rankings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from methods.skills.embedding import HashedNgrams, Ranking, SentenceEncoder

CORPUS = ["clean the mug in the sink", "heat an apple", "cool some lettuce in the fridge", "look under the desklamp"]


def test_equal_words_are_near_and_pieces_count() -> None:
    embedder = HashedNgrams(CORPUS)
    clean, heat, cleaning, nothing = embedder.embed(["clean mug", "heat apple", "cleaning mugs", "of the and"])
    assert clean @ clean == pytest.approx(1) and abs(clean @ heat) < 0.1
    assert clean @ cleaning > 0.1  # stems in common
    assert not nothing.any()  # a text without content has no direction


@given(st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_vectors_are_unit_or_zero_and_stand_alone(texts: list[str]) -> None:
    embedder = HashedNgrams(CORPUS, dimensions=64)
    together = embedder.embed(texts)
    assert together.shape == (len(texts), 64) and np.isfinite(together).all()
    for row, text in zip(together, texts, strict=True):
        assert np.array_equal(row, embedder.embed([text])[0])
        assert np.linalg.norm(row) == pytest.approx(1) or not row.any()


def test_the_hash_is_the_same_in_every_process() -> None:
    """A recorded answer: the interpreter's own hash of texts changes with every start."""
    vector = HashedNgrams(CORPUS, dimensions=50).embed(["heat"])[0]
    assert np.argsort(-abs(vector), kind="stable")[:6].tolist() == [10, 7, 14, 16, 18, 22]
    assert abs(vector[10]) == pytest.approx(np.sqrt(0.5))  # the word itself: as long as its pieces together


def test_settings_of_hashed_ngrams() -> None:
    with pytest.raises(ValueError, match="needs texts"):
        HashedNgrams([])
    with pytest.raises(ValueError, match="dimensions=0"):
        HashedNgrams(CORPUS, 0)
    assert HashedNgrams(CORPUS).embed([]).shape == (0, 4096)


class Counting:
    """Embeds a text by how many a, b and c it has; counts calls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        self.calls.append(list(texts))
        return np.array([[text.count(letter) for letter in "abc"] for text in texts], dtype=np.float64)


def test_a_ranking_embeds_its_texts_once_and_ties_keep_their_order() -> None:
    embedder = Counting()
    ranking = Ranking(embedder, ["b", "a", "ab", "a"])
    assert ranking.nearest("a", 3) == [1, 2, 3] and ranking.nearest("b", 9) == [0, 2, 1, 3]
    assert embedder.calls == [["b", "a", "ab", "a"], ["a"], ["b"]]


def test_ngrams_rank_by_content() -> None:
    ranking = Ranking(HashedNgrams(CORPUS), CORPUS)
    for number, query in enumerate(["a clean mug", "hot apples", "cooled lettuce", "the desklamp"]):
        assert ranking.nearest(query, 1) == [number]


# ------------------------------------------------------------------------------------------------- a sentence encoder
@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with random weights."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    path = tmp_path_factory.mktemp("encoder")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "clean", "mug", "heat", "apple", "query", ":"]
    BertTokenizerFast(vocab={word: number for number, word in enumerate(words)}).save_pretrained(path)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(path)
    return path


def test_a_local_sentence_encoder(folder: Path) -> None:
    texts = ["clean mug", "heat apple apple apple", "clean mug"]
    vectors = SentenceEncoder(folder).embed(texts)
    assert vectors.shape == (3, 16) and np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert np.array_equal(vectors[0], vectors[2])
    again = SentenceEncoder(str(folder))
    for row, text in zip(vectors, texts, strict=True):  # a text's vector does not depend on what stands beside it
        assert np.array_equal(row, again.embed([text])[0])
    assert not np.allclose(vectors[0], SentenceEncoder(folder, prefix="query: ").embed(["clean mug"])[0])
    cut = SentenceEncoder(folder, max_tokens=4)
    assert np.array_equal(cut.embed(["clean mug apple"])[0], vectors[0])
    assert len(again.embed([])) == 0


def test_nothing_is_downloaded(tmp_path: Path) -> None:
    for missing in (tmp_path, tmp_path / "absent", "intfloat/e5-base-v2"):
        with pytest.raises(ValueError, match=r"method.skill.encoder=.*no config.json.*nothing is downloaded"):
            SentenceEncoder(missing)


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys, methods.skills.library\n"
        "found = {'numpy', 'torch', 'transformers'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
