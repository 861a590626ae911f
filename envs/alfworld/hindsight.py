"""Rule-based hindsight: what should have been known, read from a finished trajectory alone.

Episode skill: the workflow that the instruction asks for; after a failure also what to beware of. Step skills: at steps
where what had been seen said what to do, that command, or the policy's own where it was as good; steps where the policy
did something else come first. The rules know the game, so this is a good analyser: an upper bound for a language model
in its place.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from envs.alfworld.expert import Expert
from envs.alfworld.tracker import Aim, Tracker, read_instruction


def workflow(aim: Aim) -> str:
    """Steps in order, e.g. `find mug, take mug, clean mug with sinkbasin, move mug to shelf`."""
    obj, steps = aim.object, [f"find {aim.object}", f"take {aim.object}"]
    if aim.device:
        steps.append(f"{aim.verb} {obj} with {aim.device}")
    if not aim.target:
        steps += [f"find {aim.lamp}", f"use {aim.lamp}"]
    else:
        steps.append(f"move {obj} to {aim.target}")
    if aim.count == 2:
        steps.append(f"then find the other {obj} and move it to {aim.target}")
    return ", ".join(steps)


def caution(aim: Aim) -> str:
    """What a failed episode most likely missed."""
    if aim.device:
        return f"do not move {aim.object} to {aim.target} before you {aim.verb} it"
    if aim.count == 2:
        return f"do not stop before two {aim.object} are in {aim.target}"
    if not aim.target:
        return f"do not use {aim.lamp} before you take {aim.object}"
    return f"do not look where you looked before, find {aim.object} first"


def episode_skill(aim: Aim, success: bool) -> str:
    return workflow(aim) if success else f"{workflow(aim)}; {caution(aim)}"


def hindsight(
    task: str, steps: Sequence[tuple[str, str, bool]], success: bool, max_step_skills: int
) -> tuple[str, dict[int, str]]:
    """(task, [(observation before the action, action, had an effect)], success, K) -> (episode skill, step skills).

    ValueError if the instruction is in none of the environment's wordings.
    """
    aim = read_instruction(task)
    seen = Tracker()
    if steps:
        seen.begin(steps[0][0])
    expert = Expert(aim, random.Random(0))
    missed: dict[int, str] = {}
    taken: dict[int, str] = {}
    for k, (_, action, effective) in enumerate(steps):
        decision = expert.decide(seen)
        if decision is not None and decision.decisive:
            if action in decision.acceptable:
                taken[k] = action
            else:
                missed[k] = decision.command
        if k + 1 < len(steps):
            seen.update(action, steps[k + 1][0] if effective else "Nothing happens.")
    chosen = (sorted(missed) + sorted(taken))[:max_step_skills]
    return episode_skill(aim, success), {k: {**missed, **taken}[k] for k in sorted(chosen)}
