"""Token-set similarity of short texts on a scale of 0 to 100, as the package thefuzz computes it.

WebShop's reward compares attributes and options with `thefuzz.fuzz.token_set_ratio`, so a number here must be the same
number there (a test holds values that thefuzz 0.22 gave). Written out because it is short and an episode needs it a
dozen times: no dependency is worth that.
"""

from __future__ import annotations

from functools import lru_cache

# thefuzz drops the characters U+0080 to U+00FF (its "ASCII only"), and keeps everything beyond them
_DROPPED = dict.fromkeys(range(0x80, 0x100))


def tokens(value: object) -> frozenset[str]:
    """Words of str(value) in lower case: letters and digits only, everything else parts words.

    A tuple counts as its Python spelling, as in WebShop: ("size", "x large") has the words size, x and large.
    """
    text = str(value).translate(_DROPPED).lower()
    return frozenset("".join(c if c.isalnum() else " " for c in text).split())


def token_set_ratio(first: object, second: object) -> int:
    """0 to 100. 100 if the words of one are among the other's; 0 if one has no words.

    The best of three comparisons: the words that only one has with those that only the other has (each behind the
    common words), and the common words with either whole.
    """
    return _ratio(tokens(first), tokens(second))


@lru_cache(maxsize=65536)
def _ratio(a: frozenset[str], b: frozenset[str]) -> int:
    if not a or not b:
        return 0
    common = a & b
    if common in (a, b):
        return 100
    only_a, only_b = " ".join(sorted(a - b)), " ".join(sorted(b - a))
    shared = sum(map(len, common)) + max(len(common) - 1, 0)
    gap = bool(common)  # a blank between the common words and the others
    whole_a, whole_b = shared + gap + len(only_a), shared + gap + len(only_b)
    distance = len(only_a) + len(only_b) - 2 * _common_subsequence(only_a, only_b)
    best = _share(distance, whole_a + whole_b)
    if common:
        best = max(best, _share(gap + len(only_a), shared + whole_a), _share(gap + len(only_b), shared + whole_b))
    return round(best)


def _share(distance: int, length: int) -> float:
    return 100.0 - 100.0 * distance / length if length else 100.0


def _common_subsequence(a: str, b: str) -> int:
    """Length of the longest common subsequence, with the rows of the table as bits of one integer."""
    places: dict[str, int] = {}
    for i, c in enumerate(a):
        places[c] = places.get(c, 0) | 1 << i
    mask = (1 << len(a)) - 1
    row = mask
    for c in b:
        hit = row & places.get(c, 0)
        row = ((row + hit) | (row - hit)) & mask
    return len(a) - row.bit_count()
