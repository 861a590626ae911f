"""The tables in short, for a terminal: per environment one line per row and one group of columns per panel."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.blocks_published import difference, published_value
from analysis.blocks_runs import completeness_block
from analysis.cells import ALL, Cell, Metric
from analysis.curves import WINDOW
from analysis.footnotes import CANCELS, CANCELS_TEXT
from analysis.notes import lead, notes, title
from analysis.plan import Line
from analysis.published import same_model
from analysis.render import LEFT, RIGHT, Block, Document, Text
from analysis.setting_notes import setting_short
from analysis.tableset import Tables, line_label, mark, seeds_text
from analysis.text import bounded, half_width, listed

TERMINAL_BACKBONE = "Qwen2.5-3B-Instruct"
WIDEST = 4  # columns of differences that fit a terminal


def terminal(tables: Tables) -> Document:
    """The same numbers, short: one line per row, one group of columns per panel."""
    made: list[Block | None] = []
    for env in sorted({env for env, _ in tables.panels()}):
        made += [_short_success(tables, env), *_short_differences(tables, env)]
    made += [_short_learning(tables), _short_published(tables)]
    done = completeness_block(tables)
    made.append(done and Block(done.title, done.header[:6], tuple(r[:6] for r in done.rows), "", done.align[:6]))
    warnings = tuple(warning.message for warning in tables.records.warnings)
    every = notes(tables)
    brief = (
        f"± is the half-width of the 95 % t interval over seeds; ᵉ evaluation-only (one seed, or equal seeds). ▲▼: "
        f"differs from {tables.label_of(tables.reference)}, both intervals of the paired difference exclude zero.",
        every[3],
        setting_short(tables.records),
    )
    footed = (CANCELS_TEXT,) if any(CANCELS in marks for marks in tables.footnotes.marks.values()) else ()
    return Document(
        title(tables.records), lead(tables), tuple(b for b in made if b is not None), warnings, brief, footed
    )


def _panels(tables: Tables, env: str) -> list[str]:
    return [panel for of_env, panel in tables.panels() if of_env == env]


def _keys(tables: Tables, env: str) -> list[tuple[Line, str]]:
    """The environment's lines, once for each way in which skills were shown."""
    found = ((line, place.rpartition("/")[2]) for line, place, _, _ in tables.success if line.env == env)
    return list(dict.fromkeys(found))


def _named(text: str, tables: Tables, env: str) -> str:
    return f"{env}: {text}" if "env" in tables.records.varying else text[0].upper() + text[1:]


def _short_success(tables: Tables, env: str) -> Block | None:
    keys = _keys(tables, env)
    panels = _panels(tables, env)
    metrics = {Metric.MICRO: "micro %", Metric.MACRO: "macro %"}
    metrics |= {Metric.SCORE: "score"} if tables.scored(env) else {}
    rows = []
    about: dict[str, str] = {}
    for line, skills in keys:
        entries: list[Text] = []
        seeds = ""
        for panel in panels:
            for metric in metrics:
                cell = tables.success.get((line, f"{panel}/{skills}", metric, ALL))
                sign = mark(tables, cell) if cell else ""
                entries.append(Text(f"{half_width(cell)} {sign}".rstrip() if cell else ""))
                if cell and metric == Metric.MICRO:
                    seeds = seeds_text(tables, cell)
                    if cell.protocol:
                        about.setdefault(panel, f"{cell.n_tasks} tasks, panel {cell.protocol['panel_hash'][:8]}")
        label = line_label(tables, line, f"{panels[0]}/{skills}", env=False)
        rows.append((Text(label), Text(skills), Text(seeds), *entries))
    if not rows:
        return None
    header = ("Row", "Skills", "Seeds", *(f"{p} {kind}" for p in panels for kind in metrics.values()))
    told = "; ".join(f"{panel}: {text}" for panel, text in about.items())
    name = _named("success, mean over seeds", tables, env)
    return Block(name, header, tuple(rows), told, LEFT * 2 + RIGHT * (1 + len(metrics) * len(panels)))


def _short_differences(tables: Tables, env: str) -> list[Block]:
    """One block, or one for each row compared with where all columns together would not fit."""
    panels = _panels(tables, env)
    rows = [row for row in tables.versus if tables.versus[row]]
    together = len(rows) * len(panels) <= WIDEST
    found = (_differences(tables, env, group) for group in ([rows] if together else [[row] for row in rows]))
    return [block for block in found if block is not None]


def _differences(tables: Tables, env: str, versus: Sequence[str]) -> Block | None:
    panels = _panels(tables, env)
    columns = [(row, panel) for row in versus for panel in panels]
    rows = []
    for line, skills in _keys(tables, env):
        cells = [
            tables.versus[row].get((line, f"{panel}/{skills}", Metric.DIFFERENCE_MICRO, ALL)) for row, panel in columns
        ]
        if any(cells):
            texts = (Text(bounded(c, c.interval) + ("*" if c.note else "") if c else "") for c in cells)
            rows.append((Text(line_label(tables, line, f"{panels[0]}/{skills}", env=False)), *texts))
    if not rows:
        return None
    header = ("Row", *(f"− {tables.label_of(row)}, {panel}" for row, panel in columns))
    starred = any(entry.text.endswith("*") for row in rows for entry in row)
    told = "* not comparable, another prompt, or a task type with one task only: see the files." if starred else ""
    name = _named("paired differences, micro, points [95 % t interval over seeds]", tables, env)
    return Block(name, header, tuple(rows), told)


def _short_learning(tables: Tables) -> Block | None:
    seconds = tables.seconds
    on_gpus = any(key[2] == Metric.GPU_HOURS for key in tables.costs)
    columns = [
        (tables.learning, Metric.TRAIN_FIRST, ALL, f"first {WINDOW} steps, %"),
        (tables.learning, Metric.TRAIN_LAST, ALL, f"last {WINDOW} steps, %"),
        (tables.learning, Metric.AREA_STEPS, ALL, "area, steps %"),
        (tables.learning, Metric.AREA_TIME, ALL, f"area, {seconds or 'time'} %"),
        (tables.costs, Metric.TIME, ALL, f"{seconds} s".strip()),
        *([(tables.costs, Metric.GPU_HOURS, ALL, "GPU h")] if on_gpus else []),
        (tables.costs, Metric.COST_RATIO, ALL, f"× {tables.label_of(tables.reference)} per step"),
        (tables.costs, Metric.COST_STEP, "tokens_rescored", "rescored per step"),
    ]
    rows = []
    for line in dict.fromkeys(key[0] for key in tables.learning):
        cells = [(source.get((line, "train", metric, column)), source) for source, metric, column, _ in columns]
        texts = [
            Text("" if c is None else half_width(c) if s is tables.learning else _value(c, not seconds))
            for c, s in cells
        ]
        rows.append((Text(line_label(tables, line)), *texts))
    header = ("Row", *(name for *_, name in columns))
    return Block("Training: success of rollouts, and cost per run", header, tuple(rows)) if rows else None


def _value(cell: Cell, mixed: bool) -> str:
    """mixed: seconds of several kinds stand in one column."""
    text = bounded(cell, cell.interval).partition(" ")[0]
    return f"{text} {cell.unit}" if mixed and cell.metric == Metric.TIME and cell.interval else text


def _short_published(tables: Tables) -> Block | None:
    """Published rows of the sweep's own models, or else of one."""
    ours = {line.backbone for line in tables.records.lines}
    known = [row for row in tables.published if any(same_model(row.backbone, each) for each in ours)]
    shown = known or [row for row in tables.published if row.backbone == TERMINAL_BACKBONE]
    several = len({row.env for row in shown}) > 1
    rows, given = [], False
    for row in shown:
        texts = [published_value(row.cell(metric)) for metric in (Metric.SCORE, Metric.MICRO, Metric.MACRO)]
        status = next(cell.status.value for cell in row.cells)
        delta, _ = difference(tables, row)
        given = given or bool(delta)
        about = f"{row.env} {row.panel}" if several else row.panel
        texts += [about, f"{delta or 'n/a'}, {status} from {row.cells[0].source}"]
        method = row.method if len({each.backbone for each in shown}) == 1 else f"{row.method}, {row.backbone}"
        rows.append((Text(tables.label_of(row.beside)), *(Text(text) for text in (method, *texts))))
    if not rows:
        return None
    what = "under other rules of evaluation" if given else "not comparable (reasons in the files)"
    header: tuple[str, ...] = ("Our row", "Paper's row", "score", "micro %", "macro %", "panel", "Δ and source")
    if all(row[2].text == "–" for row in rows):
        header, rows = (*header[:2], *header[3:]), [(*row[:2], *row[3:]) for row in rows]
    return Block(
        f"Published, {listed(dict.fromkeys(row.backbone for row in shown))}: {what}; ‡ derived, never published; ≈ not "
        "unique",
        header,
        tuple(rows),
        "",
        LEFT * 2 + RIGHT * (len(header) - 4) + LEFT * 2,
    )
