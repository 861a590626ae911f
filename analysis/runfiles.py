"""The files of one run directory, as they are: state and episodes. Reads, never runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.code import codes_of_run
from harness.claim import FREE, UNKNOWN, ClaimStatus, inspect
from harness.files import RecordError, read_json_object
from harness.states import CLAIM_NAME, COMPLETE, RUNNING, RunState, derive_state, judge_state, stored_state

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


def read_episodes(path: Path) -> tuple[pa.Table | None, list[str]]:
    """Episode records with EPISODE_SCHEMA's columns (types as written), or None and why. No file: None, no reason."""
    try:
        # Small files: threads within one, and fetching ahead, cost more than they save.
        with pq.ParquetFile(path, pre_buffer=False) as file:
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


RECORDED_AS_RUNNING = "recorded as running"


def read_state(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What is known of a run, its state as `do=status` judges it: by what is recorded and by who holds the claim.

    A run recorded as running without a living holder is interrupted; where the holder cannot be judged, as from another
    machine, it is RECORDED_AS_RUNNING. Recorded as complete with something missing is failed.
    """
    try:
        provenance = read_json_object(folder / "provenance.json")
        state = _judged(folder)
        codes = codes_of_run(folder, provenance or {})
    except RecordError as error:
        return {"state": "unreadable"}, [str(error.__cause__ or error)]
    values = {
        "state": state.state,
        "last_step": state.last_step,
        "planned_steps": state.planned_steps,
        "error": state.error or "",
        "failure_class": state.failure_class or "",
        "declared": state.declared,
        "evaluations": state.evaluations,
        "codes": codes,
    }
    return values, []


def _judged(folder: Path) -> RunState:
    stored = stored_state(folder)
    if stored.state == COMPLETE or not folder.is_dir():
        return judge_state(stored, ClaimStatus(FREE, None, ""))  # whoever holds it changes nothing
    state = derive_state(folder)
    if state.state == RUNNING and inspect(folder / CLAIM_NAME).status == UNKNOWN:
        return replace(state, state=RECORDED_AS_RUNNING)
    return state
