"""The closed vocabulary of Search-QA's compact prompts, and of the skills written about it."""

from __future__ import annotations

from envs.interface import Lexicon
from envs.search_qa.naming import MOST_CENTURIES, MOST_NAMES, common_words

_PHRASES = ("do not",)
_DROPPED = ("a", "an", "the", "and", "is", "are", "its", "to")
_WORDS = """
question search answer found nothing happens answered something then before skill now who first capital country year
author director performer maker composer born died was were wrote made composed directed recorded
atomic number of city national novel film painting opera song
"""


def lexicon() -> Lexicon:
    words = (set(_WORDS.split()) | common_words()) - set(_DROPPED)
    entities = {"name": MOST_NAMES, "century": MOST_CENTURIES, "year": 100}
    return Lexicon(tuple(sorted(words)), _PHRASES, entities, _DROPPED)
