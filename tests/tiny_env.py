"""A small deterministic text environment for tests: say the right words, in the right order.

Tasks `one` want one word, tasks `two` want two. The first word of a response is the action; only words in WORDS are
admissible. Failures are injected through FAILURES: task id -> how many of the next resets or steps fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from core.skills import Mistake, Skill, SkillLibrary
from envs.interface import (
    EnvConfig,
    EnvironmentFailure,
    EnvSpec,
    Observation,
    Panel,
    ParsedAction,
    PromptParts,
    StepResult,
    Task,
)
from envs.panels import build_panel

WORDS = ("red", "green", "blue")
FAILURES: dict[tuple[str, str], int] = {}  # (task id, "reset" or "step") -> failures still to come


def wanted(task: Task) -> list[str]:
    return task.location.split()


def instruction(words: Sequence[str]) -> str:
    return "say " + " then ".join(words) + "."


def make_task(split: str, number: int, words: Sequence[str]) -> Task:
    text = " ".join(words)
    content = hashlib.sha256(f"{split} {number} {text}".encode()).hexdigest()
    return Task(f"{split}-{number}", "one" if len(words) == 1 else "two", content, {"say": text}, text)


def load_panel(config: EnvConfig, name: str) -> Panel:
    if name not in SPEC.panels:
        raise ValueError(f"tiny has no panel {name!r}")
    ones = [[word] for word in WORDS]
    twos = [[WORDS[i], WORDS[(i + 1) % 3]] for i in range(3)]
    chosen = {"train": ones + twos, "seen": ones, "unseen": ones[:1] + twos, "validation": twos + ones}[name]
    return build_panel("tiny", "1", name, [make_task(name, i, words) for i, words in enumerate(chosen)])


class TinyEnvironment:
    def __init__(self, config: EnvConfig) -> None:
        self.config = config

    def reset(self, task: Task) -> Observation:
        self.task, self.done_words, self.steps = task, 0, 0
        self._maybe_fail("reset")
        return self._observation("the room is quiet.")

    def step(self, action: str) -> StepResult:
        self._maybe_fail("step")
        self.steps += 1
        words = wanted(self.task)
        right = action == words[self.done_words]
        self.done_words += right
        success = self.done_words == len(words)
        text = f"you said {action}." if action in WORDS else "nothing happens."
        last = self.steps >= self.config.max_steps
        return StepResult(
            self._observation(text),
            reward=float(success),
            done=success or last,
            success=success,
            score=self.done_words / len(words),
            admissible=action in WORDS,
            truncated=last and not success,
        )

    def close(self) -> None:
        pass

    def _observation(self, text: str) -> Observation:
        return Observation(text, instruction(wanted(self.task)), WORDS)

    def _maybe_fail(self, where: str) -> None:
        left = FAILURES.get((self.task.id, where), 0)
        if left:
            FAILURES[self.task.id, where] = left - 1
            raise EnvironmentFailure(f"{where} of {self.task.id} broke")


@dataclass(frozen=True)
class TinyPrompter:
    protocol: str = "tiny/bare"

    def opening(self, first: Observation) -> PromptParts:
        return PromptParts("", f"task: {first.task}", f"\n{first.text}")

    def follow_up(self, current: Observation) -> PromptParts:
        return PromptParts(before=current.text)

    def per_step(
        self, first: Observation, history: Sequence[tuple[str, str]], current: Observation, step: int
    ) -> PromptParts:
        past = "".join(f"\nsaw: {observation} did: {action}" for observation, action in history)
        return PromptParts("", f"task: {first.task}", f"{past}\n{current.text}")

    def parse(self, response: str) -> ParsedAction:
        words = response.split()
        if not words or "<" in words[0]:
            return ParsedAction("", False, "no_word")
        return ParsedAction(words[0], True)


def hindsight(
    task: str, transcript: Sequence[tuple[str, str, bool]], success: bool, most: int
) -> tuple[str, dict[int, str]]:
    words = task.removeprefix("say ").rstrip(".").split(" then ")
    critical = [k for k, (_, action, effect) in enumerate(transcript) if not effect or action not in words]
    return instruction(words), dict.fromkeys(critical[:most], f"say {words[0]}.")


def workflow(config: EnvConfig) -> Callable[[Task], str]:
    """Task -> the words to say; the line of compact prompts."""
    return lambda task: instruction(wanted(task))


def library(config: EnvConfig) -> SkillLibrary:
    """A library with one skill of each kind."""
    return SkillLibrary(
        name="tiny",
        version=1,
        general=(Skill("g1", "say it", "say the task words.", "the room is quiet."),),
        specific={
            "one": (Skill("o1", "one word", "say the task.", "task: say red."),),
            "two": (Skill("t1", "two words", "say red then blue.", "task: say red then blue."),),
        },
        mistakes=(Mistake("m1", "nothing happens.", "say the room.", "say the task."),),
        categories={"one": "one", "two": "two"},
        keywords={"one": ("say",), "two": ("then",)},
    )


def make(config: EnvConfig) -> TinyEnvironment:
    return TinyEnvironment(config)


def prompter(config: EnvConfig) -> TinyPrompter:
    return TinyPrompter()


METADATA: Mapping[str, str] = {"title": "test environment"}

SPEC = EnvSpec(
    name="tiny",
    task_types=("one", "two"),
    panels=("train", "seen", "unseen", "validation"),
    judged_by=("seen", "unseen"),
    capabilities=frozenset({"hindsight", "library", "admissible"}),
    load_panel=load_panel,
    make=make,
    prompter=prompter,
    hindsight=lambda config: hindsight,
    workflow=workflow,
    library=library,
    metadata=METADATA,
)
