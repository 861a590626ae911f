"""Full-text search that ranks as Lucene does, in numpy: BM25 with English analysis as Anserini sets it up for WebShop.

    score(d) = sum over query terms of  idf * tf / (tf + k1 * (1 - b + b * length / mean length))
    idf      = ln(1 + (N - df + 0.5) / (df + 0.5)),  k1 = 0.9, b = 0.4

(Robertson et al.; Lucene's BM25Similarity leaves out the factor k1 + 1.) To get the same lists: words are cut as by
Unicode's word-boundary rules, lower-cased, stripped of a possessive s and of Lucene's 33 stop words, and stemmed by
Porter's algorithm (`porter.py`); lengths are rounded to what fits one byte (Lucene's SmallFloat, 3 bits of mantissa);
scores are single precision; a term that the query repeats counts as often; equal scores are ordered by document name.
Left out: emoji, which Lucene takes for words.

An index is a folder of `.npy` files and one list of terms; it is opened as a memory map, so processes share its pages.
"""

from __future__ import annotations

import bisect
import re
import unicodedata
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.search.porter import stem

K1, B = 0.9, 0.4
_STOP_TEXT = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to
was will with
"""
STOP_WORDS = frozenset(_STOP_TEXT.split())
_IDEOGRAPHS = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3041-\u309f"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"


@lru_cache(maxsize=1)
def _words() -> re.Pattern[str]:
    """What a word is: an ideograph; else letters and digits, with ' ’ . : · between two letters and . , ; ' ’ between
    two digits; katakana keep to themselves; underscores tie everything together."""
    # Python counts ½ and ² among \w, Unicode's word boundaries do not
    numbers = "".join(c for c in map(chr, range(0x80, 0x10000)) if unicodedata.category(c) == "No")
    others = f"{numbers}{_IDEOGRAPHS}{_KATAKANA}"
    mark = "[\u0300-\u036f\u00ad\u200d]*"  # belongs to the character before it
    letter, digit = rf"[^\W\d_{others}]", r"\d"
    signs = rf"(?:{letter}{mark}(?:['’.:·]{mark}(?={letter}))?|{digit}{mark}(?:[.,;'’]{mark}(?={digit}))?)+"
    tie = rf"(?:_{mark})"
    unit = rf"(?:{signs}|(?:[{_KATAKANA}]{mark})+)"
    return re.compile(rf"[{_IDEOGRAPHS}]{mark}|{tie}*{unit}(?:{tie}+{unit})*{tie}*")


_LONGEST_WORD = 255  # characters; Lucene cuts longer ones


@lru_cache(maxsize=65536)
def _term(word: str) -> str:
    """What a word is indexed as; empty for a stop word."""
    word = word[:-2] if word.endswith(("'s", "’s", "＇s")) else word
    return "" if word in STOP_WORDS else stem(word)


def analyze(text: str) -> list[str]:
    """The terms of a text, in order, with repetitions."""
    words: list[str] = []
    for word in _words().findall(text.lower()):
        words += [word[i : i + _LONGEST_WORD] for i in range(0, len(word), _LONGEST_WORD)]
    return [term for term in map(_term, words) if term]


def byte_length(length: int) -> int:
    """A document length after Lucene stored it in one byte: exact to 39, beyond that the upper four bits count."""
    free = 255 - _float_bits(2**31 - 1)
    return length if length < free else free + _from_float_bits(_float_bits(length - free))


def _float_bits(value: int) -> int:
    if value < 8:
        return value
    shift = value.bit_length() - 4
    return ((value >> shift) & 7) | ((shift + 1) << 3)


def _from_float_bits(bits: int) -> int:
    mantissa, shift = bits & 7, (bits >> 3) - 1
    return mantissa if shift < 0 else (mantissa | 8) << shift


def build(texts: Iterable[str], names: Sequence[str], folder: Path) -> None:
    """Writes the index of `texts`, whose names break ties, into an existing folder."""
    vocabulary: dict[str, int] = {}
    terms, documents, frequencies, lengths = array("i"), array("i"), array("i"), array("q")
    for number, text in enumerate(texts):
        found = analyze(text)
        lengths.append(len(found))
        for term, times in Counter(found).items():
            terms.append(vocabulary.setdefault(term, len(vocabulary)))
            documents.append(number)
            frequencies.append(times)
    count = len(lengths)
    if count != len(names):
        raise ValueError(f"{count} texts but {len(names)} names")
    alphabetical = sorted(vocabulary)
    place = np.empty(len(vocabulary), np.int32)
    place[[vocabulary[term] for term in alphabetical]] = np.arange(len(vocabulary), dtype=np.int32)
    owner = place[np.frombuffer(terms, np.int32)]
    by_term = np.argsort(owner, kind="stable")  # documents were added in order, and stay so
    document = np.frombuffer(documents, np.int32)[by_term]
    tf = np.frombuffer(frequencies, np.int32)[by_term].astype(np.float32)
    starts = np.searchsorted(owner[by_term], np.arange(len(vocabulary) + 1))
    total = np.frombuffer(lengths, np.int64)
    mean = np.float32(total.sum() / max(count, 1))
    stored = np.array([byte_length(int(n)) for n in total], np.float32)
    norm = np.float32(K1) * ((np.float32(1) - np.float32(B)) + np.float32(B) * stored / mean)
    weight = tf / (tf + norm[document])
    df = np.diff(starts)
    idf = np.log(1 + (count - df + 0.5) / (df + 0.5)).astype(np.float32)
    order = np.empty(count, np.int32)
    order[sorted(range(count), key=lambda i: names[i])] = np.arange(count, dtype=np.int32)
    for name, values in (
        ("starts", starts),
        ("documents", document),
        ("weights", weight),
        ("idf", idf),
        ("order", order),
    ):
        np.save(folder / f"{name}.npy", values)
    (folder / "terms.txt").write_text("\n".join(alphabetical), encoding="utf-8")


class Index:
    """An index that `build` wrote, open for reading. cached: queries whose results are kept."""

    def __init__(self, folder: Path, cached: int = 4096) -> None:
        def load(name: str) -> NDArray[Any]:
            values: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            return values

        self._terms = (folder / "terms.txt").read_text(encoding="utf-8").split("\n")
        self._starts, self._documents, self._weights = load("starts"), load("documents"), load("weights")
        self._idf, self._order = load("idf"), load("order")
        self._kept: OrderedDict[tuple[str, int], tuple[int, ...]] = OrderedDict()
        self._room = cached

    def search(self, query: str, k: int = 50) -> tuple[int, ...]:
        """Numbers of the best `k` documents, best first; only such as have a term of the query."""
        key = (query, k)
        found = self._kept.get(key)
        if found is None:
            found = tuple(int(i) for i in self.ranked(query, k)[0])
            self._kept[key] = found
            if len(self._kept) > self._room:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return found

    def ranked(self, query: str, k: int = 50) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(document numbers, scores), best first."""
        scores = np.zeros(len(self._order), np.float64)  # Lucene adds in double precision, then rounds
        for term, times in Counter(analyze(query)).items():
            i = bisect.bisect_left(self._terms, term)
            if i < len(self._terms) and self._terms[i] == term:
                part = slice(int(self._starts[i]), int(self._starts[i + 1]))
                scores[self._documents[part]] += (np.float32(times) * self._idf[i]) * self._weights[part]
        single = scores.astype(np.float32)
        candidates = np.flatnonzero(single > 0)
        if len(candidates) > 4 * k:
            bound = np.partition(single[candidates], len(candidates) - k)[len(candidates) - k]
            candidates = candidates[single[candidates] >= bound]
        best = candidates[np.lexsort((self._order[candidates], -single[candidates]))][:k]
        return best, single[best]
