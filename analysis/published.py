"""Numbers other people published, as cells that can never be taken for ours."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from analysis import stats
from analysis.cells import ALL, Cell, Metric, Status
from analysis.plan import Line

REFERENCE = Path(__file__).with_name("reference") / "published_results.csv"
PAPER = "arXiv:2606.26790"
TYPES = ("Pick", "Look", "Clean", "Heat", "Cool", "Pick2")
# Columns of Search-QA's tables -> task types of ours.
DATA_SETS = {
    **{"NQ": "nq", "TriviaQA": "triviaqa", "PopQA": "popqa", "HotpotQA": "hotpotqa"},
    **{"2WikiMultiHopQA": "2wikimultihopqa", "MuSiQue": "musique", "Bamboogle": "bamboogle"},
}
NOT_UNIQUE = "most likely of several"  # how the note of a derived number begins if others fit the cells as well
# Each row of Table 8 alone fits several choices of games; all three together fit one.
JOINT = f"{NOT_UNIQUE}: the cells of this row alone fit several, those of all rows of the table together this one, if "
JOINT += "they played the same games"
# Averages and cells are rounded to 0.1: a macro mean of six rounded cells may be off by 0.05 + 0.05.
ROUNDING = 0.1 + 1e-9

# Row id of ours -> rows as the paper calls them, and whether skills are in their evaluation prompt.
BESIDE: Mapping[str, tuple[tuple[str, str], ...]] = {
    "vanilla": (("Vanilla", "off"),),
    "vanilla_skill": (("Skill-Prompt*", "on"),),
    "grpo": (("GRPO", "off"),),
    "skill_grpo": (("Skill-GRPO", "off"), ("Skill-GRPO*", "on")),
    "opsd": (("OPSD", "off"),),
    "opsd_released": (("OPSD", "off"),),
    "grpo_opsd": (("GRPO+OPSD", "off"),),
    "grpo_opsd_released": (("GRPO+OPSD", "off"),),
    "skill_sd": (("Skill-SD", "off"),),
    "rlsd": (("RLSD", "off"),),
    "sdar": (("SDAR", "off"),),
    "opid": (("OPID", "off"),),
    "opid_no_episode": (("w/o episode skill", "off"),),
    "opid_no_step": (("w/o step skill", "off"),),
    "opid_additive": (("w/o Routing", "off"),),
}
# Rows of ours with another loss than the released code, which made the published numbers -> the row that has that loss.
OTHER_LOSS: Mapping[str, str] = {"opsd": "opsd_released", "grpo_opsd": "grpo_opsd_released"}
TABLES = (("Table 1", "seen", ""), ("Table 8", "unseen", "unseen:"))  # table, panel, prefix of its columns
ABLATIONS = (("Table 2", "seen", ""), ("Table 3", "seen", ""))  # also repeat rows of Table 1


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of a published table.

    env: as we call it; beside: our row id; panel, skills: where ours stands; cells: by task type, and averages, of
    which ALFWorld's second is derived, or absent; provenance: where the row comes from, in words
    """

    env: str
    method: str
    backbone: str
    table: str
    panel: str
    skills: str
    beside: str
    cells: tuple[Cell, ...]
    provenance: str

    def cell(self, metric: Metric, column: str = ALL) -> Cell | None:
        return next((c for c in self.cells if c.metric == metric and c.column == column), None)


@lru_cache(maxsize=1)
def published_numbers() -> tuple[Mapping[str, str], ...]:
    """The rows of the reference file, as text. Values are per cent where the metric is a rate."""
    with REFERENCE.open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def published_rows(lines: Sequence[Line]) -> list[PublishedRow]:
    """Published rows that stand beside rows of this sweep, by environment."""
    return [*alfworld_rows(lines), *_plain_rows(lines, "webshop"), *_plain_rows(lines, "search_qa")]


_THEIRS = {"webshop": "WebShop", "search_qa": "Search-QA"}


def alfworld_rows(lines: Sequence[Line]) -> list[PublishedRow]:
    """Published ALFWorld rows that stand beside rows of this sweep, in the order of our rows, then table, backbone."""
    here = dict.fromkeys(line.row for line in lines if line.env == "alfworld" and not line.stage)
    rows: list[PublishedRow] = []
    for row in here:
        for method, skills in BESIDE.get(row, ()):
            for table, panel, prefix in ABLATIONS if method.startswith("w/o") else TABLES:
                numbers = [n for n in published_numbers() if _is(n, table=table, method=method, metric="success_rate")]
                for backbone in dict.fromkeys(n["backbone"] for n in numbers):
                    mine = [n for n in numbers if n["backbone"] == backbone]
                    rows.append(_row(mine, method, backbone, table, panel, skills, row, prefix))
    return rows


def _plain_rows(lines: Sequence[Line], env: str) -> list[PublishedRow]:
    """Of environments whose tables print one average each, by its own name: WebShop and Search-QA."""
    rows: list[PublishedRow] = []
    for row in dict.fromkeys(line.row for line in lines if line.env == env and not line.stage):
        for method, skills in BESIDE.get(row, ()):
            table = "Table 2" if method.startswith("w/o") else "Table 1"
            numbers = [n for n in published_numbers() if _is(n, env=_THEIRS[env], table=table, method=method)]
            for backbone in dict.fromkeys(n["backbone"] for n in numbers):
                mine = [n for n in numbers if n["backbone"] == backbone]
                rows.append(_plain_row(mine, env, method, backbone, table, skills, row))
    return rows


def _plain_row(
    numbers: Sequence[Mapping[str, str]], env: str, method: str, backbone: str, table: str, skills: str, beside: str
) -> PublishedRow:
    status, remarks = _provenance(numbers, beside)
    cells = []
    for n in numbers:
        metric, column, note = Metric.SUCCESS, DATA_SETS.get(n["column"], ALL), ""
        if env == "webshop":
            metric = Metric.SCORE if n["metric"] == "score" else Metric.MICRO
            note = n["column"]
        elif column == ALL:
            metric, note = Metric.MACRO, "as printed (column Avg)"
        cells.append(_cell(n, metric, column, "test", skills, f"{PAPER}, {table}", status, note))
    for told in ("Bamboogle pooled", "Search-QA avg with pooled Bamboogle"):
        pooled = [n for n in published_numbers() if _is(n, env=_THEIRS[env], table=told, method=method)]
        remarks += [
            f"{told}: {n['value']}{f' ({note})' if (note := n['note']) else ''}, derived"
            for n in pooled
            if n["backbone"] == backbone and "already" not in n["note"]
        ]
    return PublishedRow(env, method, backbone, table, "test", skills, beside, tuple(cells), "; ".join(remarks))


def _provenance(numbers: Sequence[Mapping[str, str]], beside: str) -> tuple[Status, list[str]]:
    """Quoted or imported, and remarks of the reference file."""
    imported = any(n["note"].startswith("imported") for n in numbers)
    remarks = sorted({part.strip(' "') for n in numbers for part in n["note"].split("|") if part.strip(' "')})
    if beside in OTHER_LOSS:
        remarks.insert(0, f"not comparable: made with another loss than this row's, that of row {OTHER_LOSS[beside]}")
    return Status.IMPORTED if imported else Status.QUOTED, remarks


def _is(number: Mapping[str, str], env: str = "ALFWorld", **wanted: str) -> bool:
    return number["paper"] == PAPER and number["env"] == env and all(number[k] == v for k, v in wanted.items())


def _row(
    numbers: Sequence[Mapping[str, str]],
    method: str,
    backbone: str,
    table: str,
    panel: str,
    skills: str,
    beside: str,
    prefix: str,
) -> PublishedRow:
    by_column = {n["column"].removeprefix(prefix): n for n in numbers}
    source = f"{PAPER}, {table}"
    status, remarks = _provenance(numbers, beside)
    cells = [_cell(by_column[t], Metric.SUCCESS, t, panel, skills, source, status, "") for t in TYPES if t in by_column]
    printed = by_column["Avg"]
    kind = average_kind([float(by_column[t]["value"]) for t in TYPES], float(printed["value"]))
    cells.append(_cell(printed, kind, ALL, panel, skills, source, status, "as printed (column Avg)"))
    cells += _derived(method, backbone, table, panel, skills, kind)
    return PublishedRow("alfworld", method, backbone, table, panel, skills, beside, tuple(cells), "; ".join(remarks))


def average_kind(by_type: Sequence[float], average: float) -> Metric:
    """Whether a printed average is the macro mean of its own row (up to rounding) or, if not, an episode mean."""
    macro = sum(by_type) / len(by_type)
    return Metric.MACRO if abs(macro - average) <= ROUNDING else Metric.MICRO


def _derived(method: str, backbone: str, of: str, panel: str, skills: str, printed: Metric) -> list[Cell]:
    """The average that was not printed, if it can be derived from the printed cells."""
    missing, table = (
        (Metric.MACRO, "ALFWorld macro avg") if printed == Metric.MICRO else (Metric.MICRO, "ALFWorld micro avg")
    )
    unseen = panel == "unseen"
    found = [
        n
        for n in published_numbers()
        if _is(n, table=table, backbone=backbone)
        and n["method"] in (method, f"OPID {method}")
        and n["column"].startswith("unseen") == unseen
    ]
    source = f"derived from {PAPER}, {of}"
    note = found[0]["note"] if found else ""
    if unseen and missing == Metric.MICRO:
        note = JOINT
    return [_cell(n, missing, ALL, panel, skills, source, Status.DERIVED, note) for n in found[:1]]


def _cell(
    number: Mapping[str, str],
    metric: Metric,
    column: str,
    panel: str,
    skills: str,
    source: str,
    status: Status,
    note: str,
) -> Cell:
    value = float(number["value"]) / 100
    nothing = float("nan")
    return Cell(
        line=None,
        place=f"{panel}/{skills}",
        metric=metric,
        column=column,
        unit="score" if metric == Metric.SCORE else "%",
        interval=stats.Interval(value, nothing, nothing, stats.NO_INTERVAL, 0),
        status=status,
        source=source,
        note="; ".join(part for part in (note, "seeds and interval not published") if part),
    )


# What the papers played; here every task of a panel is played equally often, and seeds are named.
THEIR_RULES = {
    "alfworld": "128 games (Table 8: 134) drawn with replacement, which alone leaves ±6.9 points at 80 %",
    "webshop": "128 test tasks, which alone leaves ±6.9 points at 80 %",
    "search_qa": "test questions of seven data sets; the mean of the sets as printed",
}


def same_model(theirs: str, ours: str) -> bool:
    """`Qwen2.5-3B-Instruct` and `qwen2.5-3b`"""
    return theirs.lower().removesuffix("-instruct") == ours.lower().removesuffix("-instruct")


def why_not_comparable(line: Line, backbone: str, data_version: str) -> str:
    """Why no difference of a line to a published number of `backbone` is printed; empty if one is.

    data_version: of the evaluation; empty if there is none. That the rules of evaluation differ is said in any case.
    """
    reasons = [f"other scale ({line.scale})"] if line.scale != "paper" else []
    if line.backbone.startswith("tiny") if line.embedded is None else line.embedded:
        reasons.append(f"tiny model ({line.backbone})")
    elif not same_model(backbone, line.backbone):
        reasons.append(f"another model ({line.backbone})")
    if line.fraction != 1:
        reasons.append(f"trained on {line.share}")
    if not data_version:
        reasons.append("not measured")
    elif not data_version.startswith("official-"):
        reasons.append("generated tasks")
    return ", ".join(reasons)
