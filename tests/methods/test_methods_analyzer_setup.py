"""analyzer=policy, settings that cannot work, the analyzer of a run, and what an outage does to OPID."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from analyzer_helpers import GOOD, played, settings
from methods_helpers import grpo_config, opid_config, row
from omegaconf import OmegaConf

import sweeps
from harness import registry
from harness.analysis_setup import build_analyzer
from harness.cells import run_config as cell_config
from harness.config import AnalyzerConfig, CommandConfig, EvaluationConfig, RunConfig
from harness.fingerprint import CLASSES
from harness.redaction import is_secret_name
from harness.schema import leaves
from harness.validate import problems
from methods.interface import Analysis, MethodContext
from methods.opid import Opid
from methods.skills import analyzer
from methods.skills.analyzer import AnalyzerContext, AnalyzerFailure, RulesAnalyzer, Usage
from methods.skills.analyzers.failures import Failed, settle, summary
from methods.skills.analyzers.ledger import Ledger
from methods.skills.analyzers.policy import PolicyAnalyzer
from methods.skills.analyzers.remote import RemoteAnalyzer
from methods.skills.analyzers.replay import ReplayAnalyzer

ANALYSIS = Analysis("look before you go", {1: "go east"}, 0)
TEXT = json.dumps(GOOD)


# --------------------------------------------------------------------------------------------------------------- policy
class Policy:
    """Gives these texts in order, and keeps what it was asked."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = list(texts), list[list[str]]()

    def __call__(self, messages: list[str]) -> list[str]:
        self.asked.append(messages)
        given, self.texts = self.texts[: len(messages)], self.texts[len(messages) :]
        return given


def policy(*texts: str, rate: float | None = None, record: Path | None = None) -> tuple[Policy, PolicyAnalyzer]:
    model = Policy(*texts)
    built = analyzer.build("policy", AnalyzerContext(5, generate=model, max_failure_rate=rate, record=record))
    assert isinstance(built, PolicyAnalyzer)
    return model, built


def test_the_policy_answers_a_whole_batch_at_once() -> None:
    model, asked = policy(TEXT, f"Here:\n{TEXT}")
    future = asked.analyze(played(2))
    assert future.done() and future.result() == [ANALYSIS] * 2
    (messages,) = model.asked
    assert ["Task: text of task 0" in messages[0], "Task: text of task 1" in messages[1]] == [True, True]
    usage = asked.usage()
    assert (usage.calls, usage.repairs, usage.cached) == (2, 0, 0) and usage.seconds > 0
    asked.close()


def test_the_policy_repairs_once() -> None:
    model, asked = policy(TEXT, "no", TEXT[:-9], TEXT, "no again", rate=0.4)
    assert asked.analyze(played(3)).result() == [ANALYSIS, ANALYSIS, None]
    first, second = model.asked
    assert len(first) == 3 and [text.startswith(before) for text, before in zip(second, first[1:], strict=True)] == [
        True,
        True,
    ]
    assert "no JSON object" in second[0] and "ends before its JSON object is complete" in second[1]
    usage = asked.usage()
    assert (usage.calls, usage.repairs) == (5, 2)


def test_a_policy_that_writes_no_json_stops_the_run() -> None:
    _, asked = policy(*["go east"] * 4, rate=0.2)
    with pytest.raises(AnalyzerFailure, match=r"analyzer=policy: at least 2 of 2.*second answer too is unusable: it"):
        asked.analyze(played(2))


def test_equal_trajectories_are_asked_about_once() -> None:
    model, asked = policy(TEXT)
    assert asked.analyze([*played(), *played()]).result() == [ANALYSIS] * 2
    assert len(model.asked[0]) == 1 and asked.usage().cached == 1


def test_the_policy_can_be_recorded(tmp_path: Path) -> None:
    _, asked = policy(TEXT, "no", "no", rate=0.5, record=tmp_path / "answers.jsonl")
    recorded = asked.analyze(played(2)).result()
    again = ReplayAnalyzer(AnalyzerContext(5, config=AnalyzerConfig("replay", answers=str(tmp_path / "answers.jsonl"))))
    assert again.analyze(played(2)).result() == recorded == [ANALYSIS, None]


def test_faults_of_the_engine_are_not_hidden() -> None:
    _, asked = policy()
    with pytest.raises(ValueError, match="0 responses to 2 messages"):
        asked.analyze(played(2))
    broken = PolicyAnalyzer(AnalyzerContext(5, generate=lambda _: 1 / 0))  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        broken.analyze(played())


def test_the_policy_needs_an_engine_that_generates() -> None:
    assert analyzer.get("policy").needs == {"engine:generate"}
    with pytest.raises(ValueError, match="capability generate"):
        analyzer.build("policy", AnalyzerContext(5))
    model, asked = policy()
    assert asked.analyze([]).result() == [] and model.asked == []
    model, asked = policy(TEXT)
    assert asked.analyze([*played(1, steps=0), *played()]).result() == [None, ANALYSIS]
    assert [len(messages) for messages in model.asked] == [1]  # a trajectory without steps is not asked about


# ------------------------------------------------------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": None}, "analyzer.model=None: analyzer=openai needs the name of the model"),
        ({"model": ""}, "needs the name of the model"),
        ({"response_format": "json"}, r"analyzer.response_format='json' is unknown; did you mean 'json_"),
        ({"limit_field": "max_token"}, "analyzer.limit_field='max_token'.*did you mean 'max_tokens'"),
        ({"base_url": "127.0.0.1:8000"}, "is no http"),
        ({"base_url": "file:///etc"}, "is no http"),
        ({"base_url": "http://"}, "is no http"),
        ({"base_url": "http://host:port/v1"}, "is no http"),
        ({"base_url": "http://[::1/v1"}, "is no http"),
        ({"base_url": "http://host/v1?version=1"}, r"no \? or #"),
        ({"api_key_env": "sk-planted-0123"}, "must be the NAME of an environment variable"),
        ({"base_url": "http://me:planted-0123@host/v1"}, "must not hold a user name or password"),
        ({"base_url": "htps://me:planted-0123@host/v1"}, "must not hold a user name or password"),
        ({"base_url": "https//me:planted-0123@host/v1"}, "must not hold a user name or password"),
        ({"base_url": "https://me:planted-0123@host:port/v1"}, "must not hold a user name or password"),
        ({"base_url": "https://host/v1?api-key=planted-0123"}, r"no \? or #"),
        ({"base_url": "https://host/v1#planted-0123"}, r"no \? or #"),
        ({"base_url": "sk-planted-0123"}, "not repeated here"),
        ({"api_key_env": "gsk_planted-0123"}, "must be the NAME of an environment variable"),
        ({"api_key_env": "hf_planted0123"}, "must be the NAME of an environment variable"),
        ({"api_key_env": "planted0123"}, "must be the NAME of an environment variable"),
        ({"api_key_env": "AKIA0123PLANTED0123X"}, "must be the NAME of an environment variable"),
        ({"api_key_env": "KEY_" + "A" * 61}, "must be the NAME of an environment variable"),
    ],
)
def test_settings_that_cannot_work_are_named(changes: dict[str, Any], said: str) -> None:
    for call in (analyzer.check, lambda config: analyzer.build("openai", AnalyzerContext(5, config=config))):
        with pytest.raises(ValueError, match=said) as caught:
            call(settings(**changes))
        assert "planted-0123" not in str(caught.value)


def test_settings_are_checked_while_planning() -> None:
    judged = EvaluationConfig(panels=["seen"])
    config = RunConfig(method=opid_config(), analyzer=settings(model=None), evaluation=judged)
    (said,) = problems(config, lambda key: "the command line")
    assert "add analyzer.model=NAME" in str(said)
    assert problems(RunConfig(analyzer=settings(model=None), evaluation=judged), str) == []  # GRPO analyses nothing
    assert problems(RunConfig(method=opid_config(), analyzer=settings(), evaluation=judged), str) == []
    assert "add analyzer.model=NAME" in str(registry.unfit_analyzer(config))
    assert registry.unfit_analyzer(RunConfig(analyzer=settings())) is None
    assert "did you mean 'openai'" in str(registry.unfit_analyzer(RunConfig(analyzer=settings(name="openay"))))


def test_general_skills_need_prompts_that_can_show_them() -> None:
    config = RunConfig(method=row("skill_grpo", "method.skill.router=general"), evaluation=EvaluationConfig(["seen"]))
    config.env.prompt = "compact"
    (said,) = problems(config, str)
    assert str(said).startswith("method.skill.router=general") and "env.prompt=full" in str(said)
    config.env.prompt = "full"
    assert problems(config, str) == []


@pytest.mark.parametrize(
    "changes", [{"api_key_env": "gsk_planted0123abc"}, {"base_url": "https://host/v1?key=planted0123abc"}]
)
def test_a_key_in_the_settings_is_refused_before_anything_is_recorded(changes: dict[str, Any]) -> None:
    """Whether or not the row analyses anything, and whatever its analyzer: records keep the settings of every run."""
    for method in (opid_config(), grpo_config()):
        for name in analyzer.names():
            found = problems(RunConfig(method=method, analyzer=AnalyzerConfig(name, **changes)), str)
            assert any("analyzer." in str(problem) for problem in found)
            assert "planted0123abc" not in "".join(map(str, found))


def test_the_registry_knows_all_four() -> None:
    assert analyzer.names() == ("openai", "policy", "replay", "rules")
    assert analyzer.get("openai").needs == analyzer.get("replay").needs == frozenset()
    assert analyzer.identity(AnalyzerConfig()) == analyzer.RULES_ANALYZER_VERSION
    assert analyzer.identity(settings()) == analyzer.get("openai").version
    assert str(analyzer.PROMPT_VERSION) in str(analyzer.get("policy").version)


def test_planning_needs_no_http_client() -> None:
    code = (
        "import sys\n"
        "from methods.skills import analyzer\n"
        "from methods.skills.analyzers.settings import AnalyzerConfig\n"
        "analyzer.check(AnalyzerConfig('openai', model='m'))\n"
        "heavy = {'httpx', 'torch', 'asyncio', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_setting_stands_in_the_file_of_an_analyzer_that_uses_it() -> None:
    folder = Path(next(iter(sweeps.__path__))) / "analyzer"
    names = {k.partition(".")[2] for k in leaves(RunConfig) if k.startswith("analyzer.")}
    files = {path.stem: dict(OmegaConf.load(path)) for path in sorted(folder.glob("*.yaml"))}
    assert set(files) == set(analyzer.names()) and all(files[name]["name"] == name for name in files)
    assert set().union(*files.values()) == names
    defaults = AnalyzerConfig()
    same = {key: value for key, value in files["openai"].items() if key != "name"}  # type: ignore[union-attr]
    assert same == {key: getattr(defaults, str(key)) for key in same}


def test_what_decides_an_answer_is_identity_and_no_setting_looks_like_a_secret() -> None:
    decides = {
        "name",
        "model",
        "temperature",
        "max_output_tokens",
        "response_format",
        "observation_chars",
        "skill_chars",
    }
    keys = [key for key in leaves(RunConfig) if key.startswith("analyzer.")]
    assert {key for key in keys if CLASSES[key] == "identity"} == {f"analyzer.{name}" for name in decides}
    assert not any(is_secret_name(key) for key in keys)  # `***` in the records would say nothing


# ------------------------------------------------------------------------------------------------ the analyzer of a run
def run_config(**changes: Any) -> RunConfig:
    return RunConfig(method=opid_config(max_failure_rate=0.3), analyzer=AnalyzerConfig(**changes))


def test_the_analyzer_of_a_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "0123"
    rules = build_analyzer(run_config(), run_dir, lambda *_: ("go", {}))
    assert isinstance(rules, RulesAnalyzer) and rules.analyze(played()).result() == [Analysis("go", {})]
    with pytest.raises(ValueError, match="capability hindsight"):
        build_analyzer(run_config(), run_dir, None)
    asked = build_analyzer(run_config(name="policy", record="a.jsonl"), run_dir, None, Policy(TEXT))
    assert asked.analyze(played()).result() == [ANALYSIS] and (run_dir / "a.jsonl").is_file()
    replayed = build_analyzer(run_config(name="replay", answers=str(run_dir / "a.jsonl")), run_dir, None)
    assert replayed.analyze(played()).result() == [ANALYSIS]
    with pytest.raises(AnalyzerFailure, match=r"max_failure_rate=0\.3"):  # the row's own rate
        replayed.analyze(played(2, first=1))
    with pytest.raises(ValueError, match="did you mean 'rules'"):
        build_analyzer(run_config(name="rulez"), run_dir, None)


def test_recorded_answers_are_found_from_any_folder() -> None:
    """A run may be taken up again by a process that stands elsewhere."""
    found = cell_config(CommandConfig(analyzer=AnalyzerConfig("replay", answers="a/b.jsonl"))).analyzer.answers
    assert found == str(Path.cwd() / "a" / "b.jsonl")
    assert cell_config(CommandConfig()).analyzer == AnalyzerConfig()


@pytest.mark.parametrize("absolute", [False, True])
def test_runs_of_one_folder_share_the_cache_and_record_apart(tmp_path: Path, absolute: bool) -> None:
    out, run_dir = tmp_path / "out", tmp_path / "out" / "runs" / "0123"
    cache, record = (tmp_path / "c", tmp_path / "r") if absolute else (Path("cache/analyzer"), Path("r"))
    config = settings(cache=str(cache), record=str(record))
    built = build_analyzer(RunConfig(method=opid_config(), analyzer=config), run_dir, None)
    assert isinstance(built, RemoteAnalyzer)
    assert built._context.cache == (tmp_path / "c" if absolute else out / "cache" / "analyzer")
    assert built._context.record == (tmp_path / "r" if absolute else run_dir / "r")
    built.close()
    for name in ("httpx", "httpcore"):  # a line per request, and what endpoints put into headers
        assert logging.getLogger(name).level == logging.WARNING


# ------------------------------------------------------------------------------------------------------- OPID's outage
def opid(asked: analyzer.Analyzer, rate: float = 0.2) -> Opid:
    return Opid(opid_config(max_failure_rate=rate), MethodContext(10, 0, asked.analyze))


def test_an_outage_stops_opid_and_names_the_endpoint(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
    config = RunConfig(method=opid_config(), analyzer=settings(url, retries=0))
    asked = build_analyzer(config, tmp_path / "runs" / "0", None)
    method, batch = opid(asked), played(4)
    method.after_rollout(1, batch)  # returns before anything is known
    with pytest.raises(AnalyzerFailure, match=rf"{url}/chat/completions cannot be reached.*train without skills"):
        method.teacher_requests(1, batch)
    asked.close()


def test_a_failed_analysis_leaves_that_trajectory_without_a_skill_term() -> None:
    _, asked = policy(TEXT, "no", TEXT, TEXT, "no", rate=0.25)
    method, batch = opid(asked, 0.25), played(4)
    method.after_rollout(1, batch)
    requests = method.teacher_requests(1, batch)
    assert {request.trajectory for request in requests} == {0, 2, 3}


def test_opid_stops_by_itself_where_the_analyzer_knows_no_rate() -> None:
    _, asked = policy(*["no"] * 8)
    method, batch = opid(asked), played(4)
    method.after_rollout(1, batch)
    with pytest.raises(AnalyzerFailure, match="4 of 4 analyses failed"):
        method.teacher_requests(1, batch)


# --------------------------------------------------------------------------------------------------- failures and sums
def test_failures_up_to_the_rate_are_none(caplog: pytest.LogCaptureFixture) -> None:
    verdicts = [ANALYSIS, Failed("down"), ANALYSIS, Failed("down"), Failed("odd")]
    assert settle(verdicts, 0.6, "judge") == [ANALYSIS, None, ANALYSIS, None, None]
    assert "judge: 3 of 5 analyses failed: down (2 times); odd" in caplog.text
    assert settle(verdicts, None, "judge").count(None) == 3
    with pytest.raises(AnalyzerFailure, match=r"at least 3 of 5 .*=0.5 allows: down \(2 times\); odd"):
        settle(verdicts, 0.5, "judge")
    assert settle([], 0.0, "judge") == []
    assert summary([str(k) for k in range(9)]) == "0; 1; 2; and 6 other reasons"


def test_the_ledger_adds_up() -> None:
    ledger = Ledger(1.0, 10.0)
    ledger.tokens(500_000, 100_000)
    ledger.tokens(500_000, 0)
    ledger.add(calls=2, seconds=0.5)
    assert ledger.take() == Usage(
        calls=2, prompt_tokens=1_000_000, completion_tokens=100_000, seconds=0.5, cost=pytest.approx(2.0)
    )
    assert ledger.take() == Usage()
