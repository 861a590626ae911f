"""What a reader must know of a row's method: teachers that do nothing, and where it differs from its paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.plan import Line
from methods import registry
from methods.interface import MethodSpec

CANCELS = "†"
CANCELS_TEXT = (
    f"{CANCELS} The teacher of this method cancels out of its gradient, as in the released code: it is scored and paid "
    "for, but the policy is trained as without it."
)


@dataclass(frozen=True)
class Footnotes:
    """marks: line -> what stands after its label; texts: one per mark, in the order of the table."""

    marks: dict[Line, str]
    texts: tuple[str, ...]


def footnotes(lines: Sequence[Line]) -> Footnotes:
    """Of the table's lines: † for teachers that cancel, a letter per method that deviates, remarks of the plan."""
    marks: dict[Line, str] = {}
    texts: dict[str, str] = {}  # text -> mark
    letters: dict[str, str] = {}  # text -> letter
    for line in lines:
        spec = _spec(line.method)
        mine: list[str] = []
        if line.cancels or (spec is not None and spec.teacher_cancels):
            texts.setdefault(CANCELS_TEXT, CANCELS)
            mine.append(CANCELS)
        found = [*([_deviations(line.method, spec)] if spec is None or spec.deviations else []), *line.footnotes]
        for text in found:
            letter = letters.setdefault(text, _letter(len(letters)))
            texts.setdefault(text, letter)
            mine.append(f"[{letter}]")
        marks[line] = " ".join(mine)
    return Footnotes(marks, tuple(text if mark == CANCELS else f"[{mark}] {text}" for text, mark in texts.items()))


def _letter(number: int) -> str:
    """a, b, …, z, aa, ab, …"""
    first, second = divmod(number, 26)
    return (chr(ord("a") + first - 1) if first else "") + chr(ord("a") + second)


def _spec(method: str) -> MethodSpec | None:
    """None if this installation does not have the method: records outlive plug-ins."""
    try:
        return registry.get(method)
    except ValueError:
        return None


def _deviations(method: str, spec: MethodSpec | None) -> str:
    if spec is None:
        return f"{method}: this method is not installed here, so its deviations from its paper are not known."
    source = f" ({spec.paper})" if spec.paper else ""
    parts = [
        f"{d.topic} – paper: {d.paper}; released code: {d.code}; here: {d.ours} ({d.source})" for d in spec.deviations
    ]
    return f"{method}{source}: {'. '.join(parts)}."
