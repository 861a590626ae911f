"""What `do=plan` and `do=status` print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harness.plan import Cell, Plan
from harness.states import COMPLETE, STATES, RunState

_PLACE = ("row", "env", "backbone", "fraction", "seed", "run")


def cell_label(plan: Plan, cell: Cell) -> str:
    """How progress and errors call a cell: its row, and whatever else varies within the plan."""
    several = {
        name for name in ("env", "backbone", "fraction") if len({getattr(c.point, name) for c in plan.cells}) > 1
    }
    parts = [plan.labels[cell.row.id]]
    parts += [str(getattr(cell.point, name)) for name in ("env", "backbone") if name in several]
    parts += [f"fraction {cell.point.fraction:g}"] if "fraction" in several else []
    return " ".join([*parts, f"seed {cell.point.seed}"])


def plan_text(plan: Plan, state_of: Mapping[str, str]) -> str:
    """The selected cells with their states, and what the missing ones are expected to cost."""
    header = (*_PLACE, "state", "CPU hours")
    rows = [(*_place(c), state_of[c.fingerprint], _hours(c.expected_seconds)) for c in plan.selected]
    missing = [cell for cell in plan.selected if state_of[cell.fingerprint] != COMPLETE]
    lines = [f"{plan.title}: {_counts(plan, state_of)}", "", *_columns([header, *rows]), ""]
    lines.append(f"{len(missing)} to run; expected CPU time: {_total(missing)}")
    return "\n".join(lines)


def status_text(plan: Plan, states: Mapping[str, RunState]) -> str:
    """The selected cells as their run directories say, with the reason where one failed."""
    header = (*_PLACE, "state", "steps", "evaluated")
    rows = []
    reasons = []
    for cell in plan.selected:
        state = states[cell.fingerprint]
        steps = f"{state.last_step}/{state.planned_steps}" if state.planned_steps else "-"
        done = f"{len(state.evaluations)}/{len(state.declared)}" if state.declared else "-"
        rows.append((*_place(cell), state.state, steps, done))
        if state.error:
            reasons.append(f"{cell_label(plan, cell)} ({plan.runs / cell.fingerprint}): {state.error}")
    counts = _counts(plan, {name: state.state for name, state in states.items()})
    return "\n".join([f"{plan.title}: {counts}", "", *_columns([header, *rows]), *([""] if reasons else []), *reasons])


def _place(cell: Cell) -> tuple[str, ...]:
    """Which cell it is, under the headings of _PLACE."""
    config, point = cell.config, cell.point
    return (
        cell.row.id,
        config.env.name,
        config.backbone.name,
        f"{point.fraction:g}",
        str(point.seed),
        cell.fingerprint,
    )


def _counts(plan: Plan, state_of: Mapping[str, str]) -> str:
    found = Counter(state_of[cell.fingerprint] for cell in plan.selected)
    told = ", ".join(f"{found[state]} {state}" for state in STATES if found[state])
    outside = len(plan.cells) - len(plan.selected)
    also = f" ({outside} more in the sweep, not selected)" if outside else ""
    return f"{len(plan.selected)} cells, {told}{also}"


def _hours(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds / 3600:.2f}"


def _total(cells: Sequence[Cell]) -> str:
    known = [cell.expected_seconds for cell in cells if cell.expected_seconds is not None]
    unknown = len(cells) - len(known)
    if not cells:
        return "none"
    told = f"{sum(known) / 3600:.2f} hours" if known else ""
    rest = f"unknown for {unknown} cells" if unknown else ""
    return ", ".join(part for part in (told, rest) if part)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
