"""Answers on disk: the cache that runs share, recordings, and analyzer=replay."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from analyzer_helpers import GOOD, WAIT, FakeEndpoint, completion, in_turn, played, remote

from methods.interface import Analysis
from methods.skills import analyzer
from methods.skills.analyzer import AnalyzerContext, AnalyzerFailure, Usage
from methods.skills.analyzers import cache as cache_module
from methods.skills.analyzers import recording as recording_module
from methods.skills.analyzers.cache import AnswerCache, cache_key
from methods.skills.analyzers.prompt import trajectory_digest
from methods.skills.analyzers.recording import Recorder, RecordingError, read_recording
from methods.skills.analyzers.replay import ReplayAnalyzer
from methods.skills.analyzers.settings import AnalyzerConfig

ANALYSIS = Analysis("look before you go", {1: "go east"}, 0)
KEY = cache_key(model="m", prompt="p")


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    started = FakeEndpoint(in_turn(completion()))
    yield started
    started.stop()


def ask(server: FakeEndpoint, count: int = 1, **keywords: Any) -> tuple[list[Analysis | None], Usage]:
    """What a new analyzer answers, as another process would make it, and what it spent."""
    asked = remote(server, **keywords)
    try:
        return asked.analyze(played(count)).result(WAIT), asked.usage()
    finally:
        asked.close()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------------------------------------------------------- cache
def test_the_second_time_nothing_is_asked(server: FakeEndpoint, tmp_path: Path) -> None:
    first, spent = ask(server, 3, cache=tmp_path)
    assert (spent.calls, spent.cached) == (3, 0)
    again, free = ask(server, 3, cache=tmp_path)
    assert first == again == [ANALYSIS] * 3 and len(server.requests) == 3
    assert (free.calls, free.cached, free.prompt_tokens, free.cost) == (0, 3, 0, 0.0)


@pytest.mark.parametrize(
    "change",
    [{"model": "other"}, {"temperature": 0.5}, {"max_output_tokens": 9}, {"response_format": "none"}, {"most": 1}],
)
def test_other_questions_have_other_answers(server: FakeEndpoint, tmp_path: Path, change: dict[str, Any]) -> None:
    ask(server, cache=tmp_path)
    assert ask(server, cache=tmp_path, **change)[1].calls == 1


@pytest.mark.parametrize("change", [{"retries": 0}, {"concurrency": 1}, {"limit_field": "max_tokens"}])
def test_how_the_endpoint_is_reached_is_no_part_of_the_question(
    server: FakeEndpoint, tmp_path: Path, change: dict[str, Any]
) -> None:
    ask(server, cache=tmp_path)
    assert ask(server, cache=tmp_path, **change)[1].cached == 1


def test_dropped_step_skills_are_counted_from_the_cache_too(tmp_path: Path) -> None:
    server = FakeEndpoint(in_turn(completion({**GOOD, "step_skills": {"1": "go east", "9": "late"}})))
    answers = [ask(server, cache=tmp_path)[0] for _ in range(2)]
    server.stop()
    assert answers == [[Analysis("look before you go", {1: "go east"}, 1)]] * 2 and len(server.requests) == 1


def test_repaired_answers_are_cached_and_failures_are_not(tmp_path: Path) -> None:
    server = FakeEndpoint(in_turn(completion("no"), completion("no"), completion("no"), completion()))
    assert ask(server, cache=tmp_path)[0] == [None] and files(tmp_path) == []
    assert ask(server, cache=tmp_path)[0] == [ANALYSIS]  # asked again, and repaired
    assert ask(server, cache=tmp_path)[0] == [ANALYSIS] and len(server.requests) == 4
    server.stop()


_DAMAGES = {
    "empty": b"",
    "truncated": b'{"key": "',
    "binary": b"\xff\x00\xfe",
    "other JSON": b"[1, 2]",
    "no answer": b'{"key": "x"}',
    "other key": json.dumps({"key": "x", "sha256": "y", "answer": {}}).encode(),
    "deep": b"[" * 100_000,
    "large": b" " * (cache_module.MAX_ENTRY_BYTES + 1),
}


@pytest.mark.parametrize("damage", sorted(_DAMAGES))
def test_damaged_entries_are_counted_and_replaced(
    server: FakeEndpoint, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask(server, cache=tmp_path)
    (entry,) = files(tmp_path)
    entry.write_bytes(_DAMAGES[damage])
    answers, spent = ask(server, cache=tmp_path)
    assert answers == [ANALYSIS] and (spent.corrupt, spent.calls, spent.cached) == (1, 1, 0)
    assert str(entry) in caplog.text and "is left aside" in caplog.text
    assert ask(server, cache=tmp_path)[1].cached == 1  # it was replaced
    assert files(tmp_path) == [entry]


def test_edited_entries_are_noticed(server: FakeEndpoint, tmp_path: Path) -> None:
    ask(server, cache=tmp_path)
    (entry,) = files(tmp_path)
    entry.write_text(entry.read_text().replace("look before", "never look before"))
    assert ask(server, cache=tmp_path)[1].corrupt == 1


def test_an_unusable_answer_with_a_right_checksum_is_asked_anew(
    server: FakeEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnswerCache, "get", lambda *_: {"episode_skill": "None", "step_skills": {}})
    answers, spent = ask(server, cache=tmp_path)
    assert answers == [ANALYSIS] and (spent.corrupt, spent.cached, spent.calls) == (1, 0, 1)


def test_an_unusable_stored_answer_is_replaced(server: FakeEndpoint, tmp_path: Path) -> None:
    """With a right checksum, so that only its judge can tell: it must not be paid for again at every run."""
    ask(server, cache=tmp_path)
    (entry,) = files(tmp_path)
    bad = {**GOOD, "episode_skill": "None"}
    entry.write_text(cache_module._entry(entry.stem, bad))
    answers, spent = ask(server, cache=tmp_path)
    assert answers == [ANALYSIS] and (spent.corrupt, spent.calls, spent.cached) == (1, 1, 0)
    answers, spent = ask(server, cache=tmp_path)
    assert answers == [ANALYSIS] and (spent.corrupt, spent.calls, spent.cached) == (0, 0, 1)


def test_who_stores_first_wins(tmp_path: Path) -> None:
    one, other = AnswerCache(tmp_path), AnswerCache(tmp_path)
    assert one.put(KEY, {"a": 1}) == {"a": 1}
    assert other.put(KEY, {"a": 2}) == {"a": 1} == other.get(KEY)
    assert len(files(tmp_path)) == 1 and other.corrupt == 0


def test_a_run_goes_on_with_what_another_run_stored_meanwhile(tmp_path: Path) -> None:
    """Both ask, one is quicker: both train on the same skills, and so do their resumed runs."""
    slow = FakeEndpoint(lambda *_: completion({**GOOD, "episode_skill": "the slow one"}, hang=True))
    quick = FakeEndpoint(in_turn(completion()))
    waiting = remote(slow, cache=tmp_path)
    future = waiting.analyze(played())
    slow.wait_for(1)
    ask(quick, cache=tmp_path)
    slow.release.set()
    assert future.result(WAIT) == [ANALYSIS]
    waiting.close()
    slow.stop()
    quick.stop()


def test_many_writers_leave_one_whole_file(tmp_path: Path) -> None:
    stored: list[Any] = []

    def write(number: int) -> None:
        stored.append(AnswerCache(tmp_path).put(KEY, {"from": number, "text": "x" * 50_000}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files(tmp_path)) == 1
    assert len(stored) == 8 and all(answer == AnswerCache(tmp_path).get(KEY) for answer in stored)


def test_a_folder_that_cannot_be_written_costs_a_warning(
    server: FakeEndpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    answers, spent = ask(server, 3, cache=blocked / "below")
    assert answers == [ANALYSIS] * 3 and spent.calls == 3
    assert caplog.text.count("answers are not cached") == 1


def test_keys_depend_on_every_part() -> None:
    assert len({cache_key(a=1), cache_key(a=2), cache_key(b=1), cache_key(a=1, b=1), cache_key(a="1")}) == 5


# ------------------------------------------------------------------------------------------------------------ recording
def replay(path: Path, rate: float | None = None) -> ReplayAnalyzer:
    config = AnalyzerConfig("replay", answers=str(path))
    found = analyzer.build("replay", AnalyzerContext(5, config=config, max_failure_rate=rate))
    assert isinstance(found, ReplayAnalyzer)
    return found


def test_a_recording_gives_the_same_analyses(server: FakeEndpoint, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "answers.jsonl"
    recorded, _ = ask(server, 3, record=path)
    again = replay(path)
    assert again.analyze(played(3)).result() == recorded == [ANALYSIS] * 3
    assert again.analyze(played(3)[::-1]).result() == recorded and again.usage() == Usage()
    again.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["task"] for line in lines} == {"task 0", "task 1", "task 2"} and lines[0]["answer"] == GOOD


def test_trajectories_are_recorded_once(server: FakeEndpoint, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    for _ in range(2):  # a resumed run
        ask(server, 2, record=path, cache=tmp_path / "cache")
    assert len(path.read_text().splitlines()) == 2


def test_failures_are_recorded_and_replaced_by_answers(tmp_path: Path) -> None:
    path, (one,) = tmp_path / "answers.jsonl", played()
    for recorded in ("first", "second", GOOD, "third", {**GOOD, "episode_skill": "later"}):
        Recorder(path).add(one, recorded)  # type: ignore[arg-type]
    assert [json.loads(line).get("error") for line in path.read_text().splitlines()] == ["first", None]
    assert read_recording(path) == {trajectory_digest(one): GOOD}
    assert replay(path).analyze([one]).result() == [ANALYSIS]


def test_a_recorded_failure_fails_again(tmp_path: Path) -> None:
    path, (one,) = tmp_path / "answers.jsonl", played()
    Recorder(path).add(one, "the model refused")
    with pytest.raises(AnalyzerFailure, match=r"had failed \(the model refused\): task 'task 0', sample 0"):
        replay(path, 0.2).analyze([one])


def test_what_is_missing_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "answers.jsonl"
    Recorder(path).add(played()[0], GOOD)
    assert replay(path, 0.5).analyze(played(2)).result() == [ANALYSIS, None]
    digest = trajectory_digest(played(2)[1])
    assert f"{path} has no answer for task 'task 1', sample 0 (trajectory {digest[:12]}...)" in caplog.text
    with pytest.raises(AnalyzerFailure, match=r"has no answer for task 'task 1', sample 0"):
        replay(path, 0.4).analyze(played(2))


def test_files_made_by_hand_name_task_and_sample(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    by_hand = {"task": "task 0", "sample": 0, "answer": {"episode_skill": "by hand", "step_skills": {}}}
    path.write_text(json.dumps(by_hand) + "\n\n")
    assert replay(path).analyze(played()).result() == [Analysis("by hand", {})]
    Recorder(path).add(played()[0], GOOD)  # the content counts before the name
    assert replay(path).analyze(played()).result() == [ANALYSIS]


def test_unusable_recorded_answers_fail_by_name(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    Recorder(path).add(played()[0], {"episode_skill": "", "step_skills": {}})
    with pytest.raises(AnalyzerFailure, match=r"for task 'task 0'.* is unusable: episode_skill says nothing"):
        replay(path, 0.0).analyze(played())


def test_a_line_cut_by_a_killed_process_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b'{"trajectory": "ab')
    Recorder(path).add(played()[0], GOOD)
    assert f"{path}:1 is no JSON" in caplog.text
    assert replay(path).analyze(played()).result() == [ANALYSIS]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", ":1 is no recorded answer"),
        ('{"trajectory": "a"}', ":1 is no recorded answer"),
        ('{"answer": {}}', "does not say which trajectory"),
        ('{"task": "a", "sample": true, "answer": {}}', "does not say which trajectory"),
        ('{"trajectory": 3, "task": "a", "sample": 0, "answer": {}}', "does not say which trajectory"),
        ('{"trajectory": "a", "answer": "text"}', "neither an object nor null"),
        ("x" * recording_module.MAX_LINE_CHARS, "is longer than"),
    ],
)
def test_other_files_are_no_recordings(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line)
    with pytest.raises(RecordingError, match=said):
        replay(path)


def test_a_recording_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot read the recorded answers"):
        read_recording(tmp_path)


def test_a_recording_that_cannot_be_written_is_an_error(server: FakeEndpoint, tmp_path: Path) -> None:
    """Who asks for a record wants a complete one."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ask(server, record=tmp_path / "file" / "answers.jsonl")


def test_the_content_of_a_recording_is_its_identity(tmp_path: Path) -> None:
    one, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    one.write_text("{}\n")
    other.write_text("{}\n")
    same = [analyzer.identity(AnalyzerConfig("replay", answers=str(path))) for path in (one, other)]
    assert same[0] == same[1] and len(str(same[0])) > 64
    other.write_text("{} \n")
    assert analyzer.identity(AnalyzerConfig("replay", answers=str(other))) != same[0]


@pytest.mark.parametrize("answers", [None, "", "nowhere.jsonl"])
def test_replay_without_a_file_says_how_to_make_one(answers: str | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    config = AnalyzerConfig("replay", answers=answers)
    for call in (analyzer.check, analyzer.identity, lambda c: analyzer.build("replay", AnalyzerContext(5, config=c))):
        with pytest.raises(ValueError, match=r"analyzer.answers=.*analyzer.record=FILE"):
            call(config)
