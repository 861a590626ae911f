"""plan.json and run directories -> tidy records. Reads, never runs; nothing planned is ever left out.

The run directory is the truth: the state in the plan is only what was known when it was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from analysis.plan import Line, lines_of, load_plan
from analysis.reading import join, read_runs
from analysis.spools import Spool


@dataclass(frozen=True, slots=True)
class DataWarning:
    """Something about the records that a reader must see.

    refuses: status that takes the place of the numbers, `mixed` or `invalid`; empty: the numbers stand
    cells: planned cells concerned (index into Records.cells); place: `<panel>/<skills>`, or empty for all of them
    """

    code: str
    message: str
    cells: tuple[int, ...]
    place: str = ""
    refuses: str = ""


@dataclass(frozen=True)
class Records:
    """Everything the tables are made from.

    cells     one row per planned cell, in plan order: line, row, seed, fingerprint, run_dir (below `out`), state,
              complete, last_step, planned_steps, error, failure_class, declared (places owed), evaluations (dict),
              codes (versions of the code that had a part in it), requires (fingerprints of runs whose weights it needs)
    episodes  one row per evaluated episode of EPISODE_SCHEMA plus `cell`, `line`, `seed`, `place` (panel/skills) and
              `complete` (of its run)
    spools    training metrics and events of each planned cell, in plan order
    """

    sweep: str
    title: str
    scale: str
    lines: tuple[Line, ...]
    cells: pd.DataFrame
    episodes: pd.DataFrame
    spools: tuple[Spool, ...]
    warnings: tuple[DataWarning, ...]

    @cached_property
    def rows_alone(self) -> frozenset[str]:
        """Rows that have one line only, so that their id names it."""
        counts = Counter(line.row for line in self.lines)
        return frozenset(row for row, count in counts.items() if count == 1)

    @cached_property
    def varying(self) -> frozenset[str]:
        """What differs between lines besides the row: names of Line's fields."""
        names = ("backbone", "env", "fraction", "scale", "protocol")
        return frozenset(name for name in names if len({getattr(line, name) for line in self.lines}) > 1)


def collect(out: Path, sweep: str) -> Records:
    """Read the records of a sweep below `out` and check them.

    ConfigError if there is no usable plan; anything wrong with single runs becomes a DataWarning.
    """
    from analysis.checks import check  # the checks work on Records

    plan = load_plan(out, sweep)
    lines, of_cell = lines_of(plan)
    warnings: list[DataWarning] = []
    states: list[dict[str, Any]] = []
    spools: list[Spool] = []
    episodes: list[pa.Table] = []
    counts: list[NDArray[np.int64]] = []
    for part in read_runs([out / cell["run_dir"] for cell in plan["cells"]]):
        for problem in part.problems:
            number = len(states) + problem.run
            message = f"{lines[of_cell[number]].row}, seed {plan['cells'][number]['seed']}: {problem.message}"
            warnings.append(DataWarning(problem.code, message, (number,), refuses=problem.refuses))
        states += part.states
        spools += part.spools
        episodes.append(part.episodes)
        counts.append(part.counts)
    cells = _cells_frame(plan, lines, of_cell, states)
    of_episode = np.repeat(np.arange(len(states), dtype=np.int32), np.concatenate(counts))
    records = Records(
        sweep,
        str(plan.get("title") or sweep),
        str(plan.get("scale") or ""),
        lines,
        cells,
        _episodes_frame(join(episodes), of_episode, cells),
        tuple(spools),
        (),
    )
    return replace(records, warnings=(*warnings, *check(records)))


def _cells_frame(
    plan: Mapping[str, Any], lines: Sequence[Line], of_cell: Sequence[int], states: Sequence[Mapping[str, Any]]
) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "line": of_cell,
            "row": [lines[line].row for line in of_cell],
            "seed": [cell["seed"] for cell in plan["cells"]],
            "fingerprint": [cell["fingerprint"] for cell in plan["cells"]],
            "run_dir": [cell["run_dir"] for cell in plan["cells"]],
        }
    )
    frame["requires"] = pd.Series([tuple(cell.get("requires") or ()) for cell in plan["cells"]], dtype=object)
    defaults: dict[str, Any] = {
        **{"last_step": 0, "planned_steps": None, "error": "", "failure_class": "", "declared": (), "evaluations": {}},
        "codes": (),
    }
    for name in ("state", *defaults):
        frame[name] = pd.Series([state.get(name, defaults.get(name)) for state in states], dtype=object)
    frame["complete"] = (frame["state"] == "complete").astype(bool)
    return frame


def _episodes_frame(episodes: pa.Table, of_cell: NDArray[np.int32], cells: pd.DataFrame) -> pd.DataFrame:
    frame: pd.DataFrame = episodes.to_pandas()
    frame["cell"] = of_cell
    index = of_cell
    for name in ("line", "seed", "complete"):
        frame[name] = cells[name].to_numpy()[index]
    frame["complete"] = frame["complete"].astype(bool)
    pairs = frame[["panel", "skills"]].drop_duplicates().astype(object).sort_values(["panel", "skills"])
    names = {(p, s): f"{p}/{s}" for p, s in pairs.itertuples(index=False)}
    frame["place"] = pd.Categorical(
        [names[pair] for pair in zip(frame["panel"].astype(object), frame["skills"].astype(object), strict=True)]
    )
    return frame


def grouped(frame: pd.DataFrame, keys: str | list[Any]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Groups that occur, in sorted order of their keys."""
    yield from frame.groupby(keys, observed=True, sort=True)
