"""The files of many runs, a part of them at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis.runfiles import EPISODE_SCHEMA, joined_episodes, read_episodes, read_state
from analysis.spools import Spool, read_spools

PART = 250  # runs read in one go: enough to share the cost of a call, few enough to keep memory flat


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the files of one run. run: its position; refuses: see collect.DataWarning."""

    run: int
    code: str
    message: str
    refuses: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """What some runs recorded, in their order.

    episodes: in EPISODE_SCHEMA, its strings as dictionaries, an empty failure as null; counts: of each run
    """

    states: tuple[dict[str, Any], ...]
    spools: tuple[Spool, ...]
    problems: tuple[Problem, ...]
    episodes: pa.Table
    counts: NDArray[np.int64]


def read_runs(folders: Sequence[Path]) -> Iterator[Part]:
    """The files of run directories, in order, a part at a time: memory stays flat. Reads, never runs.

    In this process: most of the work is in Python, where threads wait for each other, and further processes gain less
    on two cores than starting them and sending back what they read costs.
    """
    for start in range(0, len(folders), PART):
        yield read_part(folders[start : start + PART])


def read_part(folders: Sequence[Path]) -> Part:
    states, problems = [], []
    tables: dict[int, pa.Table] = {}
    spools = read_spools([folder / "spool.jsonl" for folder in folders])
    for number, folder in enumerate(folders):
        state, broken = read_state(folder)
        table, unreadable = read_episodes(folder / "episodes.parquet")
        states.append(state)
        problems += [Problem(number, "unreadable_state", text, "invalid") for text in broken]
        problems += [Problem(number, "spool", text) for text in spools[number].problems]
        if spools[number].unreadable:
            problems.append(Problem(number, "unreadable_spool", spools[number].unreadable, "invalid"))
        problems += [Problem(number, "unreadable_episodes", text, "invalid") for text in unreadable]
        if table is not None:
            tables[number] = table
    episodes, order, unfit = joined_episodes(tables)
    problems += [Problem(number, "unreadable_episodes", text, "invalid") for number, text in unfit]
    counts = np.zeros(len(folders), dtype=np.int64)
    counts[order] = [tables[number].num_rows for number in order]
    if order != sorted(order):  # files written differently were joined group by group
        of_row = np.repeat(order, counts[order])
        episodes = episodes.take(pa.array(np.argsort(of_row, kind="stable")))
    return Part(tuple(states), tuple(spools), tuple(problems), _encoded(episodes), counts)


def _encoded(episodes: pa.Table) -> pa.Table:
    """A few distinct values in many rows: dictionaries."""
    for position, item in enumerate(EPISODE_SCHEMA):
        if pa.types.is_string(item.type):
            column = episodes.column(position)
            if item.name == "failure":  # an empty reason is no failure
                column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
            episodes = episodes.set_column(position, item.name, column.dictionary_encode())
    return episodes.combine_chunks()


def join(parts: Sequence[pa.Table]) -> pa.Table:
    """Episodes of all parts, with one dictionary per column."""
    return pa.concat_tables(parts).unify_dictionaries()
