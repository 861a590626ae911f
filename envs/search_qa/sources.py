"""What a retriever searches in, as runs are known by it. Light: planning asks this.

A path or an address says where passages are, not what they are: a run is known by digests of the file of passages and
of the encoder. What a server holds cannot be known while planning; a run asks it when it begins, see `found`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.cache import cache_root, kept_sha256
from envs.interface import EnvConfig
from envs.panels import digest
from envs.search import INDEX_VERSION
from envs.search.names import version_of
from envs.search_qa import corpus
from envs.search_qa.settings import Knobs, knobs_of, retriever_of

SERVER = "server"  # in a run's identity, instead of a retriever's address
# Where things are and how patient one is; the first two are in the identity by their digests (`versions`).
_RUNTIME = ("passages", "encoder", "single_query", "timeout", "attempts")


def identity(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs that can change a result. Any server is `server`."""
    found = {name: value for name, value in knobs.items() if name not in _RUNTIME}
    if found.get("retriever", Knobs.retriever) not in ("lexical", "dense"):
        found["retriever"] = SERVER
    return found


def versions(config: EnvConfig) -> dict[str, int | str]:
    """Code and data that only some values of knobs bring in. Raises FileNotFoundError naming key and file."""
    return {**version_of(knobs_of(config).ranker), **_data(config)}


def _data(config: EnvConfig) -> dict[str, str]:
    """Digests of what a retriever in this process reads; none of a server."""
    knobs = knobs_of(config)
    if knobs.retriever not in ("lexical", "dense"):
        return {}
    found = {"env.passages": corpus.embedded_version()}
    notes = cache_root(config) / "search_qa" / "digests"
    if knobs.passages is not None:
        path = Path(knobs.passages).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"env.knobs.passages={knobs.passages} is not a file")
        found["env.passages"] = kept_sha256(path, notes)
    if knobs.encoder is not None:
        found["env.encoder"] = encoder_sha256(Path(knobs.encoder).expanduser(), notes)
    return found


def encoder_sha256(folder: Path, notes: Path) -> str:
    """Over names and contents of the folder's files but hidden ones. FileNotFoundError if it is no folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"env.knobs.encoder={folder} is not a folder")
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            total.update(f"{path.name}\0{kept_sha256(path, notes)}\0".encode())
    return total.hexdigest()


def found(config: EnvConfig) -> dict[str, str | None]:
    """What a run finds when it begins, to be compared with what it found before: the digests of `versions`, or the one
    that the server tells (None: it tells none). Raises RetrieverDown."""
    from envs.search_qa.retrieval import HttpRetriever

    retriever = retriever_of(config) if knobs_of(config).retriever not in ("lexical", "dense") else None
    if isinstance(retriever, HttpRetriever):
        return {"env.knobs.retriever": retriever.digest()}
    return dict(_data(config))


def served(config: EnvConfig) -> str:
    """What a server of this retriever tells: a digest of all that decides its answers."""
    return digest(json.dumps({**identity(config.knobs), **versions(config), "index": INDEX_VERSION}, sort_keys=True))
