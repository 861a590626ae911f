"""Names of the engines that can rank full text (see rankers.py). Light: planning reads them."""

from __future__ import annotations

from core.names import require_known
from envs.search import RANKERS_VERSION

OWN = "own"
NAMES = (OWN, "tantivy", "pyserini")


def check(key: str, name: str) -> None:
    """Raises ValueError for a name that is no ranker, naming the configuration's key."""
    require_known(key, name, NAMES)


def version_of(name: str) -> dict[str, int]:
    """What a run's fingerprint knows of the code behind a ranker; the own one is known by INDEX_VERSION."""
    return {} if name == OWN else {"env.ranker": RANKERS_VERSION}
