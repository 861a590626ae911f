"""`python -m analysis sweep=main_table out=.`: tables from records alone; `audit`: of published ones. Runs nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import ConfigError, Problem, suggest

HELP = """\
python -m analysis sweep=NAME [out=FOLDER]
python -m analysis audit

Makes the tables of a sweep from its records alone: results/NAME/plan.json and the run directories in runs/.
Nothing is run, and no model library is imported.

  sweep=NAME    the sweep, as in `python -m harness sweep=NAME`
  out=FOLDER    the folder that holds runs/ and results/ (default: the current folder)
  -h, --help    this text

`audit` prints what published tables say about themselves (docs/audit.md), from the reference file alone.

Writes results/NAME/main_table.csv (every cell, one a line), .md, .html and .tex, and prints the short form.

Exit status: 0 every planned run is complete; 3 some are missing or failed (the table says which);
2 the command cannot be carried out as given (nothing was written).
"""
OK, BAD, INCOMPLETE = 0, 2, 3
KEYS = ("sweep", "out")


def parse(arguments: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE arguments. Raises ConfigError with everything that is wrong."""
    found = {"out": "."}
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
    if "sweep" not in found and not problems:
        problems.append(Problem("sweep", "", "command line", "is missing, e.g. sweep=main_table"))
    if problems:
        raise ConfigError(problems)
    return found


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
        from analysis.tables import write_main_table
        from harness.files import RecordError

        try:
            written = write_main_table(out, values["sweep"])
        except RecordError as error:
            raise ConfigError(Problem("out", values["out"], "command line", str(error))) from error
    except ConfigError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return BAD
    print(written["text"])
    for path in (written["csv"], written["md"], written["html"], written["tex"]):
        print(path)
    return INCOMPLETE if written["incomplete"] else OK


def run(arguments: Sequence[str]) -> int:
    """`main`, for a reader that may leave before the end (`| head`): the files are written by then."""
    try:
        status = main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whatever is still buffered has to go somewhere when Python ends, or it complains then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
