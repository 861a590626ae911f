"""All cells of a sweep, how its lines are called, and how entries are marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.cells import ALL, Cell, Metric
from analysis.clocks import Clock
from analysis.collect import Records
from analysis.curves import Budget
from analysis.footnotes import CANCELS, Footnotes
from analysis.fractions import Curve
from analysis.plan import Line
from analysis.published import PublishedRow
from analysis.render import Text
from analysis.retirement import Retirement
from analysis.text import bounded, half_width

Key = tuple[Line, str, Metric, str]


@dataclass(frozen=True)
class Tables:
    """All cells of a sweep.

    success, learning, costs: by line, place, metric and column; versus: reference row -> differences to it
    versus_base: differences of every row that has a base to it
    reference, untrained: row ids that differences are taken to
    retired: runs that may part from a teacher, by line; retirement: their numbers
    gaps: seen minus other panels; curves, fractions: success by fraction of the data, areas; aggregates: see aggregates
    footnotes: marks of lines and their texts
    complete: complete runs of each line; budgets: see curves.budgets; clocks: see clocks.of_lines
    codes: warnings by line and place (empty: about all its places)
    """

    records: Records
    reference: str
    untrained: str
    success: Mapping[Key, Cell]
    learning: Mapping[Key, Cell]
    costs: Mapping[Key, Cell]
    versus: Mapping[str, Mapping[Key, Cell]]
    versus_base: Mapping[Key, Cell]
    retired: Mapping[int, Sequence[Retirement]]
    retirement: Sequence[Cell]
    gaps: Mapping[Key, Cell]
    curves: Sequence[Curve]
    fractions: Mapping[Key, Cell]
    aggregates: Mapping[Key, Cell]
    published: Sequence[PublishedRow]
    complete: Mapping[Line, int]
    budgets: Mapping[tuple[str, str, float, str, str], Budget]
    clocks: Mapping[Line, Clock | None]
    codes: Mapping[tuple[Line, str], tuple[str, ...]]
    footnotes: Footnotes

    def label_of(self, row: str) -> str:
        """As tables call a row, with the mark of a teacher that cancels."""
        line = next((line for line in self.records.lines if line.row == row and not line.stage), None)
        if line is None:
            return row
        return f"{line.label} {CANCELS}" if CANCELS in self.footnotes.marks.get(line, "") else line.label

    @property
    def seconds(self) -> str:
        """`CPU` or `wall`: what seconds of training are; empty where they are of several kinds, or none is known."""
        names = {clock.name if clock else "" for clock in self.clocks.values()}
        return names.pop() if len(names) == 1 else ""

    def scored(self, env: str) -> bool:
        """Whether results of this environment are graded beyond solved or not."""
        return any(line.env == env and metric == Metric.SCORE for line, _, metric, _ in self.success)

    def panels(self) -> list[tuple[str, str]]:
        """Environment and panel, sorted."""
        return sorted({(line.env, place.rpartition("/")[0]) for line, place, _, _ in self.success})

    def places(self, env: str, panel: str) -> list[tuple[Line, str]]:
        """The rows of a panel: each line once per `<panel>/<skills>` that it was evaluated at, without skills first."""
        found = {(line, place): None for line, place, _, _ in self.success if line.env == env}
        return [(line, place) for line, place in found if place.rpartition("/")[0] == panel]

    def warned(self, cell: Cell) -> tuple[str, ...]:
        """Codes of the warnings about this cell's line and place."""
        if cell.line is None:
            return ()
        return tuple(sorted({*self.codes.get((cell.line, cell.place), ()), *self.codes.get((cell.line, ""), ())}))


def by_key(cells: Iterable[Cell]) -> dict[Key, Cell]:
    return {(c.line, c.place, c.metric, c.column): c for c in cells if c.line is not None}


def mark(tables: Tables, cell: Cell) -> str:
    """▲ or ▼ if the paired difference to the reference row is significant, else nothing."""
    metric = {Metric.MICRO: Metric.DIFFERENCE_MICRO, Metric.MACRO: Metric.DIFFERENCE_MACRO}.get(cell.metric)
    if metric is None or cell.line is None:
        return ""
    difference = tables.versus.get(tables.reference, {}).get((cell.line, cell.place, metric, ALL))
    if difference is None or not difference.significant or difference.interval is None:
        return ""
    return "▲" if difference.interval.value > 0 else "▼"


def success_entry(tables: Tables, cell: Cell | None, short: bool = False) -> Text:
    """A success with the mark of its difference to the reference row."""
    if cell is None:
        return Text("")
    sign = mark(tables, cell)
    text = half_width(cell) if short else bounded(cell, cell.interval)
    return Text(f"{text} {sign}".strip(), strong=sign == "▲", hint=cell.note)


# ---------------------------------------------------------------------------------------------- names of rows
def starred(tables: Tables, line: Line, place: str) -> str:
    """`*` where a row was evaluated without skills as well, and this is its evaluation with them."""
    panel, _, skills = place.rpartition("/")
    if skills != "on" or line.label.endswith("*"):
        return ""
    return "*" if (line, f"{panel}/off", Metric.MICRO, ALL) in tables.success else ""


def line_label(tables: Tables, line: Line, place: str = "", letters: bool = False, **left_out: bool) -> str:
    """The row's label, with whatever else tells its lines apart, and its marks.

    letters: those of footnotes too; left_out: `env=False`, `fraction=False`: a column of its own says it
    """
    parts = [line.label + starred(tables, line, place)]
    if line.stage:
        parts.append("teacher, no row")
    for name, text in (
        ("env", line.env),
        ("backbone", line.backbone),
        ("fraction", line.share),
        ("scale", f"scale {line.scale}"),
        ("protocol", f"protocol {line.protocol}"),
    ):
        if name in tables.records.varying and left_out.get(name, True):
            parts.append(text)
    marks = tables.footnotes.marks.get(line, "")
    if not letters:
        marks = CANCELS if CANCELS in marks else ""
    return f"{' · '.join(parts)} {marks}".strip()


def about(place: str) -> str:
    """`seen/off` -> `seen, skills off`"""
    return place.replace("/", ", skills ")


def seeds_text(tables: Tables, cell: Cell) -> str:
    """Complete seeds behind the number, of those planned, and ! if a warning is about them."""
    n = cell.interval.n if cell.interval is not None else tables.complete.get(cell.line, 0) if cell.line else 0
    return f"{n}/{cell.n_planned}{' !' if tables.warned(cell) else ''}"
