"""Tables about methods: what a row changes against its base, and how runs parted from their teachers."""

from __future__ import annotations

import json
import math
from typing import Any

from analysis.blocks import DIFFERENCE_HEADER, difference_entries
from analysis.cells import ALL, Metric
from analysis.plan import Line
from analysis.render import LEFT, RIGHT, Block, Text
from analysis.retirement import Retirement, course_text
from analysis.tableset import Tables, about, line_label
from analysis.text import number

SHOWN = 6  # changed keys printed; the rest is counted, and told in the tooltip and the CSV


def _value(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value, ensure_ascii=False)


def changes_of(line: Line) -> list[str]:
    """`key: base -> here`, for each key that differs from the base row."""
    hidden = {"method.teacher.source"} if "method.teacher.run" in line.changed else set()
    return [
        f"{key}: {_value(before)} → {_value(now)}{' (protocol)' if key in line.preset else ''}"
        for key, (before, now) in line.changed.items()
        if key not in hidden
    ]


def ablation_block(tables: Tables) -> Block | None:
    """Every row that has a base: what it changes, and its paired difference to the base."""
    cells = tables.versus_base
    rows = []
    for line, place in dict.fromkeys(key[:2] for key in cells):
        micro = cells[line, place, Metric.DIFFERENCE_MICRO, ALL]
        macro = cells[line, place, Metric.DIFFERENCE_MACRO, ALL]
        changes = changes_of(line)
        more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        told = "; ".join(changes[:SHOWN]) + more or "–"
        start = (
            Text(line_label(tables, line, place, letters=True)),
            Text(about(place)),
            Text(tables.label_of(line.base or "")),
            Text(told, hint="; ".join(changes) if more else ""),
            Text(str(micro.n_seeds)),
        )
        rows.append((*start, *difference_entries(micro, macro)))
    if not rows:
        return None
    return Block(
        "Each row against its base: what it changes, and what that does, in points",
        ("Row", "Panel", "Base", "Changed: base → here", "Pairs", *DIFFERENCE_HEADER),
        tuple(rows),
        "All settings that differ between a row and its base are listed; everything else is equal. Paired by seed and "
        "task: mean [95 % t interval over seeds], bootstrap interval over seeds and tasks, p values (Holm over this "
        "table). Bold: both intervals exclude zero (note 3).",
        LEFT * 4 + RIGHT * 10 + LEFT,
    )


def retirement_block(tables: Tables) -> Block | None:
    """One line per run that has a teacher of other weights."""
    rows = []
    complete = tables.records.cells["complete"].to_numpy(dtype=bool)
    for line, runs in tables.retired.items():
        for run in runs:
            label = line_label(tables, tables.records.lines[line])
            state = "" if complete[run.cell] else " (not complete)"
            rows.append((Text(label), Text(f"{run.seed}{state}"), *_retirement(run)))
    if not rows:
        return None
    return Block(
        "Retirement of teachers, run by run",
        (
            *("Row", "Seed", "Retired after step", "Teacher %", "Weight of its term", "Policy then %"),
            *("Teacher rows after", "K", "K, last window", "Progress", "Competence"),
        ),
        tuple(rows),
        "Teacher: success of the frozen teacher with skills in its prompt on the validation panel, measured before the "
        "first step. Policy then: success of the policy on that panel at retirement (of runs that never retired: last "
        "measured). Teacher rows after: sequences scored under the teacher after its retirement, which must be 0; "
        "▲ marks any other number. K: mean gap of log-probabilities per token, in nats, of the last step with the "
        "teacher and of its last window; progress and competence: the two criteria then.",
        LEFT + RIGHT * 3 + LEFT + RIGHT * 6,
    )


def _retirement(run: Retirement) -> list[Text]:
    after = "–" if math.isnan(run.rows_after) else f"{run.rows_after:,.0f}"
    if run.step is None:
        step = f"never (of {run.last})"
    else:
        step = str(run.step)
        after = "not recorded" if math.isnan(run.rows_after) else after
    return [
        Text(step),
        Text(_or_dash(run.teacher, "%")),
        Text(course_text(run)),
        Text(_or_dash(run.success, "%")),
        Text(f"{after} ▲" if run.touched else after, strong=bool(run.touched), hint=", ".join(run.touched)),
        *(Text(_or_dash(value, "nats")) for value in (run.gap, run.window_gap)),
        *(Text(_or_dash(value, "share")) for value in (run.progress, run.competence)),
    ]


def _or_dash(value: float, unit: str) -> str:
    return "–" if math.isnan(value) else number(value, unit)
