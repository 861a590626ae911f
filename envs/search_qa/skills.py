"""The skill library of Search-QA, in this project's own words (data/skills.json): one category per kind of question."""

from __future__ import annotations

from functools import cache
from importlib import resources

from core.skills import SkillLibrary, read_library
from envs.interface import EnvConfig

# The published data sets, and the kinds of questions derived from the embedded corpus.
SOURCES = (
    "nq",
    "triviaqa",
    "popqa",
    "hotpotqa",
    "2wikimultihopqa",
    "musique",
    "bamboogle",
    "wikilead-1hop",
    "wikilead-bridge",
    "wikilead-compare",
)


def library(config: EnvConfig) -> SkillLibrary:
    """The library, the same for every configuration. ValueError naming the file and the entry if it is broken."""
    return _library()


@cache
def _library() -> SkillLibrary:
    text = resources.files("envs.search_qa").joinpath("data/skills.json").read_text(encoding="utf-8")
    return read_library(text, "envs/search_qa/data/skills.json", required=SOURCES)
