"""User messages and response parsing for Search-QA.

prompt=compact  question and passages as numbered names in few words; for small models with a closed vocabulary
prompt=full     role, question, passages and answer format spelt out; for instruction-tuned models
response=bare   compact: `search ...` or `answer ...` in words; full: `search[...]` or `answer[...]`
response=tagged reasoning in <think></think>, then <search>...</search> or <answer>...</answer> (Search-R1)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envs.interface import EnvConfig, Observation, ParsedAction, PromptParts

# a: without it ſ and the two other i of Turkish count as letters of a word or a tag.
_BARE = re.compile(r"\s*((?ai:search|answer))\s*\[(.*)\]\s*\Z", re.S)
_BLOCK = re.compile(r"<(search|answer)>(.*?)</\1>", re.S | re.I | re.A)
_THINK = re.compile(r"<think>.*?</think>", re.S | re.I | re.A)
_ROLE = "You answer a question. A search engine over Wikipedia is at hand; what it finds is shown to you as passages."


@dataclass(frozen=True)
class SearchPrompter:
    prompt: str
    response: str
    history: int
    max_steps: int

    @property
    def protocol(self) -> str:
        return f"{self.prompt}/{self.response}"

    # ------------------------------------------------------------------ user messages
    def opening(self, first: Observation) -> PromptParts:
        if self.prompt == "compact":
            return PromptParts(task=f"question {first.task}")
        return PromptParts(before=f"{_ROLE}\n", task=f"Question: {first.task}", after="\n", turn=self._turn(0))

    def follow_up(self, current: Observation) -> PromptParts:
        if self.prompt == "compact":
            return PromptParts(before=current.text)
        return PromptParts(before=f"{self._information(current.text)}\n", turn=self._turn(None))

    def per_step(
        self, first: Observation, history: Sequence[tuple[str, str]], current: Observation, step: int
    ) -> PromptParts:
        kept = list(history)[-self.history :] if self.history else []
        shown = [*(observation for observation, _ in kept[1:]), current.text]
        turns = list(zip((action for _, action in kept), shown, strict=bool(kept)))
        if self.prompt == "compact":
            # without history what was found last stands alone, without the action that found it
            lines = [f"> {action} {seen}" for action, seen in turns] or shown
            return PromptParts(task=f"question {first.task}", after="\n" + "\n".join(lines))
        past = "".join(
            f"[turn {step - len(kept) + k + 1}] {action}\n{self._information(seen)}\n"
            for k, (action, seen) in enumerate(turns)
        )
        past = past or f"{self._information(current.text)}\n"
        return PromptParts(
            before=f"{_ROLE}\n", task=f"Question: {first.task}", after=f"\nSo far:\n{past}", turn=self._turn(step)
        )

    @staticmethod
    def _information(text: str) -> str:
        return f"<information>{text}</information>"

    def _turn(self, step: int | None) -> str:
        left = "" if step is None else f"{self.max_steps - step} turns are left. "
        if self.response == "tagged":
            return (
                f"{left}Think first, inside <think> and </think>. Then either ask the search engine with "
                "<search>your query</search>, or finish with <answer>the answer, as short as possible</answer>."
            )
        return f"{left}Write either search[your query] or answer[the answer, as short as possible], and nothing else."

    # ------------------------------------------------------------------ responses
    def parse(self, response: str) -> ParsedAction:
        if self.response == "tagged":
            return _tagged(response)
        return _words(response) if self.prompt == "compact" else _bare(response)


def _words(response: str) -> ParsedAction:
    """`search name 1` as `search[name 1]`."""
    text = " ".join(response.split())
    kind, _, content = text.partition(" ")
    if not text:
        return ParsedAction("", False, "empty")
    if kind not in ("search", "answer"):
        return ParsedAction(text, False, "missing_action")
    if not content:
        return ParsedAction(text, False, "empty")
    return ParsedAction(f"{kind}[{content}]", True)


def _bare(response: str) -> ParsedAction:
    text = response.strip()
    if not text:
        return ParsedAction("", False, "empty")
    match = _BARE.match(text)
    if match is None:
        return ParsedAction(text, False, "missing_action")
    if not match.group(2).strip():
        return ParsedAction(text, False, "empty")
    return ParsedAction(f"{match.group(1).lower()}[{match.group(2).strip()}]", True)


def _tagged(response: str) -> ParsedAction:
    """What could be read is sent even when the format is broken: the first search, else the first answer."""
    blocks = _BLOCK.findall(response)
    if not blocks:
        return ParsedAction(response.strip(), False, "missing_action_tag")
    kind, content = next((b for b in blocks if b[0].lower() == "search"), blocks[0])
    action = f"{kind.lower()}[{content.strip()}]"
    if len(blocks) > 1:
        return ParsedAction(action, False, "several_actions")
    if not content.strip():
        return ParsedAction(action, False, "empty")
    think = _THINK.search(response)
    if think is None:
        return ParsedAction(action, False, "missing_think_tag")
    block = _BLOCK.search(response)
    assert block is not None
    if think.end() > block.start():
        return ParsedAction(action, False, "tag_order")
    return ParsedAction(action, True)


def make_prompter(config: EnvConfig) -> SearchPrompter:
    """ValueError for an unknown style."""
    for key, value, known in (
        ("env.prompt", config.prompt, ("compact", "full")),
        ("env.response", config.response, ("bare", "tagged")),
    ):
        if value not in known:
            raise ValueError(f"{key}={value!r} is not one of {', '.join(known)}")
    return SearchPrompter(config.prompt, config.response, config.history, config.max_steps)
