"""What runs of Search-QA are known by: what is searched, and not where it lies or who serves it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from retriever_server import Server, free_port

from envs.interface import EnvConfig
from envs.search_qa import sources
from envs.search_qa.retrieval import RetrieverDown
from envs.search_qa.settings import knobs_of
from harness.config import RunConfig
from harness.fingerprint import fingerprint
from harness.record import RunDirectory
from harness.sources import SourceError, check_sources
from harness.spool import Spool
from harness.versions import versions

pytest.importorskip("httpx")


def named(cache: Path, **knobs: Any) -> str:
    """The fingerprint of a run with these knobs."""
    env = EnvConfig(name="search_qa", cache=str(cache), knobs=knobs)
    config = dataclasses.replace(RunConfig(), env=env)
    return fingerprint(config, versions(config), "weights", {"test": "a"})


def write(path: Path, *words: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": str(k), "contents": f'"{word}"\n{word}'}) for k, word in enumerate(words)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_who_serves_and_how_patient_one_is_does_not_count(tmp_path: Path) -> None:
    here = named(tmp_path, retriever="http://here:1/retrieve")
    assert here == named(tmp_path, retriever="https://there/retrieve")
    assert here == named(tmp_path, retriever="http://here:1/retrieve", timeout=5.0, attempts=2, single_query=True)
    assert here != named(tmp_path, retriever="lexical")
    assert here != named(tmp_path, retriever="http://here:1/retrieve", topk=5)


def test_passages_count_by_their_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a" / "wiki.jsonl", "one", "two")
    before = named(tmp_path, passages=str(path))
    assert before == named(tmp_path, passages=str(write(tmp_path / "b" / "other.jsonl", "one", "two")))
    assert before != named(tmp_path)
    write(path, "one", "three")  # in its place
    assert named(tmp_path, passages=str(path)) != before
    with pytest.raises(FileNotFoundError, match=r"env\.knobs\.passages=.*none\.jsonl is not a file"):
        named(tmp_path, passages=str(tmp_path / "none.jsonl"))


def test_encoders_count_by_their_content_and_by_what_stands_in_front_of_texts(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / ".git").mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "two" / ".note").write_text("hidden")
    before = named(tmp_path, retriever="dense", encoder=str(tmp_path / "one"))
    assert before == named(tmp_path, retriever="dense", encoder=str(tmp_path / "two"))
    assert before != named(tmp_path, retriever="dense", encoder=str(tmp_path / "one"), query_prefix="query: ")
    (tmp_path / "one" / "model.safetensors").write_bytes(b"others!")
    assert before != named(tmp_path, retriever="dense", encoder=str(tmp_path / "one"))
    with pytest.raises(FileNotFoundError, match=r"env\.knobs\.encoder"):
        named(tmp_path, retriever="dense", encoder=str(tmp_path / "three"))
    with pytest.raises(ValueError, match=r"env\.knobs\.passage_prefix='x' does not fit"):
        knobs_of(EnvConfig(name="search_qa", knobs={"passage_prefix": "x"}))


# --------------------------------------------------------------------------------------------- what is found at a start
class Run(SimpleNamespace):
    """As much of a run directory as is asked."""

    def check(self, **knobs: Any) -> None:
        env = EnvConfig(name="search_qa", cache=str(self.cache), knobs=knobs)
        check_sources(cast(RunDirectory, self), dataclasses.replace(RunConfig(), env=env))

    def events(self) -> list[dict[str, Any]]:
        return [entry["data"] for entry in self.spool.read()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(spool=Spool(tmp_path / "spool.jsonl"), cache=tmp_path)


def asked(run: Run, *answers: Any) -> None:
    """One attempt after the other, each with a server that answers so to GET /health."""
    for answer in answers:
        server = Server([answer])
        try:
            run.check(retriever=server.url, attempts=1, timeout=5.0)
        finally:
            server.close()
        assert server.requests == [{"get": "/health"}]


def test_a_server_of_another_corpus_is_refused(run: Run) -> None:
    asked(run, {"status": "ok", "sha256": "aa"}, {"sha256": "aa"})
    assert run.events() == [{"env.knobs.retriever": "aa"}]
    with pytest.raises(SourceError, match="retriever: aa then, bb now"):
        asked(run, {"sha256": "bb"})
    with pytest.raises(SourceError, match="aa then, nobody tells now"):
        asked(run, (404, {}))
    asked(run, {"sha256": "aa"})
    assert len(run.events()) == 1


def test_servers_that_do_not_tell_are_played_with(run: Run) -> None:
    """Search-R1's has no /health."""
    asked(run, (404, {}), b"fine", {"status": "ok"}, ["list"])
    assert {event["env.knobs.retriever"] for event in run.events()} == {None}
    asked(run, {"sha256": "aa"})
    with pytest.raises(SourceError):
        asked(run, {"sha256": "bb"})


def test_a_server_that_is_down_is_told_before_the_first_episode(run: Run) -> None:
    with pytest.raises(RetrieverDown, match="/health does not answer"):
        run.check(retriever=f"http://127.0.0.1:{free_port()}/retrieve", attempts=1, timeout=0.5)
    with pytest.raises(RetrieverDown, match="status 500"):
        asked(run, (500, {}))


def test_passages_that_were_replaced_between_attempts_are_refused(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "wiki.jsonl", "one")
    run.check(passages=str(path))
    run.check(passages=str(path))
    assert len(run.events()) == 1
    write(path, "other")
    with pytest.raises(SourceError, match=r"env\.passages: .* then, .* now"):
        run.check(passages=str(path))


def test_environments_without_sources_are_not_asked(run: Run) -> None:
    check_sources(cast(RunDirectory, run), RunConfig())
    assert run.events() == []


def test_equal_servers_tell_equal_digests(tmp_path: Path) -> None:
    knobs = {"passages": str(write(tmp_path / "a.jsonl", "one"))}
    others = {"passages": str(write(tmp_path / "b.jsonl", "two"))}
    settings = [EnvConfig(name="search_qa", cache=str(tmp_path), knobs=k) for k in (knobs, knobs, others)]
    told = [sources.served(config) for config in settings]
    assert told[0] == told[1] != told[2]
