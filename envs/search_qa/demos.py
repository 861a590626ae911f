"""Scripted episodes to clone from: questions of the training side only, honest searches, and gaps that skills fill.

Without a skill in the prompt most experts are naive about questions that need two searches: they answer after the
first. A policy cloned from them lacks what a skill can tell it. With a skill the expert is complete.
"""

from __future__ import annotations

import random
from functools import lru_cache

from core.knobs import resolve_knobs
from envs.interface import Demonstration, DemoTurn, EnvConfig
from envs.search_qa.episode import SearchQa
from envs.search_qa.expert import Reader, names_in
from envs.search_qa.hindsight import spoken, workflow
from envs.search_qa.prompts import SearchPrompter
from envs.search_qa.questions import BRIDGE, COMPARE, KINDS, Question, embedded_questions
from envs.search_qa.settings import Knobs
from envs.search_qa.tasks import task_of

HINTED = 0.5  # share of demonstrations with a skill in the prompt
EPISODE_HINT = 0.6  # of these: share with an episode skill; the others carry step skills
BOTH_HINTS = 0.3  # of those with an episode skill: share that carries step skills too
STEP_HINT = 0.5  # share of steps with a step skill where step skills are carried
NAIVE = 0.9  # un-hinted questions of two searches whose expert answers after the first
NOISE = 0.1  # share of actions that lead nowhere, shown but not imitated
MAX_STEPS = 4
DEMONSTRATIONS_VERSION = 1  # raised whenever (seed, index) would give another demonstration


@lru_cache(maxsize=1)
def _pool() -> dict[str, tuple[Question, ...]]:
    return {kind: tuple(q for q in embedded_questions() if q.kind == kind and not q.held_out) for kind in KINDS}


@lru_cache(maxsize=1)
def _config() -> EnvConfig:
    knobs = resolve_knobs(Knobs, {}, "env.knobs")
    return EnvConfig(name="search_qa", prompt="compact", response="bare", max_steps=2 * MAX_STEPS, knobs=knobs)


def demonstration(seed: int, index: int) -> Demonstration:
    """Deterministic in (seed, index)."""
    rng = random.Random(f"search-demo|{seed}|{index}")
    kind = rng.choice(KINDS)
    question = rng.choice(_pool()[kind])
    hinted = rng.random() < HINTED
    with_episode = hinted and rng.random() < EPISODE_HINT
    with_steps = hinted and (not with_episode or rng.random() < BOTH_HINTS)
    naive = not hinted and kind in (BRIDGE, COMPARE) and rng.random() < NAIVE

    environment = SearchQa(_config())
    prompter = SearchPrompter("compact", "bare", 0, MAX_STEPS)
    seen = environment.reset(task_of(question))
    reader = Reader(seen.task, naive)
    turns: list[DemoTurn] = []
    prompt = prompter.opening(seen)
    done = False
    while not done and len(turns) < MAX_STEPS + 2:
        action, imitate = reader.decide(), True
        if action is None:
            break
        step_skill = action if with_steps and rng.random() < STEP_HINT else None
        if step_skill is None and rng.random() < NOISE:
            action, imitate = _stray(rng, seen.text), False
        result = environment.step(prompter.parse(action).action)
        turns.append(DemoTurn(prompt, action, imitate, step_skill))
        seen, done = result.observation, result.done
        reader.observe(spoken(action), seen.text)
        prompt = prompter.follow_up(seen)
    skill = workflow(question.relation, names_in(reader.question)) if with_episode else None
    return Demonstration(tuple(turns), skill)


def _stray(rng: random.Random, observation: str) -> str:
    """Something that does not help: a search for another name that is shown, or a word that is no action."""
    names = names_in(observation)
    return f"search {rng.choice(names)}" if names and rng.random() < 0.8 else "found"
