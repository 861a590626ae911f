"""The tables of a sweep, from records alone, as CSV, Markdown, HTML and text: same records, same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from analysis import blocks, blocks_methods, blocks_published, blocks_runs
from analysis.aggregates import aggregate_cells
from analysis.blocks_data import data_blocks
from analysis.clocks import of_lines as clocks_of_lines
from analysis.collect import Records, collect
from analysis.compare import difference_cells
from analysis.costs import cost_cells
from analysis.curves import budgets, curves, learning_cells
from analysis.evaluations import Measurements, success_cells
from analysis.footnotes import footnotes
from analysis.fractions import fraction_cells, fraction_curves
from analysis.generalisation import gap_cells
from analysis.latex import latex
from analysis.notes import lead, notes, title
from analysis.page import html
from analysis.plan import Line
from analysis.published import published_rows
from analysis.render import Document, markdown, plain
from analysis.retirement import retirement_cells, retirements
from analysis.table_csv import csv_text
from analysis.tableset import Tables, by_key
from analysis.terminal import terminal
from harness.files import atomic_write

NAME = "main_table"
REFERENCE, UNTRAINED = "grpo", "vanilla"


class Written(TypedDict):
    """Paths of the files, the text for a terminal, how many planned runs are not complete; what it was made from."""

    csv: Path
    md: Path
    html: Path
    tex: Path
    text: str
    incomplete: int
    tables: Tables
    page: Document


def write_main_table(out: Path, sweep: str) -> Written:
    """Write <out>/results/<sweep>/main_table.{csv,md,html,tex} from plan.json and the run directories.

    Raises ConfigError if there is no usable plan and harness.files.RecordError if a file cannot be written.
    """
    tables = make_tables(collect(out, sweep))
    page = document(tables)
    folder = out / "results" / sweep
    paths = {ending: folder / f"{NAME}.{ending}" for ending in ("csv", "md", "html", "tex")}
    made = {"csv": csv_text(tables), "md": markdown(page), "html": html(page), "tex": latex(page, sweep)}
    for ending, text in made.items():
        atomic_write(paths[ending], text.encode())
    incomplete = int((~tables.records.cells["complete"]).sum())
    return {
        "csv": paths["csv"],
        "md": paths["md"],
        "html": paths["html"],
        "tex": paths["tex"],
        "text": plain(terminal(tables)),
        "incomplete": incomplete,
        "tables": tables,
        "page": page,
    }


def make_tables(records: Records) -> Tables:
    """Every cell of the sweep's tables."""
    measurements = Measurements.of(records)
    complete = records.cells.groupby("line")["complete"].sum().tolist()
    found = curves(records)
    budget = budgets(records, found)
    by_fraction = fraction_curves(records, measurements)
    here = {line.row for line in records.lines if not line.stage}
    return Tables(
        records=records,
        reference=REFERENCE,
        untrained=UNTRAINED,
        success=by_key(success_cells(records, measurements)),
        learning=by_key(learning_cells(records, found, budget, REFERENCE)),
        costs=by_key(cost_cells(records, REFERENCE)),
        versus={
            row: by_key(difference_cells(records, measurements, row)) for row in (REFERENCE, UNTRAINED) if row in here
        },
        versus_base=by_key(difference_cells(records, measurements, None)),
        retired=retirements(records),
        retirement=tuple(retirement_cells(records)),
        gaps=by_key(gap_cells(records, measurements)),
        curves=by_fraction,
        fractions=by_key(fraction_cells(records, measurements, by_fraction, REFERENCE)),
        aggregates=by_key(aggregate_cells(records, measurements, REFERENCE)),
        published=published_rows(records.lines),
        complete={line: int(complete[i]) for i, line in enumerate(records.lines)},
        budgets=budget,
        clocks={records.lines[line]: clock for line, clock in clocks_of_lines(records).items()},
        codes=_codes(records),
        footnotes=footnotes([line for line in records.lines if not line.stage]),
    )


def _codes(records: Records) -> dict[tuple[Line, str], tuple[str, ...]]:
    """Line and place -> codes of the warnings about them."""
    of_cell = records.cells["line"].to_numpy()
    found: dict[tuple[Line, str], dict[str, None]] = {}
    for warning in records.warnings:
        for line in sorted({int(of_cell[i]) for i in warning.cells}):
            found.setdefault((records.lines[line], warning.place), {})[warning.code] = None
    return {key: tuple(codes) for key, codes in found.items()}


def document(tables: Tables) -> Document:
    """Everything: what becomes the Markdown and the HTML file."""
    made = [blocks.success_block(tables, env, panel) for env, panel in tables.panels()]
    made += [blocks.difference_block(tables, row) for row, cells in tables.versus.items() if cells]
    others = [blocks_methods.ablation_block(tables)]
    others += [blocks.learning_block(tables)] if tables.learning else []
    others += [blocks_methods.retirement_block(tables), *data_blocks(tables)]
    others += [*blocks_runs.time_blocks(tables), blocks_runs.work_block(tables)] if tables.costs else []
    others += [blocks_runs.completeness_block(tables), *blocks_published.published_blocks(tables)]
    made += [block for block in others if block is not None]
    warnings = tuple(warning.message for warning in tables.records.warnings)
    footed = tables.footnotes.texts
    return Document(title(tables.records), lead(tables), tuple(made), warnings, notes(tables), footed)
