"""Progress of many runs: bars on a terminal, a line now and then in a log file. Only reads run directories."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.text import Text

from harness.files import RecordError
from harness.record import RunDirectory
from harness.states import COMPLETE, FAILED, INTERRUPTED, PENDING, RunState

WAITING, ACTIVE, ELSEWHERE = "waiting", "active", "elsewhere"
FINAL = (COMPLETE, FAILED, INTERRUPTED, PENDING)  # pending: what it needs is not to be had, so that it never started


@dataclass(frozen=True, slots=True)
class CellView:
    """What the display shows of one cell.

    status   waiting | active (run by this command) | elsewhere (by another) | complete | failed | interrupted |
             pending (never started, for want of the run that it needs)
    success  share of the last training rollouts that succeeded, None before the first
    phase    in words: `training`, `evaluating seen/off`, ...
    started  unix seconds of the first line of the current attempt, None before it
    done     share of the cell's work that is done, 0..1
    note     why it failed, or who else works on it
    """

    fingerprint: str
    label: str
    status: str
    step: int = 0
    planned: int = 0
    success: float | None = None
    phase: str = ""
    started: float | None = None
    done: float = 0.0
    note: str = ""

    @property
    def final(self) -> bool:
        return self.status in FINAL


def look(run: RunDirectory, label: str, status: str, note: str = "") -> CellView:
    """A CellView from state.json and the end of the spool."""
    try:
        state = run.stored_state()
        entries = run.spool.tail()
    except (RecordError, OSError) as error:  # a display never stops the work it displays
        return CellView(run.fingerprint, label, status, note=str(error))
    step = state.last_step
    success: float | None = None
    started: float | None = None
    phase = "starting" if status in (ACTIVE, ELSEWHERE) else ""
    for entry in entries:
        if entry["kind"] == "metrics":
            success = _success(entry, success)
            step = max(step, int(entry["step"]))
            phase = "training"
        elif not entry.get("rewound"):
            phase = _phase(entry, phase)
            if entry.get("name") == "attempt_started":
                started = float(entry["t"])
    return CellView(
        fingerprint=run.fingerprint,
        label=label,
        status=status,
        step=min(step, state.planned_steps) if state.planned_steps else step,
        planned=state.planned_steps,
        success=success,
        phase=status if status in FINAL else phase,
        started=started,
        done=1.0 if status in FINAL else _share(state, step),
        note=note,
    )


def _success(entry: Mapping[str, Any], before: float | None) -> float | None:
    value = entry["values"].get("train/success")
    return float(value) if value is not None else before


def _phase(entry: Mapping[str, Any], before: str) -> str:
    """The phase after an event of the run."""
    name, data = entry.get("name"), entry.get("data", {})
    if name == "attempt_started":
        return "starting"
    if name == "evaluation_started":
        place = "/".join(str(data[key]) for key in ("panel", "skills") if key in data)
        return f"evaluating {place}".rstrip()
    if name == "evaluation_finished":
        return "training"
    return before


def _share(state: RunState, step: int) -> float:
    """Share of a cell's work: a training step and an evaluation each count as one unit."""
    units = state.planned_steps + len(state.declared)
    return min(1.0, (step + len(state.evaluations)) / units) if units else 0.0


def describe(view: CellView) -> str:
    """One line about a cell, for logs."""
    parts = [view.phase or view.status]
    if view.planned and not view.final:
        parts.append(f"step {view.step}/{view.planned}")
    if view.success is not None:
        parts.append(f"success {view.success:.2f}")
    if view.started is not None and not view.final:
        parts.append(f"{max(0.0, time.time() - view.started):.0f} s")
    if view.note:
        parts.append(view.note)
    return f"{view.label}: {', '.join(parts)}"


class Progress:
    """Display of one command's cells; a context manager.

    labels: fingerprint -> how the cell is called. console: where to; standard error by default, so that tables on
    standard output stay clean. interval: seconds between reports when that is no terminal.
    """

    def __init__(
        self, labels: Mapping[str, str] | None = None, *, console: Console | None = None, interval: float = 15.0
    ) -> None:
        self.labels = dict(labels or {})
        self.console = console or Console(stderr=True)
        self.interval = interval
        self._live = self.console.is_terminal
        self._bars: Bars | None = None
        self._overall: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._reported: dict[str, str] = {}
        self._next_report = 0.0
        self._since = time.time()

    def label(self, fingerprint: str) -> str:
        return self.labels.get(fingerprint, fingerprint)

    def __enter__(self) -> Progress:
        self._since = time.time()
        if self._live:
            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[count]}"),
                TextColumn("{task.fields[detail]}"),
                _Elapsed(),
                console=self.console,
                transient=True,
                refresh_per_second=4,
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
            self._overall = None
            self._tasks.clear()

    def message(self, text: str) -> None:
        """A line above the bars."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, cells: Sequence[CellView]) -> None:
        """Show the cells of this command, all of them, in order."""
        self._announce(cells)
        if self._bars is not None:
            self._draw(self._bars, cells)
        elif time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + self.interval
            self._report(cells)

    def _announce(self, cells: Sequence[CellView]) -> None:
        """A line for every cell that ended or went elsewhere since the last look."""
        first = not self._reported
        for cell in cells:
            if self._reported.get(cell.fingerprint) != cell.status:
                self._reported[cell.fingerprint] = cell.status
                if (cell.final and not (first and cell.status == COMPLETE)) or cell.status == ELSEWHERE:
                    self.message(describe(cell))

    def _report(self, cells: Sequence[CellView]) -> None:
        counts = {status: sum(cell.status == status for cell in cells) for status in (*FINAL, ACTIVE, ELSEWHERE)}
        told = ", ".join(f"{number} {status}" for status, number in counts.items() if number) or "nothing started"
        self.message(f"[{time.time() - self._since:5.0f} s] {len(cells)} cells: {told}")
        for cell in cells:
            if cell.status in (ACTIVE, ELSEWHERE):
                self.message(f"  {describe(cell)}")

    def _draw(self, bars: Bars, cells: Sequence[CellView]) -> None:
        shown = {cell.fingerprint: cell for cell in cells if cell.status in (ACTIVE, ELSEWHERE)}
        for fingerprint in sorted(set(self._tasks) - set(shown)):
            bars.remove_task(self._tasks.pop(fingerprint))
        for fingerprint, cell in shown.items():
            if fingerprint not in self._tasks:
                # The overall bar stays below the cells' bars.
                if self._overall is not None:
                    bars.remove_task(self._overall)
                    self._overall = None
                self._tasks[fingerprint] = bars.add_task(escape(cell.label), total=1.0, **_columns(cell))
            bars.update(self._tasks[fingerprint], completed=cell.done, **_columns(cell))
        ended = sum(cell.final for cell in cells)
        share = sum(cell.done for cell in cells)
        overall: dict[str, Any] = {"count": f"{ended}/{len(cells)}", "detail": "", "since": self._since}
        if self._overall is None:
            self._overall = bars.add_task("[bold]all cells[/bold]", total=float(max(1, len(cells))), **overall)
        bars.update(self._overall, completed=share, total=float(max(1, len(cells))), **overall)  # a search adds cells


class _Elapsed(ProgressColumn):
    """Time since `since` (unix seconds): of an attempt, whenever this display began to look."""

    def render(self, task: Task) -> Text:
        since = task.fields.get("since")
        seconds = 0 if since is None else max(0, int(time.time() - since))
        return Text(f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}", style="progress.elapsed")


def _columns(cell: CellView) -> dict[str, Any]:
    success = f"success {cell.success:.2f}  " if cell.success is not None else ""
    where = f"  ({cell.note})" if cell.note else ""
    return {
        "count": f"{cell.step}/{cell.planned}" if cell.planned else "",
        "detail": escape(f"{success}{cell.phase}{where}"),
        "since": cell.started,
    }
