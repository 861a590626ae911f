"""How a skill enters a user message, and what gives way when the message is too long.

A message is cut by the environment into four parts (before, task, after, turn). placement=task puts the episode skill
right after the task and the step skill right before the turn instruction, as in OPID (arXiv:2606.26790, section 3;
placement in the released code: after the task line, before the final "now it is your turn"). placement=front puts the
episode skill before everything else of the message, where the released code of SDAR (arXiv:2605.15155) has its
privileged text; the step skill stays where it is. Rollouts with skills and teachers share these functions, so a policy
is scored under exactly the text that it was shown when it learned to read skills.

The released codes cut a long prompt from the left, skill first (arXiv:2606.26790 and 2605.15155). Here a message that
is too long loses words of `after` (what the environment said), never of the skill, the task or the turn instruction.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from core.names import require_known
from core.skills import is_blank as is_blank
from methods.interface import Prompt

STYLES = ("compact", "sections")
PLACEMENTS = ("task", "front")
# Raised whenever the same skill would give another prompt; part of the fingerprint of runs that use skills.
INJECTION_VERSION = 1

_TEMPLATES = {
    # One short line each: word-level tokenizers of small models know these two words.
    "compact": ("\nSkill: {text}\n", "\nNow: {text}\n"),
    "sections": (
        "\n\n## Guidance for this task\nKeep the following in mind at every step until the task is done:\n{text}\n\n",
        "\n\n## Guidance for this step\nThis applies to the action that you choose now, and to no other:\n{text}\n\n",
    ),
}
# Stands where words were cut out. Word-level tokenizers know no word for it, so there it is a line break alone.
_GAPS = {"compact": "\n", "sections": "\n[... words left out ...]\n"}


def inject(
    prompt: Prompt,
    episode_skill: str | None,
    step_skill: str | None,
    style: str = "compact",
    placement: str = "task",
) -> str:
    """The message with the given skills in it; without any, byte for byte the four parts joined.

    None means no skill of that kind. placement: of the episode skill, `task` or `front`.
    Raises ValueError, naming the task, for a skill that is blank (see `is_blank`), and for an unknown style or
    placement.
    """
    head, tail = _around(prompt, episode_skill, step_skill, style, placement)
    return head + prompt.after + tail


def fit(
    prompt: Prompt,
    episode_skill: str | None,
    step_skill: str | None,
    style: str,
    placement: str,
    measure: Callable[[str], int],
    budget: int,
) -> tuple[str, bool]:
    """The message of `inject`, shortened until `measure` of it is at most `budget`; and whether words were cut.

    measure: text -> its length, in the unit of `budget` (tokens of the whole chat prompt), >= 0; called once where the
    message fits, else about log2(words) times. Of the words of `prompt.after` as many are kept as fit: a third from its
    start (the scene), the rest from its end (what was seen last). Everything else stays.
    Raises ValueError, naming the task, if the message does not fit even without them; and as `inject` does.
    """
    head, tail = _around(prompt, episode_skill, step_skill, style, placement)
    whole = head + prompt.after + tail
    size = measure(whole)
    if size <= budget:
        return whole, False
    words = re.findall(r"\s*\S+", prompt.after)
    end = prompt.after[sum(map(len, words)) :]

    def keeping(count: int) -> str:
        first = count // 3
        last = words[len(words) - (count - first) :]
        return head + "".join(words[:first]) + _GAPS[style] + "".join(last).lstrip() + end + tail

    least = keeping(0)
    if not words or measure(least) > budget:
        raise ValueError(
            f"the message of {size} tokens cannot be cut to {budget}: task, skill and turn instruction alone are too "
            f"long; raise training.max_prompt_tokens, or lower method.skill.top_k. The task: {_task_of(prompt)}"
        )
    best, low, high = least, 0, len(words)  # `best` keeps `low` words and was measured; `high` words are too many
    while high - low > 1:
        middle = (low + high) // 2
        candidate = keeping(middle)
        if measure(candidate) <= budget:
            best, low = candidate, middle
        else:
            high = middle
    return best, True


def _around(
    prompt: Prompt, episode_skill: str | None, step_skill: str | None, style: str, placement: str
) -> tuple[str, str]:
    """What stands before `after` and what stands behind it."""
    require_known("skill style", style, STYLES)
    require_known("method.skill.placement", placement, PLACEMENTS)
    episode_template, step_template = _TEMPLATES[style]
    episode = _fill(episode_template, episode_skill, "episode skill", prompt)
    step = _fill(step_template, step_skill, "step skill", prompt)
    head = prompt.before + prompt.task
    return (episode.lstrip("\n") + head if placement == "front" else head + episode), step + prompt.turn


def _fill(template: str, text: str | None, kind: str, prompt: Prompt) -> str:
    if text is None:
        return ""
    if is_blank(text):
        raise ValueError(
            f"the {kind} {text!r} is empty, for the task: {_task_of(prompt)}. Pass None where there is no skill"
        )
    return template.replace("{text}", text.strip())


def _task_of(prompt: Prompt) -> str:
    return prompt.task.strip() or "a follow-up message (its task part is empty)"
