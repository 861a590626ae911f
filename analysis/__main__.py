"""`python -m analysis sweep=main_table`: tables, figures, report from records alone; `audit`: published tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from core.dependencies import advice
from harness.errors import ConfigError, Problem, suggest

HELP = """\
python -m analysis sweep=NAME [out=FOLDER] [figures=all|none|FAMILY,...] [report=true|false]
python -m analysis audit

Makes tables, figures and the report of a sweep from its records alone: results/NAME/plan.json and the run directories
in runs/. Nothing is run, and no model library is imported.

  sweep=NAME    the sweep, as in `python -m harness sweep=NAME`
  out=FOLDER    the folder that holds runs/ and results/ (default: the current folder)
  figures=...   all (default up to 1,000 runs), none (default beyond), or families, e.g. figures=overall,retirement
  report=...    true (default) or false
  -h, --help    this text

`audit` prints what published tables say about themselves (docs/audit.md), from the reference file alone.

Writes into results/NAME/ and prints the short form of the tables, then each file:
  main_table.csv (every cell, one a line), .md, .html, .tex
  figures/      PDF and PNG; of those that are not drawn, the reason is printed
  report.html   all of it on one page, with provenance, warnings and trajectories; opens without a network

Exit status: 0 every planned run is complete; 3 some are missing or failed (the table says which);
2 the command cannot be carried out as given (nothing was written).
"""
OK, BAD, INCOMPLETE = 0, 2, 3
KEYS = ("sweep", "out", "figures", "report")
NONE, AUTO = "none", ""
SWITCH = {"true": True, "false": False}


def parse(arguments: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE arguments. Raises ConfigError with everything that is wrong."""
    found = {"out": ".", "figures": AUTO, "report": "true"}
    problems = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            problems.append(Problem(argument, "", "command line", f"arguments are KEY=VALUE; {suggest(key, KEYS)}"))
        elif key not in KEYS:
            problems.append(Problem(key, value, "command line", f"there is no such key; {suggest(key, KEYS)}"))
        elif not value:
            problems.append(Problem(key, "", "command line", "has no value"))
        else:
            found[key] = value
    if found["report"] not in SWITCH:
        problems.append(Problem("report", found["report"], "command line", "must be true or false"))
    problems += _unknown_families(found["figures"])
    if "sweep" not in found and not problems:
        problems.append(Problem("sweep", "", "command line", "is missing, e.g. sweep=main_table"))
    if problems:
        raise ConfigError(problems)
    return found


def families(text: str) -> tuple[str, ...] | None:
    """`all`, `none` or names with commas between them, as outputs.write_extras takes them."""
    if text == AUTO:
        return None
    return () if text == NONE else tuple(text.split(","))


def _unknown_families(text: str) -> list[Problem]:
    from analysis.figures import ALL, FAMILIES

    known = (ALL, *FAMILIES)
    return [
        Problem("figures", name, "command line", f"there is no such family; {suggest(name, (*known, NONE))}")
        for name in families(text) or ()
        if name not in known
    ]


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP, end="")
        return OK
    if list(arguments) == ["audit"]:
        from analysis.audit_page import render

        print(render(), end="")
        return OK
    try:
        values = parse(arguments)
        out = Path(values["out"]).expanduser()
        if not out.is_dir():
            raise ConfigError(Problem("out", values["out"], "command line", "is not a folder"))
        # Imported only now: --help and errors of the command line need no data libraries.
        from analysis.outputs import write_extras
        from analysis.tables import write_main_table
        from harness.files import RecordError

        try:
            written = write_main_table(out, values["sweep"])
            print(written["text"])
            for path in (written["csv"], written["md"], written["html"], written["tex"]):
                print(path, flush=True)  # figures take a while
            made = (written["tables"], written["page"])
            chosen = families(values["figures"])
            for line in write_extras(out, values["sweep"], chosen, SWITCH[values["report"]], made):
                print(line)
        except RecordError as error:
            raise ConfigError(Problem("out", values["out"], "command line", str(error))) from error
    except ConfigError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return BAD
    return INCOMPLETE if written["incomplete"] else OK


def run(arguments: Sequence[str]) -> int:
    """`main`, for a reader that may leave before the end (`| head`): the files are written by then."""
    try:
        status = main(arguments)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        if (told := advice(error)) is None:
            raise
        print(f"error: {told}", file=sys.stderr)
        return BAD
    except BrokenPipeError:
        # Whatever is still buffered has to go somewhere when Python ends, or it complains then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
