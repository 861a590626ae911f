"""Exact match of answers, as open-domain question answering has scored it since SQuAD (arXiv:1606.05250, section 5).

An answer is right if, after normalisation, it equals one of the golden answers: lower case, no ASCII punctuation, no
articles (a, an, the), single spaces.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """The form in which answers are compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golden: Iterable[str]) -> bool:
    """Whether the answer equals a golden one. An answer that normalises to nothing is wrong."""
    given = normalise(answer)
    return bool(given) and any(given == normalise(right) for right in golden)
