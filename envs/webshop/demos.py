"""Scripted episodes to clone from: honest shopping, slips to recover from, and gaps that skills fill.

Demonstrations play in catalogues of their own, on train goals only, so that no product or place in a list can be
memorised. Without a skill in the prompt most experts forget to choose some or all option values: a policy cloned from
them lacks exactly what a skill can tell it. With a skill the expert is complete.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from envs.interface import Demonstration, DemoTurn, EnvConfig, Task
from envs.webshop.data import store_of
from envs.webshop.environment import WebshopEnvironment
from envs.webshop.expert import Expert, Memory
from envs.webshop.hindsight import episode_skill
from envs.webshop.prompts import WebshopPrompter
from envs.webshop.reading import read_instruction
from envs.webshop.shop import RESULTS
from envs.webshop.store import Store

SEEDS = (7919, 7927, 7933)  # of the catalogues that demonstrations play in; no panel comes from them
PRODUCTS = 1000  # in each
HINTED = 0.5  # share of demonstrations with a skill in the prompt
EPISODE_HINT = 0.6  # of these: share with an episode skill; the others carry step skills
BOTH_HINTS = 0.3  # of those with an episode skill: share that carries step skills too
STEP_HINT = 0.35  # share of steps with a step skill where step skills are carried
FORGETFUL = 0.6  # un-hinted demonstrations whose expert forgets one option or all of them
NOISE = 0.06  # un-hinted: share of random clicks, shown but not imitated
MISTAKE = 0.04  # share of actions that have no effect, shown but not imitated
MAX_STEPS = 15


def make_demonstrations(config: EnvConfig) -> Callable[[int, int], Demonstration]:
    """(seed, index) -> demonstration. config: only where catalogues are kept; demonstrations do not depend on it."""
    cache = config.cache

    def demonstrate(seed: int, index: int) -> Demonstration:
        return demonstration(_stores(cache), seed, index)

    return demonstrate


@lru_cache(maxsize=2)
def _stores(cache: str | None) -> tuple[Store, ...]:
    base = EnvConfig(name="webshop", cache=cache, knobs={"products": PRODUCTS, "goals": "synthetic"})
    return tuple(store_of(replace(base, world_seed=seed)) for seed in SEEDS)


def demonstration(stores: tuple[Store, ...], seed: int, index: int) -> Demonstration:
    """Deterministic in (seed, index)."""
    rng = random.Random(f"webshop demo|{seed}|{index}")
    store = rng.choice(stores)
    number = rng.choice(store.numbers("train"))
    goal = store.goal(number)
    environment = WebshopEnvironment(store, MAX_STEPS, "text_rich", short_names=True)
    prompter = WebshopPrompter("compact", "bare", 0)

    hinted = rng.random() < HINTED
    with_episode = hinted and rng.random() < EPISODE_HINT
    with_steps = hinted and (not with_episode or rng.random() < BOTH_HINTS)
    forgets = rng.choice((1, len(goal.options))) if not hinted and rng.random() < FORGETFUL else 0
    expert = Expert(forgets)
    memory = Memory(read_instruction(goal.instruction))

    observation = environment.reset(Task(goal.id, goal.category, goal.content_hash(), location=str(number)))
    memory.look(observation.text)
    prompt = prompter.opening(observation)
    turns: list[DemoTurn] = []
    done = False
    while not done:
        decision = expert.decide(memory)
        if decision is None:
            break
        action, imitate = decision.command, True
        if action.startswith("search"):
            action = _query(rng, memory, action)
        step_skill = action if with_steps and rng.random() < STEP_HINT else None
        if step_skill is None and not hinted and rng.random() < NOISE:
            action, imitate = _random_click(rng, memory), False
        elif step_skill is None and rng.random() < MISTAKE:
            action, imitate = rng.choice(("click[item 10]", "click[buy now]", "click[next]", "click[features]")), False
        if not imitate and "buy now" in action:
            action = "click[prev]"  # a slip that ends the episode teaches nothing
        result = environment.step(action)
        turns.append(DemoTurn(prompt, action, imitate and result.admissible, step_skill))
        if result.admissible:
            memory.did(action)
        done = result.done
        if not done:
            memory.look(result.observation.text)
            prompt = prompter.follow_up(result.observation)
    skill = episode_skill(memory, rng.random() < 0.5, rng.random() < 0.5) if with_episode else None
    return Demonstration(tuple(turns), skill)


def _query(rng: random.Random, memory: Memory, action: str) -> str:
    """The expert's query; now and then only the product's words."""
    if memory.searched or rng.random() < 0.7:
        return action
    return f"search[{' '.join(memory.wish.words)}]"


def _random_click(rng: random.Random, memory: Memory) -> str:
    page = memory.page
    if page.kind == RESULTS:
        names = [f"item {k}" for k in range(1, len(page.results) + 1)] + ["next", "back to search"]
    else:
        names = [*page.values(), "features", "description", "prev"]
    return f"click[{rng.choice(names)}]"
