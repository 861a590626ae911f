"""Tables about runs: what they cost, and which of them are not complete."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.cells import ALL, Cell, Metric, bounds_over_planned
from analysis.costs import CPU_ITEMS, WORK_ITEMS
from analysis.render import LEFT, RIGHT, Block, Text
from analysis.tableset import Tables, about, line_label, seeds_text, success_entry
from analysis.text import bounded, number

NOT_COMPLETE = "Not complete"
RUN_COLUMNS = (
    (Metric.CPU, "CPU s, run"),
    (Metric.CPU_WITH_TEACHER, "with its teacher's run"),
)


def cpu_block(tables: Tables) -> Block:
    """The score, CPU seconds per training step with their parts, and totals."""
    label = tables.label_of(tables.reference)
    wanted = [(Metric.COST_RATIO, ALL), *((Metric.COST_STEP, item.column) for item in CPU_ITEMS)]
    wanted += [(metric, ALL) for metric, _ in RUN_COLUMNS]
    headers = [f"× {label}", *(item.header for item in CPU_ITEMS), *(name for _, name in RUN_COLUMNS)]
    return _block(
        tables,
        "Cost of training: CPU seconds per step, beside the score",
        headers,
        wanted,
        f"Mean [smallest–largest] over complete seeds: process CPU seconds per training step, its ratio to {label}'s "
        "in the same seed, and the whole run, alone and with the runs whose final weights it needs (a teacher that "
        "several rows share counts in full in each). Success as in the tables above.",
    )


def work_block(tables: Tables) -> Block:
    """Tokens, rows and analyzer calls per training step."""
    return _block(
        tables,
        "Work per training step",
        [item.header for item in WORK_ITEMS],
        [(Metric.COST_STEP, item.column) for item in WORK_ITEMS],
        "Mean [smallest–largest] over complete seeds, tokens in thousands. Teacher rows: sequences scored under a "
        "teacher; tokens rescored: response tokens that got a teacher's score. Analyzer tokens: prompts and answers.",
    )


def _block(
    tables: Tables, title: str, headers: Sequence[str], wanted: Sequence[tuple[Metric, str]], caption: str
) -> Block:
    panels = tables.panels()
    rows = []
    for line in dict.fromkeys(key[0] for key in tables.costs):
        cells = [tables.costs[line, "train", metric, column] for metric, column in wanted]
        entries = (Text(bounded(cell, cell.interval), hint=cell.note) for cell in cells)
        scores = (success_entry(tables, _score(tables, env, panel, cells[0])) for env, panel in panels)
        rows.append((Text(line_label(tables, line)), Text(seeds_text(tables, cells[-1])), *scores, *entries))
    several = len({env for env, _ in panels}) > 1
    scored = [f"{f'{env}, ' if several else ''}{panel}, micro %" for env, panel in panels]
    return Block(title, ("Row", "Seeds", *scored, *headers), tuple(rows), caption)


def _score(tables: Tables, env: str, panel: str, cost: Cell) -> Cell | None:
    """Micro success of the line, without skills if it was evaluated so."""
    if cost.line is None or cost.line.env != env:
        return None
    found = (tables.success.get((cost.line, f"{panel}/{skills}", Metric.MICRO, ALL)) for skills in ("off", "on"))
    return next((cell for cell in found if cell is not None), None)


def completeness_block(tables: Tables) -> Block | None:
    """Every planned run that is not complete, with its state and the reason; None if there is none."""
    cells = tables.records.cells
    rows = []
    columns = ("line", "seed", "state", "last_step", "planned_steps", "failure_class", "error", "fingerprint")
    for values in cells.loc[~cells["complete"].to_numpy(dtype=bool), list(columns)].itertuples(index=False):
        line, seed, state, last, planned, failure, error, name = values
        steps = f"{last}/{planned}" if planned else "–"
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= 200 else reason[:199] + "…"
        texts = (line_label(tables, tables.records.lines[line]), str(seed), state, steps, failure or "–", reason, name)
        rows.append(tuple(Text(str(t)) for t in texts))
    if not rows:
        return None
    return Block(
        f"{NOT_COMPLETE}: {len(rows)} of {len(cells)} planned runs",
        ("Row", "Seed", "State", "Steps", "Failure", "Reason", "Run"),
        tuple(rows),
        "These runs are in no number above." + _over_planned(tables),
        LEFT + RIGHT + LEFT + RIGHT + LEFT * 3,
    )


def _over_planned(tables: Tables) -> str:
    """What the missing seeds could have changed, for every place where some of a row's seeds are there."""
    found = []
    for (line, place, metric, _), cell in tables.success.items():
        ends = bounds_over_planned(cell)
        if ends and metric == Metric.MICRO:
            span = f"{number(ends[0], cell.unit)}–{number(ends[1], cell.unit)}"
            found.append(f"{line_label(tables, line, place)}, {about(place)}: {span}")
    start = " Micro success in per cent over all planned seeds, had the missing ones solved nothing or everything: "
    return f"{start}{'; '.join(found)}." if found else ""
