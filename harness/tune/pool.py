"""Where a search's runs are executed: what the loop needs of a launcher, and the local one. Jobs: harness.tune.jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from harness.launch.local import Launcher, available_cores
from harness.record import RunDirectory
from harness.stopping import request_stop
from harness.worker import DEFAULT_ENTRY

if TYPE_CHECKING:
    from harness.progress import Progress
    from harness.stages import Cell

POLL_SECONDS = 0.2


class Pool(Protocol):
    """A launcher to which runs are given one by one."""

    def add(self, run: RunDirectory, cell: Cell, label: str) -> None:
        """See a run through, from its last checkpoint if it has one, once all that the cell requires is complete."""
        ...

    def stop(self, fingerprint: str, reason: str) -> None:
        """Have a run end at its next step boundary, or not start at all; its record gets the reason."""
        ...

    def tick(self) -> bool:
        """One look at everything, every `pause` seconds; whether any run is still waited for."""
        ...

    def outcome(self, fingerprint: str) -> tuple[str | None, str]:
        """(state, why) in which a run ended; (None, "") while it has not."""
        ...

    def tries_again(self, failure_class: str) -> bool:
        """Whether the next command tries a run again that failed so; else do=retry has to ask for it."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether the user asked to stop."""
        ...

    @property
    def pause(self) -> float:
        """Seconds between two looks."""
        ...


class LocalPool:
    """Processes on this machine, `workers` at a time (0: one per core that this process may use)."""

    def __init__(self, workers: int, show: Progress, entry: str = DEFAULT_ENTRY) -> None:
        self.workers = workers if workers > 0 else available_cores()
        self._cells: dict[str, Cell] = {}
        self._launcher = Launcher(
            [], self.workers, show, retry_failed=True, entry=entry, requires={}, before=self._before
        )

    @contextlib.contextmanager
    def working(self) -> Iterator[LocalPool]:
        """Signals ask the workers to stop; none is left behind."""
        with self._launcher.signals():
            try:
                yield self
            finally:
                self._launcher.leave_nobody_behind()

    def _before(self, run: RunDirectory) -> None:
        RunDirectory.create(run.path.parent, self._cells[run.fingerprint].config, run.fingerprint)

    def add(self, run: RunDirectory, cell: Cell, label: str) -> None:
        self._cells[cell.fingerprint] = cell
        self._launcher.add(run, label, cell.requires)

    def stop(self, fingerprint: str, reason: str) -> None:
        request_stop(self._launcher.cell(fingerprint).run.path, reason)
        self._launcher.drop(fingerprint, reason)

    def tick(self) -> bool:
        return self._launcher.tick()

    def outcome(self, fingerprint: str) -> tuple[str | None, str]:
        cell = self._launcher.cell(fingerprint)
        return (cell.status, cell.note) if cell.ended else (None, "")

    def tries_again(self, failure_class: str) -> bool:
        return True

    @property
    def stopping(self) -> bool:
        return self._launcher.interrupts > 0

    @property
    def pause(self) -> float:
        return POLL_SECONDS
