"""The code behind the numbers: which versions made the complete runs, and whether it is the code of today."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.text import listed
from harness.attempts import all_attempts
from harness.provenance import equals_commit, this_code

if TYPE_CHECKING:
    from analysis.collect import DataWarning, Records


class Code(NamedTuple):
    """One version of the code. commit: empty if unknown; diff: digest of what was not committed, empty if nothing."""

    commit: str
    diff: str

    @classmethod
    def of(cls, git: Mapping[str, Any] | None) -> Code:
        """From a record of harness.provenance.code_identity, or of nothing."""
        git = git or {}
        # A record that only says that there were changes is still no clean commit.
        return cls(git.get("commit") or "", git.get("diff_sha256") or ("unknown" if git.get("dirty") else ""))

    def __str__(self) -> str:
        return f"{self.commit[:10] or 'unknown commit'}{f' with changes {self.diff[:8]}' if self.diff else ''}"


def codes_of_run(folder: Path, provenance: Mapping[str, Any]) -> tuple[Code, ...]:
    """Every version that had a part in a run, oldest first: those of its attempts; without any, that of its creation.

    An attempt that ended without a single step has no part in the numbers, unless steps were no longer wanted: then it
    may have evaluated. Raises RecordError if a file cannot be read.
    """
    attempts = [attempt.content for attempt in all_attempts(folder)]
    last = max((a["to_step"] for a in attempts if a.get("to_step") is not None), default=0)
    worked = [a for a in attempts if _worked(a, last)] or attempts[-1:]
    found = [Code.of(a.get("git")) for a in worked] or [Code.of(provenance.get("git"))]
    return tuple(dict.fromkeys(found))


def _worked(attempt: Mapping[str, Any], last: int) -> bool:
    start, end = attempt.get("from_step") or 0, attempt.get("to_step")
    return attempt.get("outcome") == "complete" or end is None or end > start or end >= last


# ---------------------------------------------------------------------------------------------- warnings
def code_warnings(records: Records) -> Iterator[DataWarning]:
    """More than one version, within a run or between runs, uncommitted changes, unknown code, and code of other days.

    Complete runs only.
    """
    cells = records.cells[records.cells["complete"].to_numpy(dtype=bool)]
    by_run: list[tuple[Code, ...]] = cells["codes"].tolist()
    names = [f"{row} seed {seed}" for row, seed in zip(cells["row"], cells["seed"], strict=True)]
    yield from _within_runs(cells, by_run, names)
    runs_of: dict[Code, list[str]] = {}
    for codes, name in zip(by_run, names, strict=True):
        for code in codes:
            runs_of.setdefault(code, []).append(name)
    yield from _between_runs(cells, by_run, runs_of)
    yield from _not_todays(runs_of, len(cells))


def _warning(code: str, message: str, cells: Iterable[Any]) -> DataWarning:
    from analysis.collect import DataWarning  # which imports this module

    return DataWarning(code, message, tuple(int(i) for i in cells))


def _within_runs(
    cells: pd.DataFrame, by_run: Sequence[tuple[Code, ...]], names: Sequence[str]
) -> Iterator[DataWarning]:
    for number, codes, name in zip(cells.index, by_run, names, strict=True):
        if len(codes) > 1:
            text = f"resumed under other code: one run of {len(codes)} versions ({', then '.join(map(str, codes))})"
            yield _warning("code_changed", f"{name}: {text}", [number])


def _between_runs(
    cells: pd.DataFrame, by_run: Sequence[tuple[Code, ...]], runs_of: Mapping[Code, Sequence[str]]
) -> Iterator[DataWarning]:
    if len(runs_of) > 1:
        parts = [f"{code}: {listed(runs_of[code])}" for code in sorted(runs_of)]
        message = f"the runs were made by {len(runs_of)} versions of the code: {'; '.join(parts)}"
        yield _warning("mixed_code", message, cells.index)
    for name, found, text in (
        ("dirty_code", [any(c.diff for c in codes) for codes in by_run], "code with changes that were not committed"),
        ("unknown_code", [any(not c.commit for c in codes) for codes in by_run], "code whose commit is unknown"),
    ):
        if any(found):
            message = f"{sum(found)} of {len(cells)} runs were made by {text}"
            yield _warning(name, message, cells.index[np.asarray(found, dtype=bool)])


def _not_todays(runs_of: Mapping[Code, Sequence[str]], total: int) -> Iterator[DataWarning]:
    """About no cell in particular: the numbers are what they are, but the same command would not make them again."""
    today = Code.of(this_code())
    if not today.commit:  # no git, or no repository: nothing to compare with
        return
    others = [code for code in sorted(runs_of) if code.commit and not _is_todays(code, today)]
    if others:
        runs = list(dict.fromkeys(name for code in others for name in runs_of[code]))
        which = f" ({listed(runs)})" if len(runs) < total else ""
        message = (
            f"{len(runs)} of {total} runs{which} were made by other code than the one here, {today}; their numbers "
            "stand, but the same command might give others today"
        )
        yield _warning("not_this_code", message, ())


def _is_todays(code: Code, today: Code) -> bool:
    """The same version, or a clean commit since which nothing changed that makes results."""
    return code == today or (not code.diff and equals_commit(code.commit))
