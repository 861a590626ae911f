"""The closed vocabulary of ALFWorld's text over all 120 rooms, and of the skills written about it."""

from __future__ import annotations

import re
from collections import Counter

from envs.alfworld.facts import facts
from envs.alfworld.worlds import room_receptacles
from envs.interface import Lexicon

# Copies of an object type in one room: three in generated worlds, a few more in ALFRED's.
_MOST_COPIES = 6
_PHRASES = ("go to", "you see", "nothing happens")
_DROPPED = ("a", "an", "the", "and", "is", "are", "you", "your", "it", "them", "in", "of", "that")
_WORDS = """
task to look inventory open close closed examine take from move clean heat cool use slice with find then other stop
before two see nothing happens arrive pick up on off turn using carrying not anything hot cold sliced this normal
there's special about do where looked first skill now find some put under sinkbasin microwave fridge facing next help
turned empty middle room looking quickly around welcome textworld alfred sliced
"""


def lexicon() -> Lexicon:
    table = facts()
    entities: Counter[str] = Counter()
    for number in table.rooms:
        count = Counter(kind.lower() for kind, _ in room_receptacles(number).values())
        for kind, k in count.items():
            entities[kind] = max(entities[kind], k)
    for kind in table.object_types:
        if kind not in table.fixed:
            entities[kind.lower()] = _MOST_COPIES
    wordings = " ".join(w for ws in table.instructions.values() for w in ws)
    words = set(_WORDS.split()) | set(re.findall(r"[a-z']+", re.sub(r"\{.*?\}", " ", wordings))) | set(entities)
    return Lexicon(tuple(sorted(words - set(_DROPPED))), _PHRASES, dict(sorted(entities.items())), _DROPPED)
