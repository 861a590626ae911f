"""Other engines in place of the own index: tantivy as it is, pyserini through a stand-in with its signatures."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from webshop_helpers import config, shop_expert, succeeded

import envs.webshop.spec as webshop
from envs.interface import EnvConfig
from envs.search import bm25, names, rankers
from envs.search_qa import settings
from envs.webshop.data import store_of
from envs.webshop.store import open_store

TEXTS = ["red shirt for men", "a blue shirt", "red shoes and red laces", "the garden hose", "red shirt for men"]
NAMES = ["e", "d", "c", "b", "a"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that catalogues and indices of this file are kept in."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def pyserini(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    """A stand-in for pyserini that ranks by the number of shared words; what it was asked."""
    asked: list[tuple[str, Any]] = []
    stored: dict[str, dict[str, str]] = {}

    class LuceneIndexer:
        def __init__(self, index_dir: str) -> None:
            self.index_dir = index_dir
            self.documents: dict[str, str] = {}

        def add_doc_dict(self, doc: dict[str, str]) -> None:
            self.documents[doc["id"]] = doc["contents"]

        def close(self) -> None:
            stored[Path(self.index_dir).name] = self.documents
            (Path(self.index_dir) / "segments_1").write_text("")

    class LuceneSearcher:
        def __init__(self, index_dir: str) -> None:
            assert (Path(index_dir) / "segments_1").is_file()
            self.documents = stored[Path(index_dir).name]

        def set_bm25(self, k1: float, b: float) -> None:
            asked.append(("set_bm25", (k1, b)))

        def search(self, q: str, k: int = 10) -> list[SimpleNamespace]:
            asked.append(("search", (q, k)))
            words = set(q.split())
            scores = {i: float(len(words & set(text.split()))) for i, text in self.documents.items()}
            best = sorted((i for i in scores if scores[i]), key=lambda i: (-scores[i], i))
            return [SimpleNamespace(docid=i, score=scores[i]) for i in best[:k]]

    modules: dict[str, dict[str, Any]] = {
        "pyserini": {},
        "pyserini.search": {},
        "pyserini.search.lucene": {"LuceneSearcher": LuceneSearcher},
        "pyserini.index": {},
        "pyserini.index.lucene": {"LuceneIndexer": LuceneIndexer},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    yield asked
    settings._lexical.cache_clear()
    open_store.cache_clear()


def opened(name: str, folder: Path) -> rankers.Ranker:
    return rankers.open_ranker(name, folder / "texts", lambda: TEXTS, lambda: NAMES)


def test_tantivy_ranks_and_breaks_ties_by_name(tmp_path: Path) -> None:
    ranker = opened("tantivy", tmp_path)
    assert ranker.search("Red shirts!") == (4, 0, 2, 1)  # equal texts: "a" comes before "e"
    assert ranker.search("red shirt", 1) == (4,)
    found, scores = ranker.ranked("red", 2)
    assert found.tolist() == [2, 4] and scores[0] > scores[1] > 0
    assert ranker.search("the and for") == ranker.search("") == ranker.search("unknown") == ()


@pytest.mark.parametrize("query", ['"red shirt', "red AND", "-red +shirt text:red", "red~2 ^ ( [", "text:/re.*/ *"])
def test_signs_of_tantivys_query_language_mean_nothing(tmp_path: Path, query: str) -> None:
    ranker = opened("tantivy", tmp_path)
    assert ranker.search(query) == ranker.search(re.sub(r"\W", " ", query).lower())


def test_all_that_equal_the_last_one_are_seen_before_the_list_is_cut(tmp_path: Path) -> None:
    count = 200
    ranker = rankers.open_ranker(
        "tantivy", tmp_path / "t", lambda: ["same words"] * count, lambda: [f"{count - i:03}" for i in range(count)]
    )
    assert ranker.search("words", 3) == (199, 198, 197)


def test_an_index_is_made_once_and_read_by_other_processes(tmp_path: Path) -> None:
    first = opened("tantivy", tmp_path)

    def never() -> Any:
        raise AssertionError("the index is there")

    again = rankers.open_ranker("tantivy", tmp_path / "texts", never, never)
    assert again.search("red shirt") == first.search("red shirt")
    child = os.fork()
    if child == 0:
        os._exit(0 if first.search("red shirt") == (4, 0, 2, 1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [path.name for path in sorted(tmp_path.iterdir()) if path.is_dir()] == [
        f"texts.tantivy-{rankers._version('tantivy')}-{rankers.RANKERS_VERSION}"
    ]


def test_a_maker_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shorter"):
        rankers.open_ranker("tantivy", tmp_path / "t", lambda: TEXTS[:-1], lambda: NAMES)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_tantivy_finds_much_the_same_products(shop: Path) -> None:
    """Another formula, other lists: of the best ten, most are among the own index's best ten."""
    settings_of = {name: config(shop, knobs={"ranker": name}) for name in ("own", "tantivy")}
    own, other = store_of(settings_of["own"]).index, store_of(settings_of["tantivy"]).index
    assert isinstance(own, bm25.Index) and isinstance(other, rankers.Adapter)
    assert store_of(settings_of["own"]).folder == store_of(settings_of["tantivy"]).folder
    shares = []
    for number in list(store_of(settings_of["own"]).numbers("test"))[:40]:
        query = store_of(settings_of["own"]).goal(number).query
        mine, its = set(own.search(query, 10)), set(other.search(query, 10))
        shares.append(len(mine & its) / max(len(mine), 1))
    assert sum(shares) / len(shares) > 0.6


def test_the_expert_shops_with_tantivy(shop: Path) -> None:
    settings_ = config(shop, knobs={"ranker": "tantivy"})
    tasks = webshop.load_panel(settings_, "test").tasks
    assert tasks == webshop.load_panel(config(shop), "test").tasks
    environment = webshop.make(settings_)
    won = [succeeded(shop_expert(environment, task)) for task in tasks[:5]]
    assert sum(won) >= 3
    environment = webshop.make(settings_)
    observation = environment.reset(tasks[0])
    for action in webshop.walkthrough(settings_, tasks[0]):
        result = environment.step(action)
    assert result.success and observation.text


def test_search_qa_retrieves_with_tantivy(shop: Path) -> None:
    own = settings.retriever_of(EnvConfig(name="search_qa", cache=str(shop)))
    other = settings.retriever_of(EnvConfig(name="search_qa", cache=str(shop), knobs={"ranker": "tantivy"}))
    queries = ["capital of Austria", "theory of relativity", "battle of Hastings", "Great Barrier Reef"]
    for mine, its in zip(own.search(queries, 5), other.search(queries, 5), strict=True):
        assert {hit.passage.id for hit in mine} & {hit.passage.id for hit in its}
        assert [hit.score for hit in its] == sorted((hit.score for hit in its), reverse=True)


def test_pyserini_at_its_seam(tmp_path: Path, pyserini: list[tuple[str, Any]]) -> None:
    ranker = opened("pyserini", tmp_path)
    assert ranker.search("red shirt") == (4, 0, 2, 1)
    assert ranker.search("red shirt", 1) == (4,) and ranker.search(" ") == ()
    assert pyserini == [("set_bm25", (0.9, 0.4)), ("search", ("red shirt", 50)), ("search", ("red shirt", 1))]


def test_webshop_and_search_qa_reach_pyserini(shop: Path, pyserini: list[tuple[str, Any]]) -> None:
    settings_ = config(shop, knobs={"ranker": "pyserini"})
    task = webshop.load_panel(settings_, "test").tasks[0]
    environment = webshop.make(settings_)
    environment.reset(task)
    environment.step("search[shirt]")
    assert pyserini[-1] == ("search", ("shirt", 50))
    retriever = settings.retriever_of(EnvConfig(name="search_qa", cache=str(shop), knobs={"ranker": "pyserini"}))
    retriever.search(["capital of Austria"], 3)
    assert pyserini[-1] == ("search", ("capital of Austria", 3))


def _make_webshop(cache: Path, name: str) -> object:
    return webshop.make(config(cache, knobs={"ranker": name}))


def _make_search_qa(cache: Path, name: str) -> object:
    from envs.search_qa.spec import make

    return make(EnvConfig(name="search_qa", cache=str(cache), knobs={"ranker": name}))


@pytest.mark.parametrize("make", [_make_webshop, _make_search_qa])
@pytest.mark.parametrize(
    ("name", "said"),
    [("tantivy", r"pip install -e '\.\[tantivy\]'"), ("pyserini", "pip install pyserini")],
)
def test_an_engine_that_is_not_installed_is_told_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, str], object], name: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "pyserini.search.lucene", None)
    open_store.cache_clear()
    with pytest.raises(rankers.RankerMissingError, match=f"ranker={name} needs a package .*{said}"):
        make(tmp_path, name)


def test_mistakes_in_the_knob(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"env\.knobs\.ranker.*tantivi.*tantivy"):
        webshop.make(config(tmp_path, knobs={"ranker": "tantivi"}))
    with pytest.raises(ValueError, match=r"env\.knobs\.ranker.*lucene.*own, tantivy, pyserini|own"):
        settings.knobs_of(EnvConfig(name="search_qa", knobs={"ranker": "lucene"}))
    with pytest.raises(ValueError, match=r"env\.knobs\.ranker=tantivy does not fit env\.knobs\.retriever=http"):
        settings.knobs_of(EnvConfig(name="search_qa", knobs={"ranker": "tantivy", "retriever": "http://127.0.0.1/x"}))


def test_only_another_engine_has_a_version_of_its_own() -> None:
    assert [names.version_of(name) for name in names.NAMES] == [{}, {"env.ranker": 1}, {"env.ranker": 1}]
    assert set(names.NAMES) == {"own", *rankers._INSTALL}
