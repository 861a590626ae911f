"""Batched lock-step rollouts: every live episode acts, then every environment steps.

Two layouts of the context:
    growing   one token sequence per episode; each turn appends the template's tokens around the new observation
    per_step  the prompt is rebuilt at every step from the last `history` observations and actions; the cache keeps
              what it shares with the previous prompt

Every episode has a random stream of its own, so what it samples does not depend on the other rows of its batch (up to
the rounding of batched matrix products).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from envs.interface import EnvironmentFailure, Observation, Prompter, PromptParts, StepResult, Task
from harness.training.chat import ChatFormat
from harness.training.network import Decoder, Network
from harness.training.streams import Key, stream
from harness.training.truncation import fitted_opening
from methods.interface import Prompt, Trajectory, Turn
from methods.skills.injection import inject

CONTEXTS = ("growing", "per_step")

T = TypeVar("T")


class Pool(Protocol):
    """Environments in numbered slots (see envs.pool.EnvPool)."""

    def reset(self, tasks: Sequence[Task]) -> list[Observation | EnvironmentFailure]:
        """Start tasks[i] in slot i."""
        ...

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[StepResult | EnvironmentFailure]: ...


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


@dataclass
class RolloutStats:
    """tokens: fed to the network; seconds and env_seconds: CPU seconds of this process, in all and in environments;
    dropped_history: (observation, action) pairs left out because a prompt was too long; truncated_prompts: prompts that
    lost words of their observation, because even without history they were too long."""

    tokens: int = 0
    seconds: float = 0.0
    env_seconds: float = 0.0
    dropped_history: int = 0
    truncated_prompts: int = 0
    retried: int = 0


@dataclass
class _Episode:
    """What a running episode carries besides its trajectory. slot: in the pool."""

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


class Sampler:
    """Plays episodes with one policy. The pool must have as many slots as a call has requests."""

    def __init__(
        self, network: Network, chat: ChatFormat, pool: Pool, prompter: Prompter, settings: RolloutSettings
    ) -> None:
        if settings.context not in CONTEXTS:
            raise ValueError(f"training.context={settings.context!r} is unknown; choose from {', '.join(CONTEXTS)}")
        needed = settings.max_prompt_tokens + settings.max_response_tokens
        if needed > network.max_positions:
            raise ValueError(
                f"training.max_prompt_tokens={settings.max_prompt_tokens} plus training.max_response_tokens="
                f"{settings.max_response_tokens} is more than the backbone's {network.max_positions} positions; "
                "lower one of them"
            )
        self.network, self.chat, self.pool, self.prompter, self.settings = network, chat, pool, prompter, settings

    @torch.inference_mode()
    def play(self, requests: Sequence[EpisodeRequest], temperature: float) -> tuple[list[Trajectory], RolloutStats]:
        """One trajectory per request, in order; `index` is the position in `requests`.

        An episode whose environment fails is played once more with the same random stream. If it fails again its
        trajectory has `failure` set, termination `infra_failure` and no turns. temperature 0: the most likely token.
        """
        stats = RolloutStats()
        started = time.process_time()
        trajectories = self._play(requests, temperature, stats)
        broken = [i for i, trajectory in enumerate(trajectories) if trajectory.failure is not None]
        if broken:
            stats.retried = len(broken)
            for i, again in zip(broken, self._play([requests[i] for i in broken], temperature, stats), strict=True):
                trajectories[i] = again
        for i, trajectory in enumerate(trajectories):
            trajectory.index = i
        stats.seconds = time.process_time() - started
        return trajectories, stats

    def _play(self, requests: Sequence[EpisodeRequest], temperature: float, stats: RolloutStats) -> list[Trajectory]:
        trajectories = [Trajectory(i, r.group, r.sample, r.task.id, r.task.type, "") for i, r in enumerate(requests)]
        live: list[_Episode] = []
        for i, first in enumerate(self._timed(stats, lambda: self.pool.reset([r.task for r in requests]))):
            if isinstance(first, EnvironmentFailure):
                _fail(trajectories[i], first)
                continue
            request, trajectory = requests[i], trajectories[i]
            trajectory.task_text = first.task
            skill = request.skill
            trajectory.skill = skill(request.task, first.task) if callable(skill) else skill
            live.append(_Episode(i, trajectory, stream(*request.key), first, first))
        decoder = self.network.decoder(len(live))
        while live:
            live = _retain(live, [self._prepare(episode, stats) for episode in live], decoder)
            if not live:
                break
            self._respond(live, decoder, temperature, stats)
            live = _retain(live, self._act(live, stats), decoder)
        return trajectories

    # ------------------------------------------------------------------------------------------------------- prompts
    def _prepare(self, episode: _Episode, stats: RolloutStats) -> bool:
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

    def _rebuild(self, episode: _Episode, stats: RolloutStats) -> None:
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

    # ------------------------------------------------------------------------------------------------------ responses
    def _respond(self, live: list[_Episode], decoder: Decoder, temperature: float, stats: RolloutStats) -> None:
        """Sample one response per episode."""
        limit = self.settings.max_response_tokens
        # A whole row of uniforms per turn, used or not: a turn's randomness does not depend on earlier lengths.
        uniforms = torch.from_numpy(np.stack([episode.rng.random(limit) for episode in live]))
        logits = self._feed(decoder, live, self._pending_prompts(live, decoder), stats)
        for episode in live:
            episode.response, episode.logprobs = [], []
        open_rows = list(range(len(live)))
        for position in range(limit):
            tokens, logprobs = sample_tokens(logits, uniforms[:, position], temperature)
            token_list, logprob_list = tokens.tolist(), logprobs.tolist()
            for row in open_rows:
                live[row].response.append(token_list[row])
                live[row].logprobs.append(logprob_list[row])
            open_rows = [row for row in open_rows if token_list[row] != self.chat.eos_id]
            if not open_rows or position == limit - 1:
                break
            new: list[list[int]] = [[] for _ in live]
            for row in open_rows:
                new[row] = [token_list[row]]
            logits = self._feed(decoder, live, new, stats)

    def _pending_prompts(self, live: list[_Episode], decoder: Decoder) -> list[list[int]]:
        if self.settings.context == "growing":
            return [[*episode.response[-1:], *episode.prompt_ids] for episode in live]
        shared = [_common_prefix(episode.fed, episode.prompt_ids) for episode in live]
        decoder.rewind(shared)
        for episode, length in zip(live, shared, strict=True):
            del episode.fed[length:]
        return [episode.prompt_ids[length:] for episode, length in zip(live, shared, strict=True)]

    def _feed(self, decoder: Decoder, live: list[_Episode], new: list[list[int]], stats: RolloutStats) -> Tensor:
        for episode, tokens in zip(live, new, strict=True):
            episode.fed.extend(tokens)
            stats.tokens += len(tokens)
        return decoder.feed(new)

    # --------------------------------------------------------------------------------------------------- environments
    def _act(self, live: list[_Episode], stats: RolloutStats) -> list[bool]:
        """Step every environment and record the turns; True where the episode goes on."""
        parsed = [self.prompter.parse(self.chat.response_text(episode.response)) for episode in live]
        slots, actions = [episode.slot for episode in live], [p.action for p in parsed]
        results = self._timed(stats, lambda: self.pool.step(slots, actions))
        going: list[bool] = []
        for episode, action, result in zip(live, parsed, results, strict=True):
            if isinstance(result, EnvironmentFailure):
                _fail(episode.trajectory, result)
                going.append(False)
                continue
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
                episode.trajectory.termination = "success" if result.success else "max_steps" if over else "done"
            going.append(not (result.done or over))
        return going

    @staticmethod
    def _timed(stats: RolloutStats, call: Callable[[], T]) -> T:
        started = time.process_time()
        result = call()
        stats.env_seconds += time.process_time() - started
        return result


def sample_tokens(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling: the first token whose cumulative probability exceeds u.

    logits [rows, vocabulary] float32; uniforms [rows] float64 in [0, 1). Returns tokens [rows] and their log-probs
    [rows] at `temperature`. Temperature 0 takes the most likely token and gives its log-prob at temperature 1.
    """
    if temperature == 0:
        logprobs = torch.log_softmax(logits, -1)
        tokens = logits.argmax(-1)
    else:
        logprobs = torch.log_softmax(logits / temperature, -1)
        cumulative = logprobs.double().exp().cumsum(-1)
        # Scaled by the last entry, which rounding leaves beside 1; right=True never lands on a token of probability 0.
        thresholds = uniforms.to(logits.device)[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, thresholds, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _retain(live: list[_Episode], going: list[bool], decoder: Decoder) -> list[_Episode]:
    """Drop finished rows from the cache."""
    if all(going):
        return live
    rows = [row for row, goes_on in enumerate(going) if goes_on]
    decoder.keep(rows)
    return [live[row] for row in rows]


def _common_prefix(fed: list[int], prompt: list[int]) -> int:
    """Tokens of `prompt` that are in the cache already; at least its last one is left to feed."""
    limit = min(len(fed), len(prompt) - 1)
    for i in range(limit):
        if fed[i] != prompt[i]:
            return i
    return limit


def _fail(trajectory: Trajectory, failure: EnvironmentFailure) -> None:
    trajectory.failure = str(failure) or type(failure).__name__
    trajectory.termination = "infra_failure"
    trajectory.turns.clear()
    trajectory.success, trajectory.score = False, 0.0
