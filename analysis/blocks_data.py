"""Tables about data: other panels, fractions of the training tasks or steps, and aggregates over task types."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.aggregates import EVERYWHERE
from analysis.cells import ALL, Cell, Metric
from analysis.fractions import counted
from analysis.generalisation import OTHERS, SEEN
from analysis.render import LEFT, RIGHT, Block, Text
from analysis.tableset import Tables, about, line_label
from analysis.text import bounded, p_value


def _entry(cell: Cell | None) -> Text:
    return Text("") if cell is None else Text(bounded(cell, cell.interval), strong=cell.significant, hint=cell.note)


def _seeds(tables: Tables, cells: Sequence[Cell], scores: Sequence[Cell | None]) -> str:
    """The fewest seeds behind any of the cells, of those planned, and ! if a warning is about a score under them."""
    warned = any(tables.warned(score) for score in scores if score is not None)
    return f"{min(cell.n_seeds for cell in cells)}/{cells[0].n_planned}{' !' if warned else ''}"


def gap_block(tables: Tables) -> Block | None:
    """Success on seen, unseen and held-out tasks by the same checkpoints, and the gaps; None without such panels."""
    others = [other for other in OTHERS if any(key[3] == other for key in tables.gaps)]
    rows = []
    for line, place in dict.fromkeys(key[:2] for key in tables.gaps):
        skills = place.rpartition("/")[2]
        scores = [tables.success.get((line, f"{p}/{skills}", Metric.MICRO, ALL)) for p in (SEEN, *others)]
        gaps = [tables.gaps.get((line, place, Metric.GAP, other)) for other in others]
        known = [gap for gap in gaps if gap is not None]
        tests = (Text(p_value(gap.p_holm) if gap else "") for gap in gaps)
        # A score is not bold here: only the gaps are differences.
        shown = (Text("" if s is None else bounded(s, s.interval), hint=s.note if s else "") for s in scores)
        start = (Text(line_label(tables, line, place)), Text(skills), Text(_seeds(tables, known, scores)))
        rows.append((*start, *shown, *map(_entry, gaps), *tests))
    if not rows:
        return None
    names = [other.replace("_", " ") for other in others]
    return Block(
        "Out of distribution: the same checkpoints on other tasks",
        (
            *("Row", "Skills", "Seeds", "Seen, micro %", *(f"{name.capitalize()}, micro %" for name in names)),
            *(f"Seen − {name}" for name in names),
            *(f"p (Holm), {name}" for name in names),
        ),
        tuple(rows),
        "Gaps in points, paired by seed: mean [95 % t interval over seeds]; a positive gap is what is lost on the "
        "other tasks. The panels hold different tasks, so a gap also holds how hard they are: compare gaps between "
        "rows. Held out: task types that no training task has. Bold: the interval excludes zero (note 3).",
        LEFT * 2 + RIGHT * (2 + 3 * len(others)),
    )


def fraction_block(tables: Tables) -> Block | None:
    """Success by fraction of the training tasks or steps, with the area; None unless fractions differ."""
    fractions = sorted({fraction for curve in tables.curves for fraction in curve.lines})
    what = counted(tables.records.lines[line] for curve in tables.curves for line in curve.lines.values())
    told = {
        "tasks": "fractions are nested: each run is trained on so much of one order of the tasks, for all steps",
        "steps": "each run is trained for so much of the steps, on all tasks",
    }
    label = tables.label_of(tables.reference)
    rows = []
    for curve in tables.curves:
        line = tables.records.lines[curve.last]
        area = tables.fractions[line, curve.place, Metric.AREA_FRACTIONS, curve.column]
        change = tables.fractions.get((line, curve.place, Metric.DIFFERENCE_AREA_FRACTIONS, curve.column))
        found: list[Cell | None] = []
        for fraction in fractions:
            at = curve.lines.get(fraction)
            key = None if at is None else (tables.records.lines[at], curve.place, Metric.MICRO, ALL)
            found.append(tables.success.get(key) if key else None)
        scores = (Text("" if s is None else bounded(s, s.interval), hint=s.note if s else "") for s in found)
        start = (
            line_label(tables, line, curve.place, fraction=False),
            about(curve.place),
            _seeds(tables, [area], found),
        )
        last = Text(p_value(change.p_holm) if change else "")
        rows.append((*map(Text, start), *scores, _entry(area), _entry(change), last))
    if not rows:
        return None
    shown = {"tasks": "data"}.get(what, what)
    return Block(
        f"Sample efficiency: success by fraction of the training {what}",
        (
            *("Row", "Panel", "Seeds", *(f"{fraction:.0%} of {shown}" for fraction in fractions)),
            *("Area %", f"Δ area to {label}", "p (Holm)"),
        ),
        tuple(rows),
        "Micro success in per cent, mean over seeds [95 % interval]; "
        f"{'; '.join(told[each] for each in what.split(' or '))}. Area: under each seed's own curve over the range of "
        "fractions (trapezoids, linear axis), mean over seeds that are complete on every fraction and were measured "
        "alike on all of them [95 % t interval]; nothing is interpolated over a missing run. Seeds: those behind the "
        "area. Bold: the interval excludes zero (note 3).",
        LEFT * 2 + RIGHT * (4 + len(fractions)),
    )


def aggregate_block(tables: Tables) -> Block | None:
    """Interquartile mean, probability of improvement, detectable difference; None unless a row has three seeds."""
    label = tables.label_of(tables.reference)
    rows = []
    for line, place, column in dict.fromkeys((key[0], key[1], key[3]) for key in tables.aggregates):
        metrics = (Metric.IQM, Metric.IMPROVEMENT, Metric.DETECTABLE)
        cells = [tables.aggregates.get((line, place, metric, column)) for metric in metrics]
        here = next(cell for cell in cells if cell is not None)
        # A row over all environments says where it was evaluated in each of them.
        where = f"{EVERYWHERE} ({here.note})" if column == EVERYWHERE else f"{line.env}, {about(place)}"
        name = line_label(tables, line, place, env=False)
        told = "" if column == EVERYWHERE or not here.note else f" ({here.note})"
        rows.append((Text(name), Text(where + told), Text(str(here.n_seeds)), *map(_value, cells)))
    if not rows:
        return None
    return Block(
        "Aggregates over task types, and what these seeds can find",
        ("Row", "Where", "Seeds", "Interquartile mean %", f"P(better than {label}) %", "Detectable Δ, points"),
        tuple(rows),
        "For rows with three seeds or more. A score is one run's success on one task type. Interquartile mean: without "
        "the lowest and highest quarter of scores (of fewer than four, all count); P: that a run beats one "
        "of the other row, mean over task types, ties half (50: no difference), where both were evaluated alike, with "
        "skills in the prompt or without. Intervals: 95 % percentiles of whole runs drawn again, too narrow with few "
        f"seeds. Detectable: smallest micro difference to {label} that a paired t test over these seeds would find in "
        "four of five cases, from the spread of their differences; smaller ones were out of reach.",
        LEFT * 2 + RIGHT * 4,
    )


def _value(cell: Cell | None) -> Text:
    if cell is None:
        return Text("–")
    return Text(bounded(cell, cell.interval).lstrip("+"), hint=cell.note)


def data_blocks(tables: Tables) -> Sequence[Block | None]:
    return (gap_block(tables), fraction_block(tables), aggregate_block(tables))
