"""Tables of success, of differences, and of learning: how numbers are written, and which columns each table has."""

from __future__ import annotations

import math

from analysis.cells import ALL, MEASURED, Cell, Metric, ordered_types, short_type
from analysis.curves import WINDOW
from analysis.render import LEFT, RIGHT, Block, Text
from analysis.tableset import Tables, about, line_label, seeds_text, success_entry
from analysis.text import bounded, p_value


def prompt_text(cell: Cell) -> str:
    p = cell.protocol
    skills = cell.place.rpartition("/")[2]
    return (
        f"skills {skills} · {p['context']} · {p['prompt_protocol']} · T={p['temperature']}" if p else f"skills {skills}"
    )


def success_block(tables: Tables, env: str, panel: str) -> Block:
    """Micro and macro success, the score where there is one, success by type, length, refused steps, what was measured.

    A row that was evaluated both without and with skills in its prompt has two lines, the second with a star.
    """
    places = tables.places(env, panel)
    here = f"{panel}/"
    of_types = {c for line, place, _, c in tables.success if c != ALL and line.env == env and place.startswith(here)}
    types = ordered_types(sorted(of_types))
    columns = [
        (Metric.MICRO, ALL, "Micro %"),  # first: on a narrow page the rest has to be scrolled to
        (Metric.MACRO, ALL, "Macro %"),
        *([(Metric.SCORE, ALL, "Score")] if tables.scored(env) else []),
        *((Metric.SUCCESS, t, f"{short_type(t)} %") for t in types),
        (Metric.LENGTH, ALL, "Steps"),
        (Metric.MALFORMED, ALL, "Malformed %"),
        (Metric.INADMISSIBLE, ALL, "Refused %"),
    ]
    rows = []
    for line, place in places:
        micro = tables.success[line, place, Metric.MICRO, ALL]
        cells = [tables.success.get((line, place, metric, column)) for metric, column, _ in columns]
        told = (
            line.backbone,
            str(micro.n_tasks or "–"),
            micro.protocol.get("panel_hash", "–")[:8],
            prompt_text(micro),
            micro.protocol.get("selection", "–"),
            f"{micro.status.value} ({line.scale})" if micro.status in MEASURED else micro.status.value,
        )
        seeds = Text(seeds_text(tables, micro), hint="; ".join(tables.warned(micro)))
        start = (Text(line_label(tables, line, place, letters=True)), Text(line.kind), seeds)
        rows.append((*start, *(success_entry(tables, cell) for cell in cells), *(Text(a) for a in told)))
    return Block(
        f"{env}: success on {panel}",
        (
            *("Row", "Kind", "Seeds"),
            *(name for _, _, name in columns),
            *("Backbone", "Tasks", "Panel", "Prompt", "Selection", "Status"),
        ),
        tuple(rows),
        "Mean over seeds [95 % interval]. Bold ▲: better than "
        f"{tables.label_of(tables.reference)}; ▼: worse (notes 3 and 4). A star marks the same runs as the row above, "
        f"evaluated with skills in the prompt.{' Score: 0 to 100, no rate (note 5).' if tables.scored(env) else ''}",
        LEFT * 2 + RIGHT * (1 + len(columns)) + LEFT + RIGHT + LEFT * 4,
    )


FOUR = ("bootstrap", "p (t)", "p (Holm)")


def difference_entries(micro: Cell, macro: Cell) -> list[Text]:
    """Δ with its intervals and p values, for both averages; then the exact p with its smallest value, remark."""
    entries = []
    for cell in (micro, macro):
        entries.append(Text(bounded(cell, cell.interval), strong=cell.significant, hint=cell.note))
        entries.append(Text((bounded(cell, cell.second).partition(" ")[2] if cell.second else "") or "–"))
        entries += [Text(p_value(cell.p_t)), Text(p_value(cell.p_holm))]
    smallest = f" (≥ {micro.p_smallest:.3g})" if not math.isnan(micro.p_smallest) else ""
    return [*entries, Text(p_value(micro.p_exact) + smallest), Text(micro.note)]


DIFFERENCE_HEADER = ("Δ micro", *FOUR, "Δ macro", *FOUR, "p exact, micro (smallest)", "Remark")


def difference_block(tables: Tables, reference: str) -> Block:
    """Paired differences to one row, with both intervals and all p values."""
    cells = tables.versus[reference]
    rows = []
    for line, place in dict.fromkeys(key[:2] for key in cells):
        micro = cells[line, place, Metric.DIFFERENCE_MICRO, ALL]
        macro = cells[line, place, Metric.DIFFERENCE_MACRO, ALL]
        start = (Text(line_label(tables, line, place)), Text(about(place)), Text(str(micro.n_seeds)))
        rows.append((*start, *difference_entries(micro, macro)))
    return Block(
        f"Paired differences to {tables.label_of(reference)}, in points",
        ("Row", "Panel", "Pairs", *DIFFERENCE_HEADER),
        tuple(rows),
        "Per seed and task: mean [95 % t interval over seeds], bootstrap interval over seeds and tasks, p values.",
        LEFT * 2 + RIGHT * 10 + LEFT,
    )


def learning_block(tables: Tables) -> Block:
    """Training success first and last, areas, their differences, and what training changed on each panel."""
    label = tables.label_of(tables.reference)
    untrained = tables.versus.get(tables.untrained, {})
    equal = f"equal {tables.seconds} time".replace("  ", " ")
    columns = [
        (Metric.TRAIN_FIRST, f"First {WINDOW} steps, %"),
        (Metric.TRAIN_LAST, f"Last {WINDOW} steps, %"),
        (Metric.AREA_STEPS, "Area, equal steps %"),
        (Metric.AREA_TIME, f"Area, {equal} %"),
        (Metric.DIFFERENCE_AREA_STEPS, f"Δ area, equal steps, to {label}"),
        (Metric.DIFFERENCE_AREA_TIME, f"Δ area, {equal}, to {label}"),
    ]
    rows = []
    lines = list(dict.fromkeys(key[0] for key in tables.learning))
    training = set(lines)
    there = {place for line, place, _, _ in untrained if line in training}
    shown = sorted(there, key=lambda place: (not place.endswith("/off"), place))
    for line in lines:
        cells = [tables.learning.get((line, "train", metric, ALL)) for metric, _ in columns]
        cells += [untrained.get((line, place, Metric.DIFFERENCE_MICRO, ALL)) for place in shown]
        entries = (Text(bounded(c, c.interval), strong=c.significant, hint=c.note) if c else Text("") for c in cells)
        first = tables.learning[line, "train", Metric.TRAIN_FIRST, ALL]
        rows.append((Text(line_label(tables, line)), Text(seeds_text(tables, first)), *entries))
    trained = (f"Trained − {tables.label_of(tables.untrained)}, {about(p)}" for p in shown)
    return Block(
        "Learning curves, and what training changed",
        ("Row", "Seeds", *(name for _, name in columns), *trained),
        tuple(rows),
        "Success of training rollouts in per cent, mean over seeds [95 % t interval]; differences in points, paired by "
        "seed (and by task on the panels, micro). Bold: the interval excludes zero (note 3).",
    )
