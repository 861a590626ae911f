"""The audit of published tables as a document: `python -m analysis audit > docs/audit.md`."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.audit import (
    BAMBOOGLE,
    BATCH,
    EPISODES,
    QUESTIONS,
    AlfworldRow,
    SearchRow,
    alfworld,
    can_share_games,
    counts,
    fractions,
    is_count,
    macro,
    search,
    shared_between_papers,
)
from analysis.cells import Metric
from analysis.published import PAPER
from analysis.render import LEFT, RIGHT, Block, Text, markdown_block

OWN = "OPID"  # the paper's own method
HEAD = f"""# Audit of published tables

Written by `python -m analysis audit > docs/audit.md` from `analysis/reference/published_results.csv` alone; a test
compares. Everything below is arithmetic on cells that {PAPER} prints (in the last section also on averages
that other papers print). A printed cell has one decimal, so it stands for any share within 0.05 points of it, and all
counts that could have been printed so were tried. Nothing here says why a number is what it is."""


def render() -> str:
    """The whole document, Markdown. The same file gives the same bytes."""
    first = alfworld("Table 1")
    rows = [*first, *alfworld("Table 2"), *alfworld("Table 3"), *alfworld("Table 8")]
    questions = search()
    parts = [HEAD, *_summary(first, questions)]
    for block in (
        _kinds(rows),
        _impossible(rows),
        _data_fractions(),
        _one_rule(first),
        _other_tables([row for row in rows if row.table != "Table 1"]),
        _games(first),
        _bamboogle(questions),
        _imported(first),
        _between_papers(),
    ):
        parts += markdown_block(block)
    return "\n\n".join(parts) + "\n"


def _t(*texts: object) -> tuple[Text, ...]:
    return tuple(Text(str(text)) for text in texts)


def _name(row: AlfworldRow | SearchRow) -> str:
    return f"{row.method}, {row.backbone}"


def _kind(row: AlfworldRow) -> str:
    return "macro" if row.kind == Metric.MACRO else "micro"


def _summary(first: Sequence[AlfworldRow], questions: Sequence[SearchRow]) -> list[str]:
    by_kind = {kind: [r for r in first if _kind(r) == kind] for kind in ("macro", "micro")}
    artefact = [r for r in questions if r.batch_mean is not None]
    proper = [r for r in questions if is_count(r.bamboogle, BAMBOOGLE)]
    own = [r for r in by_kind["macro"] if r.method == OWN]
    odd = [r for r in by_kind["micro"] if not r.fits_episodes]
    points = [
        f"ALFWorld, Table 1: the column Avg is the macro mean over task types in {len(by_kind['macro'])} rows, which "
        f"are the {len(own)} of {OWN}, and the episode mean (micro) in the other {len(by_kind['micro'])}.",
        f"{len(odd)} of those {len(by_kind['micro'])} print an average to which no number of {EPISODES} episodes "
        "rounds.",
        f"Search: {len(artefact)} of {len(questions)} Bamboogle cells are the unweighted mean of a batch of "
        f"{BAMBOOGLE - QUESTIONS % BATCH} questions and a batch of {QUESTIONS % BATCH}; {len(proper)} are a share of "
        f"{BAMBOOGLE} questions (a cell of 0.0 is both).",
        f"{sum(r.imported for r in first)} of {len(first)} rows of Table 1 are recorded as equal, cell by cell, to "
        "those of an earlier paper.",
    ]
    return ["\n".join(f"- {point}" for point in points)]


def _kinds(rows: Sequence[AlfworldRow]) -> Block:
    return Block(
        "ALFWorld: two averages under one name",
        ("Table", "Row", "Avg as printed", "Macro of its cells", "Printed − macro", "So Avg is"),
        tuple(
            _t(
                row.table,
                _name(row),
                f"{row.average:.1f}",
                f"{macro(row.cells):.2f}",
                f"{row.average - macro(row.cells):+.2f}".replace("-", "−"),
                _kind(row),
            )
            for row in rows
        ),
        "An average within 0.1 points of the unweighted mean of its own six cells is called macro (0.05 for its own "
        "rounding, 0.05 for theirs), any other micro. In a row that could be either, macro is printed here.",
        LEFT * 2 + RIGHT * 3 + LEFT,
    )


def _impossible(rows: Sequence[AlfworldRow]) -> Block:
    found = []
    for row in rows:
        if row.fits_episodes:
            continue
        n, cut = row.episodes, row.cut_off
        nearest = round(row.average * n / 100)
        told = f"{nearest}/{n} = {100 * nearest / n:.2f}"
        found.append(
            _t(row.table, _name(row), f"{row.average:.1f}", _kind(row), told, f"yes, {cut}/{n}" if cut else "no")
        )
    return Block(
        "ALFWorld: averages that no number of episodes gives",
        ("Table", "Row", "Avg", "It is", "Nearest count", "If digits were cut off"),
        tuple(found),
        "128 episodes (Table 8: 134). Macro means need not be such a share; micro means must be. “If digits were cut "
        "off”: whether truncation instead of rounding would explain the number.",
        LEFT * 2 + RIGHT + LEFT + RIGHT + LEFT,
    )


def _data_fractions() -> Block:
    rows = []
    for method, share, value in fractions():
        fitting = counts(value, EPISODES)
        told = ", ".join(f"{k}/{EPISODES}" for k in fitting) or "none"
        rows.append(_t(method, share, f"{value:.1f}", told))
    return Block(
        "Table 7: one curve, two averages",
        ("Method", "Data", "Avg", "Episodes that fit"),
        tuple(rows),
        f"Points that fit a number of {EPISODES} episodes beside one that does not: the last point of {OWN} is the "
        "macro mean of Table 1, so the last step of its curve mixes two definitions.",
        LEFT * 2 + RIGHT * 2,
    )


def _one_rule(first: Sequence[AlfworldRow]) -> Block:
    rows = []
    for backbone in dict.fromkeys(row.backbone for row in first):
        mine = [row for row in first if row.backbone == backbone]
        own = next(row for row in mine if row.method == OWN)
        for row in sorted(mine, key=lambda r: -macro(r.cells)):
            span = row.micro
            if _kind(row) == "micro":
                micro = f"{row.average:.1f}"
            else:
                micro = "none fits" if span is None else f"{span[0]:.1f} to {span[1]:.1f}"
            gap = macro(own.cells) - macro(row.cells)
            printed = own.average - row.average
            rows.append(
                _t(
                    backbone,
                    row.method,
                    f"{row.average:.1f}",
                    f"{macro(row.cells):.1f}",
                    micro,
                    "" if row is own else f"{printed:+.1f}".replace("-", "−"),
                    "" if row is own else f"{gap:+.1f}".replace("-", "−"),
                )
            )
    return Block(
        "ALFWorld, Table 1: the averages under one rule",
        ("Backbone", "Row", "Avg as printed", "Macro", "Micro", f"{OWN} ahead, as printed", f"{OWN} ahead, macro"),
        tuple(rows),
        "By macro mean. Macro: of the printed cells, for every row. Micro: as printed, or the least and largest number "
        f"of {EPISODES} episodes that fits the cells of a row that prints its macro mean.",
        LEFT * 2 + RIGHT * 5,
    )


def _other_tables(rows: Sequence[AlfworldRow]) -> Block:
    found = []
    for row in rows:
        span = row.micro
        micro = "no choice of games fits the cells" if span is None else f"{span[0]:.1f} to {span[1]:.1f}"
        found.append(_t(row.table, _name(row), f"{row.average:.1f}", f"{macro(row.cells):.1f}", micro))
    return Block(
        "ALFWorld, the other tables: what their episode means could be",
        ("Table", "Row", "Avg as printed", "Macro", "Micro"),
        tuple(found),
        "These tables print macro means. Under the rule of the other rows of Table 1 their averages would lie in the "
        "column Micro: the least and largest number of episodes that fits the cells.",
        LEFT * 2 + RIGHT * 3,
    )


def _games(first: Sequence[AlfworldRow]) -> Block:
    rows = []
    for backbone in dict.fromkeys(row.backbone for row in first):
        mine = [row for row in first if row.backbone == backbone]
        grpo, own = (next(row for row in mine if row.method == name) for name in ("GRPO", OWN))
        for row in mine:
            told = ("yes" if can_share_games([row.cells, other.cells], EPISODES) else "no" for other in (grpo, own))
            possible = "yes" if row.micro is not None else "no"
            rows.append(_t(backbone, row.method, possible, *told))
    return Block(
        "ALFWorld, Table 1: could rows have been evaluated on the same games?",
        (
            "Backbone",
            "Row",
            f"Cells fit {EPISODES} games",
            "Same games as GRPO possible",
            f"Same games as {OWN} possible",
        ),
        tuple(rows),
        f"Whether one number of games per task type, {EPISODES} in all, could have given both rows' cells. “no” is "
        "proof, if cells are rounded, that the games differed; “yes” is no proof that they were the same.",
        LEFT * 2 + LEFT * 3,
    )


def _bamboogle(questions: Sequence[SearchRow]) -> Block:
    rest = BAMBOOGLE - QUESTIONS % BATCH
    rows = []
    for row in questions:
        found = row.batch_mean
        share = ", ".join(f"{k}/{BAMBOOGLE}" for k in counts(row.bamboogle, BAMBOOGLE)) or "–"
        rows.append(
            _t(
                _name(row),
                f"{row.bamboogle:.1f}",
                f"({found[0]}/{rest} + {found[1]}) / 2" if found else "–",
                share,
                f"{row.pooled:.1f}",
                f"{row.average:.1f}",
                f"{row.pooled_average:.1f}",
            )
        )
    return Block(
        "Search, Table 1: the column Bamboogle",
        (
            "Row",
            "Printed",
            "As a mean of two batches",
            f"As a share of {BAMBOOGLE}",
            "Pooled",
            "Avg printed",
            "Avg pooled",
        ),
        tuple(rows),
        f"The test set has {QUESTIONS:,} questions, Bamboogle's {BAMBOOGLE} last; batches of {BATCH} leave "
        f"{QUESTIONS % BATCH} for the last one. An unweighted mean over batches then makes that question worth 50 "
        "points of Bamboogle and 7 points of the average. Pooled: all questions alike. Avg pooled: mean of the seven "
        "data sets with that number; where the cell is a share already, it is the printed one.",
        LEFT + RIGHT * 6,
    )


def _imported(first: Sequence[AlfworldRow]) -> Block:
    rows = []
    for backbone in dict.fromkeys(row.backbone for row in first):
        mine = [row for row in first if row.backbone == backbone]
        own = next(row for row in mine if row.method == OWN)
        imported = [row for row in mine if row.imported]
        apart = [row for row in imported if not can_share_games([row.cells, own.cells], EPISODES)]
        kinds = sum(_kind(row) == "micro" for row in imported)
        rows.append(_t(backbone, len(mine), len(imported), kinds, len(apart)))
    return Block(
        "Table 1: rows of another paper",
        ("Backbone", "Rows", "Recorded as imported", "of those: Avg is micro", f"of those: cannot share {OWN}'s games"),
        tuple(rows),
        "The reference file records which rows equal, cell by cell, those of SDAR's table (arXiv:2605.15155); that "
        f"comparison was made by eye and is not repeated here. What the cells show by themselves: exactly these rows "
        f"average otherwise than {OWN}'s, and none of them can have been evaluated on the games of {OWN}'s row.",
        LEFT + RIGHT * 4,
    )


def _between_papers() -> Block:
    return Block(
        "Averages that two papers share to the last digit",
        ("Method", "Backbone", "Environment", "Success %", "Printed in", "and in"),
        tuple(_t(s.method, s.backbone, s.what, f"{s.value:.1f}", s.first, s.second) for s in shared_between_papers()),
        "A run repeated elsewhere would hardly give the same average, so such a row was most likely taken over. Column "
        "Avg on ALFWorld, success on WebShop; numbers of arXiv:2505.10978 and 2609.20784 were read second-hand.",
        LEFT * 3 + RIGHT + LEFT * 2,
    )
