"""A library of skills: what an environment knows by hand, and what methods choose from.

The parts follow SkillRL's skill bank (arXiv:2602.08234): general skills, skills per category of task, and common
mistakes. The texts are the environments' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Skill:
    """id: unique in the library; principle: what to do; when: the situation it applies to."""

    id: str
    title: str
    principle: str
    when: str


@dataclass(frozen=True, slots=True)
class Mistake:
    """id: unique in the library; why: how it comes about; avoid: what to do instead."""

    id: str
    description: str
    why: str
    avoid: str


@dataclass(frozen=True)
class SkillLibrary:
    """general: for every task; specific: category -> skills; categories: task type or data source -> category;
    keywords: category -> words of a task that point to it (lower case)."""

    name: str
    version: int
    general: tuple[Skill, ...]
    specific: Mapping[str, tuple[Skill, ...]]
    mistakes: tuple[Mistake, ...]
    categories: Mapping[str, str]
    keywords: Mapping[str, tuple[str, ...]]
