"""Tables about runs: what they cost, and which of them are not complete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from analysis.cells import ALL, Cell, Metric, bounds_over_planned
from analysis.costs import TIME_ITEMS, WORK_ITEMS
from analysis.plan import Line
from analysis.render import LEFT, RIGHT, Block, Text
from analysis.tableset import Tables, about, line_label, seeds_text, success_entry
from analysis.text import bounded, number

NOT_COMPLETE = "Not complete"
GPU_COLUMNS = ((Metric.GPU_HOURS, "GPU h, run"), (Metric.GPU_HOURS_WITH_TEACHER, "GPU h, with its teacher's run"))
_SECONDS = {
    "CPU": "process CPU seconds, environments in processes of their own left out",
    "wall": "wall seconds; GPU h: wall hours times the GPUs that the run holds while it trains",
    "": "rows whose runs were not measured with one clock, so that their seconds have no mean",
}


def time_blocks(tables: Tables) -> list[Block]:
    """The score, seconds per training step with their parts, and totals: a table for each kind of seconds."""
    by_kind: dict[str, list[Line]] = {}
    everywhere = tables.seconds or "CPU"
    for line in dict.fromkeys(key[0] for key in tables.costs):
        clock = tables.clocks.get(line)
        kind = everywhere if line not in tables.clocks else clock.name if clock else ""
        by_kind.setdefault(kind, []).append(line)
    return [_time_block(tables, kind, lines) for kind, lines in by_kind.items()]


def _time_block(tables: Tables, kind: str, lines: Sequence[Line]) -> Block:
    label = tables.label_of(tables.reference)
    on_gpus = [pair for pair in GPU_COLUMNS if any((line, "train", pair[0], ALL) in tables.costs for line in lines)]
    wanted = [(Metric.COST_RATIO, ALL), *((Metric.COST_STEP, item.column) for item in TIME_ITEMS)]
    wanted += [(metric, ALL) for metric in (*(metric for metric, _ in on_gpus), Metric.TIME, Metric.TIME_WITH_TEACHER)]
    unit = f"{kind} s".strip()
    headers = [f"× {label}", unit, *(item.header for item in TIME_ITEMS[1:]), *(name for _, name in on_gpus)]
    headers += [f"{unit}, run", "with its teacher's run"]
    return _block(
        tables,
        f"Cost of training: {f'{kind} seconds'.strip()} per step, beside the score",
        headers,
        wanted,
        f"Mean [smallest–largest] over complete seeds: {_SECONDS[kind]}; per training step, the ratio to {label}'s "
        "in the same seed, and the whole run, alone and with the runs whose final weights it needs (a teacher that "
        "several rows share counts in full in each). Success as in the tables above.",
        lines,
    )


def work_block(tables: Tables) -> Block:
    """Tokens, rows and analyzer calls per training step."""
    return _block(
        tables,
        "Work per training step",
        [item.header for item in WORK_ITEMS],
        [(Metric.COST_STEP, item.column) for item in WORK_ITEMS],
        "Mean [smallest–largest] over complete seeds, tokens in thousands. Teacher rows: sequences scored under a "
        "teacher; tokens rescored: response tokens that got a teacher's score. Analyzer tokens: prompts and answers. "
        "Analyzer: everything asked for the run, also in steps that failed or that a resume did again, over its steps.",
        dict.fromkeys(key[0] for key in tables.costs),
    )


def _block(
    tables: Tables,
    title: str,
    headers: Sequence[str],
    wanted: Sequence[tuple[Metric, str]],
    caption: str,
    lines: Iterable[Line],
) -> Block:
    panels = tables.panels()
    rows = []
    for line in lines:
        cells = [tables.costs.get((line, "train", metric, column)) for metric, column in wanted]
        entries = (Text(bounded(cell, cell.interval), hint=cell.note) if cell else Text("–") for cell in cells)
        scores = (success_entry(tables, _score(tables, env, panel, line)) for env, panel in panels)
        total = tables.costs[line, "train", Metric.TIME, ALL]
        rows.append((Text(line_label(tables, line)), Text(seeds_text(tables, total)), *scores, *entries))
    several = len({env for env, _ in panels}) > 1
    scored = [f"{f'{env}, ' if several else ''}{panel}, micro %" for env, panel in panels]
    return Block(title, ("Row", "Seeds", *scored, *headers), tuple(rows), caption)


def _score(tables: Tables, env: str, panel: str, line: Line) -> Cell | None:
    """Micro success of the line, without skills if it was evaluated so."""
    if line.env != env:
        return None
    found = (tables.success.get((line, f"{panel}/{skills}", Metric.MICRO, ALL)) for skills in ("off", "on"))
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
