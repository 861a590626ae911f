"""The tables of published numbers, and how far ours are from them where both can be set beside each other."""

from __future__ import annotations

from analysis import stats
from analysis.cells import ALL, MEASURED, Cell, Metric, Status
from analysis.published import DATA_SETS, NOT_UNIQUE, OTHER_LOSS, THEIR_RULES, PublishedRow, why_not_comparable
from analysis.render import LEFT, RIGHT, Block, Text
from analysis.tableset import Tables
from analysis.text import number

_TYPES = ("Pick", "Look", "Clean", "Heat", "Cool", "Pick2")
_MEANS = [(Metric.MICRO, ALL, "Micro %"), (Metric.MACRO, ALL, "Macro %")]
COLUMNS = {
    "alfworld": [*((Metric.SUCCESS, t, f"{t} %") for t in _TYPES), *_MEANS],
    "webshop": [(Metric.SCORE, ALL, "Score"), (Metric.MICRO, ALL, "Micro %")],
    "search_qa": [*((Metric.SUCCESS, ours, f"{theirs} %") for theirs, ours in DATA_SETS.items()), _MEANS[1]],
}
AVERAGES = {Metric.SCORE: "score", Metric.MICRO: "micro", Metric.MACRO: "macro"}


def published_blocks(tables: Tables) -> list[Block]:
    """What the papers print, beside the row that it belongs to: a table for each environment that was published."""
    return [
        _block(tables, env, rows) for env in COLUMNS if (rows := [row for row in tables.published if row.env == env])
    ]


def _block(tables: Tables, env: str, published: list[PublishedRow]) -> Block:
    metrics = COLUMNS[env]
    rows, reasons = [], dict[str, None]()
    for row in published:
        delta, why = difference(tables, row)
        reasons.update({why: None} if why else {})
        source = next(cell.source for cell in row.cells)
        status = next(cell.status.value for cell in row.cells)
        start = (Text(tables.label_of(row.beside)), Text(row.method, foreign=True), Text(row.backbone, foreign=True))
        numbers = [_foreign(row.cell(metric, column)) for metric, column, _ in metrics]
        about = (row.panel, source, status, row.provenance)
        rows.append((*start, *numbers, Text(delta or "n/a", hint=why), *(Text(a, foreign=True) for a in about)))
    some = any(row[len(metrics) + 3].text != "n/a" for row in rows)
    rules = f"The papers played {THEIR_RULES[env]}, seeds unnamed; here each task of the panel is played equally often"
    told = (
        f"Δ, where given: our mean minus the printed number, in points [our 95 % interval]. {rules}, so whether an "
        "interval covers a paper's number is not said. "
        if some
        else f"Δ is n/a everywhere. {rules}. "
    )
    why = f"n/a: {'; '.join(reasons)}. " if reasons else ""
    return Block(
        f"Published numbers, {env}: {'beside ours, under other rules of evaluation' if some else 'not comparable'}",
        (
            *("Our row", "Paper's row", "Backbone"),
            *(name for _, _, name in metrics),
            *("Δ ours − theirs", "Split", "Source", "Status", "Provenance"),
        ),
        tuple(rows),
        f"In italics: numbers of other people. {told}{why}‡: derived from the printed cells, never published; ≈: the "
        "most likely of several values that fit them (note 11).",
        LEFT * 3 + RIGHT * len(metrics) + LEFT * 5,
    )


def difference(tables: Tables, row: PublishedRow) -> tuple[str, str]:
    """`micro −1.2 [−4.0, +1.6]; …` of the line that a published row stands beside, or empty and why there is none."""
    place, reasons = f"{row.panel}/{row.skills}", dict[str, None]()
    for line in tables.records.lines:
        if line.row != row.beside or line.env != row.env or line.stage:
            continue
        micro = tables.success.get((line, place, Metric.MICRO, ALL))
        version = micro.protocol.get("data_version", "") if micro else ""
        why = why_not_comparable(line, row.backbone, version)
        if not why and row.beside in OTHER_LOSS:
            why = "another loss"
        told = [] if why else [_delta(tables.success.get((line, place, m, ALL)), row.cell(m), m) for m in AVERAGES]
        if any(told):
            return "; ".join(part for part in told if part), ""
        reasons[why or "not measured"] = None
    return "", " / ".join(reasons)


def _delta(ours: Cell | None, theirs: Cell | None, metric: Metric) -> str:
    if ours is None or theirs is None or ours.interval is None or theirs.interval is None:
        return ""
    if ours.status not in MEASURED or theirs.status == Status.DERIVED:
        return ""
    printed, mine = theirs.interval.value, ours.interval
    ends = [] if mine.kind == stats.NO_INTERVAL else [number(x - printed, "points", True) for x in (mine.lo, mine.hi)]
    text = number(mine.value - printed, "points", True)
    return f"{AVERAGES[metric]} {text}{f' [{ends[0]}, {ends[1]}]' if ends else ''}"


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
