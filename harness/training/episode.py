"""One episode as every engine plays it: what it is prompted with, what is recorded of a step, when it ends.

Who samples the responses and who steps the environments is the engine's business (harness.training.rollout for the
local engine, harness.training.verl.agent_loop for verl's).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from envs.interface import EnvironmentFailure, Observation, ParsedAction, Prompter, PromptParts, StepResult, Task
from harness.training.chat import ChatFormat
from harness.training.streams import Key
from harness.training.truncation import fitted_opening
from methods.interface import Prompt, Trajectory, Turn
from methods.skills.injection import inject

CONTEXTS = ("growing", "per_step")


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """context: growing | per_step; max_prompt_tokens: of everything before a response; history: (observation, action)
    pairs in a per_step prompt; max_steps: actions per episode; skill_style, placement: see methods.skills.injection."""

    context: str
    max_prompt_tokens: int
    max_response_tokens: int
    max_steps: int
    history: int
    skill_style: str = "compact"
    placement: str = "task"


# (task, its instruction as the environment says it) -> skill text for the policy's own prompt
SkillOf = Callable[[Task, str], str]


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """One episode to play. key: of its random stream; skill: for the policy's own prompt, text or what gives it."""

    task: Task
    group: int
    sample: int
    key: Key
    skill: str | SkillOf | None = None

    def trajectory(self, index: int) -> Trajectory:
        """An empty one, before the environment was asked."""
        return Trajectory(index, self.group, self.sample, self.task.id, self.task.type, "")

    def skill_text(self, task_text: str) -> str | None:
        """The skill for a task whose instruction reads `task_text`."""
        return self.skill(self.task, task_text) if callable(self.skill) else self.skill


@dataclass
class RolloutStats:
    """tokens: fed to the network; seconds and env_seconds: by the clock of harness.training.clocks, in all and in
    environments; dropped_history: (observation, action) pairs left out because a prompt was too long;
    truncated_prompts: prompts that lost words of their observation, because even without history they were too long."""

    tokens: int = 0
    seconds: float = 0.0
    env_seconds: float = 0.0
    dropped_history: int = 0
    truncated_prompts: int = 0
    retried: int = 0


@dataclass
class Episode:
    """What a running episode carries besides its trajectory. slot: in the pool; fed: tokens that a growing context
    holds so far, without the last sampled one."""

    slot: int
    trajectory: Trajectory
    rng: np.random.Generator
    first: Observation
    current: Observation
    fed: list[int] = field(default_factory=list)  # tokens in the key-value cache
    response: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt: Prompt = field(default_factory=PromptParts)
    prompt_ids: list[int] = field(default_factory=list)
    history: list[tuple[str, str]] = field(default_factory=list)

    @property
    def turns(self) -> list[Turn]:
        return self.trajectory.turns


@dataclass(frozen=True)
class Director:
    """Prompts episodes and records their steps. Raises ValueError for an unknown context."""

    chat: ChatFormat
    prompter: Prompter
    settings: RolloutSettings

    def __post_init__(self) -> None:
        if self.settings.context not in CONTEXTS:
            raise ValueError(
                f"training.context={self.settings.context!r} is unknown; choose from {', '.join(CONTEXTS)}"
            )

    def prepare(self, episode: Episode, stats: RolloutStats) -> bool:
        """Build the next prompt; False if it does not fit into a growing context and the episode ends here."""
        if self.settings.context == "per_step" or not episode.turns:
            self._rebuild(episode, stats)
            return True
        episode.prompt = message = self.prompter.follow_up(episode.current)
        closed = episode.response[-1] == self.chat.eos_id
        episode.prompt_ids = self.chat.continuation(message.text, closed)
        # The last sampled token is in the context but was not fed yet.
        fits = len(episode.fed) + 1 + len(episode.prompt_ids) <= self.settings.max_prompt_tokens
        if not fits:
            episode.trajectory.termination = "context_full"
        return fits

    def _rebuild(self, episode: Episode, stats: RolloutStats) -> None:
        """A prompt that stands alone, with as much of the history as fits. Raises ValueError if even a shortened
        observation does not."""
        settings, skill = self.settings, episode.trajectory.skill
        history = episode.history[-settings.history :] if settings.history else []
        while True:
            if not episode.turns:
                episode.prompt = self.prompter.opening(episode.first)
            else:
                episode.prompt = self.prompter.per_step(episode.first, history, episode.current, len(episode.turns))
            text = inject(episode.prompt, skill, None, settings.skill_style, settings.placement)
            episode.prompt_ids = self.chat.opening(text)
            if len(episode.prompt_ids) <= settings.max_prompt_tokens:
                return
            if not history:
                break
            history = history[1:]
            stats.dropped_history += 1
        episode.prompt, episode.prompt_ids, _ = fitted_opening(
            self.chat,
            episode.prompt,
            skill,
            None,
            settings.skill_style,
            settings.placement,
            settings.max_prompt_tokens,
        )
        stats.truncated_prompts += 1

    def parse(self, episode: Episode) -> ParsedAction:
        """The action in the episode's newest response."""
        return self.prompter.parse(self.chat.response_text(episode.response))

    def record(self, episode: Episode, action: ParsedAction, result: StepResult | EnvironmentFailure) -> bool:
        """Note one environment step; True where the episode goes on. A failure leaves no turns behind."""
        if isinstance(result, EnvironmentFailure):
            fail(episode.trajectory, result)
            return False
        episode.turns.append(
            Turn(
                prompt=episode.prompt,
                observation=episode.current.text,
                prompt_ids=episode.prompt_ids,
                response_ids=episode.response,
                old_logprobs=episode.logprobs,
                action=action.action,
                valid=action.valid,
                invalid_reason=action.reason,
                admissible=result.admissible,
                reward=result.reward,
            )
        )
        episode.history.append((episode.current.text, action.action))
        episode.current = result.observation
        episode.trajectory.success, episode.trajectory.score = result.success, result.score
        over = len(episode.turns) >= self.settings.max_steps
        if result.done or over:
            ended = result.done and not result.truncated  # by what was done, be it with the last action allowed
            episode.trajectory.termination = "success" if result.success else "done" if ended else "max_steps"
        return not (result.done or over)


def fail(trajectory: Trajectory, failure: BaseException) -> None:
    """Mark a trajectory as lost to the infrastructure: it keeps no turns."""
    trajectory.failure = str(failure) or type(failure).__name__
    trajectory.termination = "infra_failure"
    trajectory.turns.clear()
    trajectory.success, trajectory.score = False, 0.0
