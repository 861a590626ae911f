"""A catalogue on disk, ready to be played: products, search index and goals in one folder that processes share.

Made once per data version, whoever asks first, under a file lock; afterwards opened read-only. Products stay on disk as
one JSON line each, found through an array of offsets, so a million of them cost no memory until they are looked at.
"""

from __future__ import annotations

import json
import logging
import mmap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from envs.cache import file_sha256, made_once
from envs.panels import digest
from envs.search import bm25, rankers
from envs.search.names import OWN
from envs.webshop.catalogue import Product
from envs.webshop.goals import PANELS, Goal, split
from envs.webshop.versions import STORE_VERSION

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_KEPT_PRODUCTS = 4096  # parsed ones, per process


class StoreError(RuntimeError):
    """A store is incomplete or was changed; the message names the file and what to do."""


class Lines:
    """A file of JSON lines with random access. offsets: [n + 1] byte positions."""

    def __init__(self, path: Path) -> None:
        self._offsets = np.load(path.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return json.loads(self._data[int(self._offsets[number]) : int(self._offsets[number + 1])])

    @staticmethod
    def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
        """Returns how many."""
        offsets = [0]
        with path.open("wb") as file:
            for row in rows:
                offsets.append(offsets[-1] + file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n"))
        np.save(path.with_suffix(".npy"), np.array(offsets, np.int64))
        return len(offsets) - 1


class Store:
    """An open store. Products and goals are addressed by their number. ranker: who ranks, see `envs.search.names`."""

    def __init__(self, folder: Path, ranker: str = OWN) -> None:
        try:
            self.manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            self._products, self._goals = Lines(folder / "products.jsonl"), Lines(folder / "goals.jsonl")
            self._own = bm25.Index(folder)
        except (OSError, ValueError, EOFError, KeyError) as error:  # EOFError: an array file without a byte
            raise StoreError(
                f"the catalogue in {folder} cannot be opened ({error}); delete the folder to have it made"
            ) from error
        self.folder, self._ranker = folder, ranker
        self.product = lru_cache(maxsize=_KEPT_PRODUCTS)(self._product)

    def _product(self, number: int) -> Product:
        return Product.from_row(self._products[number])

    def __len__(self) -> int:
        return len(self._products)

    @cached_property
    def index(self) -> rankers.Ranker:
        """Whoever ranks; the index of another engine is made when it is first asked. RankerMissingError without it."""
        if self._ranker == OWN:
            return self._own
        shelf = range(len(self))
        return rankers.open_ranker(
            self._ranker,
            self.folder,
            lambda: (self._product(number).document() for number in shelf),
            lambda: [self._product(number).asin for number in shelf],
        )

    def goal(self, number: int) -> Goal:
        """Raises IndexError for a number that is none."""
        return Goal.from_row(self._goals[number])

    def numbers(self, panel: str) -> range:
        """Numbers of the goals of a panel."""
        first, last = self.manifest["panels"][panel]
        return range(first, last)

    def goals(self, panel: str) -> Iterator[tuple[int, Goal]]:
        for number in self.numbers(panel):
            yield number, self.goal(number)


def write(
    folder: Path,
    version: str,
    products: Iterable[Product],
    goals_of: Callable[[Iterable[Product]], Iterable[Goal]],
    belongs: Mapping[str, str] | None,
) -> None:
    """Fills an existing, empty folder. Products are never all in memory at once, goals are.

    goals_of: the goals about the products, in order; belongs: see `goals.split`, whose ValueError it raises.
    """
    Lines.write(folder / "products.jsonl", (product.row() for product in products))
    lines = Lines(folder / "products.jsonl")

    def shelf() -> Iterator[Product]:
        return (Product.from_row(lines[number]) for number in range(len(lines)))

    goals = list(goals_of(shelf()))
    shares = split(goals, belongs)
    panels: dict[str, tuple[int, int]] = {}
    ordered: list[Goal] = []
    for panel in PANELS:
        panels[panel] = (len(ordered), len(ordered) + len(shares[panel]))
        ordered += shares[panel]
    Lines.write(folder / "goals.jsonl", (goal.row() for goal in ordered))
    names = [product.asin for product in shelf()]
    bm25.build((product.document() for product in shelf()), names, folder)
    manifest = {
        "store_version": STORE_VERSION,
        "version": version,
        "products": len(lines),
        "goals": len(goals),
        "left_out": len(goals) - len(ordered),  # goals whose content came before
        "panels": panels,
        "content": digest(*(goal.content_hash() for goal in ordered)),
        "sha256": {path.name: file_sha256(path) for path in sorted(folder.iterdir())},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def ensure(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, filled by `make(empty folder)` if it is not there. Processes that ask at once make it once."""

    def timed(new: Path) -> None:
        started = time.monotonic()
        make(new)
        log.info("made the catalogue %s in %.1f s", folder, time.monotonic() - started)

    return made_once(folder, MANIFEST, timed)


@lru_cache(maxsize=4)
def open_store(folder: Path, ranker: str = OWN) -> Store:
    """One per process, folder and ranker."""
    return Store(folder, ranker)


def problems(folder: Path) -> list[str]:
    """Every difference between a store's files and its manifest. Empty: all is well."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    found = []
    for name, wanted in sorted(manifest["sha256"].items()):
        path = folder / name
        if not path.is_file():
            found.append(f"{path} is missing")
        elif file_sha256(path) != wanted:
            found.append(f"{path} was changed: its sha256 is not the recorded {wanted[:12]}")
    return found
