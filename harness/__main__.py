"""`python -m harness` and the console script `harness`. Nothing heavy is imported here: `--help` must stay fast."""

from __future__ import annotations

import sys


def run() -> int:
    """Entry point of the console script; returns the exit status."""
    from harness.cli import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
