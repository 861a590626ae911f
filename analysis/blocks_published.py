"""The table of published numbers."""

from __future__ import annotations

from analysis.cells import ALL, Cell, Metric, Status
from analysis.published import NOT_UNIQUE
from analysis.render import LEFT, RIGHT, Block, Text
from analysis.tableset import Tables
from analysis.text import number


def published_block(tables: Tables, why: str) -> Block | None:
    """What the papers print, beside the row that it belongs to; None if nothing of the sweep was published."""
    if not tables.published:
        return None
    metrics = [(Metric.SUCCESS, t, f"{t} %") for t in ("Pick", "Look", "Clean", "Heat", "Cool", "Pick2")]
    metrics += [(Metric.MICRO, ALL, "Micro %"), (Metric.MACRO, ALL, "Macro %")]
    rows = []
    for row in tables.published:
        cells = [row.cell(metric, column) for metric, column, _ in metrics]
        numbers = [_foreign(cell) for cell in cells]
        source = next(cell.source for cell in row.cells)
        status = next(cell.status.value for cell in row.cells)
        about = (row.panel, source, status, row.provenance)
        start = (Text(tables.label_of(row.beside)), Text(row.method, foreign=True), Text(row.backbone, foreign=True))
        rows.append((*start, *numbers, Text("n/a", hint=why), *(Text(a, foreign=True) for a in about)))
    return Block(
        "Published numbers beside ours: another scale, not comparable",
        (
            *("Our row", "Paper's row", "Backbone"),
            *(name for _, _, name in metrics),
            *("Δ ours − theirs", "Split", "Source", "Status", "Provenance"),
        ),
        tuple(rows),
        f"In italics: numbers of other people. Δ is n/a everywhere: {why}. ‡: derived from the printed cells, never "
        "published; ≈: the most likely of several values that fit them (note 11).",
        LEFT * 3 + RIGHT * len(metrics) + LEFT * 5,
    )


def published_value(cell: Cell | None) -> str:
    """A number of other people; ‡ where it was derived, ≈ where other values fit as well."""
    if cell is None or cell.interval is None:
        return "–"
    text = number(cell.interval.value, cell.unit)
    if cell.status != Status.DERIVED:
        return text
    return f"{'≈' if cell.note.startswith(NOT_UNIQUE) else ''}{text}‡"


def _foreign(cell: Cell | None) -> Text:
    return Text(published_value(cell), foreign=True, hint=f"{cell.source}; {cell.note}" if cell else "")
