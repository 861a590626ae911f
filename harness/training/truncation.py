"""Prompts that must fit into a number of tokens: words of the observation give way, never a skill, the task or the
turn instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envs.interface import PromptParts
from methods.skills.injection import fit, inject

if TYPE_CHECKING:
    from harness.training.chat import ChatFormat
    from methods.interface import Prompt


def fitted_opening(
    chat: ChatFormat,
    prompt: Prompt,
    episode_skill: str | None,
    step_skill: str | None,
    style: str,
    placement: str,
    budget: int,
) -> tuple[Prompt, list[int], bool]:
    """A message that opens a conversation: what is left of it without skills, its ids with them, whether it was cut.

    budget: tokens of the whole chat prompt. The first result is `prompt` itself unless words were cut; then other
    skills can be put into the same remaining text. Raises ValueError naming the task if nothing that may be cut helps.
    """
    text, cut = fit(prompt, episode_skill, step_skill, style, placement, lambda text: len(chat.opening(text)), budget)
    if not cut:
        return prompt, chat.opening(text), False
    head = inject(PromptParts(prompt.before, prompt.task), episode_skill, None, style, placement)
    around = inject(
        PromptParts(prompt.before, prompt.task, "", prompt.turn), episode_skill, step_skill, style, placement
    )
    left = text[len(head) : len(text) - (len(around) - len(head))]
    return PromptParts(prompt.before, prompt.task, left, prompt.turn), chat.opening(text), True
