"""Tasks as the dispatcher of jobs keeps them, in order, and the arrays that are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.launch.shapes import Shape
from harness.launch.tasks import WAITING, Task
from harness.launch.tickets import Ticket
from harness.states import INTERRUPTED


@dataclass
class Cell:
    """A task and how it stands. status, note, job: see TaskReport."""

    task: Task
    status: str = ""
    note: str = ""
    job: str = ""
    again: int = 0  # times that it was submitted again by itself
    new: bool = True  # not looked at before: whoever asks for it now wants it submitted if it is missing
    final: bool = False  # nothing more is done about it
    retry: bool = False  # it may be submitted although it failed
    dropped: str = ""  # why it is not wanted any more
    ticket: Ticket | None = field(default=None, repr=False)

    def end(self, status: str, note: str = "") -> None:
        self.status, self.note, self.final = status, note, True

    def wait(self, note: str = "") -> None:
        if self.dropped:
            self.end(INTERRUPTED, self.dropped)
        else:
            self.status, self.note = WAITING, note


@dataclass(frozen=True, slots=True)
class Room:
    """left: jobs that the queue still takes; queued: this user's in it; most: of this user's in all; longest: elements
    of an array."""

    left: int
    queued: int
    most: int
    longest: int
    cluster: str


Ready = tuple[Cell, tuple[str, ...]]  # a cell that can be submitted, and the jobs that it has to wait for


def groups(ready: Sequence[Ready], longest: int) -> list[tuple[list[Cell], tuple[str, ...]]]:
    """Cells of one shape that wait for the same jobs, no more together than an array may have."""
    alike: dict[tuple[Shape, int, tuple[str, ...]], list[Cell]] = {}
    for cell, after in ready:
        alike.setdefault((cell.task.shape, cell.task.threads, after), []).append(cell)
    return [
        (members[start : start + longest], after)
        for (_, _, after), members in alike.items()
        for start in range(0, len(members), longest)
    ]


def teachers_first(cells: Mapping[str, Cell]) -> list[Cell]:
    """In the given order, but for what others require, which comes before them."""
    done: dict[str, Cell] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in done or name in above or name not in cells:
            return
        for other in cells[name].task.requires:
            visit(other, (*above, name))
        done[name] = cells[name]

    needed = dict.fromkeys(name for cell in cells.values() for name in cell.task.requires)
    for name in (*needed, *cells):
        visit(name, ())
    return list(done.values())
