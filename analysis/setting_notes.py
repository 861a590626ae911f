"""What the setting itself decides, whatever the numbers say: notes chosen by scale, model, protocol and analyzer."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.collect import Records
from analysis.plan import Line

FIRST = 13  # number of the first of these notes
OPID = "opid"

BASE = (
    "What a seed replicates: on one backbone all seeds of all rows start from one checkpoint. A seed decides the order "
    "of tasks and every draw in training and evaluation, so intervals are about training again from this base, not "
    "about another base. In rows that do not train, a seed is only another sampling of the same policy's evaluation."
)
RULES = (
    "Where the evaluation differs from the papers': here each task of a panel is played equally often in every row and "
    "seed, with the seeds named, and the last checkpoint is judged. OPID and SDAR draw 128 games with replacement, or "
    "play 128 test tasks of WebShop, name no seeds and do not say which checkpoint. Their averages are macro in some "
    "rows and micro in others (note 11)."
)
_CHOSEN = {
    "fair": (
        "How settings were chosen, protocol=fair: all rows share learning rate, sizes and penalties; only what belongs "
        "to a method is its own."
    ),
    "paper": (
        "How settings were chosen, protocol=paper: each row has the formulas and coefficients that its paper prints, "
        "or its scripts where the paper is silent; none was picked by its results here. Rows differ in more than their "
        "method where their papers do, and what a paper tuned for its own method favours that method."
    ),
    "code": (
        "How settings were chosen, protocol=code: each row has what its authors' launch scripts ran; none was picked "
        "by its results here. Rows differ in more than their method where their scripts do."
    ),
}
_PICKED = (
    " OPID's weight (0.25, falling linearly) and clip (±2 nats), unless changed, were picked among several in an "
    "earlier study of small models on games of this kind, by how well OPID did there. GRPO has no such settings and "
    "got no search of its own: this favours OPID. Other rows with a teacher take that weight, or their paper's, "
    "without a search of their own."
)
_NOT_FOR_IT = " They were not picked for models of this scale."
_GAPS = (
    "the embedded models (tiny-…) have gaps made on purpose. Most of their demonstrations leave out what some task "
    "types need unless a skill in the prompt says it, so that skills have something to add."
)
_ORACLE = "the rules analyzer is an oracle: it knows the rules of the game{}."
_SHARES = ", and shares code and wording with the skills in those demonstrations"
_UNKNOWN = "the plan does not say who wrote the skills; the rules analyzer would be an oracle that knows the game."
_UNDER = (
    " Differences show what the mechanism can do under such conditions, not what a language model as analyzer, or a "
    "base without such gaps, would give."
)
_COST = (
    "Writing and scoring skills costs time: methods that differ after equal steps may tie at equal time, so read both "
    "areas."
)


def _rows(records: Records) -> list[Line]:
    return [line for line in records.lines if not line.stage]


def embedded(line: Line) -> bool:
    """Whether the project made the model; older plans tell by its name only."""
    return line.backbone.startswith("tiny") if line.embedded is None else line.embedded


def _writers(lines: list[Line]) -> set[str]:
    """Analyzers of these rows; empty text where the plan does not say."""
    return {line.analyzer for line in lines if line.analyzer is not None}


def setting_notes(records: Records) -> tuple[str, ...]:
    """From number FIRST on."""
    lines = _rows(records)
    found = [BASE, *_chosen(lines)]
    if favours := _favours(lines):
        found.append(favours)
    if any(line.scale == "paper" for line in lines):
        found.append(RULES)
    return tuple(found)


def _chosen(lines: list[Line]) -> Iterator[str]:
    for protocol in sorted({line.protocol for line in lines}):
        here = [line for line in lines if line.protocol == protocol]
        text = _CHOSEN.get(protocol, f"How settings were chosen: as the file of protocol={protocol} says.")
        if protocol == "fair" and any(line.method == OPID for line in here):
            text += _PICKED + ("" if all(map(embedded, here)) else _NOT_FOR_IT)
        yield text


def _favours(lines: list[Line]) -> str:
    made_here, writers = any(map(embedded, lines)), _writers(lines)
    parts = [_GAPS] if made_here else []
    if "rules" in writers:
        parts.append(_ORACLE.format(_SHARES if made_here else ""))
    elif "" in writers:
        parts.append(_UNKNOWN)
    taught = [_COST] if writers or made_here else []
    if not parts:
        return " ".join(taught)
    sentences = " ".join(part[0].upper() + part[1:] if number else part for number, part in enumerate(parts))
    return " ".join([f"What the setting favours: {sentences}{_UNDER}", *taught])


def setting_short(records: Records) -> str:
    """The same for a terminal; empty where there is nothing to be told of rows that read skills."""
    lines = _rows(records)
    parts = []
    if any(line.method == OPID and line.protocol == "fair" for line in lines):
        parts.append("OPID's weight and clip were picked in an earlier study of small models, GRPO got no such search")
    if any(map(embedded, lines)):
        parts.append("tiny bases have gaps made on purpose")
    if "rules" in _writers(lines):
        parts.append("the rules analyzer is an oracle")
    parts.append("all seeds of a backbone share one base")
    last = FIRST + len(setting_notes(records)) - 1
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]} (notes {FIRST} to {last} of the files)."
