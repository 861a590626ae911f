"""Batched lock-step rollouts: every live episode acts, then every environment steps.

Two layouts of the context:
    growing   one token sequence per episode; each turn appends the template's tokens around the new observation
    per_step  the prompt is rebuilt at every step from the last `history` observations and actions; the cache keeps
              what it shares with the previous prompt

Every episode has a random stream of its own, so what it samples does not depend on the other rows of its batch (up to
the rounding of batched matrix products).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from envs.interface import EnvironmentFailure, Observation, Prompter, StepResult, Task
from harness.training.chat import ChatFormat
from harness.training.clocks import now_on
from harness.training.episode import CONTEXTS as CONTEXTS
from harness.training.episode import Director, Episode, fail
from harness.training.episode import EpisodeRequest as EpisodeRequest
from harness.training.episode import RolloutSettings as RolloutSettings
from harness.training.episode import RolloutStats as RolloutStats
from harness.training.episode import SkillOf as SkillOf
from harness.training.network import Decoder, Network
from harness.training.streams import stream
from methods.interface import Trajectory

T = TypeVar("T")


class Pool(Protocol):
    """Environments in numbered slots (see envs.pool.EnvPool)."""

    def reset(self, tasks: Sequence[Task]) -> list[Observation | EnvironmentFailure]:
        """Start tasks[i] in slot i."""
        ...

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[StepResult | EnvironmentFailure]: ...


class Player(Protocol):
    """Whatever plays episodes with one policy: the Sampler here, or another engine's."""

    def play(self, requests: Sequence[EpisodeRequest], temperature: float) -> tuple[list[Trajectory], RolloutStats]:
        """As Sampler.play."""
        ...


class Sampler:
    """Plays episodes with one policy. The pool must have as many slots as a call has requests."""

    def __init__(
        self, network: Network, chat: ChatFormat, pool: Pool, prompter: Prompter, settings: RolloutSettings
    ) -> None:
        self.director = Director(chat, prompter, settings)
        needed = settings.max_prompt_tokens + settings.max_response_tokens
        if needed > network.max_positions:
            raise ValueError(
                f"training.max_prompt_tokens={settings.max_prompt_tokens} plus training.max_response_tokens="
                f"{settings.max_response_tokens} is more than the backbone's {network.max_positions} positions; "
                "lower one of them"
            )
        self.network, self.chat, self.pool, self.prompter, self.settings = network, chat, pool, prompter, settings
        self.now = now_on(network.device.type)

    @torch.inference_mode()
    def play(self, requests: Sequence[EpisodeRequest], temperature: float) -> tuple[list[Trajectory], RolloutStats]:
        """One trajectory per request, in order; `index` is the position in `requests`.

        An episode whose environment fails is played once more with the same random stream. If it fails again its
        trajectory has `failure` set, termination `infra_failure` and no turns. temperature 0: the most likely token.
        """
        stats = RolloutStats()
        started = self.now()
        trajectories = self._play(requests, temperature, stats)
        broken = [i for i, trajectory in enumerate(trajectories) if trajectory.failure is not None]
        if broken:
            stats.retried = len(broken)
            for i, again in zip(broken, self._play([requests[i] for i in broken], temperature, stats), strict=True):
                trajectories[i] = again
        for i, trajectory in enumerate(trajectories):
            trajectory.index = i
        stats.seconds = self.now() - started
        return trajectories, stats

    def _play(self, requests: Sequence[EpisodeRequest], temperature: float, stats: RolloutStats) -> list[Trajectory]:
        trajectories = [request.trajectory(i) for i, request in enumerate(requests)]
        live: list[Episode] = []
        for i, first in enumerate(self._timed(stats, lambda: self.pool.reset([r.task for r in requests]))):
            if isinstance(first, EnvironmentFailure):
                fail(trajectories[i], first)
                continue
            request, trajectory = requests[i], trajectories[i]
            trajectory.task_text = first.task
            trajectory.skill = request.skill_text(first.task)
            live.append(Episode(i, trajectory, stream(*request.key), first, first))
        decoder = self.network.decoder(len(live))
        while live:
            live = _retain(live, [self.director.prepare(episode, stats) for episode in live], decoder)
            if not live:
                break
            self._respond(live, decoder, temperature, stats)
            live = _retain(live, self._act(live, stats), decoder)
        return trajectories

    # ------------------------------------------------------------------------------------------------------ responses
    def _respond(self, live: list[Episode], decoder: Decoder, temperature: float, stats: RolloutStats) -> None:
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

    def _pending_prompts(self, live: list[Episode], decoder: Decoder) -> list[list[int]]:
        if self.settings.context == "growing":
            return [[*episode.response[-1:], *episode.prompt_ids] for episode in live]
        shared = [_common_prefix(episode.fed, episode.prompt_ids) for episode in live]
        decoder.rewind(shared)
        for episode, length in zip(live, shared, strict=True):
            del episode.fed[length:]
        return [episode.prompt_ids[length:] for episode, length in zip(live, shared, strict=True)]

    def _feed(self, decoder: Decoder, live: list[Episode], new: list[list[int]], stats: RolloutStats) -> Tensor:
        for episode, tokens in zip(live, new, strict=True):
            episode.fed.extend(tokens)
            stats.tokens += len(tokens)
        return decoder.feed(new)

    # --------------------------------------------------------------------------------------------------- environments
    def _act(self, live: list[Episode], stats: RolloutStats) -> list[bool]:
        """Step every environment and record the turns; True where the episode goes on."""
        parsed = [self.director.parse(episode) for episode in live]
        slots, actions = [episode.slot for episode in live], [p.action for p in parsed]
        results = self._timed(stats, lambda: self.pool.step(slots, actions))
        return [
            self.director.record(episode, action, result)
            for episode, action, result in zip(live, parsed, results, strict=True)
        ]

    def _timed(self, stats: RolloutStats, call: Callable[[], T]) -> T:
        started = self.now()
        result = call()
        stats.env_seconds += self.now() - started
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


def _retain(live: list[Episode], going: list[bool], decoder: Decoder) -> list[Episode]:
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
