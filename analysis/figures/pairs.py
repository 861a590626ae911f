"""Which two sampled trajectories of one task a figure shows, out of the runs' trajectories.jsonl.zst."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.figures.sources import SKILL, Sources

NAME = "trajectories.jsonl.zst"
FILES = 24  # looked into per figure, at most: a large sweep has thousands
Item = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """Two trajectories of one task. titles: what each is; kind: how they belong together; broken: files not read."""

    items: tuple[Item, Item]
    titles: tuple[str, str]
    kind: str
    broken: tuple[str, ...] = ()


@dataclass
class Search:
    """Reads the files of a sweep's runs, each once, and remembers which could not be read."""

    sources: Sources

    def __post_init__(self) -> None:
        self.broken: list[str] = []
        self._read: dict[int, list[Item]] = {}

    def of_cell(self, cell: int) -> list[Item]:
        """Trajectories of one planned run that have steps, in order."""
        if cell not in self._read:
            items, why = read(self.sources.run_dirs[cell] / NAME)
            self._read[cell] = [item for item in items if item.get("turns")]
            if why:
                self.broken.append(f"{self._name(cell)}: {why}")
        return self._read[cell]

    def rollouts(self) -> Pair | None:
        """Two training rollouts of one task in one run, one that solved it and one that did not.

        Rows with a skill term come first; within a run, two samples of one group come before two training steps, then
        trajectories with recorded skill advantages, then the shortest, then the latest.
        """
        order = sorted(self.lines(), key=lambda i: not any(run.has(SKILL) for run in self.sources.runs_of(i)))
        for cell in self._cells(order):
            items = self.of_cell(cell)
            for kind, key in (("two rollouts of one policy", _group), ("one run at two training steps", _only_task)):
                found = min(_contrasts(items, key), key=_preference, default=None)
                if found is not None:
                    first, second = (f"training step {i.get('step')}, sample {i.get('sample')}" for i in found)
                    who = self._name(cell)
                    return Pair(found, (f"{who}, {first}", f"{who}, {second}"), kind, tuple(self.broken))
        return None

    def rows(self) -> Pair | None:
        """One evaluation task played by the reference row and by another; one that a single row of them solved, if any.

        Shortest first.
        """
        lines = self.lines()
        reference = self.sources.reference_of(lines)
        if reference is None:
            return None
        others = sorted((i for i in lines if i != reference), key=lambda i: not self.sources.records.lines[i].trains)
        best: tuple[tuple[Any, ...], Pair] | None = None
        for mine in self._cells([reference])[:1]:
            theirs = {_task(item): item for item in self.of_cell(mine) if item.get("phase") == "evaluation"}
            for cell in self._cells(others):
                if self._setting(cell) != self._setting(mine):
                    continue
                for item in self.of_cell(cell):
                    other = theirs.get(_task(item)) if item.get("phase") == "evaluation" else None
                    if other is None:
                        continue
                    rank = (bool(item.get("success")) == bool(other.get("success")), _preference((other, item)))
                    if best is None or rank < best[0]:
                        titles = (f"{self._name(mine)}, evaluation", f"{self._name(cell)}, evaluation")
                        kind = f"two rows on one task of the panel {item.get('panel')}"
                        best = (rank, Pair((other, item), titles, kind))
                if best is not None and not best[0][0]:
                    break
        return None if best is None else Pair(best[1].items, best[1].titles, best[1].kind, tuple(self.broken))

    # ---------------------------------------------------------------------------------- helpers
    def lines(self) -> list[int]:
        return [i for _, lines in self.sources.settings for i in lines]

    def _cells(self, lines: Sequence[int]) -> list[int]:
        """Complete runs of these lines that have a file, line by line, by seed; at most FILES."""
        cells = self.sources.records.cells
        chosen = cells[cells["complete"].to_numpy(dtype=bool)].sort_values("seed", kind="stable")
        of_line: dict[int, list[int]] = {}
        for number, line in zip(chosen.index.tolist(), chosen["line"].tolist(), strict=True):
            of_line.setdefault(line, []).append(number)
        found = [cell for line in lines for cell in of_line.get(line, ())]
        return [cell for cell in found if (self.sources.run_dirs[cell] / NAME).is_file()][:FILES]

    def _name(self, cell: int) -> str:
        cells = self.sources.records.cells
        return f"{self.sources.label(int(cells['line'].iloc[cell]))}, seed {cells['seed'].iloc[cell]}"

    def _setting(self, cell: int) -> object:
        return self.sources.records.lines[int(self.sources.records.cells["line"].iloc[cell])].setting


def read(path: Path) -> tuple[list[Item], str]:
    """Trajectories as far as they can be read, and what was wrong, if anything. No file: none, and nothing wrong."""
    import zstandard

    from harness.training.trajectories import read as lines

    found: list[Item] = []
    if not path.is_file():
        return found, ""
    try:
        found.extend(item for item in lines(path) if isinstance(item, dict))
    except (OSError, ValueError, zstandard.ZstdError) as error:
        return found, f"{path.name} cannot be read to its end ({type(error).__name__})"
    return found, ""


def _task(item: Item) -> tuple[Any, ...]:
    return (item.get("panel"), item.get("task_id"), item.get("sample"))


def _group(item: Item) -> tuple[Any, ...]:
    return (item.get("step"), item.get("group"), item.get("task_id"))


def _only_task(item: Item) -> tuple[Any, ...]:
    return (item.get("task_id"),)


def _contrasts(items: Sequence[Item], key: Callable[[Item], tuple[Any, ...]]) -> Iterator[tuple[Item, Item]]:
    """Pairs of training rollouts with one key, the failed one first: the shortest of each outcome, early ones first."""
    groups: dict[tuple[Any, ...], list[Item]] = {}
    for item in items:
        if item.get("phase") == "train" and item.get("failure") is None:
            groups.setdefault(key(item), []).append(item)
    for group in groups.values():
        solved = [item for item in group if item.get("success")]
        failed = [item for item in group if not item.get("success")]
        if solved and failed:
            yield min(failed, key=lambda item: len(item["turns"])), min(solved, key=lambda item: len(item["turns"]))


def _preference(pair: tuple[Item, Item]) -> tuple[Any, ...]:
    """Smaller is better. Ends with names, so that nothing is left to chance."""
    scored = sum(any(turn.get("skill_advantage") for turn in item["turns"]) for item in pair)
    turns = max(len(item["turns"]) for item in pair)
    step = pair[0].get("step")
    return (-scored, turns, -(step if isinstance(step, int) else 0), str(pair[0].get("task_id")))
