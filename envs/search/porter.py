"""Porter's stemmer as Lucene has it: the algorithm of 1980 with the two changes that Martin Porter made himself.

M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980. The changes, from his own page: step 2 has
`bli -> ble` in place of `abli -> able`, and in addition `logi -> log`. Words of one or two characters stay as they are.
Whatever is no ASCII letter counts as a consonant.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

_VOWELS = frozenset("aeiou")

# (ending, what takes its place) for stems with at least one vowel-consonant sequence; the first ending that fits counts
_STEP2 = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"), ("logi", "log"),
)  # fmt: skip
_STEP3 = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip
# longest first, so that the first ending that fits is the longest
_STEP4 = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ion", "ism", "ate", "iti", "ous", "ive", "ize",
    "al", "er", "ic", "ou",
)  # fmt: skip


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The stem of a word in lower case."""
    if len(word) <= 2:
        return word
    word = _plural(word)
    word = _past(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    for table in (_STEP2, _STEP3):
        word = _replace(word, table)
    word = _strip(word)
    if word.endswith("e"):
        base = word[:-1]
        if _measure(base) > 1 or (_measure(base) == 1 and not _short(base)):
            word = base
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


def _consonant(word: str, i: int) -> bool:
    if word[i] == "y":
        return i == 0 or not _consonant(word, i - 1)
    return word[i] not in _VOWELS


def _measure(word: str) -> int:
    """How often a vowel is followed by a consonant."""
    kinds = [_consonant(word, i) for i in range(len(word))]
    return sum(not before and after for before, after in pairwise(kinds))


def _has_vowel(word: str) -> bool:
    return any(not _consonant(word, i) for i in range(len(word)))


def _double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _consonant(word, len(word) - 1)


def _short(word: str) -> bool:
    """Ends in consonant, vowel, consonant, the last none of w, x, y."""
    last = len(word) - 1
    return (
        last >= 2
        and _consonant(word, last)
        and not _consonant(word, last - 1)
        and _consonant(word, last - 2)
        and word[last] not in "wxy"
    )


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        base = word[: -len(ending)]
        if word.endswith(ending) and _has_vowel(base):
            if base.endswith(("at", "bl", "iz")):
                return base + "e"
            if _double(base):
                return base if base[-1] in "lsz" else base[:-1]
            if _measure(base) == 1 and _short(base):
                return base + "e"
            return base
    return word


def _replace(word: str, table: tuple[tuple[str, str], ...]) -> str:
    for ending, new in table:
        if word.endswith(ending):
            base = word[: -len(ending)]
            return base + new if _measure(base) > 0 else word
    return word


def _strip(word: str) -> str:
    for ending in _STEP4:
        if word.endswith(ending):
            base = word[: -len(ending)]
            if ending == "ion" and base[-1:] not in ("s", "t"):
                return word
            return base if _measure(base) > 1 else word
    return word
