"""Hindsight analysis of finished trajectories, and the checks that every analyzer's answer passes.

OPID, section 3 (arXiv:2606.26790): A(tau) = (s_ep, {s_step,t} for t in C_tau), where s_ep is a workflow after success
and a rule of avoidance after failure, and C_tau holds at most K critical steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from core.names import unknown_name
from methods.interface import Analysis, Trajectory
from methods.skills.injection import is_blank

# (task text, [(observation before the action, action, action had an effect), ...], success, max step skills)
#   -> (episode skill, {step index: step skill}); environments offer one of these
Hindsight = Callable[[str, Sequence[tuple[str, str, bool]], bool, int], tuple[str, dict[int, str]]]

RULES_ANALYZER_VERSION = 1  # raised whenever the same trajectory would get other skills from the same rules


class AnalyzerFailure(RuntimeError):  # noqa: N818  (named like EnvironmentFailure)
    """Too many trajectories of one step could not be analysed; going on would silently train without skills."""

    failure_class = "analyzer"


class Analyzer(Protocol):
    """Turns finished trajectories into hindsight skills."""

    def analyze(self, trajectories: Sequence[Trajectory]) -> Future[list[Analysis | None]]:
        """A future of one entry per trajectory, in order; None where the analysis failed. May go on in the background."""
        ...

    def usage(self) -> Usage:
        """What was spent since this was last asked."""
        ...

    def close(self) -> None:
        """Let go of threads and connections; analyses in progress are given up."""
        ...


@dataclass(frozen=True, slots=True)
class Usage:
    """calls: requests sent, retries and repairs included; cached: answers found in the cache; repairs: answers asked for
    once more because they were no valid analysis; prompt_tokens, completion_tokens: as the endpoint counts them;
    seconds: wall time of analyses, overlapping ones once each; cost: in the currency of the configured prices."""

    calls: int = 0
    cached: int = 0
    retries: int = 0
    repairs: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0


def finished(answers: list[Analysis | None]) -> Future[list[Analysis | None]]:
    """A future that has its result already."""
    future: Future[list[Analysis | None]] = Future()
    future.set_result(answers)
    return future


@dataclass(frozen=True)
class AnalyzerContext:
    """max_step_skills: K, most step skills per trajectory; hindsight: the environment's rules, if it has any."""

    max_step_skills: int
    hindsight: Hindsight | None = None


@dataclass(frozen=True)
class AnalyzerSpec:
    """A registered analyzer.

    needs: capabilities as in MethodSpec.needs, e.g. {"env:hindsight"}
    version: raised whenever the same trajectory would get other skills; part of the fingerprint of runs that use it.
        What the analyzer takes from the environment has a version of its own there
    """

    name: str
    build: Callable[[AnalyzerContext], Analyzer]
    needs: frozenset[str] = frozenset()
    version: int = 1


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


def _step_index(key: object) -> int | None:
    if isinstance(key, bool):  # True is an int in Python, but no step
        return None
    if isinstance(key, int):
        return key
    if isinstance(key, str) and key.strip().isascii() and key.strip().isdigit():
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


_ANALYZERS: dict[str, AnalyzerSpec] = {
    "rules": AnalyzerSpec("rules", _rules, frozenset({"env:hindsight"}), RULES_ANALYZER_VERSION),
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


def build(name: str, context: AnalyzerContext) -> Analyzer:
    """Make the analyzer of a run; its `analyze` is what MethodContext.analyze expects."""
    return get(name).build(context)
