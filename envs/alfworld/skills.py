"""The skill library of ALFWorld, in this project's own words (data/skills.json): one category per task type."""

from __future__ import annotations

from functools import cache
from importlib import resources

from core.skills import SkillLibrary, read_library
from envs.alfworld.facts import TASK_TYPES
from envs.interface import EnvConfig


def library(config: EnvConfig) -> SkillLibrary:
    """The library, the same for every configuration. ValueError naming the file and the entry if it is broken."""
    return _library()


@cache
def _library() -> SkillLibrary:
    text = resources.files("envs.alfworld").joinpath("data/skills.json").read_text(encoding="utf-8")
    return read_library(text, "envs/alfworld/data/skills.json", required=TASK_TYPES)
