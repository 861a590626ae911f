"""An episode that is asked for, as text: what travels to an agent loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from envs.interface import Task
from harness.training.episode import EpisodeRequest
from methods.interface import SkillConfig


@dataclass(frozen=True, slots=True)
class Wanted:
    """task, group, sample, key: see EpisodeRequest; text: a skill for the policy's prompt as it stands; skill: settings
    of a library that it is taken from; temperature: of sampling."""

    task: Mapping[str, Any]
    group: int
    sample: int
    key: tuple[int | str, ...]
    temperature: float
    text: str | None = None
    skill: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, request: EpisodeRequest, temperature: float, skill: SkillConfig) -> Wanted:
        """skill: where the texts of a request come from whose skill is a function."""
        text = request.skill if isinstance(request.skill, str) else None
        library = asdict(skill) if callable(request.skill) else None
        task = {**asdict(request.task), "slots": dict(request.task.slots)}
        return cls(task, request.group, request.sample, request.key, temperature, text, library)

    def to_text(self) -> str:
        return json.dumps({item.name: getattr(self, item.name) for item in fields(self)})

    @classmethod
    def from_text(cls, text: str) -> Wanted:
        content = json.loads(text)
        return cls(**{**content, "key": tuple(content["key"])})

    def request(self) -> EpisodeRequest:
        return EpisodeRequest(Task(**self.task), self.group, self.sample, self.key, self.text)
