"""Other engines that can rank full text in place of the own index: tantivy and pyserini, where they are installed.

    own        `bm25.py`: Lucene's lists, in numpy; what every shipped sweep uses
    tantivy    the Rust engine: BM25 with its own constants (k1 = 1.2, b = 0.75), so other lists
    pyserini   Anserini's Lucene on Java, with the constants of `own`; written from its documentation and never run here

An engine keeps an index of its own, made once from the same texts: documents are called by their place in the order of
names, and equal scores are ordered by that place, as the own index orders them. Which engine ranks is part of a run's
identity (harness.fingerprint) as soon as it is not `own`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from envs.cache import made_once
from envs.search import RANKERS_VERSION
from envs.search.names import OWN, check

_INSTALL = {
    "tantivy": "pip install -e '.[tantivy]' in the clone",
    "pyserini": "pip install pyserini, which needs a Java development kit (its documentation names the version)",
}
_ORDER = "by_name.npy"  # place in the order of names -> number of the document


class RankerMissingError(ImportError):
    """The package of a ranker is not installed, or cannot be imported; the message says what to install."""


class Ranker(Protocol):
    """What an environment needs of an index; `bm25.Index` is one."""

    def search(self, query: str, k: int = 50) -> tuple[int, ...]:
        """Numbers of the best k documents, best first; only such as share a term with the query."""
        ...

    def ranked(self, query: str, k: int = 50) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(document numbers, scores), best first."""
        ...


class Engine(Protocol):
    """A package's index, opened. Documents are called by the place that they were given."""

    def best(self, query: str, k: int) -> list[tuple[int, float]]:
        """(place, score) of the best k; of equal scores, those of the lowest places, in that order."""
        ...


class Adapter:
    """A Ranker over an Engine. by_name: [n] numbers of documents in the order of their names."""

    def __init__(self, engine: Engine, by_name: NDArray[np.int64]) -> None:
        self._engine, self._by_name = engine, by_name

    def search(self, query: str, k: int = 50) -> tuple[int, ...]:
        return tuple(int(i) for i in self.ranked(query, k)[0])

    def ranked(self, query: str, k: int = 50) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        found = self._engine.best(query, k)
        places = np.array([place for place, _ in found], np.int64)
        return self._by_name[places], np.array([score for _, score in found], np.float32)


def open_ranker(
    name: str, beside: Path, texts: Callable[[], Iterable[str]], names: Callable[[], Sequence[str]]
) -> Adapter:
    """The index of an engine other than `own`, made on the first call by whoever asks first, under a file lock.

    beside: path whose name identifies the texts; the index lies next to it, under a name that also says engine and
    version. texts, names: asked for only if the index has to be made. Raises RankerMissingError.
    """
    package = _package(name)
    module = import_module(f"envs.search.{name}_index")
    folder = beside.with_name(f"{beside.name}.{name}-{_version(name)}-{RANKERS_VERSION}")
    made_once(folder, _ORDER, lambda new: _fill(module, package, new, texts(), names()))
    by_name: NDArray[np.int64] = np.load(folder / _ORDER, allow_pickle=False)
    return Adapter(module.open_index(package, folder / "index"), by_name)


def _fill(module: ModuleType, package: Any, folder: Path, texts: Iterable[str], names: Sequence[str]) -> None:
    number = np.array(sorted(range(len(names)), key=lambda i: names[i]), np.int64)
    place = np.empty(len(names), np.int64)
    place[number] = np.arange(len(names))
    (folder / "index").mkdir()
    module.build(package, ((int(p), text) for p, text in zip(place, texts, strict=True)), folder / "index")
    np.save(folder / _ORDER, number)


def _package(name: str) -> Any:
    check("ranker", name)
    where = {"tantivy": ("tantivy",), "pyserini": ("pyserini.search.lucene", "pyserini.index.lucene")}[name]
    try:
        modules = [import_module(module) for module in where]
    except Exception as error:  # pyserini starts Java as it is imported, and fails in many ways
        raise RankerMissingError(
            f"ranker={name} needs a package that cannot be imported here ({type(error).__name__}: {error}): "
            f"{_INSTALL[name]}; or leave the ranker at {OWN}"
        ) from error
    return modules[0] if len(modules) == 1 else tuple(modules)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
