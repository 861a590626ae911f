"""The panel `validation`: games that some methods are played on while they train, and that no table is made from.

Generated ones are games of their own (worlds.draw_validation). In a user's data there is nothing to spare but training
games: `validation_per_type` games of each type, the first in a fixed order, and never more than a tenth of a type,
leave the train panel of every run, so that all methods train on the same games. `env.validation_per_type=0` leaves the
train panel whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from envs.alfworld.manifest import VALIDATION, Entry
from envs.interface import EnvConfig
from envs.panels import digest

LARGEST_SHARE = 10  # one in so many games of a type, at most


def carve(entries: Sequence[Entry], per_type: int) -> tuple[list[Entry], list[Entry]]:
    """(train, validation) of a user's training games, each in the order given.

    Games of equal content count as one: the first is taken, and none of them is trained on.
    """
    by_type: dict[str, dict[str, Entry]] = defaultdict(dict)
    for entry in entries:
        by_type[entry.type].setdefault(entry.content_hash, entry)
    chosen: dict[str, str] = {}  # content -> id
    for games in by_type.values():
        order = sorted(games, key=lambda content: digest(VALIDATION, content))
        chosen.update((content, games[content].id) for content in order[: min(per_type, len(games) // LARGEST_SHARE)])
    train = [entry for entry in entries if entry.content_hash not in chosen]
    return train, [entry for entry in entries if chosen.get(entry.content_hash) == entry.id]


def carved_entries(config: EnvConfig, entries: Sequence[Entry]) -> list[Entry]:
    """The panel out of a user's training games. Raises ValueError if they are too few."""
    if config.validation_per_type < 1:
        raise ValueError(
            f"env.validation_per_type={config.validation_per_type} makes an empty panel {VALIDATION!r}; give at least 1"
        )
    found = carve(entries, config.validation_per_type)[1]
    if not found:
        raise ValueError(
            f"env.data={config.data!r} has fewer than {LARGEST_SHARE} training games of each type: too few for a panel "
            "`validation`, which takes one in ten at most; choose a method that is not validated while it trains"
        )
    return found
