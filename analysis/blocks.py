"""Cells -> tables of text: how numbers are written, and which columns each table has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.cells import (
    ALL,
    MEASURED,
    Cell,
    Metric,
    Status,
    bounds_over_planned,
    ordered_types,
    short_type,
)
from analysis.collect import Records
from analysis.curves import WINDOW, Budget
from analysis.plan import Line
from analysis.published import NOT_UNIQUE, PublishedRow
from analysis.render import LEFT, RIGHT, Block, Text
from analysis.text import bounded, half_width, number, p_value

Key = tuple[Line, str, Metric, str]
COST_COLUMNS = (
    (Metric.CPU, "CPU s, total"),
    (Metric.CPU_ROLLOUT, "sampling"),
    (Metric.CPU_ENV, "environment"),
    (Metric.CPU_TEACHER, "teacher"),
    (Metric.CPU_ANALYZER, "analyzer"),
    (Metric.CPU_UPDATE, "update"),
    (Metric.TOKENS_ROLLOUT, "rollout tokens"),
    (Metric.TOKENS_TEACHER, "teacher tokens"),
)


@dataclass(frozen=True)
class Tables:
    """All cells of a sweep.

    success, learning, costs: by line, place, metric and column; versus: reference row -> differences to it
    reference, untrained: row ids that differences are taken to
    complete: complete runs of each line; budgets: see curves.budgets
    codes: warnings by line and place (empty: about all its places)
    """

    records: Records
    reference: str
    untrained: str
    success: Mapping[Key, Cell]
    learning: Mapping[Key, Cell]
    costs: Mapping[Key, Cell]
    versus: Mapping[str, Mapping[Key, Cell]]
    published: Sequence[PublishedRow]
    complete: Mapping[Line, int]
    budgets: Mapping[tuple[str, str, float, str, str], Budget]
    codes: Mapping[tuple[Line, str], tuple[str, ...]]

    def label_of(self, row: str) -> str:
        return next((line.label for line in self.records.lines if line.row == row), row)

    def places(self) -> list[tuple[str, str]]:
        """Environment and `<panel>/<skills>`: without skills first, then by panel."""
        found = {(line.env, place) for line, place, _, _ in self.success}
        return sorted(found, key=lambda p: (p[0], not p[1].endswith("/off"), p[1]))

    def warned(self, cell: Cell) -> tuple[str, ...]:
        """Codes of the warnings about this cell's line and place."""
        if cell.line is None:
            return ()
        return tuple(sorted({*self.codes.get((cell.line, cell.place), ()), *self.codes.get((cell.line, ""), ())}))


def by_key(cells: Iterable[Cell]) -> dict[Key, Cell]:
    return {(c.line, c.place, c.metric, c.column): c for c in cells if c.line is not None}


# ---------------------------------------------------------------------------------------------- entries
def mark(tables: Tables, cell: Cell) -> str:
    """▲ or ▼ if the paired difference to the reference row is significant, else nothing."""
    metric = {Metric.MICRO: Metric.DIFFERENCE_MICRO, Metric.MACRO: Metric.DIFFERENCE_MACRO}.get(cell.metric)
    if metric is None or cell.line is None:
        return ""
    difference = tables.versus[tables.reference].get((cell.line, cell.place, metric, ALL))
    if difference is None or not difference.significant or difference.interval is None:
        return ""
    return "▲" if difference.interval.value > 0 else "▼"


def _entry(tables: Tables, cell: Cell | None, short: bool = False) -> Text:
    if cell is None:
        return Text("")
    sign = mark(tables, cell)
    text = half_width(cell) if short else bounded(cell, cell.interval)
    return Text(f"{text} {sign}".strip(), strong=sign == "▲", hint=cell.note)


# ---------------------------------------------------------------------------------------------- rows
def line_label(tables: Tables, line: Line) -> str:
    """The row's label, with whatever else tells its lines apart."""
    parts = [line.label]
    for name, text in (
        ("env", line.env),
        ("backbone", line.backbone),
        ("fraction", f"{line.fraction:.0%} of data"),
        ("scale", f"scale {line.scale}"),
        ("protocol", f"protocol {line.protocol}"),
    ):
        if name in tables.records.varying:
            parts.append(text)
    return " · ".join(parts)


def seeds_text(tables: Tables, cell: Cell) -> str:
    """Complete seeds behind the number, of those planned, and ! if a warning is about them."""
    n = cell.interval.n if cell.interval is not None else tables.complete.get(cell.line, 0) if cell.line else 0
    return f"{n}/{cell.n_planned}{' !' if tables.warned(cell) else ''}"


def prompt_text(cell: Cell) -> str:
    p = cell.protocol
    skills = cell.place.rpartition("/")[2]
    return (
        f"skills {skills} · {p['context']} · {p['prompt_protocol']} · T={p['temperature']}" if p else f"skills {skills}"
    )


# ---------------------------------------------------------------------------------------------- tables
def success_block(tables: Tables, env: str, place: str) -> Block:
    """Micro and macro success, then by task type, length, shares of refused steps, and what was measured."""
    keys = [key for key in tables.success if key[0].env == env and key[1] == place]
    types = ordered_types([column for _, _, metric, column in keys if metric == Metric.SUCCESS])
    columns = [
        (Metric.MICRO, ALL, "Micro %"),  # first: on a narrow page the rest has to be scrolled to
        (Metric.MACRO, ALL, "Macro %"),
        *((Metric.SUCCESS, t, f"{short_type(t)} %") for t in types),
        (Metric.LENGTH, ALL, "Steps"),
        (Metric.MALFORMED, ALL, "Malformed %"),
        (Metric.INADMISSIBLE, ALL, "Refused %"),
    ]
    rows = []
    for line in dict.fromkeys(key[0] for key in keys):
        micro = tables.success[line, place, Metric.MICRO, ALL]
        entries = [_entry(tables, tables.success.get((line, place, metric, column))) for metric, column, _ in columns]
        about = (
            line.backbone,
            str(micro.n_tasks or "–"),
            micro.protocol.get("panel_hash", "–")[:8],
            prompt_text(micro),
            micro.protocol.get("selection", "–"),
            f"{micro.status.value} ({line.scale})" if micro.status in MEASURED else micro.status.value,
        )
        seeds = Text(seeds_text(tables, micro), hint="; ".join(tables.warned(micro)))
        start = (Text(line_label(tables, line)), Text(line.kind), seeds)
        rows.append((*start, *entries, *(Text(a) for a in about)))
    panel, _, skills = place.rpartition("/")
    return Block(
        f"{env}: success on {panel}, skills {skills} in the prompt",
        (
            *("Row", "Kind", "Seeds"),
            *(name for _, _, name in columns),
            *("Backbone", "Tasks", "Panel", "Prompt", "Selection", "Status"),
        ),
        tuple(rows),
        "Mean over seeds [95 % interval]. Bold ▲: better than "
        f"{tables.label_of(tables.reference)}; ▼: worse (notes 3 and 4).",
        LEFT * 2 + RIGHT * (1 + len(columns)) + LEFT + RIGHT + LEFT * 4,
    )


def difference_block(tables: Tables, reference: str) -> Block:
    """Paired differences to one row, with both intervals and all p values."""
    cells = tables.versus[reference]
    rows = []
    for line, place in dict.fromkeys(key[:2] for key in cells):
        micro = cells[line, place, Metric.DIFFERENCE_MICRO, ALL]
        macro = cells[line, place, Metric.DIFFERENCE_MACRO, ALL]
        entries = [Text(line_label(tables, line)), Text(place.replace("/", ", skills ")), Text(str(micro.n_seeds))]
        for cell in (micro, macro):
            entries.append(Text(bounded(cell, cell.interval), strong=cell.significant, hint=cell.note))
            entries.append(Text((bounded(cell, cell.second).partition(" ")[2] if cell.second else "") or "–"))
            entries += [Text(p_value(cell.p_t)), Text(p_value(cell.p_holm))]
        smallest = f" (≥ {micro.p_smallest:.3g})" if not math.isnan(micro.p_smallest) else ""
        entries += [Text(p_value(micro.p_exact) + smallest), Text(micro.note)]
        rows.append(tuple(entries))
    four = ("bootstrap", "p (t)", "p (Holm)")
    return Block(
        f"Paired differences to {tables.label_of(reference)}, in points",
        ("Row", "Panel", "Pairs", "Δ micro", *four, "Δ macro", *four, "p exact, micro (smallest)", "Remark"),
        tuple(rows),
        "Per seed and task: mean [95 % t interval over seeds], bootstrap interval over seeds and tasks, p values.",
        LEFT * 2 + RIGHT * 10 + LEFT,
    )


def learning_block(tables: Tables) -> Block:
    """Training success first and last, areas, their differences, and what training changed on each panel."""
    label = tables.label_of(tables.reference)
    untrained = tables.versus.get(tables.untrained, {})
    columns = [
        (Metric.TRAIN_FIRST, f"First {WINDOW} steps, %"),
        (Metric.TRAIN_LAST, f"Last {WINDOW} steps, %"),
        (Metric.AREA_STEPS, "Area, equal steps %"),
        (Metric.AREA_CPU, "Area, equal CPU %"),
        (Metric.DIFFERENCE_AREA_STEPS, f"Δ area, equal steps, to {label}"),
        (Metric.DIFFERENCE_AREA_CPU, f"Δ area, equal CPU, to {label}"),
    ]
    rows = []
    lines = list(dict.fromkeys(key[0] for key in tables.learning))
    training = set(lines)
    there = {place for line, place, _, _ in untrained if line in training}
    shown = [place for place in dict.fromkeys(place for _, place in tables.places()) if place in there]
    for line in lines:
        cells = [tables.learning.get((line, "train", metric, ALL)) for metric, _ in columns]
        cells += [untrained.get((line, place, Metric.DIFFERENCE_MICRO, ALL)) for place in shown]
        entries = (Text(bounded(c, c.interval), strong=c.significant, hint=c.note) if c else Text("") for c in cells)
        first = tables.learning[line, "train", Metric.TRAIN_FIRST, ALL]
        rows.append((Text(line_label(tables, line)), Text(seeds_text(tables, first)), *entries))
    trained = (f"Trained − {tables.label_of(tables.untrained)}, {p.replace('/', ', skills ')}" for p in shown)
    return Block(
        "Learning curves, and what training changed",
        ("Row", "Seeds", *(name for _, name in columns), *trained),
        tuple(rows),
        "Success of training rollouts in per cent, mean over seeds [95 % t interval]; differences in points, paired by "
        "seed (and by task on the panels, micro). Bold: the interval excludes zero (note 3).",
    )


def cost_block(tables: Tables) -> Block:
    """CPU time and tokens of training."""
    rows = []
    for line in dict.fromkeys(key[0] for key in tables.costs):
        cells = [tables.costs[line, "train", metric, ALL] for metric, _ in COST_COLUMNS]
        entries = (Text(bounded(cell, cell.interval), hint=cell.note) for cell in cells)
        rows.append((Text(line_label(tables, line)), Text(seeds_text(tables, cells[0])), *entries))
    return Block(
        "Cost of training, per run",
        ("Row", "Seeds", *(name for _, name in COST_COLUMNS)),
        tuple(rows),
        "Mean [smallest–largest] over complete seeds: process CPU seconds, and tokens in thousands.",
    )


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
        f"Not complete: {len(rows)} of {len(cells)} planned runs",
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
            found.append(f"{line_label(tables, line)}, {place.replace('/', ', skills ')}: {span}")
    start = " Micro success in per cent over all planned seeds, had the missing ones solved nothing or everything: "
    return f"{start}{'; '.join(found)}." if found else ""


def published_block(tables: Tables, why: str) -> Block | None:
    """What the papers print, beside the row that it belongs to; None if nothing of the sweep was published."""
    if not tables.published:
        return None
    metrics = [(Metric.SUCCESS, t, f"{t} %") for t in ("Pick", "Look", "Clean", "Heat", "Cool", "Pick2")]
    metrics += [(Metric.MICRO, ALL, "Micro %"), (Metric.MACRO, ALL, "Macro %")]
    rows = []
    for row in tables.published:
        cells = [row.cell(metric, column) for metric, column, _ in metrics]
        numbers = [_foreign(cell) for cell in cells]
        source = next(cell.source for cell in row.cells)
        status = next(cell.status.value for cell in row.cells)
        about = (row.panel, source, status, row.provenance)
        start = (Text(tables.label_of(row.beside)), Text(row.method, foreign=True), Text(row.backbone, foreign=True))
        rows.append((*start, *numbers, Text("n/a", hint=why), *(Text(a, foreign=True) for a in about)))
    return Block(
        "Published numbers beside ours: another scale, not comparable",
        (
            *("Our row", "Paper's row", "Backbone"),
            *(name for _, _, name in metrics),
            *("Δ ours − theirs", "Split", "Source", "Status", "Provenance"),
        ),
        tuple(rows),
        f"In italics: numbers of other people. Δ is n/a everywhere: {why}. ‡: derived from the printed cells, never "
        "published; ≈: the most likely of several values that fit them (note 11).",
        LEFT * 3 + RIGHT * len(metrics) + LEFT * 5,
    )


def published_value(cell: Cell | None) -> str:
    """A number of other people; ‡ where it was derived, ≈ where other values fit as well."""
    if cell is None or cell.interval is None:
        return "–"
    text = number(cell.interval.value, cell.unit)
    if cell.status != Status.DERIVED:
        return text
    return f"{'≈' if cell.note.startswith(NOT_UNIQUE) else ''}{text}‡"


def _foreign(cell: Cell | None) -> Text:
    return Text(published_value(cell), foreign=True, hint=f"{cell.source}; {cell.note}" if cell else "")
