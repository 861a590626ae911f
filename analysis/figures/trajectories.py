"""Two trajectories of one task side by side, step by step: actions, what came of them, skills, and skill advantages.

A turn of trajectories.jsonl.zst may say more than the actions. What is recorded is shown:

    skill              text of the skill under which the response was scored again
    tokens             the response's tokens as text, one per response id
    skill_advantage    teacher minus rollout log-prob of each of those tokens in nats, before weight and clip

Without the last two the figure shows no token colours, and says so.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analysis.figures.pairs import Item, Pair, Search
from analysis.figures.sources import Sources
from analysis.figures.style import INK, SMALL, SOFT, WIDTH, Drawn, finish, looks, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = 24  # shown of each trajectory, at most
TOKENS = 48  # shown of one response, at most
LINE = 0.128  # inches from one line of text to the next
LETTER = 0.602 * SMALL / 72  # inches: the width of every letter of DejaVu Sans Mono
COLUMN = 3.42  # inches of one trajectory
LETTERS = int((COLUMN - 0.42) / LETTER)
INDENT = 0.26  # inches, after the step's number


@dataclass
class Step:
    """Lines of one step. tokens: (text, advantage) of the response, empty if not recorded."""

    action: list[str]
    flags: list[str]
    skill: list[str]
    outcome: list[str]
    tokens: list[list[tuple[str, float]]] = field(default_factory=list)  # by line
    told: str = ""

    @property
    def lines(self) -> int:
        response = len(self.tokens) + bool(self.told) if self.tokens else len(self.action)
        return response + len(self.flags) + len(self.skill) + len(self.outcome)


def draw(sources: Sources) -> Iterator[Drawn]:
    """One figure of two training rollouts of one task, and one of two rows on one evaluation task."""
    search = Search(sources)
    for name, find, nothing in (
        ("trajectories-rollouts", search.rollouts, "no run recorded two rollouts of one task that ended differently"),
        ("trajectories-rows", search.rows, "no evaluation task was recorded both of the reference row and of another"),
    ):
        pair = find()
        if pair is None:
            why = f"; {'; '.join(search.broken)}" if search.broken else ""
            yield Drawn(name, None, f"{nothing} (complete runs with trajectories.jsonl.zst only){why}")
        else:
            yield _figure(sources, name, pair)


def _figure(sources: Sources, name: str, pair: Pair) -> Drawn:
    columns = [[_step(item, k) for k in range(min(STEPS, len(item["turns"])))] for item in pair.items]
    scale = max((abs(v) for steps in columns for s in steps for row in s.tokens for _, v in row), default=0.0)
    heads = [_head(item, title) for item, title in zip(pair.items, pair.titles, strict=True)]
    top = max(len(head) for head in heads) + 1.0
    rows = [max(c[k].lines if k < len(c) else 0 for c in columns) for k in range(max(map(len, columns)))]
    height = LINE * (top + sum(rows) + 0.55 * len(rows) + 2)
    figure = sheet(height)
    figure.set_layout_engine("none")  # everything has its place in inches
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    for column, (item, head, steps) in enumerate(zip(pair.items, heads, columns, strict=True)):
        left = 0.05 + column * (WIDTH - COLUMN)
        _heading(axes, left, head, bool(item.get("success")))
        y = LINE * top
        for number, (step, lines) in enumerate(zip(steps, rows, strict=False)):
            axes.plot([left, left + COLUMN - 0.12], [y] * 2, color="#e2e2e2", linewidth=0.5, zorder=1)
            _draw_step(axes, left, y + 0.25 * LINE, number + 1, step, scale)
            y += LINE * (lines + 0.55)
        _end(axes, left, y, item, len(steps))
    task = _plain(str(pair.items[0].get("task") or pair.items[0].get("task_id")))
    title = f"{pair.kind}: {textwrap.shorten(task, 70)}\n{sources.title('').partition(chr(10))[2]}"
    return finish(figure, title, _notes(pair, scale), name, _handles(scale))


def _notes(pair: Pair, scale: float) -> list[str]:
    turns = [turn for item in pair.items for turn in item["turns"]]
    skills = any(turn.get("skill") for turn in turns)
    boxed = "; boxed: the skill of the step" if skills else ""
    told = f"Bold: the action of a step; after →: what the environment said to it, shortened{boxed}."
    if scale > 0:
        told += (
            " Token colours: how much the skill raises (blue) or lowers (red, dashed box) the token's log-prob, in "
            f"nats, before weight and clip; full colour at ±{scale:.3g}; Σ: sum over the step's tokens."
        )
    told += " Chosen by rule, not for what it shows: ends that differ, then the fewest steps."
    missing = []
    if scale == 0:
        missing.append("skill advantages of tokens (turns need “tokens” and “skill_advantage”)")
    if not skills:
        missing.append("skills of single steps (turns need “skill”)")
    notes = [told, f"Not in these records, so not shown: {'; '.join(missing)}." if missing else ""]
    return [*notes, f"Warnings: {'; '.join(pair.broken)}." if pair.broken else ""]


# ------------------------------------------------------------------------------------------- from records to lines
def _plain(text: str) -> str:
    """One line of letters that the font has."""
    return "".join(c if c.isprintable() and ord(c) < 0x2E80 else "?" for c in " ".join(text.split()))


def _wrapped(text: str, lines: int, letters: int = LETTERS) -> list[str]:
    return textwrap.wrap(_plain(text), letters, max_lines=lines, placeholder=" …")


def _head(item: Item, title: str) -> list[str]:
    skill = item.get("skill")
    return [*_wrapped(title, 2), *(_wrapped(f"skill in the prompt: {skill}", 4) if skill else [])]


def _step(item: Item, number: int) -> Step:
    turns: Sequence[Item] = item["turns"]
    turn = turns[number]
    flags = []
    if turn.get("valid") is False:
        flags = _wrapped(f"✗ malformed: {turn.get('invalid_reason') or 'no reason given'}", 2)
    elif turn.get("admissible") is False:
        flags = ["✗ the environment refused this action"]
    after = str(turns[number + 1].get("observation", "")) if number + 1 < len(turns) else ""
    skill = turn.get("skill")
    step = Step(
        action=_wrapped(str(turn.get("action") or turn.get("response") or "(nothing)"), 3),
        flags=flags,
        skill=_wrapped(f"skill: {skill}", 4, LETTERS - 1) if skill else [],
        outcome=_wrapped(f"→ {after}", 2) if after else [],
    )
    pairs = _tokens(turn)
    if pairs:
        step.tokens = _token_lines(pairs[:TOKENS])
        more = f", first {TOKENS} of {len(pairs)} tokens" if len(pairs) > TOKENS else ""
        step.told = f"Σ {sum(value for _, value in pairs):+.3g}{more}".replace("-", "−")
    return step


def _tokens(turn: Item) -> list[tuple[str, float]]:
    """Tokens with their advantages, if both are recorded, of equal number and finite."""
    tokens, values = turn.get("tokens"), turn.get("skill_advantage")
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        return []
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
        return []
    return [(_plain(str(token)) or "·", float(value)) for token, value in zip(tokens, values, strict=True)]


def _token_lines(pairs: Sequence[tuple[str, float]]) -> list[list[tuple[str, float]]]:
    lines: list[list[tuple[str, float]]] = [[]]
    used = 0
    for text, value in pairs:
        text = text if len(text) < LETTERS else f"{text[: LETTERS - 2]}…"
        if lines[-1] and used + len(text) + 1 > LETTERS:
            lines.append([])
            used = 0
        lines[-1].append((text, value))
        used += len(text) + 1
    return lines


# ------------------------------------------------------------------------------------------- drawing
def _write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    fixed = {"family": "DejaVu Sans Mono", "fontsize": SMALL, "va": "center", "color": INK}
    axes.text(x, y, text, **{**fixed, **style})


def _heading(axes: Axes, left: float, head: Sequence[str], success: bool) -> None:
    for number, text in enumerate(head):
        _write(axes, left, LINE * (number + 0.5), text, weight="bold" if number == 0 else "normal")
    color = looks()[1 if success else 2].color
    axes.plot([left, left + COLUMN - 0.12], [LINE * (len(head) + 0.35)] * 2, color=color, linewidth=1.6)


def _draw_step(axes: Axes, left: float, y: float, number: int, step: Step, scale: float) -> None:
    x = left + INDENT
    _write(axes, left, y + LINE / 2, f"{number:2d}", color=SOFT)
    if step.skill:
        _box(axes, x - 0.03, y + 0.06 * LINE, COLUMN - INDENT - 0.12, LINE * len(step.skill), "#fff3d6", "#b98a1d", "-")
        for text in step.skill:
            _write(axes, x, y + LINE / 2, text, style="italic")
            y += LINE
    if step.tokens:
        for line in step.tokens:
            at = x
            for text, value in line:
                _token(axes, at, y, text, value, scale)
                at += LETTER * (len(text) + 1)
            y += LINE
        _write(axes, x, y + LINE / 2, step.told, color=SOFT)
        y += LINE
    else:
        for text in step.action:
            _write(axes, x, y + LINE / 2, text, weight="bold")
            y += LINE
    for text in step.flags:
        _write(axes, x, y + LINE / 2, text, color=looks()[2].color)
        y += LINE
    for text in step.outcome:
        _write(axes, x, y + LINE / 2, text, color=SOFT)
        y += LINE


def shade(value: float, scale: float) -> tuple[float, float, float]:
    """White at zero, blue above, red below; full at ±scale. RGB in [0, 1]."""
    share = min(1.0, abs(value) / scale) if scale > 0 else 0.0
    end = (0.38, 0.65, 0.90) if value > 0 else (0.96, 0.55, 0.36)
    return (1 + share * (end[0] - 1), 1 + share * (end[1] - 1), 1 + share * (end[2] - 1))


def _token(axes: Axes, x: float, y: float, text: str, value: float, scale: float) -> None:
    edge, style = ("#b0421a", (0, (1.5, 1.2))) if value < 0 else ("none", "-")
    _box(axes, x - 0.012, y + 0.06 * LINE, LETTER * len(text) + 0.024, 0.9 * LINE, shade(value, scale), edge, style)
    _write(axes, x, y + LINE / 2, text, weight="bold")


def _box(axes: Axes, x: float, y: float, width: float, height: float, face: Any, edge: str, style: Any) -> None:
    from matplotlib.patches import Rectangle

    box = Rectangle((x, y), width, height, facecolor=face, edgecolor=edge, linestyle=style, linewidth=0.6, zorder=2)
    axes.add_patch(box)


def _end(axes: Axes, left: float, y: float, item: Item, shown: int) -> None:
    more = len(item["turns"]) - shown
    rest = f"… {more} more steps; " if more else ""
    ended = "solved" if item.get("success") else f"not solved ({item.get('termination') or 'no reason recorded'})"
    _write(axes, left, y + 0.8 * LINE, f"{rest}{ended} after {len(item['turns'])} steps", weight="bold")


def _handles(scale: float) -> list[Any]:
    from matplotlib.patches import Patch

    if scale == 0:
        return []
    return [
        Patch(facecolor=shade(1, 1), label="skill says: more of this token"),
        Patch(facecolor=shade(-1, 1), edgecolor="#b0421a", linestyle=(0, (1.5, 1.2)), label="less of it"),
    ]
