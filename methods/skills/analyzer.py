"""Hindsight analysis of finished trajectories, and the checks that every analyzer's answer passes.

OPID, section 3 (arXiv:2606.26790): A(tau) = (s_ep, {s_step,t} for t in C_tau), where s_ep is a workflow after success
and a rule of avoidance after failure, and C_tau holds at most K critical steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from core.names import unknown_name
from methods.interface import Analysis, Trajectory
from methods.skills.analyzers.prompt import PROMPT_VERSION
from methods.skills.analyzers.settings import AnalyzerConfig, check_no_secret, check_remote, check_replay
from methods.skills.injection import is_blank

# (task text, [(observation before the action, action, action had an effect), ...], success, max step skills)
#   -> (episode skill, {step index: step skill}); environments offer one of these
Hindsight = Callable[[str, Sequence[tuple[str, str, bool]], bool, int], tuple[str, dict[int, str]]]

Generate = Callable[[list[str]], list[str]]  # user messages -> the policy's responses, in order

RULES_ANALYZER_VERSION = 1  # raised whenever the same trajectory would get other skills from the same rules
ANSWERS_VERSION = 2  # raised whenever the same text of a model would give other skills (analyzers.answer)


class AnalyzerFailure(RuntimeError):  # noqa: N818  (named like EnvironmentFailure)
    """Too many trajectories of one step could not be analysed; going on would silently train without skills."""

    failure_class = "analyzer"


class Analyzer(Protocol):
    """Turns finished trajectories into hindsight skills."""

    def analyze(self, trajectories: Sequence[Trajectory]) -> Future[list[Analysis | None]]:
        """A future of one entry per trajectory, in order; None where it failed. May go on in the background."""
        ...

    def usage(self) -> Usage:
        """What was spent since this was last asked."""
        ...

    def close(self) -> None:
        """Let go of threads and connections; analyses in progress are given up. May be called twice, and `usage` after
        it."""
        ...


@dataclass(frozen=True, slots=True)
class Usage:
    """What analyses cost.

    calls: requests sent, retries and repairs included
    cached: analyses that needed no request: found in the cache, or of the same content as another of the batch
    retries: requests sent again because the endpoint did not answer
    repairs: requests sent because the answer was no valid analysis, at most one per analysis
    prompt_tokens, completion_tokens: as the endpoint counts them;  unmetered: answers without such a count, so that
        tokens and cost are too low by theirs
    seconds: wall time from the call of `analyze` to its last answer;  cost: in the currency of the configured prices
    corrupt: entries of the cache that could not be read; they are asked for again and replaced
    """

    calls: int = 0
    cached: int = 0
    retries: int = 0
    repairs: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    unmetered: int = 0
    corrupt: int = 0


def finished(answers: list[Analysis | None]) -> Future[list[Analysis | None]]:
    """A future that has its result already."""
    future: Future[list[Analysis | None]] = Future()
    future.set_result(answers)
    return future


@dataclass(frozen=True)
class AnalyzerContext:
    """What the harness hands to an analyzer.

    max_step_skills: K, most step skills per trajectory
    hindsight: the environment's rules, if it has any
    config: the group `analyzer`
    generate: has the policy answer messages, if the engine can
    max_failure_rate: share of failed analyses in one batch above which analyzers that know reasons raise
        AnalyzerFailure with them; None leaves that to the method, which knows only how many failed
    cache, record: folder of answers shared by runs, and file that this run's answers are added to; None: none
    """

    max_step_skills: int
    hindsight: Hindsight | None = None
    config: AnalyzerConfig = field(default_factory=AnalyzerConfig)
    generate: Generate | None = None
    max_failure_rate: float | None = None
    cache: Path | None = None
    record: Path | None = None


@dataclass(frozen=True)
class AnalyzerSpec:
    """A registered analyzer.

    needs: capabilities as in MethodSpec.needs, e.g. {"env:hindsight"}
    version: raised whenever the same trajectory would get other skills; part of the fingerprint of runs that use it.
        What the analyzer takes from the environment has a version of its own there
    check: raises ValueError for settings that it cannot honour; opens no connection, so planning calls it
    content: digest of what else decides the skills and is in no setting, such as the file of recorded answers
    """

    name: str
    build: Callable[[AnalyzerContext], Analyzer]
    needs: frozenset[str] = frozenset()
    version: int | str = 1
    check: Callable[[AnalyzerConfig], None] | None = None
    content: Callable[[AnalyzerConfig], str] | None = None


def validate_analysis(episode_skill: object, step_skills: object, steps: int, max_step_skills: int) -> Analysis | None:
    """Check an analyzer's answer about a trajectory of `steps` steps; None if it cannot be used.

    The episode skill must say something and `step_skills` must be a mapping (None counts as empty). Entries of it are
    repaired by dropping, and counted in `Analysis.dropped`: keys that are no index of an existing step, blank texts,
    and whatever goes beyond the first `max_step_skills` usable entries in the order given. Text keys of digits, as JSON
    has them, are indices. What is kept is ordered by step.
    """
    if is_blank(episode_skill) or not isinstance(episode_skill, str) or steps < 1:
        return None
    if step_skills is None:
        step_skills = {}
    if not isinstance(step_skills, Mapping):
        return None
    kept: dict[int, str] = {}
    for key, text in step_skills.items():
        index = _step_index(key)
        if index is None or not 0 <= index < steps or index in kept or is_blank(text):
            continue
        if len(kept) < max_step_skills:
            kept[index] = text.strip()
    return Analysis(episode_skill.strip(), dict(sorted(kept.items())), dropped=len(step_skills) - len(kept))


_MOST_DIGITS = 18  # no step has a larger number, and Python refuses to read numbers of thousands of digits


def _step_index(key: object) -> int | None:
    if isinstance(key, bool):  # True is an int in Python, but no step
        return None
    if isinstance(key, int):
        return key
    if isinstance(key, str) and key.strip().isascii() and key.strip().isdigit() and len(key) <= _MOST_DIGITS:
        return int(key.strip())
    return None


class RulesAnalyzer:
    """The environment's own rules, applied to the trajectory alone: offline, deterministic, an upper bound for a model.

    Errors of the rules are faults of the program and are not caught; an answer that fails validation gives None.
    """

    def __init__(self, hindsight: Hindsight, max_step_skills: int) -> None:
        self._hindsight = hindsight
        self._max_step_skills = max_step_skills

    def analyze(self, trajectories: Sequence[Trajectory]) -> Future[list[Analysis | None]]:
        return finished([self._one(trajectory) for trajectory in trajectories])

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None:
        pass

    def _one(self, trajectory: Trajectory) -> Analysis | None:
        episode, steps = self._hindsight(
            trajectory.task_text, trajectory.transcript(), trajectory.success, self._max_step_skills
        )
        return validate_analysis(episode, steps, len(trajectory.turns), self._max_step_skills)


def _rules(context: AnalyzerContext) -> Analyzer:
    if context.hindsight is None:
        raise ValueError(
            "analyzer=rules needs an environment with rules of hindsight (capability hindsight), this one has none; "
            "choose another analyzer or environment"
        )
    return RulesAnalyzer(context.hindsight, context.max_step_skills)


# Imported when asked for: planning and runs with rules need no HTTP client.
def _openai(context: AnalyzerContext) -> Analyzer:
    from methods.skills.analyzers.remote import RemoteAnalyzer

    return RemoteAnalyzer(context)


def _policy(context: AnalyzerContext) -> Analyzer:
    from methods.skills.analyzers.policy import PolicyAnalyzer

    return PolicyAnalyzer(context)


def _replay(context: AnalyzerContext) -> Analyzer:
    from methods.skills.analyzers.replay import ReplayAnalyzer

    return ReplayAnalyzer(context)


def _answers_digest(config: AnalyzerConfig) -> str:
    check_replay(config)
    with Path(str(config.answers)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_MODEL_VERSION = f"prompt {PROMPT_VERSION}, answers {ANSWERS_VERSION}"

_ANALYZERS: dict[str, AnalyzerSpec] = {
    "rules": AnalyzerSpec("rules", _rules, frozenset({"env:hindsight"}), RULES_ANALYZER_VERSION),
    "openai": AnalyzerSpec("openai", _openai, version=_MODEL_VERSION, check=check_remote),
    "policy": AnalyzerSpec("policy", _policy, frozenset({"engine:generate"}), _MODEL_VERSION),
    "replay": AnalyzerSpec(
        "replay", _replay, version=f"answers {ANSWERS_VERSION}", check=check_replay, content=_answers_digest
    ),
}


def register(spec: AnalyzerSpec) -> None:
    """Add an analyzer. Raises ValueError if its name is taken by another."""
    if _ANALYZERS.setdefault(spec.name, spec) is not spec:
        raise ValueError(f"an analyzer called {spec.name!r} exists already; choose another name")


def names() -> tuple[str, ...]:
    """Every registered analyzer, sorted."""
    return tuple(sorted(_ANALYZERS))


def get(name: str) -> AnalyzerSpec:
    """The analyzer's spec. Raises ValueError with the nearest name if there is none."""
    if name not in _ANALYZERS:
        raise ValueError(unknown_name("analyzer.name", name, names()))
    return _ANALYZERS[name]


def check(config: AnalyzerConfig) -> None:
    """Raise ValueError, naming key and remedy, for an analyzer that does not exist or settings it cannot honour."""
    check_no_secret(config)
    spec = get(config.name)
    if spec.check is not None:
        spec.check(config)


def identity(config: AnalyzerConfig) -> int | str:
    """What a fingerprint knows of the analyzer besides its settings: its version, and the digest of its content."""
    spec = get(config.name)
    return spec.version if spec.content is None else f"{spec.version}; {spec.content(config)}"


def build(name: str, context: AnalyzerContext) -> Analyzer:
    """Make the analyzer of a run; its `analyze` is what MethodContext.analyze expects.

    `context.config.name` plays no part, so that code without a configuration can ask for `rules`.
    """
    return get(name).build(context)
