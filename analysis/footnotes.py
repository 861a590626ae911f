"""What a reader must know of a row's method: teachers that do nothing, and where it differs from its paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.plan import Line
from methods import registry
from methods.interface import Deviation, MethodSpec

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
    """Of the table's lines: † for teachers that cancel, a letter per method that deviates, remarks of the plan.

    A deviation that several methods share is told with the first of them; the others name its topic.
    """
    marks: dict[Line, str] = {}
    texts: dict[str, str] = {}  # what it is about (CANCELS, a method, a remark) -> its text
    letters: dict[str, str] = {}
    told: dict[Deviation, str] = {}
    for line in lines:
        spec = _spec(line.method)
        mine: list[str] = []
        if line.cancels or (spec is not None and spec.teacher_cancels):
            texts.setdefault(CANCELS, CANCELS_TEXT)
            mine.append(CANCELS)
        for about in [*([line.method] if spec is None or spec.deviations else []), *line.footnotes]:
            if about not in letters:
                letters[about] = letter = _letter(len(letters))
                text = about if about in line.footnotes else _deviations(line.method, spec, told, letter)
                texts[about] = f"[{letter}] {text}"
            mine.append(f"[{letters[about]}]")
        marks[line] = " ".join(mine)
    return Footnotes(marks, tuple(texts.values()))


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


def _deviations(method: str, spec: MethodSpec | None, told: dict[Deviation, str], letter: str) -> str:
    """What is not told yet under another letter, and where the rest is. Adds to `told`."""
    if spec is None:
        return f"{method}: this method is not installed here, so its deviations from its paper are not known."
    source = f" ({spec.paper})" if spec.paper else ""
    parts, elsewhere = [], dict[str, list[str]]()
    for d in spec.deviations:
        if d in told:
            elsewhere.setdefault(told[d], []).append(d.topic)
        else:
            told[d] = letter
            parts.append(f"{d.topic} – paper: {d.paper}; released code: {d.code}; here: {d.ours} ({d.source})")
    parts += [f"As in [{other}]: {', '.join(topics)}" for other, topics in elsewhere.items()]
    return f"{method}{source}: {'. '.join(parts)}."
