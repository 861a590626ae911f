"""What the seconds of training are: CPU seconds of a process, or wall seconds and the GPUs held meanwhile.

Runs say so by the event `clock`, once per attempt. Records without one are older: theirs are CPU seconds. Seconds of
two kinds, or of other numbers of GPUs, are never set against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.collect import Records

CPU, WALL = "cpu_s", "wall_s"
_NAMES = {CPU: "CPU", WALL: "wall"}
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, order=True)
class Clock:
    """unit: CPU | WALL; gpus: held while training"""

    unit: str = CPU
    gpus: int = 0

    @property
    def name(self) -> str:
        """`CPU` or `wall`"""
        return _NAMES[self.unit]

    def __str__(self) -> str:
        held = f" of {self.gpus} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else ""
        return f"{self.name} s{held}"


def of_events(events: Sequence[Mapping[str, Any]]) -> Clock | None:
    """The clock of a run from its events, [] in older records; None if attempts differ or one cannot be understood.

    Rewound events count: what came before a checkpoint was measured with the clock of its attempt all the same.
    """
    found: set[Clock] = set()
    for data in events:
        unit, gpus = data.get("unit"), data.get("gpus")
        if unit not in _NAMES or not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0:
            return None
        found.add(Clock(str(unit), gpus))
    return shared(found) if found else Clock()


def shared(clocks: Iterable[Clock | None]) -> Clock | None:
    """The clock of them all; None if they differ, if one is not known, or without any."""
    found = set(clocks)
    return found.pop() if len(found) == 1 else None


def clash(clocks: Iterable[Clock | None]) -> str:
    """Why seconds of these clocks are not compared; empty if they may be."""
    found = set(clocks)
    if len(found) < 2 and None not in found:
        return ""
    known = [str(clock) for clock in sorted(each for each in found if each is not None)]
    parts = [*known, *(["a clock that is not known or changed within a run"] if None in found else [])]
    return f"time was not measured alike: {', '.join(parts)}"


def of_lines(records: Records) -> dict[int, Clock | None]:
    """Line -> the clock of its complete runs, or else of those that began; None where they differ. Others: absent."""
    lines, complete = records.cells["line"].tolist(), records.cells["complete"].tolist()
    done: dict[int, set[Clock | None]] = {}
    begun: dict[int, set[Clock | None]] = {}
    for number, spool in enumerate(records.spools):
        if spool.steps.size or spool.clocks:
            begun.setdefault(lines[number], set()).add(spool.clock)
            if complete[number]:
                done.setdefault(lines[number], set()).add(spool.clock)
    return {line: shared(done.get(line) or found) for line, found in sorted(begun.items())}
