"""Every cell of a sweep's tables as CSV, one a line, with what a reader needs to judge it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from analysis import stats
from analysis.blocks_methods import changes_of
from analysis.cells import Cell
from analysis.checks import PROTOCOL
from analysis.tableset import Tables, starred

CSV_COLUMNS = (
    *("table", "row", "label", "kind", "method", "backbone", "env", "fraction", "scale", "protocol"),
    *("panel", "skills", "metric", "column", "unit", "value", "lo", "hi", "level", "interval"),
    *("n_seeds", "n_seeds_planned", "n_tasks", "n_episodes", *PROTOCOL, "status", "source", "reference"),
    *(
        "bootstrap_lo",
        "bootstrap_hi",
        "p_t",
        "p_holm",
        "p_exact",
        "p_exact_smallest",
        "significant",
        "note",
        "warnings",
    ),
)


def csv_text(tables: Tables) -> str:
    """Every cell, one a line, with what a reader needs to judge it. Rates in per cent, differences in points,
    scores from 0 to 100.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table, label, (backbone, env), cell in _all_cells(tables):
        writer.writerow(_csv_row(table, label, backbone, env, cell, tables.warned(cell)))
    return buffer.getvalue()


def _all_cells(tables: Tables) -> Iterator[tuple[str, str, tuple[str, str], Cell]]:
    named: list[tuple[str, Iterable[Cell]]] = [
        ("success", tables.success.values()),
        *(("difference", t.values()) for t in tables.versus.values()),
    ]
    named += [("ablation", tables.versus_base.values()), ("learning", tables.learning.values())]
    named += [("retirement", tables.retirement), ("out_of_distribution", tables.gaps.values())]
    named += [("sample_efficiency", tables.fractions.values()), ("aggregate", tables.aggregates.values())]
    named += [("cost", tables.costs.values())]
    for table, cells in named:
        for cell in cells:
            line = cell.line
            assert line is not None
            if table == "ablation":
                told = "; ".join(part for part in (cell.note, *changes_of(line)) if part)
                cell = replace(cell, note=told)
            yield table, f"{line.label}{starred(tables, line, cell.place)}", (line.backbone, line.env), cell
    for row in tables.published:
        for cell in row.cells:
            yield "published", row.method, (row.backbone, row.env), cell


def _csv_row(table: str, label: str, backbone: str, env: str, cell: Cell, warned: tuple[str, ...]) -> tuple[str, ...]:
    line, interval, second, p = cell.line, cell.interval, cell.second, cell.protocol
    panel, _, skills = cell.place.rpartition("/") if "/" in cell.place else (cell.place, "", "")
    about = ("", label, "", "", backbone, env, "", "", "")
    if line is not None:
        about = (
            *(line.row, label, line.kind, line.method, backbone, env),
            *(f"{line.fraction:g}", line.scale, line.protocol),
        )
    factor = 100 if cell.unit in ("%", "points", "score") else 1
    bounds = [math.nan] * 3 if interval is None else [interval.value, interval.lo, interval.hi]
    others = [math.nan] * 2 if second is None else [second.lo, second.hi]
    return (
        *(table, *about, panel, skills, cell.metric.value, cell.column, cell.unit),
        *(_decimal(factor * x) for x in bounds),
        *(f"{stats.LEVEL:g}" if not math.isnan(bounds[1]) and interval and interval.kind != stats.RANGE else "",),
        interval.kind if interval else "",
        *(str(n) if line is not None else "" for n in (cell.n_seeds, cell.n_planned, cell.n_tasks, cell.n_episodes)),
        *(
            p.get(k, "")
            for k in ("panel_hash", "data_version", "prompt_protocol", "context", "temperature", "selection")
        ),
        *(cell.status.value, cell.source, cell.reference),
        *(_decimal(factor * x) for x in others),
        *(_decimal(x) for x in (cell.p_t, cell.p_holm, cell.p_exact, cell.p_smallest)),
        *("yes" if cell.significant else "no" if cell.reference else "", cell.note, " ".join(warned)),
    )


def _decimal(value: float) -> str:
    """Six decimals, enough to work with and few enough that no machine's last bit shows."""
    if math.isnan(value):
        return ""
    text = f"{value:.6f}"
    return "0.000000" if text == "-0.000000" else text
