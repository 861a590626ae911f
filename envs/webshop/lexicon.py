"""The closed vocabulary of generated catalogues and of the skills written about them."""

from __future__ import annotations

import re

from envs.interface import Lexicon
from envs.webshop.words import BRANDS, HUMAN_FRAMES, KINDS, OPTIONS, PRAISE, SYNTHETIC_FRAMES, USES

# Results on a page; prices and bounds in tens of dollars (a catalogue has none above 190); pages of results.
_ENTITIES = {"item": 10, "price": 20, "page": 5}
_PHRASES = ("buy now", "back to search", "search page", "order done", "nothing here", "do not")
_DROPPED_TEXT = """
a an and any are as at be by can comes could fit for get has i in is it like love me my of offers our please should
that the this to would you with
"""
_DROPPED = tuple(_DROPPED_TEXT.split())
_WORDS = """
search click item price page results prev next under features description reviews attributes chosen nothing
here order done series often asked skill now task before buy without stop do not until then look find
"""


def lexicon() -> Lexicon:
    values = [value for pool in OPTIONS.values() for value in pool]
    attributes = [attribute for kind in KINDS for attribute in kind.attributes]
    uses = [use for pool in USES.values() for use in pool]
    phrases = dict.fromkeys([*_PHRASES, *(kind.query for kind in KINDS), *attributes, *uses])
    frames = [re.sub(r"\{.*?\}", " ", frame) for frame in (*SYNTHETIC_FRAMES, *HUMAN_FRAMES)]
    texts = [_WORDS, *phrases, *values, *OPTIONS, *BRANDS, *PRAISE, *frames]
    words = {word for text in texts for word in re.findall(r"[a-z']+", text.lower())}
    return Lexicon(tuple(sorted(words - set(_DROPPED))), tuple(phrases), dict(_ENTITIES), _DROPPED)
