"""plan.json and run directories -> tidy records. Reads, never runs; nothing planned is ever left out.

The run directory is the truth: the state in the plan is only what was known when it was written.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from analysis.code import codes_of_run
from analysis.plan import Line, lines_of, load_plan
from harness.files import RecordError, read_json_object

EPISODE_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("panel", pa.string()),
        ("panel_hash", pa.string()),
        ("data_version", pa.string()),
        ("task_id", pa.string()),
        ("task_type", pa.string()),
        ("repeat", pa.int64()),
        ("success", pa.float64()),
        ("score", pa.float64()),
        ("length", pa.float64()),
        ("malformed", pa.float64()),
        ("inadmissible", pa.float64()),
        ("failure", pa.string()),
        ("skills", pa.string()),
        ("prompt_protocol", pa.string()),
        ("context", pa.string()),
        ("checkpoint_step", pa.int64()),
        ("temperature", pa.float64()),
        ("selection", pa.string()),
    ]
)
METRICS = (
    "train/success",
    "time/cpu_total_s",
    "time/rollout_s",
    "time/env_s",
    "time/teacher_s",
    "time/analyzer_s",
    "time/update_s",
    "tokens/rollout",
    "tokens/teacher",
    "tokens/update",
)


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

    cells     one row per planned cell, in plan order: line, row, seed, fingerprint, state, complete, last_step,
              planned_steps, error, failure_class, declared (places owed), evaluations (dict), codes (versions of the
              code that had a part in it)
    episodes  one row per evaluated episode of EPISODE_SCHEMA plus `cell`, `line`, `seed`, `place` (panel/skills) and
              `complete` (of its run)
    metrics   one row per recorded training step: cell, step and METRICS (NaN: not recorded)
    """

    sweep: str
    title: str
    scale: str
    lines: tuple[Line, ...]
    cells: pd.DataFrame
    episodes: pd.DataFrame
    metrics: pd.DataFrame
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


# ---------------------------------------------------------------------------------------------- one run directory
def _number(value: Any) -> float:
    """A metric as written in the spool: a number, or "nan", "inf", "-inf"."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def read_metrics(path: Path) -> tuple[dict[int, dict[str, float]], list[str]]:
    """Training metrics by step (the last record of a step counts) and what was wrong with the file.

    A last line without its end is a write that was cut off, which is normal after a crash, and is left out.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}, []
    steps: dict[int, dict[str, float]] = {}
    repeated, broken = 0, 0
    lines = data.split(b"\n")
    for raw in lines[:-1]:
        if b'"metrics"' not in raw:
            continue
        try:
            record = json.loads(raw)
        except ValueError:
            broken += 1
            continue
        if record.get("kind") != "metrics":
            continue
        values = record["values"]
        kept = {name: _number(values[name]) for name in METRICS if name in values}
        if not kept:
            continue
        repeated += record["step"] in steps
        steps[record["step"]] = kept
    problems = [f"{broken} unreadable lines in spool.jsonl"] if broken else []
    if repeated:
        problems.append(f"{repeated} training steps recorded more than once in spool.jsonl (the last record counts)")
    return steps, problems


def read_episodes(path: Path) -> tuple[pa.Table | None, list[str]]:
    """Episode records with EPISODE_SCHEMA's columns (types as written), or None and why. No file: None, no reason."""
    try:
        # Small files: threads within one cost more than they save.
        with pq.ParquetFile(path) as file:
            missing = sorted(set(EPISODE_SCHEMA.names) - set(file.schema_arrow.names))
            if missing:
                return None, [f"episodes.parquet has no column {', '.join(missing)}"]
            return file.read(columns=EPISODE_SCHEMA.names, use_threads=False), []
    except FileNotFoundError:
        return None, []
    except (OSError, pa.ArrowException) as error:
        return None, [f"episodes.parquet cannot be read ({error})"]


def _joined(tables: Mapping[int, pa.Table]) -> tuple[pa.Table, list[int], list[tuple[int, str]]]:
    """All episodes in EPISODE_SCHEMA, the cells they come from (one per table), and cells whose types do not fit.

    Tables that were written alike are joined before their types are set: that is once instead of once per run.
    """
    by_schema: dict[str, list[int]] = {}
    for number, table in tables.items():
        by_schema.setdefault(table.schema.to_string(show_schema_metadata=False), []).append(number)
    parts: list[pa.Table] = []
    order: list[int] = []
    unfit: list[tuple[int, str]] = []
    for numbers in by_schema.values():
        whole = pa.concat_tables([tables[n] for n in numbers]).select(EPISODE_SCHEMA.names)
        try:
            parts.append(whole.replace_schema_metadata(None).cast(EPISODE_SCHEMA))
            order += numbers
        except pa.ArrowException as error:
            unfit += [(n, f"episodes.parquet holds values of another type ({error})") for n in numbers]
    return pa.concat_tables(parts) if parts else EPISODE_SCHEMA.empty_table(), order, unfit


def _state(folder: Path) -> tuple[dict[str, Any], list[str]]:
    try:
        state, provenance = read_json_object(folder / "state.json"), read_json_object(folder / "provenance.json")
        codes = codes_of_run(folder, provenance or {})
    except RecordError as error:
        return {"state": "unreadable"}, [str(error.__cause__ or error)]
    state = state or {}
    values = {
        "state": state.get("state", "pending"),
        "last_step": state.get("last_step") or 0,
        "planned_steps": state.get("planned_steps"),
        "error": state.get("error") or "",
        "failure_class": state.get("failure_class") or "",
        "declared": tuple(state.get("declared") or ()),
        "evaluations": state.get("evaluations") or {},
        "codes": codes,
    }
    return values, []


def collect(out: Path, sweep: str) -> Records:
    """Read the records of a sweep below `out` and check them.

    ConfigError if there is no usable plan; anything wrong with single runs becomes a DataWarning.
    """
    from analysis.checks import check  # the checks work on Records

    plan = load_plan(out, sweep)
    lines, of_cell = lines_of(plan)
    warnings: list[DataWarning] = []
    states: list[dict[str, Any]] = []
    tables: dict[int, pa.Table] = {}
    metrics: list[dict[str, float]] = []

    def warn(code: str, number: int, messages: Sequence[str], refuses: str = "") -> None:
        who = f"{plan['cells'][number]['row']}, seed {plan['cells'][number]['seed']}"
        warnings.extend(DataWarning(code, f"{who}: {text}", (number,), refuses=refuses) for text in messages)

    for number, cell in enumerate(plan["cells"]):
        folder = out / cell["run_dir"]
        state, broken = _state(folder)
        steps, remarks = read_metrics(folder / "spool.jsonl")
        table, unreadable = read_episodes(folder / "episodes.parquet")
        warn("unreadable_state", number, broken, "invalid")
        warn("spool", number, remarks)
        warn("unreadable_episodes", number, unreadable, "invalid")
        states.append(state)
        metrics += [{"cell": number, "step": step, **values} for step, values in steps.items()]
        if table is not None:
            tables[number] = table
    episodes, order, unfit = _joined(tables)
    for number, message in unfit:
        warn("unreadable_episodes", number, [message], "invalid")
    cells = _cells_frame(plan, of_cell, states)
    of_episode = np.repeat(np.array(order, dtype=np.int32), [tables[n].num_rows for n in order])
    records = Records(
        sweep,
        str(plan.get("title") or sweep),
        str(plan.get("scale") or ""),
        lines,
        cells,
        _episodes_frame(episodes, of_episode, cells),
        pd.DataFrame(metrics, columns=["cell", "step", *METRICS]).astype({"cell": "int64", "step": "int64"}),
        (),
    )
    return replace(records, warnings=(*warnings, *check(records)))


def _cells_frame(plan: Mapping[str, Any], of_cell: Sequence[int], states: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "line": of_cell,
            "row": [cell["row"] for cell in plan["cells"]],
            "seed": [cell["seed"] for cell in plan["cells"]],
            "fingerprint": [cell["fingerprint"] for cell in plan["cells"]],
        }
    )
    defaults: dict[str, Any] = {
        **{"last_step": 0, "planned_steps": None, "error": "", "failure_class": "", "declared": (), "evaluations": {}},
        "codes": (),
    }
    for name in ("state", *defaults):
        frame[name] = pd.Series([state.get(name, defaults.get(name)) for state in states], dtype=object)
    frame["complete"] = (frame["state"] == "complete").astype(bool)
    return frame


def _episodes_frame(episodes: pa.Table, of_cell: NDArray[np.int32], cells: pd.DataFrame) -> pd.DataFrame:
    for position, item in enumerate(EPISODE_SCHEMA):
        if pa.types.is_string(item.type):  # a few distinct values in many rows: categories
            column = episodes.column(position)
            if item.name == "failure":  # an empty reason is no failure
                column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
            episodes = episodes.set_column(position, item.name, column.dictionary_encode())
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


def metrics_by_cell(records: Records) -> dict[int, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Cell -> (steps [N] in rising order, values [N, METRICS])."""
    frame = records.metrics.sort_values(["cell", "step"])
    cells, starts = np.unique(frame["cell"].to_numpy(dtype=np.int64), return_index=True)
    steps = np.split(frame["step"].to_numpy(dtype=np.int64), starts[1:])
    values = np.split(frame[list(METRICS)].to_numpy(dtype=np.float64), starts[1:])
    return {int(cell): (s, v) for cell, s, v in zip(cells, steps, values, strict=False)}


def grouped(frame: pd.DataFrame, keys: str | list[Any]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Groups that occur, in sorted order of their keys."""
    yield from frame.groupby(keys, observed=True, sort=True)
