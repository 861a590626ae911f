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


def write_extras(
    out: Path,
    sweep: str,
    families: Sequence[str] = (figures.ALL,),
    report: bool = True,
    made: tuple[Tables, Document] | None = None,
) -> list[str]:
    """Figures (families of them, or none) and report.html of a sweep; lines that say what was written and what was not.

    made: the tables and their document, if they exist already. Raises ConfigError if there is no usable plan or no such
    family, and harness.files.RecordError if a file cannot be written.
    """
    drawn = figures.write(out, sweep, figures.ALL if figures.ALL in families else families) if families else None
    lines = [] if drawn is None else figure_lines(drawn)
    if report:
        tables = made[0] if made else make_tables(collect(out, sweep))
        path = write_report(out, sweep, tables, made[1] if made else document(tables), drawn)
        lines.append(f"{path}  ({path.stat().st_size / 1e6:.1f} MB, needs nothing else)")
    return lines


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
