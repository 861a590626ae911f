"""User messages and response parsing for WebShop.

prompt=compact  pages in few words: results by number, price in tens of dollars, no buttons that are always there
prompt=full     role, history, the page and what can be clicked spelt out; for instruction-tuned models
response=bare   the response is the action
response=tagged reasoning in <think></think>, then the action in <action></action>

In compact form a response may leave out the brackets, `click item 3` for `click[item 3]`: word-level tokenizers have
none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from core.names import require_known
from envs.interface import EnvConfig, Observation, ParsedAction, PromptParts
from envs.webshop.pages import SEPARATOR
from envs.webshop.reading import Page, read_instruction, read_page, tens
from envs.webshop.shop import ITEM, RESULTS, SEARCH, SUB

_ANSWERABLE = re.compile(r"(search|click)\s+(\S.*)", re.S)
_BRACKETED = re.compile(r"(?:search|click)\[[^\[\]]*\]")
# re.A: without it ſ and the two other i of Turkish count as letters of a tag.
_ACTION = re.compile(r"<action>(.*?)</action>", re.S | re.I | re.A)
_THINK = re.compile(r"<think>.*?</think>", re.S | re.I | re.A)
_SUB_END = re.compile(r"[.,;:]+(?=\s|$)")
SENT_OF_BROKEN = 20  # characters of a response without tags that are sent, its last ones, as in OPID's code


def shorten(text: str, brief: bool = False) -> str:
    """A page in few words. brief: an item whose options are being chosen is its choices alone (its page was shown)."""
    try:
        page = read_page(text)
    except ValueError:
        return text
    if page.kind == SEARCH:
        return "search page"
    if page.kind == RESULTS:
        lines = [f"item {k} {r.short_title} price {tens(r.high)}" for k, r in enumerate(page.results, 1)]
        return "\n".join([f"results page {page.number}", *lines])
    if page.kind == ITEM:
        return _chosen(page) if brief and page.chosen else _item(page)
    if page.kind == SUB:
        return ". ".join(_SUB_END.sub("", part) for part in page.texts) or "nothing here"
    return "order done"


def _chosen(page: Page) -> str:
    return f"chosen {', '.join(page.chosen)}"


def _item(page: Page) -> str:
    options = [f"{name} {', '.join(values)}".strip() for name, values in page.options.items()]
    chosen = [_chosen(page)] if page.chosen else []
    return "; ".join([f"{page.title} price {tens(page.high)}", *options, *chosen])


def shorten_task(instruction: str) -> str:
    """The instruction with its price bound in tens of dollars."""
    wish = read_instruction(instruction)
    bound = f", under price {tens(wish.bound)}" if wish.bound != float("inf") else ""
    return f"{wish.body.rstrip('.')}{bound}"


def page_lines(observation: Observation) -> str:
    """The page without the instruction, one part a line."""
    if SEPARATOR in observation.text:
        parts = observation.text.split(SEPARATOR)
    else:
        parts = [line.strip() for line in observation.text.split("\n") if line.strip()]
    kept, skip = [], False
    for part in parts:
        if part == "Instruction:":
            skip = True
        elif skip and part == observation.task:
            skip = False
        else:
            kept.append(part)
    return "\n".join(f"| {part}" for part in kept)


@dataclass(frozen=True)
class WebshopPrompter:
    """A Prompter (see envs.interface)."""

    prompt: str
    response: str
    history: int

    @property
    def protocol(self) -> str:
        return f"{self.prompt}/{self.response}"

    # ------------------------------------------------------------------ user messages
    def opening(self, first: Observation) -> PromptParts:
        if self.prompt == "compact":
            return PromptParts(task=f"Task: {shorten_task(first.task)}", after=f"\n{shorten(first.text)}")
        return PromptParts(
            before=f"{_ROLE}\n",
            task=f"Your task is to: {first.task}",
            after=f"\nThe page in front of you:\n{page_lines(first)}\n",
            turn=self._turn(first),
        )

    def follow_up(self, current: Observation) -> PromptParts:
        if self.prompt == "compact":
            return PromptParts(before=shorten(current.text, brief=True))
        return PromptParts(before=f"The page in front of you:\n{page_lines(current)}\n", turn=self._turn(current))

    def per_step(
        self, first: Observation, history: Sequence[tuple[str, str]], current: Observation, step: int
    ) -> PromptParts:
        kept = list(history)[-self.history :] if self.history else []
        if self.prompt == "compact":
            lines = [line for text, action in kept for line in (shorten(text, brief=True), f"> {action}")]
            return PromptParts(
                task=f"Task: {shorten_task(first.task)}", after="\n" + "\n".join([*lines, shorten(current.text)])
            )
        past = "".join(
            f"Step {step - len(kept) + k + 1}, the page was:\n"
            f"{page_lines(Observation(text, first.task))}\nand you did: {action}\n"
            for k, (text, action) in enumerate(kept)
        )
        return PromptParts(
            before=f"{_ROLE}\n",
            task=f"Your task is to: {first.task}",
            after=(
                f"\nSteps taken so far: {step}. The last {len(kept)}:\n{past}"
                f"The page in front of you:\n{page_lines(current)}\n"
            ),
            turn=self._turn(current),
        )

    def _turn(self, current: Observation) -> str:
        commands = "\n".join(f"- {command}" for command in current.admissible)
        answer = (
            "Think first, inside <think> and </think>; then give one action inside <action> and </action>."
            if self.response == "tagged"
            else "Answer with one action and nothing else."
        )
        return f"What you can do here:\n{commands}\n{answer}"

    # ------------------------------------------------------------------ responses
    def parse(self, response: str) -> ParsedAction:
        """The action in a response. Reasons: empty, several_lines, several_actions, missing_action_tag,
        missing_think_tag, tag_order. Whether the page has what an action names is the environment's to say."""
        parsed = parse_bare(response) if self.response == "bare" else parse_tagged(response)
        if self.prompt != "compact":
            return parsed
        spoken = _ANSWERABLE.fullmatch(parsed.action)
        if spoken is None or "[" in parsed.action:
            return parsed
        return ParsedAction(f"{spoken[1]}[{spoken[2].strip()}]", parsed.valid, parsed.reason)


def parse_bare(response: str) -> ParsedAction:
    action = response.strip().lower()
    if not action:
        return ParsedAction("", False, "empty")
    if len(_BRACKETED.findall(action)) > 1:
        return ParsedAction(_BRACKETED.findall(action)[0], False, "several_actions")
    if "\n" in action:
        return ParsedAction(action.splitlines()[0].strip(), False, "several_lines")
    return ParsedAction(action, True)


def parse_tagged(response: str) -> ParsedAction:
    """Format <think>...</think><action>...</action>. What could be read is sent even when the format is broken."""
    actions = list(_ACTION.finditer(response))
    if not actions:
        return ParsedAction(response.strip()[-SENT_OF_BROKEN:].lower(), False, "missing_action_tag")
    action = actions[0].group(1).strip().lower()
    if len(actions) > 1 or len(_BRACKETED.findall(action)) > 1:
        return ParsedAction(action, False, "several_actions")
    think = _THINK.search(response)
    if not think:
        return ParsedAction(action, False, "missing_think_tag")
    if think.end() > actions[0].start():
        return ParsedAction(action, False, "tag_order")
    if not action:
        return ParsedAction("", False, "empty")
    return ParsedAction(action, True)


_ROLE = "You shop in an online store that you know only through text. Buy what is asked for, with the right options."


def make_prompter(config: EnvConfig) -> WebshopPrompter:
    """ValueError for an unknown style."""
    require_known("env.prompt", config.prompt, ("compact", "full"))
    require_known("env.response", config.response, ("bare", "tagged"))
    return WebshopPrompter(config.prompt, config.response, config.history)
