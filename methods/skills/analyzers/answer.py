"""From a model's text to an Analysis, or to the reason why there is none. The text is data: nothing in it is run.

Exactly one JSON object with the key `episode_skill` is wanted. Prose and code fences around it are passed over, and so
are objects without that key; two candidates, broken ones included, are refused: an echo of the request or a draft must
not win over the answer.
Work is bounded: length, nesting and the number of places where an object may begin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Never

from core.skills import is_blank, plain_words
from methods.interface import Analysis
from methods.skills.analyzer import validate_analysis
from methods.skills.analyzers.prompt import ANSWER_KEYS, meanings

MAX_ANSWER_CHARS = 100_000
MAX_DEPTH = 8  # an answer needs 2
MAX_STARTS = 32  # places where an object may begin: a handful in prose is plausible, more is noise

_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)  # reasoning that a server left in the content
_QUOTED_KEY = re.compile(r'\{\s*"')
_STRUCTURE = re.compile(r'[{}\[\]"\\]')
# Markers of chat templates: inside a prompt, a tokenizer would read them as the end of a turn.
_MARKER = re.compile(r"<[|\uff5c][^|\uff5c<>\s]{1,40}[|\uff5c]>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")
_PLACEHOLDER = re.compile(r"\s*<[^<>]*>\s*")  # <advice>: what a form says where something is to be filled in
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class AnswerError(ValueError):
    """The text is no analysis; the message says why of "it", in words that also help a model to do better."""


@dataclass(frozen=True, slots=True)
class Answer:
    """content: the three keys as the model gave them, kept by cache and recording so that they are judged again."""

    analysis: Analysis
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """steps: of the trajectory; max_step_skills: K; skill_chars: longest text of a skill."""

    steps: int
    max_step_skills: int
    skill_chars: int


def read_answer(text: str, limits: Limits) -> Answer:
    """The one answer in a model's text. Raises AnswerError for everything else, whatever the text is."""
    if len(text) > MAX_ANSWER_CHARS:
        raise AnswerError(f"it is {len(text)} characters long, more than the {MAX_ANSWER_CHARS} that are read")
    thought = _THOUGHT.match(text)
    body = text[thought.end() :] if thought else text
    if not body.strip():
        raise AnswerError("it is empty")
    found: list[dict[str, Any]] = []
    broken: list[str] = []
    echo = False
    pieces, unfinished = _objects(body)
    for piece in pieces:
        try:
            content = _load(piece)
        except AnswerError as error:
            if '"episode_skill"' in piece:
                broken.append(str(error))
            continue
        if "episode_skill" in content:
            found.append(content)
        echo = echo or bool({"properties", "$schema"} & content.keys())
    if len(found) + len(broken) > 1:
        raise AnswerError(f"it holds {len(found) + len(broken)} objects with episode_skill, and exactly one is wanted")
    if broken:
        raise AnswerError(broken[0])
    if found:
        return check_answer(found[0], limits)
    if unfinished:
        raise AnswerError("it ends before its JSON object is complete")
    if echo:
        raise AnswerError("it repeats the schema instead of filling it in")
    raise AnswerError("it holds no JSON object with the key episode_skill")


def check_answer(content: object, limits: Limits) -> Answer:
    """Judge an object that was read from a text, a cache or a recording. Raises AnswerError."""
    if not isinstance(content, Mapping):
        raise AnswerError(f"it is a JSON {_kind(content)}, not an object")
    for key in ("episode_skill", "step_skills"):
        if key not in content:
            raise AnswerError(f"the key {key} is missing")
    summary, episode, steps = (content.get(key) for key in ANSWER_KEYS)
    if summary is not None and not isinstance(summary, str):
        raise AnswerError(f"episode_summary is a JSON {_kind(summary)}, not text")
    if not isinstance(episode, str):
        raise AnswerError(f"episode_skill is a JSON {_kind(episode)}, not text")
    if is_blank(episode):
        raise AnswerError("episode_skill says nothing")
    if not isinstance(steps, Mapping):
        raise AnswerError(f"step_skills is a JSON {_kind(steps)}, not an object from step number to text")
    for text in (episode, *steps.values()):
        if isinstance(text, str):
            _check_text(text, limits.skill_chars)
    analysis = validate_analysis(episode, steps, limits.steps, limits.max_step_skills)
    if analysis is None:
        raise AnswerError("it is no analysis of a trajectory of at least one step")
    kept = {"episode_summary": summary or "", "episode_skill": episode, "step_skills": dict(steps)}
    return Answer(analysis, kept)


def _check_text(text: str, most: int) -> None:
    if len(text.strip()) > most:
        raise AnswerError(f"a piece of advice is {len(text.strip())} characters long, at most {most} are allowed")
    if plain_words(text) in _echoes() or _PLACEHOLDER.fullmatch(text):
        raise AnswerError("it repeats the description of a key instead of filling it in")
    if _CONTROL.search(text) or _MARKER.search(text):
        raise AnswerError("a piece of advice holds control characters or markers of a chat template")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise AnswerError("a piece of advice holds half a surrogate pair, which is no text") from None


@cache
def _echoes() -> frozenset[str]:
    """What the request says about each key, with and without the type in front, as plain words."""
    said = [part for meaning in meanings() for part in (meaning, meaning.rpartition(": ")[2])]
    return frozenset(map(plain_words, said))


# ---------------------------------------------------------------------------------------------------------------- JSON
def _objects(text: str) -> tuple[list[str], bool]:
    """Pieces of the text from an opening brace to the one that closes it, not nested in each other, in order; and
    whether a brace with a quoted key after it is never closed.

    Raises AnswerError for nesting that is too deep and for too many braces.
    """
    pieces: list[str] = []
    unfinished = False
    start = text.find("{")
    for _ in range(MAX_STARTS):
        if start < 0:
            return pieces, unfinished
        end = _closing(text, start)
        if end < 0:  # a brace in prose, or an answer cut off: an object may begin later
            unfinished = unfinished or _QUOTED_KEY.match(text, start) is not None
            end = start + 1
        else:
            pieces.append(text[start:end])
        start = text.find("{", end)
    if start >= 0:
        raise AnswerError("it holds too many braces")
    return pieces, unfinished


def _closing(text: str, start: int) -> int:
    """Index after the brace that closes the one at `start`; -1 if there is none. Quoted text is passed over."""
    depth, quoted, skip = 0, False, -1
    for match in _STRUCTURE.finditer(text, start):
        at, sign = match.start(), match.group()
        if at == skip:
            continue
        if sign == "\\":
            skip = at + 1 if quoted else -1
        elif sign == '"':
            quoted = not quoted
        elif not quoted:
            depth += 1 if sign in "{[" else -1
            if depth > MAX_DEPTH:
                raise AnswerError(f"it is nested more than {MAX_DEPTH} levels deep")
            if depth == 0:
                return at + 1
    return -1


class _NotStrictError(ValueError):
    """JSON that Python would read and that is ambiguous or no JSON."""


def _load(piece: str) -> dict[str, Any]:
    """Strict JSON: no duplicate keys, no NaN. Depth is bounded by `_closing`. Raises AnswerError."""
    try:
        found: dict[str, Any] = json.loads(piece, object_pairs_hook=_unique, parse_constant=_refuse)
    except _NotStrictError as error:
        raise AnswerError(str(error)) from None
    except json.JSONDecodeError as error:
        raise AnswerError(f"its JSON is invalid: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits; nesting
        raise AnswerError(f"its JSON cannot be read ({type(error).__name__})") from None
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1}) if len(keys) <= 1000 else ["(many)"]
        raise _NotStrictError(f"the key {', '.join(twice)[:100]} occurs twice in one object")
    return found


def _refuse(constant: str) -> Never:
    raise _NotStrictError(f"{constant} is no JSON")


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return {str: "text", int: "number", float: "number", list: "array", dict: "object"}.get(type(value), "value")
