"""What is made of a sweep besides its tables: figures and the report, and the words about both."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from analysis import figures
from analysis.collect import collect
from analysis.render import Document
from analysis.report import write_report
from analysis.tables import document, make_tables
from analysis.tableset import Tables

WIDTH = 118
LARGE = 1000  # runs up to which figures are drawn without being asked for: they read every spool again


def write_extras(
    out: Path,
    sweep: str,
    families: Sequence[str] | None = None,
    report: bool = True,
    made: tuple[Tables, Document] | None = None,
) -> list[str]:
    """Figures and report.html of a sweep; lines that say what was written and what was not.

    families: of figures; empty: none; None: all, unless the sweep has more than LARGE runs
    made: the tables and their document, if they exist already. Raises ConfigError if there is no usable plan or no such
    family, and harness.files.RecordError if a file cannot be written.
    """
    made = made or _made(out, sweep)
    runs = len(made[0].records.cells)
    lines = []
    if families is None:
        families = (figures.ALL,) if runs <= LARGE else ()
        lines += [] if families else [f"no figures: they take minutes for {runs:,} runs; figures=all draws them"]
    which = figures.ALL if figures.ALL in families else families
    drawn = figures.write(out, sweep, which, made[0]) if families else None
    lines += [] if drawn is None else figure_lines(drawn)
    if report:
        path = write_report(out, sweep, *made, drawn)
        lines.append(f"{path}  ({path.stat().st_size / 1e6:.1f} MB, needs nothing else)")
    return lines


def _made(out: Path, sweep: str) -> tuple[Tables, Document]:
    tables = make_tables(collect(out, sweep))
    return tables, document(tables)


def figure_lines(results: Sequence[figures.Result]) -> list[str]:
    """Every figure with its files, then every one that was not drawn, with the reason."""
    lines = []
    for _, files in results:
        if not isinstance(files, str):
            lines.append(f"{files[0]}{''.join(f', {path.suffix}' for path in files[1:])}")
    for name, reason in results:
        if isinstance(reason, str):
            lines += textwrap.wrap(f"not drawn: {name}: {reason}", WIDTH, subsequent_indent="           ")
    return lines
