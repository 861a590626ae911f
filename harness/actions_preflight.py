"""do=preflight, and the same before a sweep that is paid for."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.cli import INCOMPLETE, OK

if TYPE_CHECKING:
    from harness.plan import Plan
    from harness.preflight import Finding, Preflight

_SHOWN = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM"}
_WIDTH = 120


def preflight(plan: Plan) -> int:
    """Print what was found. Starts nothing; the exit status says whether a problem was."""
    from harness.preflight import preflight as look

    found = look(plan, _say)
    print(findings_text(found.findings))
    print(summary(found))
    return OK if found.ready else INCOMPLETE


def gate(plan: Plan, say: Callable[[str], None]) -> bool:
    """Whether a sweep may start. One that costs nothing always may; of others, problems and warnings are told."""
    from harness.preflight import OK as FINE
    from harness.preflight import paid
    from harness.preflight import preflight as look

    if not paid(plan):
        return True
    found = look(plan, _say)
    if told := [finding for finding in found.findings if finding.status != FINE]:
        say(findings_text(told))
    say(summary(found))
    if not found.ready:
        say("nothing was started; do=preflight shows everything that was looked at")
    return found.ready


def summary(found: Preflight) -> str:
    counts = Counter(finding.status for finding in found.findings)
    told = ", ".join(f"{counts[status]} {status}" for status in ("problem", "warning", "ok") if counts[status])
    return f"preflight of {found.cells} cells: {told or 'nothing to look at'}"


def findings_text(findings: Sequence[Finding]) -> str:
    """A table: status, setting, where it comes from, then what is the case and what to do, wrapped."""
    heads = [(_SHOWN[f.status], f"{f.key}={f.value}", f.origin) for f in findings]
    rows = [("", "setting", "from"), *heads]
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    second = min(second, 48)
    lines = [f"{'':<{first}}  {'setting':<{second}}  from"]
    for finding, (status, setting, origin) in zip(findings, heads, strict=True):
        lines.append(f"{status:<{first}}  {setting:<{second}}  {origin}".rstrip())
        for text in filter(None, (finding.said, finding.fix and f"-> {finding.fix}")):
            indent = " " * (first + 4)
            lines += textwrap.wrap(
                text,
                _WIDTH,
                initial_indent=indent,
                subsequent_indent=indent + ("   " if text.startswith("->") else ""),
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def _say(text: str) -> None:
    print(f"preflight: {text}", file=sys.stderr, flush=True)
