"""Episodes played with a policy that somebody else samples from: a vLLM server, or vLLM in this process.

Prompts, records and ends of episodes are those of every engine (harness.training.episode). What an episode samples is
seeded by its own stream and the turn, so it does not depend on the others of its batch, up to vLLM's own rounding. It
is not what the local engine samples from the same seed: the two draw tokens differently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from envs.interface import EnvironmentFailure
from harness.training.episode import Director, Episode, EpisodeRequest, RolloutStats, fail
from harness.training.rollout import Pool
from harness.training.streams import stream
from methods.interface import Trajectory

T = TypeVar("T")
SEEDS = 2**31  # vLLM takes larger ones, other servers do not


@dataclass(frozen=True, slots=True)
class Request:
    """One response to sample. prompt: token ids; seed: in [0, SEEDS); temperature 0: the most likely tokens."""

    prompt: list[int]
    seed: int
    temperature: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Response:
    """ids: sampled tokens, the end-of-turn token last if it was sampled; logprobs: theirs, natural logs as the server
    gives them (vLLM: at temperature 1, before any cutting)."""

    ids: list[int]
    logprobs: list[float]


class Completer(Protocol):
    """Samples responses of one policy."""

    def complete(self, requests: Sequence[Request], stop: int) -> list[Response]:
        """One response each, in order. stop: the token that ends a response. Raises what stops the run."""
        ...


class VllmPlayer:
    """Plays episodes; see harness.training.rollout.Player. The pool needs as many slots as a call has requests."""

    def __init__(self, completer: Completer, director: Director, pool: Pool) -> None:
        self.completer, self.director, self.pool = completer, director, pool

    def play(self, requests: Sequence[EpisodeRequest], temperature: float) -> tuple[list[Trajectory], RolloutStats]:
        """As harness.training.rollout.Sampler.play."""
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
        while live:
            live = [episode for episode in live if self.director.prepare(episode, stats)]
            if live:
                self._respond(live, temperature, stats)
                live = self._act(live, stats)
        return trajectories

    def _respond(self, live: Sequence[Episode], temperature: float, stats: RolloutStats) -> None:
        settings, chat = self.director.settings, self.director.chat
        growing = settings.context == "growing"
        requests = [
            Request(
                # A growing context is what was there before, the last sampled token, and what follows it.
                [*episode.fed, *episode.response[-1:], *episode.prompt_ids] if growing else list(episode.prompt_ids),
                int(episode.rng.integers(SEEDS)),
                temperature,
                settings.max_response_tokens,
            )
            for episode in live
        ]
        for episode, request, response in zip(
            live, requests, self.completer.complete(requests, chat.eos_id), strict=True
        ):
            episode.response, episode.logprobs = response.ids, response.logprobs
            episode.fed = [*request.prompt, *response.ids[:-1]]
            stats.tokens += len(request.prompt) + len(response.ids)

    def _act(self, live: Sequence[Episode], stats: RolloutStats) -> list[Episode]:
        """Step every environment and record the turns; the episodes that go on."""
        parsed = [self.director.parse(episode) for episode in live]
        slots, actions = [episode.slot for episode in live], [p.action for p in parsed]
        results = self._timed(stats, lambda: self.pool.step(slots, actions))
        going = [self.director.record(*known) for known in zip(live, parsed, results, strict=True)]
        return [episode for episode, goes_on in zip(live, going, strict=True) if goes_on]

    @staticmethod
    def _timed(stats: RolloutStats, call: Callable[[], T]) -> T:
        started = time.process_time()
        result = call()
        stats.env_seconds += time.process_time() - started
        return result
