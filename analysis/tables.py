"""The main table of a sweep, from records alone, as CSV, Markdown, HTML and text: same records, same bytes."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from analysis import blocks, stats
from analysis.blocks import Tables, by_key
from analysis.cells import ALL, Cell, Metric
from analysis.checks import PROTOCOL
from analysis.collect import Records, collect
from analysis.compare import difference_cells
from analysis.curves import WINDOW, budgets, cost_cells, curves, learning_cells
from analysis.evaluations import Measurements, success_cells
from analysis.notes import SETTING_SHORT, notes, scale_note
from analysis.page import html
from analysis.plan import Line
from analysis.published import alfworld_rows, why_not_comparable
from analysis.render import LEFT, RIGHT, Block, Document, Text, markdown, plain
from analysis.text import bounded, half_width
from harness.files import atomic_write

NAME = "main_table"
REFERENCE, UNTRAINED = "grpo", "vanilla"
TERMINAL_BACKBONE = "Qwen2.5-3B-Instruct"
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


class Written(TypedDict):
    """Paths of the files, the text for a terminal, and how many planned runs are not complete."""

    csv: Path
    md: Path
    html: Path
    text: str
    incomplete: int


def write_main_table(out: Path, sweep: str) -> Written:
    """Write <out>/results/<sweep>/main_table.{csv,md,html} from plan.json and the run directories.

    Raises ConfigError if there is no usable plan and harness.files.RecordError if a file cannot be written.
    """
    tables = make_tables(collect(out, sweep))
    page = document(tables)
    folder = out / "results" / sweep
    paths = {ending: folder / f"{NAME}.{ending}" for ending in ("csv", "md", "html")}
    for ending, text in (("csv", csv_text(tables)), ("md", markdown(page)), ("html", html(page))):
        atomic_write(paths[ending], text.encode())
    incomplete = int((~tables.records.cells["complete"]).sum())
    return {
        "csv": paths["csv"],
        "md": paths["md"],
        "html": paths["html"],
        "text": plain(terminal(tables)),
        "incomplete": incomplete,
    }


def make_tables(records: Records) -> Tables:
    """Every cell of the sweep's tables."""
    measurements = Measurements.of(records)
    complete = records.cells.groupby("line")["complete"].sum().tolist()
    found = curves(records)
    budget = budgets(records, found)
    return Tables(
        records=records,
        reference=REFERENCE,
        untrained=UNTRAINED,
        success=by_key(success_cells(records, measurements)),
        learning=by_key(learning_cells(records, found, budget, REFERENCE)),
        costs=by_key(cost_cells(records)),
        versus={row: by_key(difference_cells(records, measurements, row)) for row in (REFERENCE, UNTRAINED)},
        published=alfworld_rows(records.lines),
        complete={line: int(complete[i]) for i, line in enumerate(records.lines)},
        budgets=budget,
        codes=_codes(records),
    )


def _codes(records: Records) -> dict[tuple[Line, str], tuple[str, ...]]:
    """Line and place -> codes of the warnings about them."""
    of_cell = records.cells["line"].to_numpy()
    found: dict[tuple[Line, str], dict[str, None]] = {}
    for warning in records.warnings:
        for line in sorted({int(of_cell[i]) for i in warning.cells}):
            found.setdefault((records.lines[line], warning.place), {})[warning.code] = None
    return {key: tuple(codes) for key, codes in found.items()}


# ---------------------------------------------------------------------------------------------- documents
def _scales(records: Records) -> list[str]:
    return sorted({line.scale for line in records.lines})


def _title(records: Records) -> str:
    scale = ", ".join(_scales(records))
    tiny = ": a tiny model, to measure pipeline and mechanics; not comparable with paper numbers"
    what = {"paper": "", "local": tiny, "test": tiny}.get(scale, ": not comparable with paper numbers")
    return f"{records.title} — scale={scale}{what}"


def _lead(tables: Tables) -> tuple[str, ...]:
    total, done = len(tables.records.cells), int(tables.records.cells["complete"].sum())
    return (*map(scale_note, _scales(tables.records)), f"{done} of {total} planned runs are complete.")


def document(tables: Tables) -> Document:
    """Everything: what becomes the Markdown and the HTML file."""
    scale = _scales(tables.records)
    made = [blocks.success_block(tables, env, place) for env, place in tables.places()]
    made += [blocks.difference_block(tables, row) for row, cells in tables.versus.items() if cells]
    made += [blocks.learning_block(tables)] if tables.learning else []
    made += [blocks.cost_block(tables)] if tables.costs else []
    published = blocks.published_block(tables, why_not_comparable("paper" if scale == ["paper"] else "local"))
    made += [block for block in (blocks.completeness_block(tables), published) if block is not None]
    warnings = tuple(warning.message for warning in tables.records.warnings)
    return Document(_title(tables.records), _lead(tables), tuple(made), warnings, notes(tables))


def terminal(tables: Tables) -> Document:
    """The same numbers, short: one line per row, one group of columns per panel."""
    made = [_short_success(tables), _short_differences(tables), _short_learning(tables), _short_published(tables)]
    done = blocks.completeness_block(tables)
    made.append(done and Block(done.title, done.header[:6], tuple(r[:6] for r in done.rows), "", done.align[:6]))
    warnings = tuple(warning.message for warning in tables.records.warnings)
    every = notes(tables)
    brief = (
        f"± is the half-width of the 95 % t interval over seeds; ᵉ evaluation-only (one seed, or equal seeds). ▲▼: "
        f"differs from {tables.label_of(tables.reference)}, both intervals of the paired difference exclude zero.",
        every[3],
        *((SETTING_SHORT,) if any(line.method == "opid" for line in tables.records.lines) else ()),
    )
    return Document(_title(tables.records), _lead(tables), tuple(b for b in made if b is not None), warnings, brief)


def _panels(tables: Tables) -> list[str]:
    return sorted({place.rpartition("/")[0] for _, place in tables.places()})


def _short_success(tables: Tables) -> Block | None:
    keys = list(dict.fromkeys((line, place.rpartition("/")[2]) for line, place, _, _ in tables.success))
    panels = _panels(tables)
    rows = []
    about: dict[str, str] = {}
    for line, skills in keys:
        entries: list[Text] = []
        seeds = ""
        for panel in panels:
            for metric in (Metric.MICRO, Metric.MACRO):
                cell = tables.success.get((line, f"{panel}/{skills}", metric, ALL))
                sign = blocks.mark(tables, cell) if cell else ""
                entries.append(Text(f"{half_width(cell)} {sign}".rstrip() if cell else ""))
                if cell and metric == Metric.MICRO:
                    seeds = blocks.seeds_text(tables, cell)
                    if cell.protocol:
                        about.setdefault(panel, f"{cell.n_tasks} tasks, panel {cell.protocol['panel_hash'][:8]}")
        rows.append((Text(blocks.line_label(tables, line)), Text(skills), Text(seeds), *entries))
    if not rows:
        return None
    header = ("Row", "Skills", "Seeds", *(f"{p} {kind} %" for p in panels for kind in ("micro", "macro")))
    told = "; ".join(f"{panel}: {text}" for panel, text in about.items())
    return Block("Success, mean over seeds", header, tuple(rows), told, LEFT * 2 + RIGHT * (1 + 2 * len(panels)))


def _short_differences(tables: Tables) -> Block | None:
    panels = _panels(tables)
    columns = [(row, panel) for row in tables.versus if tables.versus[row] for panel in panels]
    rows = []
    for line, skills in dict.fromkeys((line, place.rpartition("/")[2]) for line, place, _, _ in tables.success):
        cells = [
            tables.versus[row].get((line, f"{panel}/{skills}", Metric.DIFFERENCE_MICRO, ALL)) for row, panel in columns
        ]
        if any(cells):
            texts = (Text(bounded(c, c.interval) + ("*" if c.note else "") if c else "") for c in cells)
            rows.append((Text(blocks.line_label(tables, line)), *texts))
    if not rows:
        return None
    header = ("Row", *(f"− {tables.label_of(row)}, {panel}" for row, panel in columns))
    starred = any(entry.text.endswith("*") for row in rows for entry in row)
    told = "* not comparable, or with another prompt: see the files." if starred else ""
    return Block("Paired differences, micro, points [95 % t interval over seeds]", header, tuple(rows), told)


def _short_learning(tables: Tables) -> Block | None:
    columns = [
        (tables.learning, Metric.TRAIN_FIRST, f"first {WINDOW} steps, %"),
        (tables.learning, Metric.TRAIN_LAST, f"last {WINDOW} steps, %"),
        (tables.learning, Metric.AREA_STEPS, "area, steps %"),
        (tables.learning, Metric.AREA_CPU, "area, CPU %"),
        (tables.costs, Metric.CPU, "CPU s"),
        (tables.costs, Metric.CPU_ANALYZER, "analyzer s"),
        (tables.costs, Metric.TOKENS_TEACHER, "teacher tok."),
    ]
    rows = []
    for line in dict.fromkeys(key[0] for key in tables.learning):
        cells = [(source.get((line, "train", metric, ALL)), source) for source, metric, _ in columns]
        texts = [Text("" if c is None else half_width(c) if s is tables.learning else _value(c)) for c, s in cells]
        rows.append((Text(blocks.line_label(tables, line)), *texts))
    header = ("Row", *(name for _, _, name in columns))
    return Block("Training: success of rollouts, and cost per run", header, tuple(rows)) if rows else None


def _value(cell: Cell) -> str:
    return bounded(cell, cell.interval).partition(" ")[0]


def _short_published(tables: Tables) -> Block | None:
    rows = []
    for row in tables.published:
        if row.backbone == TERMINAL_BACKBONE:
            texts = [blocks.published_value(row.cell(metric)) for metric in (Metric.MICRO, Metric.MACRO)]
            status = next(cell.status.value for cell in row.cells)
            texts += [row.panel, f"n/a, {status} from {row.cells[0].source}"]
            rows.append((Text(tables.label_of(row.beside)), *(Text(text) for text in (row.method, *texts))))
    if not rows:
        return None
    why = why_not_comparable(tables.records.lines[0].scale)
    return Block(
        f"Published, {TERMINAL_BACKBONE}: not comparable ({why}); ‡ derived, never published; ≈ not unique",
        ("Our row", "Paper's row", "micro %", "macro %", "panel", "Δ and source"),
        tuple(rows),
        "",
        LEFT * 2 + RIGHT * 2 + LEFT * 2,
    )


# ---------------------------------------------------------------------------------------------- CSV
def csv_text(tables: Tables) -> str:
    """Every cell, one a line, with what a reader needs to judge it. Rates in per cent, differences in points."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table, label, backbone, cell in _all_cells(tables):
        writer.writerow(_csv_row(table, label, backbone, cell, tables.warned(cell)))
    return buffer.getvalue()


def _all_cells(tables: Tables) -> Iterator[tuple[str, str, str, Cell]]:
    named = [("success", tables.success.values()), *(("difference", t.values()) for t in tables.versus.values())]
    named += [("learning", tables.learning.values()), ("cost", tables.costs.values())]
    for table, cells in named:
        for cell in cells:
            yield table, cell.line.label if cell.line else "", cell.line.backbone if cell.line else "", cell
    for row in tables.published:
        for cell in row.cells:
            yield "published", row.method, row.backbone, cell


def _csv_row(table: str, label: str, backbone: str, cell: Cell, warned: tuple[str, ...]) -> tuple[str, ...]:
    line, interval, second, p = cell.line, cell.interval, cell.second, cell.protocol
    panel, _, skills = cell.place.rpartition("/") if "/" in cell.place else (cell.place, "", "")
    about = ("", label, "", "", backbone, "alfworld", "", "", "")
    if line is not None:
        about = (
            *(line.row, label, line.kind, line.method, backbone, line.env),
            *(f"{line.fraction:g}", line.scale, line.protocol),
        )
    factor = 100 if cell.unit in ("%", "points") else 1
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
