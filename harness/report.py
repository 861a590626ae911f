"""What `do=plan` and `do=status` print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harness.errors import describe
from harness.plan import Plan, missing
from harness.registry import method_spec
from harness.stages import Cell
from harness.states import COMPLETE, FAILED, INTERRUPTED, PENDING, STATES, RunState

_PLACE = ("row", "env", "backbone", "fraction", "seed", "run")


def cell_label(plan: Plan, cell: Cell) -> str:
    """How progress and errors call a cell: its row, and whatever else varies within the plan."""
    several = plan.varying
    parts = [plan.labels[cell.row.id], *(["(teacher)"] if cell.stage else [])]
    parts += [str(getattr(cell.point, name)) for name in ("env", "backbone") if name in several]
    parts += [f"fraction {cell.point.fraction:g}"] if "fraction" in several else []
    return " ".join([*parts, f"seed {cell.point.seed}"])


def plan_text(plan: Plan, state_of: Mapping[str, str]) -> str:
    """The selected cells with their states and what the missing ones are expected to cost, then what rows change."""
    header = (*_PLACE, "state", "CPU hours", "after")
    rows = [(*_place(c), state_of[c.fingerprint], _hours(c.expected_seconds), _after(plan, c)) for c in plan.selected]
    todo = missing(plan, state_of)
    lines = [f"{plan.title}: {_counts(plan, state_of)}", "", *_columns(_filled([header, *rows])), ""]
    protocols = sorted({cell.config.protocol for cell in plan.selected})
    lines.append(f"protocol: {', '.join(protocols)}")
    lines.append(f"{len(todo)} to run; expected CPU time: {_total(todo)}")
    warned = warnings(plan)
    return "\n".join([*lines, *([""] if warned else []), *warned, *_delta_lines(plan)])


def warnings(plan: Plan) -> list[str]:
    """What methods say of the selected runs as they are planned (MethodSpec.warn), each thing once."""
    from harness.record import planned_steps

    found: dict[str, None] = {}
    for cell in plan.selected:
        warn = method_spec(cell.config.method.name).warn
        if warn is not None and (said := warn(cell.config.method, planned_steps(cell.config))):
            found[f"warning: {said}"] = None
    return list(found)


def waiting(plan: Plan, state_of: Mapping[str, str]) -> dict[str, str]:
    """Fingerprint -> why a selected cell cannot start yet, for those that wait for the weights of another."""
    found: dict[str, str] = {}
    for cell in plan.selected:
        lacking = [name for name in cell.requires if state_of[name] != COMPLETE]
        if lacking and state_of[cell.fingerprint] in (PENDING, INTERRUPTED, FAILED):
            told = ", ".join(f"{cell_label(plan, plan.cell(name))} ({name}): {state_of[name]}" for name in lacking)
            found[cell.fingerprint] = f"waits for its teacher, {told}"
    return found


def _after(plan: Plan, cell: Cell) -> str:
    """Rows whose runs must be complete before."""
    return ", ".join(plan.cell(name).row.id for name in cell.requires)


def _delta_lines(plan: Plan) -> list[str]:
    """What each selected row with a base changes in it; said once where it is the same everywhere."""
    lines: list[str] = []
    for row in plan.sweep.rows:
        cells = [cell for cell in plan.selected if cell.row.id == row.id and not cell.stage]
        if row.base is None or not cells:
            continue
        versions: dict[str, list[str]] = {}
        for cell in cells:
            place = f"{cell.point.env}, {cell.point.backbone}"
            text = "\n".join(_changes(cell, plan))
            if place not in versions.setdefault(text, []):
                versions[text].append(place)
        for text, places in versions.items():
            where = "" if len(versions) == 1 else f" ({'; '.join(places)})"
            lines += [f"  {row.id} against {row.base}{where}", *text.splitlines()]
    return ["", "what rows change in their base (base -> row)", *lines] if lines else []


def _changes(cell: Cell, plan: Plan) -> list[str]:
    """A line per key that differs from the base row; the protocol's say so."""
    # What the protocol decides in the base alone differs here, too, unless it is the row's own difference.
    place = (cell.point.env, cell.point.backbone)
    bases = (c for c in plan.cells if c.row.id == cell.row.base and (c.point.env, c.point.backbone) == place)
    declared = tuple(f"{key}." for key in cell.row.delta)
    of_base = next((c.preset for c in bases), ())
    preset = {key for key in of_base if not f"{key}.".startswith(declared)} | set(cell.preset)
    rows = [
        (f"    {key}", f"{describe(before)} -> {describe(now)}", "from protocol" if key in preset else "")
        for key, (before, now) in cell.changed.items()
    ]
    return _columns(rows) if rows else ["    nothing"]


def status_text(
    plan: Plan,
    states: Mapping[str, RunState],
    jobs: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> str:
    """The selected cells as their run directories say, with the reason where one failed.

    jobs: fingerprint -> number and state of a scheduler's job; notes: what is to be said about it.
    """
    header = [*_PLACE, "state", "steps", "evaluated", *(["job"] if jobs else []), "after"]
    rows = []
    reasons = [f"{cell_label(plan, plan.cell(name))}: {note}" for name, note in (notes or {}).items()]
    for cell in plan.selected:
        state = states[cell.fingerprint]
        steps = f"{state.last_step}/{state.planned_steps}" if state.planned_steps else "-"
        done = f"{len(state.evaluations)}/{len(state.declared)}" if state.declared else "-"
        job = [jobs.get(cell.fingerprint, "")] if jobs else []
        rows.append((*_place(cell), state.state, steps, done, *job, _after(plan, cell)))
        if state.error:
            reasons.append(f"{cell_label(plan, cell)} ({plan.runs / cell.fingerprint}): {state.error}")
    state_of = {name: state.state for name, state in states.items()}
    reasons += [f"{cell_label(plan, plan.cell(name))}: {why}" for name, why in waiting(plan, state_of).items()]
    counts = _counts(plan, state_of)
    table = _columns(_filled([tuple(header), *rows]))
    return "\n".join([f"{plan.title}: {counts}", "", *table, *([""] if reasons else []), *reasons])


def _place(cell: Cell) -> tuple[str, ...]:
    """Which cell it is, under the headings of _PLACE."""
    config, point = cell.config, cell.point
    return (
        f"{cell.row.id} (teacher)" if cell.stage else cell.row.id,
        config.env.name,
        config.backbone.name,
        f"{point.fraction:g}",
        str(point.seed),
        cell.fingerprint,
    )


def _counts(plan: Plan, state_of: Mapping[str, str]) -> str:
    found = Counter(state_of[cell.fingerprint] for cell in plan.selected)
    told = ", ".join(f"{found[state]} {state}" for state in STATES if found[state])
    outside = sum(not cell.selected and not cell.stage for cell in plan.cells)
    teachers = sum(cell.stage for cell in plan.selected)
    also = f" ({outside} more in the sweep, not selected)" if outside else ""
    only = f", {teachers} only as {'a teacher' if teachers == 1 else 'teachers'} of others" if teachers else ""
    return f"{len(plan.selected)} cells, {told}{also}{only}"


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


def _filled(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Without a last column that says nothing."""
    return rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
