"""Episodes of our environments as verl's agent loops: one for each layout of the context.

A loop plays one episode as the local engine would (harness.training.episode): the same prompts, the same parsing, the
same records. It returns one output per environment step (per_step) or one per episode (growing). Nothing is raised:
verl would log it and go on with fewer rows, so what went wrong travels with the trajectory.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from envs import registry as environments
from envs.interface import EnvironmentFailure, EnvSpec
from envs.pool import EnvPool
from harness.config import RunConfig
from harness.parts import panels_of, skill_texts
from harness.record import RunDirectory
from harness.training.chat import ChatFormat
from harness.training.episode import Director, Episode, EpisodeRequest, RolloutStats, SkillOf, fail
from harness.training.loop import rollout_settings
from harness.training.streams import stream
from harness.training.verl.gateway import Gateway
from harness.training.verl.outcome import failure_class
from harness.training.verl.requests import Wanted
from harness.training.verl.rows import packed
from harness.training.verl.settings import CPU_ROLLOUT
from harness.training.verl.sizes import sizes_of
from methods.interface import SkillConfig, Trajectory

_log = logging.getLogger(__name__)


@dataclass
class Stage:
    """What all episodes of this process share."""

    config: RunConfig
    spec: EnvSpec
    chat: ChatFormat
    gateway: Gateway

    def __post_init__(self) -> None:
        self._skills: dict[str, SkillOf] = {}
        self._directors: dict[str, Director] = {}

    def director(self, skill: Mapping[str, Any] | None) -> Director:
        """skill: settings of the skills in the prompts, where they are not the run's own."""
        key = json.dumps(skill, sort_keys=True)
        if key not in self._directors:
            config = self._with(skill)
            self._directors[key] = Director(self.chat, self.spec.prompter(config.env), rollout_settings(config))
        return self._directors[key]

    def skill_of(self, skill: Mapping[str, Any]) -> SkillOf:
        """Texts of a library; made when first needed."""
        key = json.dumps(skill, sort_keys=True)
        if key not in self._skills:
            config = self._with(skill)
            train, panels, validation = panels_of(config, self.spec)
            texts = skill_texts(config, self.spec, train, (*panels, *filter(None, [validation])))
            if texts is None:
                raise ValueError(f"method.skill.source={config.method.skill.source!r} gives no text for a prompt")
            self._skills[key] = texts.of_task
        return self._skills[key]

    def _with(self, skill: Mapping[str, Any] | None) -> RunConfig:
        if skill is None:
            return self.config
        return replace(self.config, method=replace(self.config.method, skill=SkillConfig(**skill)))


@functools.lru_cache(maxsize=1)
def _stage(run_dir: str, tokenizer: Any) -> Stage:
    config = RunDirectory(Path(run_dir)).load_config()
    spec = environments.get(config.env.name)
    processes = math.ceil(config.runtime.env_workers / sizes_of(config).agent_workers)  # each agent has a pool
    return Stage(config, spec, ChatFormat(tokenizer), Gateway(EnvPool(spec.make, config.env, processes)))


class _Loop(AgentLoopBase):  # type: ignore[misc]
    """One episode."""

    context = ""

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, **given: Any) -> None:
        # Not verl's own: it prepares a way of building prompts that only the tokenizers of some families pass, and that
        # is not ours.
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager, self.tokenizer = server_manager, tokenizer

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
        wanted = Wanted.from_text(kwargs["episode"])
        request = wanted.request()
        stats = RolloutStats()
        started = time.monotonic()
        try:
            stage = _stage(str(self.config.harness.run_dir), self.tokenizer)
            trajectory = await self._play(stage, wanted, request, stats, sampling_params)
            if trajectory.failure is not None:
                stats.retried = 1
                trajectory = await self._play(stage, wanted, request, stats, sampling_params)
            stats.seconds = time.monotonic() - started
            return self._outputs(trajectory, {"fatal": "", **asdict(stats)})
        except Exception as error:  # not the environment's: whoever asked must stop
            _log.exception("episode of task %s", request.task.id)
            fatal = {"fatal": f"{type(error).__name__}: {error}", "failure_class": failure_class(error)}
            trajectory = request.trajectory(0)
            fail(trajectory, error)
            return self._outputs(trajectory, {**fatal, **asdict(stats)})

    async def _play(
        self, stage: Stage, wanted: Wanted, request: EpisodeRequest, stats: RolloutStats, sampling: Mapping[str, Any]
    ) -> Trajectory:
        slot = stage.gateway.take()
        try:
            return await self._episode(stage, wanted, request, stats, slot, sampling)
        finally:
            stage.gateway.release(slot)

    async def _episode(
        self,
        stage: Stage,
        wanted: Wanted,
        request: EpisodeRequest,
        stats: RolloutStats,
        slot: int,
        sampling: Mapping[str, Any],
    ) -> Trajectory:
        director, trajectory = stage.director(wanted.skill), request.trajectory(0)
        first = await self._timed(stats, stage.gateway.reset(slot, request.task))
        if isinstance(first, EnvironmentFailure):
            fail(trajectory, first)
            return trajectory
        trajectory.task_text = first.task
        trajectory.skill = (
            stage.skill_of(wanted.skill)(request.task, first.task) if wanted.skill is not None else wanted.text
        )
        episode = Episode(slot, trajectory, stream(*request.key), first, first)
        conversation = uuid4().hex
        while director.prepare(episode, stats):
            await self._respond(episode, wanted, director, stats, conversation, sampling)
            action = director.parse(episode)
            result = await self._timed(stats, stage.gateway.step(slot, action.action))
            if not director.record(episode, action, result):
                break
        return trajectory

    async def _respond(
        self,
        episode: Episode,
        wanted: Wanted,
        director: Director,
        stats: RolloutStats,
        conversation: str,
        given: Mapping[str, Any],
    ) -> None:
        limit = director.settings.max_response_tokens
        # As in the local engine, a whole row of uniforms per turn, used or not.
        uniforms = episode.rng.random(limit)
        sampling: dict[str, Any] = {**given, "temperature": wanted.temperature, "max_tokens": limit}
        if self.rollout_config.name == CPU_ROLLOUT:
            sampling["uniforms"] = uniforms.tolist()
        else:
            sampling |= {"logprobs": True, "seed": int(uniforms[0] * 2**31)}
        self._extend(episode)
        answer = await self.server_manager.generate(
            request_id=conversation, prompt_ids=list(episode.fed), sampling_params=sampling
        )
        episode.response, episode.logprobs = list(answer.token_ids), list(answer.log_probs or [])
        if not episode.response:
            raise RuntimeError(f"the sampler gave no token for task {episode.trajectory.task_id}")
        stats.tokens += len(episode.prompt_ids) + len(episode.response)
        episode.fed.extend(episode.response[:-1])

    def _extend(self, episode: Episode) -> None:
        """Make `episode.fed` what the sampler is to continue."""
        raise NotImplementedError

    @staticmethod
    async def _timed(stats: RolloutStats, asked: Any) -> Any:
        started = time.monotonic()
        answer = await asked
        stats.env_seconds += time.monotonic() - started
        return answer

    def _outputs(self, trajectory: Trajectory, about: dict[str, Any]) -> list[AgentLoopOutput]:
        samples, text = packed(trajectory, self.context, int(self.tokenizer.eos_token_id))
        outputs = [
            AgentLoopOutput(
                prompt_ids=sample.prompt,
                response_ids=sample.response,
                response_mask=sample.mask,
                response_logprobs=sample.logprobs,
                num_turns=k + 1,
                metrics={},
                extra_fields={
                    "min_global_steps": None,
                    "max_global_steps": None,
                    "harness": text if k == 0 else "",
                    "harness_about": json.dumps(about) if k == 0 else "",
                },
            )
            for k, sample in enumerate(samples)
        ]
        # verl has a reward of its own computed where none is given; our methods read the trajectories instead.
        outputs[-1].reward_score = 0.0
        outputs[-1].extra_fields["reward_extra_info"] = {}
        return outputs


class PerStepLoop(_Loop):
    """A prompt of its own for every step, and a row of its own."""

    context = "per_step"

    def _extend(self, episode: Episode) -> None:
        episode.fed = list(episode.prompt_ids)


class GrowingLoop(_Loop):
    """One conversation, one row; what the environment said in it is masked."""

    context = "growing"

    def _extend(self, episode: Episode) -> None:
        episode.fed.extend([*episode.response[-1:], *episode.prompt_ids])


LOOPS = {loop.context: loop for loop in (PerStepLoop, GrowingLoop)}


def loops_file(path: Path) -> Path:
    """Write the file by which verl's workers find the loops."""
    lines = [f"- name: {name}\n  _target_: {loop.__module__}.{loop.__qualname__}\n" for name, loop in LOOPS.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return path
