"""How a skill enters a user message.

A message is cut by the environment into four parts (before, task, after, turn). The episode skill stands right after
the task, the step skill right before the turn instruction, as in OPID (arXiv:2606.26790, section 3; placement in the
released code: after the task line, before the final "now it is your turn"). Rollouts with skills and teachers share
this function, so a policy is scored under exactly the text that it was shown when it learned to read skills.
"""

from __future__ import annotations

from core.names import require_known
from methods.interface import Prompt

STYLES = ("compact", "sections")
# Raised whenever the same skill would give another prompt; part of the fingerprint of runs that use skills.
INJECTION_VERSION = 1

# What a language model writes when it has nothing to say; a skill of this kind is an analyzer's fault, not a skill.
_NOTHING = frozenset({"none", "null", "nil", "nan", "n/a", "na", "undefined", "string"})

_TEMPLATES = {
    # One short line each: word-level tokenizers of small models know these two words.
    "compact": ("\nSkill: {text}\n", "\nNow: {text}\n"),
    "sections": (
        "\n\n## Guidance for this task\nKeep the following in mind at every step until the task is done:\n{text}\n\n",
        "\n\n## Guidance for this step\nThis applies to the action that you choose now, and to no other:\n{text}\n\n",
    ),
}


def is_blank(text: object) -> bool:
    """Whether `text` says nothing: no string, only white space, or a word for "nothing" (none, null, n/a, ...)."""
    return not isinstance(text, str) or text.strip().strip(".\"'[]()").strip().lower() in {"", *_NOTHING}


def inject(prompt: Prompt, episode_skill: str | None, step_skill: str | None, style: str = "compact") -> str:
    """The message with the given skills in it; without any, byte for byte the four parts joined.

    None means no skill of that kind. Raises ValueError, naming the task, for a skill that is blank (see `is_blank`)
    and for an unknown style.
    """
    require_known("skill style", style, STYLES)
    episode_template, step_template = _TEMPLATES[style]
    episode = _fill(episode_template, episode_skill, "episode skill", prompt)
    step = _fill(step_template, step_skill, "step skill", prompt)
    return prompt.before + prompt.task + episode + prompt.after + step + prompt.turn


def _fill(template: str, text: str | None, kind: str, prompt: Prompt) -> str:
    if text is None:
        return ""
    if is_blank(text):
        task = prompt.task.strip() or "a follow-up message (its task part is empty)"
        raise ValueError(f"the {kind} {text!r} is empty, for the task: {task}. Pass None where there is no skill")
    return template.replace("{text}", text.strip())
