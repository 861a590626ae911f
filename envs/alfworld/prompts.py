"""User messages and response parsing for ALFWorld.

prompt=compact  the environment's own text without its repetitions; for small models with short contexts
prompt=full     role, history, admissible commands and answer format spelt out; for instruction-tuned models
response=bare   the response is the command
response=tagged reasoning in <think></think>, then the command in <action></action>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envs.interface import EnvConfig, Observation, ParsedAction, PromptParts

_WELCOME = re.compile(r"^-= .*? =-\s*")
_TASK = re.compile(r"\s*Your task is to: .*\Z", re.S)
_ARRIVE = re.compile(r"^You arrive at ([^.]+)\. ")
_OPENED = re.compile(r"^You open the ([^.]+)\. The \1 is open\. In it, ")
# re.A: without it ſ and the two other i of Turkish count as letters of a tag.
_ACTION = re.compile(r"<action>(.*?)</action>", re.S | re.I | re.A)
_THINK = re.compile(r"<think>.*?</think>", re.S | re.I | re.A)
_ROOM = re.compile(r"^You are in the middle of a room\. Looking quickly around you, you see ")


def shorten(text: str) -> str:
    """Drops what an observation says twice; every entity and every fact stays."""
    text = _ARRIVE.sub("", text.strip())
    text = _OPENED.sub(lambda m: f"In the {m.group(1)}, ", text)
    return _ROOM.sub("You see ", text)


def _scene(first: Observation) -> str:
    """The first observation without welcome line and task."""
    return _TASK.sub("", _WELCOME.sub("", first.text.strip())).strip()


@dataclass(frozen=True)
class AlfworldPrompter:
    prompt: str
    response: str
    history: int

    @property
    def protocol(self) -> str:
        return f"{self.prompt}/{self.response}"

    # ------------------------------------------------------------------ user messages
    def opening(self, first: Observation) -> PromptParts:
        task = f"Your task is to: {first.task}"
        if self.prompt == "compact":
            return PromptParts(task=task, after=f"\n{shorten(_scene(first))}")
        return PromptParts(
            before=f"{_ROLE}\n",
            task=task,
            after=f"\nWhat you see now: {_scene(first)}\n",
            turn=self._turn(first),
        )

    def follow_up(self, current: Observation) -> PromptParts:
        if self.prompt == "compact":
            return PromptParts(before=shorten(current.text))
        return PromptParts(before=f"What you see now: {current.text.strip()}\n", turn=self._turn(current))

    def per_step(
        self, first: Observation, history: Sequence[tuple[str, str]], current: Observation, step: int
    ) -> PromptParts:
        kept = list(history)[-self.history :] if self.history else []
        task = f"Your task is to: {first.task}"
        if self.prompt == "compact":
            lines = [shorten(_scene(first))]
            for k, (observation, action) in enumerate(kept):
                # the room's list stays whatever is forgotten: it is the only map that the policy has
                if step - len(kept) + k > 0:
                    lines.append(shorten(observation))
                lines.append(f"> {action}")
            return PromptParts(task=task, after="\n" + "\n".join([*lines, shorten(current.text)]))
        past = "".join(
            f"[{step - len(kept) + k + 1}] saw: {_TASK.sub('', _WELCOME.sub('', o.strip())).strip()} | did: {a}\n"
            for k, (o, a) in enumerate(kept)
        )
        return PromptParts(
            before=f"{_ROLE}\n",
            task=task,
            after=(
                f"\nSteps taken so far: {step}. The last {len(kept)}:\n{past}What you see now: {current.text.strip()}\n"
            ),
            turn=self._turn(current),
        )

    def _turn(self, current: Observation) -> str:
        commands = "\n".join(f"- {c}" for c in current.admissible if c != "help")
        answer = (
            "Think first, inside <think> and </think>; then give one command of the list inside <action> and </action>."
            if self.response == "tagged"
            else "Answer with one command of the list and nothing else."
        )
        return f"Commands that would work:\n{commands}\n{answer}"

    # ------------------------------------------------------------------ responses
    def parse(self, response: str) -> ParsedAction:
        if self.response == "bare":
            action = response.strip().lower()
            if not action:
                return ParsedAction("", False, "empty")
            if "\n" in action:
                return ParsedAction(action.splitlines()[0].strip(), False, "several_lines")
            return ParsedAction(action, True)
        return parse_tagged(response)


def parse_tagged(response: str) -> ParsedAction:
    """Format <think>...</think><action>command</action>. What could be read is sent even when the format is broken."""
    actions = list(_ACTION.finditer(response))
    if not actions:
        return ParsedAction(response.strip()[-100:].lower(), False, "missing_action_tag")
    action = actions[0].group(1).strip().lower()
    if len(actions) > 1:
        return ParsedAction(action, False, "several_actions")
    think = _THINK.search(response)
    if not think:
        return ParsedAction(action, False, "missing_think_tag")
    if think.end() > actions[0].start():
        return ParsedAction(action, False, "tag_order")
    if not action:
        return ParsedAction("", False, "empty")
    return ParsedAction(action, True)


_ROLE = "You act in a household that you know only through text. Reach the goal with as few commands as you can."


def make_prompter(config: EnvConfig) -> AlfworldPrompter:
    """ValueError for an unknown style."""
    for key, value, known in (
        ("env.prompt", config.prompt, ("compact", "full")),
        ("env.response", config.response, ("bare", "tagged")),
    ):
        if value not in known:
            raise ValueError(f"{key}={value!r} is not one of {', '.join(known)}")
    return AlfworldPrompter(config.prompt, config.response, config.history)
