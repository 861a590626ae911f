"""The files of one run directory, as they are: training metrics, events, episodes, state. Reads, never runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from analysis.code import codes_of_run
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
# Parts of the CPU time of one training step, in the order of the cost table.
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


@dataclass(frozen=True, slots=True)
class Spool:
    """What the tables need of one spool.jsonl.

    steps [N] rising; values [N, METRICS], NaN: not recorded; events: EVENTS -> data of the last one of that name
    problems: what was wrong with the file
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    events: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def _number(value: Any) -> float:
    """A metric as written in the spool: a number, or "nan", "inf", "-inf"."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def read_spool(path: Path) -> Spool:
    """Training metrics by step (the last record of a step counts) and events.

    A last line without its end is a write that was cut off, which is normal after a crash, and is left out.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    steps: dict[int, dict[int, float]] = {}
    events: dict[str, Mapping[str, Any]] = {}
    repeated, broken = 0, 0
    for raw in data.split(b"\n")[:-1]:
        is_metrics = b'"metrics"' in raw
        if not is_metrics and not any(name.encode() in raw for name in EVENTS):
            continue
        try:
            record = json.loads(raw)
        except ValueError:
            broken += 1
            continue
        if record.get("kind") == "event" and record.get("name") in EVENTS:
            events[record["name"]] = record.get("data") or {}
        if record.get("kind") != "metrics":
            continue
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
    return Spool(np.array(order, dtype=np.int64), values, events, tuple(problems))


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


def joined_episodes(tables: Mapping[int, pa.Table]) -> tuple[pa.Table, list[int], list[tuple[int, str]]]:
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


def read_state(folder: Path) -> tuple[dict[str, Any], list[str]]:
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
