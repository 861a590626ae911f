"""Scripted episodes to clone from: honest search, mistakes to recover from, and gaps that skills fill.

Every demonstration plays in a world of its own (train rooms and train specifications only), so that no placement can
be memorised. Without a skill in the prompt most experts are naive about cleaning, heating and cooling: a policy cloned
from them lacks exactly what a skill can tell it. With a skill the expert is complete.
"""

from __future__ import annotations

import random

from envs.alfworld.expert import Expert, reveal
from envs.alfworld.facts import DEVICES, TASK_TYPES
from envs.alfworld.hindsight import episode_skill
from envs.alfworld.native import Game, scene_of_world
from envs.alfworld.prompts import AlfworldPrompter
from envs.alfworld.tracker import Tracker, read_instruction
from envs.alfworld.worlds import build, pool
from envs.interface import Demonstration, DemoTurn, Observation

HINTED = 0.5  # share of demonstrations with a skill in the prompt
EPISODE_HINT = 0.6  # of these: share with an episode skill; the others carry step skills
BOTH_HINTS = 0.3  # of those with an episode skill: share that carries step skills too
STEP_HINT = 0.35  # share of steps with a step skill where step skills are carried
NAIVE = 0.9  # un-hinted clean, heat and cool demonstrations whose expert skips the device
LUCKY = 0.3  # experts that know where things are
NOISE = 0.08  # un-hinted: share of random admissible commands, shown but not imitated
MISTAKE = 0.06  # share of commands that have no effect, shown but not imitated
MAX_STEPS = 30
DEMONSTRATIONS_VERSION = 1  # raised whenever (seed, index) would give another demonstration


def demonstration(seed: int, index: int) -> Demonstration:
    """Deterministic in (seed, index)."""
    rng = random.Random(f"demo|{seed}|{index}")
    task_type = rng.choice(TASK_TYPES)
    number, spec = rng.choice(pool("train")[task_type])
    world = build(number, spec, f"demo|{seed}|{index}")
    game = Game(scene_of_world(world))
    aim = read_instruction(world.instruction)
    prompter = AlfworldPrompter("compact", "bare", 0)

    hinted = rng.random() < HINTED
    with_episode = hinted and rng.random() < EPISODE_HINT
    with_steps = hinted and (not with_episode or rng.random() < BOTH_HINTS)
    naive = not hinted and task_type in DEVICES and rng.random() < NAIVE
    seen = Tracker()
    text = game.reset()
    seen.begin(text)
    if rng.random() < LUCKY:
        reveal(seen, game)
    expert = Expert(aim, rng, naive)

    turns: list[DemoTurn] = []
    prompt = prompter.opening(Observation(text, f"{world.instruction}."))
    while len(turns) < MAX_STEPS and not game.won():
        decision = expert.decide(seen)
        if decision is None:
            break
        command, imitate = decision.command, True
        step_skill = command if with_steps and rng.random() < STEP_HINT else None
        if step_skill is None and not hinted and rng.random() < NOISE:
            command, imitate = rng.choice([c for c in game.admissible() if c != "help"]), False
        elif step_skill is None and rng.random() < MISTAKE:
            command, imitate = _mistake(rng, seen, aim.object), False
        text, effective = game.step(command)
        turns.append(DemoTurn(prompt, command, imitate and effective, step_skill))
        seen.update(command, text)
        prompt = prompter.follow_up(Observation(text, ""))
    return Demonstration(tuple(turns), episode_skill(aim, rng.random() < 0.5) if with_episode else None)


def _mistake(rng: random.Random, seen: Tracker, wanted: str) -> str:
    """A command that a policy would try in vain: going where it is, taking what is not there."""
    place = seen.at or rng.choice(seen.receptacles)
    return rng.choice((f"go to {place}", f"take {wanted} 1 from {rng.choice(seen.receptacles)}", f"open {place}"))
