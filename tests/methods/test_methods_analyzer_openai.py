"""analyzer=openai against an endpoint that misbehaves in every way it can. A real server, on this machine alone."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import pytest
from analyzer_helpers import GOOD, WAIT, FakeEndpoint, Reply, Script, completion, in_turn, played, remote, settings

from methods.interface import Analysis
from methods.skills.analyzer import AnalyzerFailure, Usage
from methods.skills.analyzers import endpoint as endpoint_module
from methods.skills.analyzers.endpoint import MAX_RESPONSE_BYTES, Endpoint, _retry_after
from methods.skills.analyzers.ledger import Ledger
from methods.skills.analyzers.remote import RemoteAnalyzer
from methods.skills.analyzers.settings import SettingsError

ANALYSIS = Analysis("look before you go", {1: "go east"}, 0)
KEY = "sk-planted-0123456789abcdef"
HTML = {"Content-Type": "text/html; charset=utf-8"}
PROMPT_CHARS = 1_000

Serve = Callable[[Script], FakeEndpoint]


@pytest.fixture
def serve() -> Iterator[Serve]:
    started: list[FakeEndpoint] = []

    def start(script: Script) -> FakeEndpoint:
        started.append(FakeEndpoint(script))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def make() -> Iterator[Callable[..., RemoteAnalyzer]]:
    made: list[RemoteAnalyzer] = []

    def build(*arguments: Any, **keywords: Any) -> RemoteAnalyzer:
        made.append(remote(*arguments, **keywords))
        return made[-1]

    yield build
    for analyzer in made:
        analyzer.close()


Make = Callable[..., RemoteAnalyzer]


def done(future: Future[list[Analysis | None]]) -> list[Analysis | None]:
    return future.result(WAIT)


def counts(analyzer: RemoteAnalyzer) -> dict[str, float]:
    """What is not 0, but for the time."""
    usage = analyzer.usage()
    assert usage.seconds > 0
    return {name: getattr(usage, name) for name in Usage.__slots__ if getattr(usage, name) and name != "seconds"}


# ------------------------------------------------------------------------------------------------------- what is sent
def test_a_request_says_what_the_settings_say(serve: Serve, make: Make) -> None:
    server = serve(in_turn(completion()))
    analyzer = make(server, temperature=0.25, max_output_tokens=77, price_prompt=2.0, price_completion=8.0)
    assert done(analyzer.analyze(played())) == [ANALYSIS]
    (sent,) = server.requests
    assert (sent["model"], sent["temperature"], sent["max_completion_tokens"], sent["stream"]) == (
        "tiny-judge",
        0.25,
        77,
        False,
    )
    assert "max_tokens" not in sent and server.paths == ["/v1/chat/completions"]
    (message,) = sent["messages"]
    assert message["role"] == "user" and "Task: text of task 0" in message["content"]
    kind = sent["response_format"]
    assert kind["type"] == "json_schema" and kind["json_schema"]["schema"]["required"][1] == "episode_skill"
    assert "Authorization" not in server.headers[0] and server.headers[0]["Accept-Encoding"] == "identity"
    usage = analyzer.usage()
    assert (usage.calls, usage.prompt_tokens, usage.completion_tokens) == (1, 10, 20)
    assert usage.cost == pytest.approx(10 * 2e-6 + 20 * 8e-6)
    assert analyzer.usage() == Usage()  # asked for: begins anew


@pytest.mark.parametrize(("form", "sent"), [("json_object", {"type": "json_object"}), ("none", None)])
def test_other_answer_formats_are_settings(serve: Serve, make: Make, form: str, sent: Any) -> None:
    server = serve(in_turn(completion()))
    done(make(server, response_format=form, limit_field="max_tokens").analyze(played()))
    assert server.requests[0].get("response_format") == sent
    assert server.requests[0]["max_tokens"] == 4096 and "max_completion_tokens" not in server.requests[0]


def test_the_format_is_never_changed_silently(serve: Serve, make: Make) -> None:
    server = serve(in_turn(Reply(b'{"error": {"message": "response_format is unknown"}}', 400)))
    with pytest.raises(AnalyzerFailure, match=r"status 400 \(does it know analyzer.response_format.*is unknown"):
        done(make(server, max_failure_rate=0.2).analyze(played()))
    assert len(server.requests) == 1


def test_answers_come_in_the_order_of_the_trajectories(serve: Serve, make: Make) -> None:
    def script(number: int, payload: dict[str, Any]) -> Reply:
        task = payload["messages"][0]["content"].partition("Task: text of task ")[2][0]
        return completion({**GOOD, "episode_skill": f"skill {task}"}, delay=0.1 if task == "0" else 0.0)

    answers = done(make(serve(script)).analyze(played(5)))
    assert [a and a.episode_skill for a in answers] == [f"skill {k}" for k in range(5)]


def test_no_trajectories_no_requests(serve: Serve, make: Make) -> None:
    server = serve(in_turn(completion()))
    analyzer = make(server, max_failure_rate=0.0)
    assert done(analyzer.analyze([])) == [] and done(analyzer.analyze(played(1, steps=0)[:0])) == []
    with pytest.raises(AnalyzerFailure, match="without steps"):
        done(analyzer.analyze(played(1, steps=0)))
    assert server.requests == []


def test_equal_trajectories_share_one_answer(serve: Serve, make: Make) -> None:
    server = serve(in_turn(completion()))
    analyzer = make(server)
    assert done(analyzer.analyze([*played(2), *played(2)])) == [ANALYSIS] * 4
    assert len(server.requests) == 2
    assert counts(analyzer) == {"calls": 2, "cached": 2, "prompt_tokens": 20, "completion_tokens": 40}


# ------------------------------------------------------------------------------------------------------ trying again
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_overload_is_tried_again(serve: Serve, make: Make, status: int) -> None:
    server = serve(in_turn(Reply(b"busy", status, HTML), Reply(b"busy", status, HTML), completion()))
    analyzer = make(server)
    assert done(analyzer.analyze(played())) == [ANALYSIS]
    assert counts(analyzer) == {"calls": 3, "retries": 2, "prompt_tokens": 10, "completion_tokens": 20}
    assert len({json.dumps(request) for request in server.requests}) == 1  # the same question


def test_tries_are_bounded(serve: Serve, make: Make) -> None:
    server = serve(in_turn(Reply(b"busy", 503, HTML)))
    analyzer = make(server, retries=3)
    assert done(analyzer.analyze(played())) == [None]
    assert len(server.requests) == 4 and counts(analyzer) == {"calls": 4, "retries": 3}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 301, 307, 204])
def test_other_statuses_are_not_tried_again(serve: Serve, make: Make, status: int) -> None:
    headers = {"Location": "http://127.0.0.1:9/elsewhere"}
    server = serve(in_turn(Reply(b"" if status == 204 else b"no", status, headers)))
    with pytest.raises(AnalyzerFailure, match=rf"{server.url}/chat/completions answered with status {status}"):
        done(make(server, max_failure_rate=0.5).analyze(played()))
    assert len(server.requests) == 1


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between tries are noted instead of waited for."""
    noted: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float, result: Any = None) -> None:
        noted.append(seconds)
        await sleep(0)

    monkeypatch.setattr(endpoint_module.asyncio, "sleep", note)
    return noted


def test_retry_after_is_honoured(serve: Serve, make: Make, waits: list[float]) -> None:
    in_a_minute = formatdate(time.time() + 60, usegmt=True)
    replies = [
        Reply(b"slow down", 429, {"Retry-After": "7"}),
        Reply(b"slow down", 429, {"Retry-After": in_a_minute}),
        Reply(b"slow down", 429, {"Retry-After": "soon"}),
        Reply(b"slow down", 429),
        completion(),
    ]
    assert done(make(serve(in_turn(*replies)), retries=4).analyze(played())) == [ANALYSIS]
    assert waits[0] == 7.0 and 50 < waits[1] <= 60 and all(0 < wait <= 0.02 for wait in waits[2:])


def test_an_endpoint_that_wants_a_longer_wait_has_failed(serve: Serve, make: Make, waits: list[float]) -> None:
    server = serve(in_turn(Reply(b"tomorrow", 429, {"Retry-After": "86400"})))
    with pytest.raises(AnalyzerFailure, match=r"asks to wait 86400 s, longer than analyzer.retry_after_max=120"):
        done(make(server, max_failure_rate=0.2).analyze(played()))
    assert len(server.requests) == 1 and waits == []


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("", 0), ("x", 0), ("-3", 0), ("1.5", 0), ("12", 12), ("9" * 400, 999_999_999), (formatdate(0), 0), ("²", 0)],
)
def test_retry_after_of_any_content(given: str, seconds: float) -> None:
    assert _retry_after(httpx.Headers({"Retry-After": given.encode()})) == seconds


def test_waits_double_are_capped_and_jittered() -> None:
    endpoint = Endpoint(settings(retry_delay=1.0, retry_delay_max=30.0), Ledger())
    for attempt, longest in [(0, 1), (1, 2), (2, 4), (4, 16), (5, 30), (5000, 30)]:
        drawn = [endpoint._delay(attempt) for _ in range(50)]
        assert longest / 2 <= min(drawn) and max(drawn) <= longest and len(set(drawn)) > 1


def test_the_generators_of_the_run_are_left_alone(serve: Serve, make: Make) -> None:
    before = random.getstate()
    done(make(serve(in_turn(Reply(b"", 500), completion()))).analyze(played()))
    assert random.getstate() == before


def test_hanging_connections_are_given_up_and_tried_again(serve: Serve, make: Make) -> None:
    server = serve(in_turn(Reply(hang=True), completion()))
    analyzer = make(server, read_timeout=0.1)
    assert done(analyzer.analyze(played())) == [ANALYSIS]
    assert counts(analyzer)["retries"] == 1


def test_an_endpoint_that_always_hangs_has_failed(serve: Serve, make: Make) -> None:
    server = serve(in_turn(Reply(hang=True)))
    with pytest.raises(AnalyzerFailure, match=r"did not answer within 0.05 s \(tried 2 times, see analyzer.retries\)"):
        done(make(server, read_timeout=0.05, retries=1, max_failure_rate=0.2).analyze(played()))


def test_a_byte_now_and_then_does_not_keep_a_request_alive(serve: Serve, make: Make) -> None:
    def drip() -> Iterator[bytes]:
        for _ in range(1000):
            yield b" "
            time.sleep(0.02)

    server = serve(lambda *_: Reply(stream=drip()))
    with pytest.raises(AnalyzerFailure, match=r"did not answer within 0\.1 s"):
        done(make(server, read_timeout=0.1, connect_timeout=0.1, retries=0, max_failure_rate=0.2).analyze(played()))


@pytest.mark.parametrize("body", [completion().body[:-30], b""])
def test_broken_connections_are_tried_again(serve: Serve, make: Make, body: bytes) -> None:
    server = serve(in_turn(Reply(body, length=len(completion().body)), completion()))
    analyzer = make(server)
    assert done(analyzer.analyze(played())) == [ANALYSIS]
    assert counts(analyzer) == {"calls": 2, "retries": 1, "prompt_tokens": 10, "completion_tokens": 20}


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/v1"


def test_a_refused_connection_is_an_outage(make: Make) -> None:
    url = closed_port()
    analyzer = make(url, max_failure_rate=0.2, retries=1)
    with pytest.raises(AnalyzerFailure) as caught:
        done(analyzer.analyze(played(3)))
    text = str(caught.value)
    assert f"{url}/chat/completions cannot be reached" in text and "tried 2 times" in text
    assert "analyzer=openai (tiny-judge at" in text and "method.skill.max_failure_rate=0.2" in text
    assert AnalyzerFailure.failure_class == "analyzer"


def test_an_outage_stops_a_batch_early(serve: Serve, make: Make) -> None:
    server = serve(in_turn(Reply(b"no", 401)))
    with pytest.raises(AnalyzerFailure, match=r"at least \d+ of 40 analyses failed"):
        done(make(server, concurrency=1, max_failure_rate=0.1).analyze(played(40)))
    assert len(server.requests) < 10  # 5 failures are too many; the other questions are not put


def test_few_failures_are_told_and_gone_on_with(serve: Serve, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def script(number: int, payload: dict[str, Any]) -> Reply:
        return Reply(b"cannot", 422) if "text of task 2" in payload["messages"][0]["content"] else completion()

    assert done(make(serve(script), max_failure_rate=0.25).analyze(played(4))) == [ANALYSIS, ANALYSIS, None, ANALYSIS]
    assert "1 of 4 analyses failed" in caplog.text and "answered with status 422: cannot" in caplog.text


# ------------------------------------------------------------------------------------------------------------ repairs
UNUSABLE = {
    "truncated": json.dumps(GOOD)[:-20],
    "echo": json.dumps({"type": "object", "properties": {"episode_skill": {"type": "string"}}}),
    "duplicate": '{"episode_skill": "a", "episode_skill": "b", "step_skills": {}}',
    "blank": json.dumps({**GOOD, "episode_skill": " "}),
    "array": "[]",
    "prose": "I am sorry.",
    "empty": "",
}


@pytest.mark.parametrize("kind", sorted(UNUSABLE))
def test_unusable_answers_are_repaired_once(serve: Serve, make: Make, kind: str) -> None:
    bad = UNUSABLE[kind]
    server = serve(in_turn(completion(bad), completion()))
    analyzer = make(server)
    assert done(analyzer.analyze(played())) == [ANALYSIS]
    first, second = (request["messages"][0]["content"] for request in server.requests)
    assert second.startswith(first) and "could not be used" in second and bad[-PROMPT_CHARS:] in second
    assert counts(analyzer) == {"calls": 2, "repairs": 1, "prompt_tokens": 20, "completion_tokens": 40}


@pytest.mark.parametrize("kind", sorted(UNUSABLE))
def test_a_second_unusable_answer_is_a_failure(serve: Serve, make: Make, kind: str) -> None:
    server = serve(in_turn(completion(UNUSABLE[kind])))
    analyzer = make(server)
    assert done(analyzer.analyze(played())) == [None]
    assert len(server.requests) == 2 and counts(analyzer)["repairs"] == 1


def test_prose_around_the_answer_costs_no_repair(serve: Serve, make: Make) -> None:
    server = serve(in_turn(completion(f"Of course!\n```json\n{json.dumps(GOOD)}\n```\nAnything else?")))
    assert done(make(server).analyze(played())) == [ANALYSIS] and len(server.requests) == 1


def test_indices_out_of_range_are_dropped_and_counted(serve: Serve, make: Make) -> None:
    content = {**GOOD, "step_skills": {"1": "go east", "3": "late", "-1": "early", "x": "?"}}
    assert done(make(serve(in_turn(completion(content)))).analyze(played())) == [
        Analysis("look before you go", {1: "go east"}, 3)
    ]


def test_an_answer_cut_off_says_so(serve: Serve, make: Make) -> None:
    server = serve(in_turn(completion(json.dumps(GOOD)[:-5], finish="length")))
    with pytest.raises(AnalyzerFailure, match="reached the limit of output tokens"):
        done(make(server, max_failure_rate=0.2).analyze(played()))


_LONG = json.dumps({**GOOD, "episode_summary": "x" * 1_000_000})
_HUGE = b'{"choices": [' + b" " * 50_000_000 + b"]}"

UNREADABLE: dict[str, tuple[Reply, str]] = {
    "html": (
        Reply(b"<html>Welcome</html>", 200, HTML),
        r"it is no JSON \(text/html; charset=utf-8\).*OpenAI-compatible",
    ),
    "cut JSON": (Reply(completion().body[:-10]), r"it is no JSON \(application/json\)"),
    "empty body": (Reply(b""), "it is no JSON"),
    "not UTF-8": (Reply(b'{"choices": "\xff\xfe"}'), "it is not UTF-8"),
    "deep": (Reply(b"[" * 200_000), "it is no JSON"),
    "a list": (Reply(b"[]"), r"no choices\[0\].message"),
    "no choices": (Reply(b'{"choices": []}'), r"no choices\[0\].message"),
    "no text": (Reply(b'{"choices": [{"message": {"content": null}}]}'), "its message has no text"),
    "refusal": (Reply(b'{"choices": [{"message": {"content": null, "refusal": "no"}}]}'), "the model refused"),
    "1 MB": (completion(_LONG), "larger than 1000000 bytes"),
    "50 MB": (Reply(_HUGE), "larger than 1000000 bytes"),
    "endless": (Reply(), "larger than 1000000 bytes"),
    "compressed": (Reply(gzip.compress(b"0" * 10**7), 200, {"Content-Encoding": "gzip"}), "it is compressed"),
}


@pytest.mark.parametrize("kind", sorted(UNREADABLE))
def test_unreadable_responses_are_asked_for_once_more(serve: Serve, make: Make, kind: str) -> None:
    reply, said = UNREADABLE[kind]

    def broken() -> Reply:
        return Reply(stream=iter(lambda: b" " * 65536, b"")) if kind == "endless" else reply

    server = serve(lambda number, _: broken() if number == 0 else completion())
    analyzer = make(server)
    assert done(analyzer.analyze(played())) == [ANALYSIS]
    first, second = (request["messages"][0]["content"] for request in server.requests)
    assert first == second  # there is no text of the model's to correct
    spent = counts(analyzer)
    assert spent["repairs"] == 1 and spent["unmetered"] == 1  # what was billed for it cannot be read

    server = serve(lambda *_: broken())
    with pytest.raises(AnalyzerFailure, match=f"the second answer too is unusable: .*{said}"):
        done(make(server, max_failure_rate=0.2).analyze(played()))
    assert len(server.requests) == 2


def test_compressed_errors_are_errors_first(serve: Serve, make: Make) -> None:
    """Proxies compress their error pages: it is the status that says whether to try again."""
    page = Reply(gzip.compress(b"overloaded"), 503, {"Content-Encoding": "gzip"})
    analyzer = make(serve(in_turn(page, page, completion())))
    assert done(analyzer.analyze(played())) == [ANALYSIS]
    spent = counts(analyzer)
    assert (spent["calls"], spent["retries"], spent.get("repairs", 0), spent.get("unmetered", 0)) == (3, 2, 0, 0)


def test_the_rest_of_a_long_answer_is_not_read(serve: Serve, make: Make) -> None:
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(2000):
            sent += 65536
            yield b" " * 65536

    assert done(make(serve(lambda *_: Reply(stream=parts()))).analyze(played())) == [None]
    # two answers; what lies in the buffers of both sides is sent without being read
    assert sent < 2 * (MAX_RESPONSE_BYTES + 30_000_000)


def test_a_wrong_content_type_alone_is_no_fault(serve: Serve, make: Make) -> None:
    server = serve(in_turn(completion(headers=HTML)))
    assert done(make(server).analyze(played())) == [ANALYSIS] and len(server.requests) == 1


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        [],
        "many",
        {"prompt_tokens": 3},
        {"prompt_tokens": "3", "completion_tokens": 1},
        {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": 10**12, "completion_tokens": 1},
        {"prompt_tokens": 1.5, "completion_tokens": 1},
    ],
)
def test_answers_without_a_count_of_tokens_are_counted(serve: Serve, make: Make, usage: Any) -> None:
    analyzer = make(serve(in_turn(completion(usage=usage))), price_prompt=1.0)
    assert done(analyzer.analyze(played())) == [ANALYSIS]
    assert counts(analyzer) == {"calls": 1, "unmetered": 1}


def test_tokens_of_unusable_answers_are_paid_for(serve: Serve, make: Make) -> None:
    server = serve(in_turn(completion("no", usage=(1000, 500)), completion(usage=(3000, 700))))
    analyzer = make(server, price_prompt=3.0, price_completion=15.0)
    done(analyzer.analyze(played()))
    usage = analyzer.usage()
    assert (usage.prompt_tokens, usage.completion_tokens) == (4000, 1200)
    assert usage.cost == pytest.approx(4000 * 3e-6 + 1200 * 15e-6)


# ---------------------------------------------------------------------------------------- concurrency, overlap, closing
def test_no_more_requests_at_a_time_than_allowed(serve: Serve, make: Make) -> None:
    server = serve(lambda *_: completion(hang=True))
    analyzer = make(server, concurrency=3)
    futures = [analyzer.analyze(played(6)), analyzer.analyze(played(6, first=6))]  # two batches share the limit
    server.wait_for(3)
    time.sleep(0.1)
    assert server.active == 3 and len(server.requests) == 3
    server.release.set()
    assert [done(future) for future in futures] == [[ANALYSIS] * 6] * 2
    assert server.most == 3 and len(server.requests) == 12


def test_analyze_returns_before_the_endpoint_answers(serve: Serve, make: Make) -> None:
    server = serve(lambda *_: completion(hang=True))
    future = make(server).analyze(played(2))
    server.wait_for(2)
    assert not future.done()
    server.release.set()
    assert done(future) == [ANALYSIS] * 2


def test_closing_gives_up_requests_that_hang(serve: Serve, make: Make) -> None:
    server = serve(lambda *_: completion(hang=True))
    analyzer = make(server, read_timeout=60.0)
    future = analyzer.analyze(played(6))
    server.wait_for(4)
    analyzer.close()
    with pytest.raises(AnalyzerFailure, match="closed before its analyses were done"):
        future.result(0)
    assert not server.release.is_set()  # nobody answered
    analyzer.close()  # twice is no fault
    with pytest.raises(RuntimeError, match="was closed"):
        analyzer.analyze(played())


def test_closing_gives_up_waits_between_tries(serve: Serve, make: Make) -> None:
    server = serve(in_turn(Reply(b"later", 429, {"Retry-After": "100"})))
    analyzer = make(server)
    future = analyzer.analyze(played())
    server.wait_for(0)
    while not server.requests:
        time.sleep(0.01)
    analyzer.close()
    with pytest.raises(AnalyzerFailure, match="closed"):
        future.result(0)


def test_closing_what_was_never_used(make: Make) -> None:
    make("http://127.0.0.1:9/v1").close()


def test_faults_of_the_program_are_not_hidden(serve: Serve, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    analyzer = make(serve(in_turn(completion())))
    monkeypatch.setattr(Endpoint, "_payload", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        done(analyzer.analyze(played(3)))


_PROGRAM = """
import sys
sys.path[:0] = {paths!r}
from analyzer_helpers import played, remote
future = remote({url!r}, read_timeout=300.0).analyze(played(2))
print("asked", flush=True)
{then}
"""


def run_program(url: str, then: str) -> subprocess.Popen[str]:
    here = Path(__file__).parent
    code = _PROGRAM.format(paths=[str(here), str(here.parents[1])], url=url, then=then)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_process_ends_while_requests_hang(serve: Serve) -> None:
    server = serve(lambda *_: completion(hang=True))
    with run_program(server.url, "import time; time.sleep(0.2)") as process:
        assert process.wait(60) == 0


def test_an_interrupt_ends_a_process_that_waits(serve: Serve) -> None:
    server = serve(lambda *_: completion(hang=True))
    with run_program(server.url, "future.result()") as process:
        server.wait_for(2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode not in (0, None) and "KeyboardInterrupt" in said


# --------------------------------------------------------------------------------------------------------- the key
def test_the_key_is_sent_and_shown_nowhere(
    serve: Serve, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even by an endpoint that repeats it in errors, headers and answers."""
    monkeypatch.setenv("JUDGE_KEY", f" {KEY}\n")
    caplog.set_level(logging.DEBUG)
    folders = {"cache": tmp_path / "cache", "record": tmp_path / "record.jsonl"}
    told = {**GOOD, "episode_skill": f"use {KEY} always"}
    server = serve(in_turn(completion(f"no: {KEY}"), completion(told)))
    (answer,) = done(make(server, api_key_env="JUDGE_KEY", **folders).analyze(played()))
    assert answer is not None and answer.episode_skill == "use *** always"
    assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in server.headers)
    assert KEY not in json.dumps(server.requests)

    page = {"Content-Type": f"text/{KEY}"}
    spelt = KEY.replace("-", "\\u002d").replace("p", "\\u0070")
    replies = [
        Reply(f"bad {'x' * 290}{KEY}".encode(), 400),
        Reply(f"{' ' * 2980}key {KEY}".encode(), 400),  # cutting must come last
        Reply(json.dumps({"error": f"key {KEY}"}).replace(KEY, spelt).encode(), 400),
        Reply(KEY.encode(), 500),
        Reply(b"{", 200, page),
    ]
    for reply in replies:
        analyzer = make(serve(in_turn(reply)), api_key_env="JUDGE_KEY", max_failure_rate=0.2, retries=0, **folders)
        with pytest.raises(AnalyzerFailure) as caught:
            done(analyzer.analyze(played(1, first=3)))
        chain: BaseException | None = caught.value
        while chain is not None:
            assert "sk-plant" not in repr(chain)
            chain = chain.__cause__ or chain.__context__
        assert "***" in str(caught.value) or "xxx" in str(caught.value)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 2 and all("sk-plant" not in path.read_text() for path in written)
    assert "sk-plant" not in caplog.text


@pytest.mark.parametrize("status", [401, 403])
def test_of_a_key_that_is_refused_nothing_is_quoted(serve: Serve, make: Make, status: int) -> None:
    server = serve(in_turn(Reply(f"no: {KEY[:9]} {KEY[9:]} {KEY[::-1]}".encode(), status)))
    with pytest.raises(AnalyzerFailure) as caught:
        done(make(server, max_failure_rate=0.2).analyze(played()))
    assert f"status {status} (" in str(caught.value) and "no:" not in str(caught.value)


def test_texts_without_the_key_keep_their_escapes() -> None:
    found = Endpoint(settings("http://localhost:1/v1"), Ledger())
    found._key = "ab/c"
    assert found._without_key(r"\u0061 \u0022 a\/") == r"\u0061 \u0022 a\/"
    assert found._without_key(r'{"a": "\u0061b\/c \u0022"}') == r'{"a": "*** \u0022"}'


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("JUDGE_KEY", value)
    told = r"api_key_env=JUDGE_KEY: this environment variable is not set here.*null"
    with pytest.raises(SettingsError, match=told) as caught:
        remote("http://127.0.0.1:9/v1", api_key_env="JUDGE_KEY")
    assert caught.value.failure_class == "config"


@pytest.mark.parametrize("value", ["sk-a b", "sk-a\nX-Evil: 1", "sk-ä"])
def test_a_key_that_no_header_can_carry_is_not_repeated(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("JUDGE_KEY", value)
    with pytest.raises(ValueError, match="JUDGE_KEY: the value of this environment variable is no key") as caught:
        remote("http://127.0.0.1:9/v1", api_key_env="JUDGE_KEY")
    assert value not in str(caught.value)


def test_proxies_are_not_for_this_machine(serve: Serve, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", closed_port())
    monkeypatch.setenv("ALL_PROXY", closed_port())
    assert done(make(serve(in_turn(completion()))).analyze(played())) == [ANALYSIS]
    assert Endpoint(settings("http://judge.example.org/v1"), Ledger())._loopback is False
    assert Endpoint(settings("http://localhost:1/v1"), Ledger())._loopback is True
