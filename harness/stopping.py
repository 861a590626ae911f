"""A request to one run to stop at its next step boundary, as a file in its folder.

Whoever executes the run looks for it at every boundary, on whatever machine that is; the run then ends as interrupted,
with the reason, and goes on from its checkpoint once the request is withdrawn.
"""

from __future__ import annotations

from pathlib import Path

from harness.files import atomic_write, writing

STOP_NAME = "stop.txt"


def request_stop(run_dir: Path, reason: str) -> None:
    """Ask the run to stop. Raises RecordError if its folder cannot be written."""
    atomic_write(run_dir / STOP_NAME, f"{reason.strip()}\n".encode())


def withdraw_stop(run_dir: Path) -> None:
    """Let the run go on when it is started again."""
    with writing(run_dir / STOP_NAME):
        (run_dir / STOP_NAME).unlink(missing_ok=True)


def stop_requested(run_dir: Path) -> str | None:
    """Why the run should stop; None if nobody asked."""
    try:
        return (run_dir / STOP_NAME).read_text(encoding="utf-8").strip() or "asked to stop"
    except (OSError, UnicodeDecodeError):
        return None
