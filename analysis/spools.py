"""spool.jsonl of run directories: metrics of training steps, and events. Reads, never runs.

Spools are most of what a large sweep holds. Those of many runs are parsed together by Arrow's reader; whatever is not
plain there (NaN written as text, a step recorded twice, a broken line) is read again, line by line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
from numpy.typing import NDArray

from analysis.clocks import Clock, of_events

# Parts of the time of one training step, in the order of the cost table.
TIMES = ("rollout", "env", "teacher", "analyzer", "update", "reference", "validation")
TOKENS = ("rollout", "teacher", "update", "reference")
# Counts of one training step.
COUNTS = (
    "teacher_rows",
    "teacher_tokens_rescored",
    "analyzer_calls",
    "analyzer_cached",
    "analyzer_retries",
    "analyzer_repairs",
    "analyzer_prompt_tokens",
    "analyzer_completion_tokens",
    "analyzer_money",
)
# What methods that may retire their teacher say of every step.
RETIREMENT = (
    *("coef", "retired", "gap", "window_gap", "progress", "competence"),
    *("teacher_success", "validation_success"),
)
METRICS = (
    "train/success",
    "train/excluded",
    "validation/success",
    "time/cpu_total_s",
    "time/analyzer_wall_s",
    *(f"time/{part}_s" for part in TIMES),
    *(f"tokens/{part}" for part in TOKENS),
    *(f"cost/{count}" for count in COUNTS),
    *(f"method/{name}" for name in RETIREMENT),
)
_POSITION = {name: number for number, name in enumerate(METRICS)}
EVENTS = ("teacher_measured", "retired")
CLOCK, USAGE = "clock", "analyzer_usage"
_EVENT_BYTES = tuple(f'"{name}"'.encode() for name in (*EVENTS, CLOCK, USAGE))
# Field of an event `analyzer_usage` -> metric that says the same of one step.
_USAGE = {
    **{name: f"cost/analyzer_{name}" for name in ("calls", "cached", "retries", "repairs")},
    **{name: f"cost/analyzer_{name}" for name in ("prompt_tokens", "completion_tokens")},
    "cost": "cost/analyzer_money",
}
# What Arrow looks for; everything else is skipped.
_SCHEMA = pa.schema(
    [("kind", pa.string()), ("step", pa.int64()), ("values", pa.struct([(name, pa.float64()) for name in METRICS]))]
)


@dataclass(frozen=True, slots=True)
class Spool:
    """What the tables need of one spool.jsonl.

    steps [N] rising; values [N, METRICS], NaN: not recorded
    events: EVENTS -> data of the last one of that name that no resume has undone
    clocks: data of every event `clock`; usage: metric -> sum over all events `analyzer_usage`, undone ones too (they
    were paid for), empty without any
    problems: what was wrong with the file; unreadable: why it cannot be read at all
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    events: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    clocks: tuple[Mapping[str, Any], ...] = ()
    usage: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    unreadable: str = ""

    @property
    def clock(self) -> Clock | None:
        """What its seconds are; None if that is not known or changed."""
        return of_events(self.clocks)


@dataclass
class _Events:
    """Events of one spool as they are read."""

    last: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    clocks: list[Mapping[str, Any]] = field(default_factory=list)
    usage: dict[str, float] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        name, data = record.get("name"), record.get("data")
        data = data if isinstance(data, dict) else {}
        if name == CLOCK:
            self.clocks.append(data)
        elif name == USAGE:
            for key, metric in _USAGE.items():
                self.usage[metric] = self.usage.get(metric, 0.0) + _number(data.get(key, 0.0))
        elif name in EVENTS and not record.get("rewound"):  # what a resume has undone did not happen
            self.last[name] = data

    def spool(self, steps: NDArray[np.int64], values: NDArray[np.float64], problems: Sequence[str] = ()) -> Spool:
        return Spool(steps, values, self.last, tuple(self.clocks), self.usage, tuple(problems))


def _number(value: Any) -> float:
    """A metric as written in the spool: a number, or "nan", "inf", "-inf"."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def read_spools(paths: Sequence[Path]) -> list[Spool]:
    """`read_spool` of each path, faster."""
    contents = [_content(path) for path in paths]
    lines = [_split(content) for content, _ in contents]
    plain = _plain_steps([metrics for metrics, _ in lines])
    found: list[Spool] = []
    for (content, unreadable), (_, events), table in zip(contents, lines, plain, strict=True):
        whole = _events(events) if table is not None else None
        if unreadable or table is None or whole is None:
            found.append(replace(parse_spool(content), unreadable=unreadable))
        else:
            found.append(whole.spool(*table))
    return found


def read_spool(path: Path) -> Spool:
    """Training metrics by step (the last record of a step counts) and events."""
    content, unreadable = _content(path)
    return replace(parse_spool(content), unreadable=unreadable)


def _content(path: Path) -> tuple[bytes, str]:
    """The file, empty without one, and why it cannot be read. The reason names no folder: it stands in tables."""
    try:
        return path.read_bytes(), ""
    except FileNotFoundError:
        return b"", ""
    except OSError as error:
        return b"", f"{path.name} cannot be read ({error.strerror or type(error).__name__})"


def entry(raw: bytes) -> dict[str, Any] | None:
    """One line as an object: metrics with a step and values, or another kind. None if it is torn or odd."""
    try:
        record = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(record, dict) or "kind" not in record:
        return None
    if record["kind"] == "metrics":
        step, values = record.get("step"), record.get("values")
        if not isinstance(step, int) or isinstance(step, bool) or not isinstance(values, dict):
            return None
    return record


def _lines(content: bytes) -> list[bytes]:
    """A last line without its end is a write that was cut off, which is normal after a crash, and is left out."""
    return content.split(b"\n")[:-1]


def _split(content: bytes) -> tuple[list[bytes], list[bytes]]:
    """Lines that may be metrics, and lines that may be events worth reading."""
    metrics, events = [], []
    for raw in _lines(content):
        if b'"metrics"' in raw:
            metrics.append(raw)
        if b'"event"' in raw and any(name in raw for name in _EVENT_BYTES):
            events.append(raw)
    return metrics, events


def _events(lines: Sequence[bytes]) -> _Events | None:
    """None if a line cannot be read."""
    found = _Events()
    for raw in lines:
        record = entry(raw)
        if record is None:
            return None
        if record["kind"] == "event":
            found.add(record)
    return found


Table = tuple[NDArray[np.int64], NDArray[np.float64]]


def _plain_steps(lines: Sequence[Sequence[bytes]]) -> list[Table | None]:
    """Steps and values of each file's lines; None where that takes a closer look."""
    table = _parsed([raw for each in lines for raw in each])
    if table is None:
        if len(lines) == 1:
            return [None]
        middle = len(lines) // 2  # the trouble is in a few files: find them
        return [*_plain_steps(lines[:middle]), *_plain_steps(lines[middle:])]
    chosen, steps, values = table
    known = np.isfinite(values).any(axis=1) & (steps >= 1)
    found: list[Table | None] = []
    end = 0
    for each in lines:
        start, end = end, end + len(each)
        rows = np.flatnonzero(chosen[start:end]) + start
        mine = steps[rows]
        found.append((mine, values[rows]) if known[rows].all() and (np.diff(mine) > 0).all() else None)
    return found


def _parsed(lines: Sequence[bytes]) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]] | None:
    """Whether each line is of kind metrics [N], steps [N] (0: none), values [N, METRICS]; None if Arrow cannot read."""
    if not lines:
        return np.empty(0, dtype=bool), np.empty(0, dtype=np.int64), np.empty((0, len(METRICS)))
    block = max(1 << 20, 4 * max(map(len, lines)))
    try:
        table = pj.read_json(
            pa.BufferReader(b"\n".join(lines)),
            read_options=pj.ReadOptions(use_threads=False, block_size=block),
            parse_options=pj.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowException:
        return None
    if table.num_rows != len(lines) or table["kind"].null_count:
        return None
    is_metrics = table["kind"].to_numpy(zero_copy_only=False) == "metrics"
    steps = table["step"].fill_null(0).to_numpy().astype(np.int64)
    columns = table["values"].combine_chunks().flatten()
    values = np.column_stack([column.to_numpy(zero_copy_only=False) for column in columns])  # null: NaN
    return is_metrics, steps, values


def parse_spool(content: bytes) -> Spool:
    """Line by line."""
    steps: dict[int, dict[int, float]] = {}
    events = _Events()
    repeated, broken = 0, 0
    for raw in _lines(content):
        is_metrics = b'"metrics"' in raw
        if not is_metrics and not any(name in raw for name in _EVENT_BYTES):
            continue
        record = entry(raw)
        if record is None:
            broken += 1
        elif record["kind"] == "event":
            events.add(record)
        elif record["kind"] == "metrics":
            found = record["values"]
            kept = {_POSITION[name]: _number(value) for name, value in found.items() if name in _POSITION}
            if kept and record["step"] >= 1:
                so_far = steps.setdefault(record["step"], {})
                repeated += not kept.keys().isdisjoint(so_far)  # a step may say what it measured in several records
                so_far.update(kept)
    problems = [f"{broken} unreadable lines in spool.jsonl"] if broken else []
    if repeated:
        problems.append(f"{repeated} training steps recorded more than once in spool.jsonl (the last record counts)")
    values = np.full((len(steps), len(METRICS)), np.nan)
    order = sorted(steps)
    for row, step in enumerate(order):
        values[row, list(steps[step])] = list(steps[step].values())
    return events.spool(np.array(order, dtype=np.int64), values, problems)
