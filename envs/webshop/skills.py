"""The skill library of WebShop, in this project's own words (data/skills.json): one category per department."""

from __future__ import annotations

from functools import cache
from importlib import resources

from core.skills import SkillLibrary, read_library
from envs.interface import EnvConfig

# The departments that goals come from: task types of the environment.
CATEGORIES = ("fashion", "beauty", "electronics", "garden", "grocery")


def library(config: EnvConfig) -> SkillLibrary:
    """The library, the same for every configuration. ValueError naming the file and the entry if it is broken."""
    return _library()


@cache
def _library() -> SkillLibrary:
    text = resources.files("envs.webshop").joinpath("data/skills.json").read_text(encoding="utf-8")
    return read_library(text, "envs/webshop/data/skills.json", required=CATEGORIES)
