"""Analyses that failed: reasons are kept, said in the log, and stop the run when there are too many of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from methods.interface import Analysis
from methods.skills.analyzer import AnalyzerFailure

SHOWN = 3  # different reasons in one message
NO_STEPS = "a trajectory without steps cannot be analysed"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a trajectory has no analysis, in words that are safe to log."""

    reason: str


Verdict = Analysis | Failed


def exceeds(failed: int, total: int, max_failure_rate: float | None) -> bool:
    """Whether so many failures stop the run; the same comparison as the methods make."""
    return max_failure_rate is not None and failed / total > max_failure_rate


def too_many(reasons: Sequence[str], total: int, max_failure_rate: float | None, who: str) -> AnalyzerFailure:
    """The error that stops the run. reasons: of the failures so far."""
    return AnalyzerFailure(
        f"{who}: at least {len(reasons)} of {total} analyses failed, more than method.skill.max_failure_rate="
        f"{max_failure_rate} allows: {summary(reasons)}. Going on would train without skills. Repair what the reasons "
        "name, then run the same command again; it continues from the last checkpoint"
    )


def settle(verdicts: Sequence[Verdict], max_failure_rate: float | None, who: str) -> list[Analysis | None]:
    """None in place of failures, which are logged. Raises AnalyzerFailure if there are too many."""
    reasons = [verdict.reason for verdict in verdicts if isinstance(verdict, Failed)]
    if reasons:
        if exceeds(len(reasons), len(verdicts), max_failure_rate):
            raise too_many(reasons, len(verdicts), max_failure_rate, who)
        _log.warning("%s: %d of %d analyses failed: %s", who, len(reasons), len(verdicts), summary(reasons))
    return [None if isinstance(verdict, Failed) else verdict for verdict in verdicts]


def summary(reasons: Sequence[str]) -> str:
    """The most frequent reasons with their counts."""
    counts = Counter(reasons).most_common()
    shown = "; ".join(f"{reason} ({count} times)" if count > 1 else reason for reason, count in counts[:SHOWN])
    return shown + (f"; and {len(counts) - SHOWN} other reasons" if len(counts) > SHOWN else "")
