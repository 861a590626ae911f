"""Rule-based hindsight: what should have been known, read from a finished trajectory alone.

Episode skill: the workflow that the instruction asks for, with the option values in it; after a failure also what the
trajectory most likely missed. Step skills: at steps where what had been seen said what to do, that command, or the
policy's own where it was as good; steps where the policy did something else come first. The rules know the shop, so
this is a good analyser: an upper bound for a language model in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.interface import Hindsight
from envs.webshop.environment import short_name
from envs.webshop.expert import Decision, Expert, Memory
from envs.webshop.library import workflow
from envs.webshop.reading import Wish, read_instruction, stems
from envs.webshop.shop import RESULTS, SEARCH, read_action


def make_hindsight(compact: bool) -> Hindsight:
    """compact: commands as compact prompts have them (`click[item 3]`)."""

    def hindsight(
        task: str, steps: Sequence[tuple[str, str, bool]], success: bool, max_step_skills: int
    ) -> tuple[str, dict[int, str]]:
        """(task, [(page before the action, action, had an effect)], success, K) -> (episode skill, step skills)."""
        memory = Memory(read_instruction(task), compact)
        missed: dict[int, str] = {}
        taken: dict[int, str] = {}
        bought_early = False
        for k, (page, action, effective) in enumerate(steps):
            memory.look(page)
            decision = Expert().decide(memory)
            if decision is not None:
                if effective and fits(decision, memory, action):
                    taken[k] = action
                elif not _arguable(decision, memory, action):
                    missed[k] = decision.command
                    bought_early |= read_action(action)[1] == "buy now"
            if effective:
                memory.did(action)
        chosen = (sorted(missed) + sorted(taken))[:max_step_skills]
        return episode_skill(memory, success, bought_early), {k: {**missed, **taken}[k] for k in sorted(chosen)}

    return hindsight


def fits(decision: Decision, memory: Memory, action: str) -> bool:
    """Whether the action is as good as the decision: one of its commands, or a search for the same product."""
    if action in decision.acceptable:
        return True
    name, argument = read_action(action)
    if name == "search":
        # a query may leave out option values and all but one word of the rest, as long as it adds nothing
        said, wanted = stems(argument), stems(" ".join([*memory.wish.words, *memory.wish.options.values()]))
        return memory.page.kind == SEARCH and len(said & stems(" ".join(memory.wish.words))) >= 2 and said <= wanted
    return any(short_name(argument) == short_name(read_action(command)[1]) for command in decision.acceptable)


def _arguable(decision: Decision, memory: Memory, action: str) -> bool:
    """Whether the rules should say nothing: another page of results or a new search instead of opening a product."""
    name, argument = read_action(action)
    return memory.page.kind == RESULTS and (name == "search" or short_name(argument) in ("next", "back to search"))


def episode_skill(memory: Memory, success: bool, bought_early: bool = False) -> str:
    """The workflow; after a failure also a caution."""
    wish = memory.wish
    values = wanted_values(memory)
    query = " ".join([*wish.words, *wish.options.values()])
    text = workflow(query, values, wish.bound if wish.bound != float("inf") else None)
    return text if success else f"{text}; {_caution(wish, values, bought_early)}"


def wanted_values(memory: Memory) -> list[str]:
    """Option values that the instruction asks for: named ones, else those of the pages seen."""
    if memory.wish.options:
        return list(memory.wish.options.values())
    said = f" {short_name(memory.wish.body)} "
    return sorted(value for value in memory.offered if f" {short_name(value)} " in said)


def _caution(wish: Wish, values: Sequence[str], bought_early: bool) -> str:
    if values and bought_early:
        return f"do not buy before you click {', '.join(values)}"
    if values:
        return f"do not click item without {', '.join(values)}"
    return "do not stop before you buy"
