"""The analyzer of one run, from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.config import RunConfig
from methods.skills import analyzer as analyzers
from methods.skills.analyzer import Analyzer, AnalyzerContext, Hindsight


def build_analyzer(
    config: RunConfig,
    run_dir: Path,
    hindsight: Hindsight | None,
    generate: Callable[[list[str]], list[str]] | None = None,
) -> Analyzer:
    """The analyzer that `analyzer.name` names; whoever calls closes it.

    run_dir: <out>/runs/<fingerprint>. A relative `analyzer.cache` lies below <out>, so that all runs of it share
    answers; a relative `analyzer.record` lies in the run's own folder. hindsight: the environment's rules, if it has
    any. generate: user messages -> the policy's responses, in order, if the engine offers that (analyzer=policy).
    Raises ValueError for settings that cannot work.
    """
    analyzers.check(config.analyzer)
    context = AnalyzerContext(
        max_step_skills=config.method.skill.max_step_skills,
        hindsight=hindsight,
        config=config.analyzer,
        generate=generate,
        max_failure_rate=config.method.skill.max_failure_rate,
        cache=_below(run_dir.parent.parent, config.analyzer.cache),
        record=_below(run_dir, config.analyzer.record),
    )
    return analyzers.build(config.analyzer.name, context)


def _below(folder: Path, path: str | None) -> Path | None:
    """`path` as it is if absolute, else below `folder`."""
    return None if path is None else folder / path
