"""Search-QA as a registered environment. Corpus, retrievers and rules are imported when they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from core.skills import SkillLibrary
from envs.interface import Demonstration, EnvConfig, Environment, EnvSpec, Hindsight, Lexicon, Panel, Prompter, Task
from envs.search_qa.settings import Knobs

NAME = "search_qa"
EMBEDDED_TYPES = ("wikilead-1hop", "wikilead-bridge", "wikilead-compare")
OFFICIAL_TYPES = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
PANELS = ("train", "validation", "test", "test_small")
# Raised whenever the same input would give other output; part of the fingerprint of runs that use them.
PLAY_VERSION = 1  # what is shown after an action, and how an episode is scored
PROMPTS_VERSION = 1  # user messages and how responses are read
RULES_VERSION = 1  # hindsight and workflow skills, with the expert behind them


def load_panel(config: EnvConfig, name: str) -> Panel:
    """`test` and, in the user's data, `test_small`; `validation` and `train`. See envs.search_qa.tasks."""
    from envs.search_qa import tasks

    return tasks.load_panel(config, name)


def panel_identity(config: EnvConfig, name: str) -> str:
    from envs.search_qa import tasks

    return tasks.panel_identity(config, name)


def make(config: EnvConfig) -> Environment:
    from envs.search_qa.episode import SearchQa
    from envs.search_qa.settings import knobs_of, retriever_of

    if knobs_of(config).ranker != "own":
        retriever_of(config)  # an engine that is not installed is told here, not at the first search
    return SearchQa(config)


def _knob_versions(config: EnvConfig) -> dict[str, int | str]:
    from envs.search_qa.sources import versions

    return versions(config)


def _knob_identity(knobs: Mapping[str, Any]) -> dict[str, Any]:
    from envs.search_qa.sources import identity

    return identity(knobs)


def _sources(config: EnvConfig) -> dict[str, str | None]:
    from envs.search_qa.sources import found

    return found(config)


def _prompter(config: EnvConfig) -> Prompter:
    from envs.search_qa.prompts import make_prompter

    return make_prompter(config)


def _hindsight(config: EnvConfig) -> Hindsight:
    from envs.search_qa import hindsight

    return hindsight.compact_hindsight if config.prompt == "compact" else hindsight.full_hindsight


def _workflow(config: EnvConfig) -> Callable[[Task], str]:
    from envs.search_qa.hindsight import workflow

    def skill_for(task: Task) -> str:
        relation = task.slots.get("relation")
        if relation is None:
            raise KeyError(f"task {task.id}: slot relation is missing, so no library skill can be written for it")
        return workflow(relation, [f"name {k + 1}" for k in range(len(task.slots.get("names", "").split(" | ")))])

    return skill_for


def _library(config: EnvConfig) -> SkillLibrary:
    from envs.search_qa.skills import library

    return library(config)


def _lexicon(config: EnvConfig) -> Lexicon:
    from envs.search_qa.lexicon import lexicon

    return lexicon()


def _demonstrations(config: EnvConfig) -> Callable[[int, int], Demonstration]:
    from envs.search_qa.demos import demonstration

    return demonstration


def _demonstrations_version() -> str:
    from envs.search_qa.demos import DEMONSTRATIONS_VERSION
    from envs.search_qa.questions import QUESTIONS_VERSION

    return f"{DEMONSTRATIONS_VERSION}.{QUESTIONS_VERSION}"


SPEC = EnvSpec(
    name=NAME,
    task_types=(*EMBEDDED_TYPES, *OFFICIAL_TYPES),
    panels=PANELS,
    judged_by=("test",),
    capabilities=frozenset({"hindsight", "library", "expert"}),
    load_panel=load_panel,
    make=make,
    prompter=_prompter,
    hindsight=_hindsight,
    workflow=_workflow,
    library=_library,
    lexicon=_lexicon,
    demonstrations=_demonstrations,
    knobs=Knobs,
    metadata={
        "panel_identity": panel_identity,
        "engines": ("native",),
        "knob_versions": _knob_versions,
        "knob_identity": _knob_identity,
        "sources": _sources,
        "play_version": PLAY_VERSION,
        "prompts_version": PROMPTS_VERSION,
        "rules_version": RULES_VERSION,
        "clone_tokens": 8_000_000,  # the loss of cloning is flat by then, with and without skills
        "demonstrations_version": _demonstrations_version(),
    },
)
