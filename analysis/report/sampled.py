"""Which sampled trajectories a report shows, and what of them: a bounded choice, the same for the same records."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from analysis.tableset import Tables, line_label

NAME = "trajectories.jsonl.zst"
RUNS = 120  # runs looked into, at most
PER_GROUP = 6  # trajectories of one run's training, and of each of its evaluations
PER_RUN = 24
STEPS = 60  # shown of one trajectory
LETTERS = 3000  # shown of one text
CHARACTERS = 8_000_000  # of all trajectories together
_ABOUT = re.compile(rb'"(phase|panel|skills)": ?"((?:[^"\\]|\\.)*)"')
Item = dict[str, Any]


@dataclass(frozen=True)
class Sampled:
    """rows: what the page's viewer reads; told: what is shown out of what; problems: files that cannot be read."""

    rows: tuple[Item, ...]
    told: str
    problems: tuple[str, ...]


def sample(out: Path, tables: Tables) -> Sampled:
    """The trajectories of up to RUNS runs: first seeds of every row first, so that no row is without."""
    cells = tables.records.cells
    recorded = [i for i, folder in enumerate(cells["run_dir"]) if (out / folder / NAME).is_file()]
    chosen = _first_seeds(cells["line"].tolist(), cells["seed"].tolist(), recorded)[:RUNS]
    budget = CHARACTERS // max(1, len(chosen))
    shown = total = 0
    problems: list[str] = []
    by_line: dict[int, list[Item]] = {}
    for cell in sorted(chosen, key=lambda i: (int(cells["line"].iloc[i]), int(cells["seed"].iloc[i]), i)):
        line, seed, state = int(cells["line"].iloc[cell]), cells["seed"].iloc[cell], cells["state"].iloc[cell]
        groups, count, why = read(out / cells["run_dir"].iloc[cell] / NAME)
        label = line_label(tables, tables.records.lines[line])
        if why:
            problems.append(f"{label}, seed {seed}: {why}")
        kept = _within(groups, budget)
        shown, total = shown + sum(len(group["items"]) for group in kept), total + count
        if kept:
            told = f"seed {seed}" if state == "complete" else f"seed {seed} ({state})"
            run = {"label": told, "run": cells["fingerprint"].iloc[cell], "groups": kept}
            by_line.setdefault(line, []).append(run)
    rows = tuple(
        {"label": line_label(tables, tables.records.lines[line]), "runs": runs}
        for line, runs in sorted(by_line.items())
    )
    return Sampled(rows, _told(shown, total, len(chosen), len(recorded)), tuple(problems))


def _told(shown: int, total: int, chosen: int, recorded: int) -> str:
    if not recorded:
        return f"No run of this sweep has recorded trajectories ({NAME})."
    runs = f"all {recorded} runs" if chosen == recorded else f"{chosen} of the {recorded} runs"
    return (
        f"Shown: {shown:,} of {total:,} trajectories in the records of {runs} that have any: of each run up to "
        f"{PER_GROUP} of training, spread over its steps, and up to {PER_GROUP} of each evaluation, never picked by "
        f"what they show; {PER_RUN} of a run at most, fewer where they are long. Texts end after {LETTERS:,} letters "
        f"and trajectories after {STEPS} steps. All that is recorded: {NAME} in the folder of each run."
    )


def _first_seeds(lines: Sequence[int], seeds: Sequence[int], cells: Sequence[int]) -> list[int]:
    """Cells by the rank of their seed within their line, then by line."""
    seen: dict[int, int] = {}
    rank = {}
    for cell in sorted(cells, key=lambda i: (lines[i], seeds[i], i)):
        rank[cell] = seen.get(lines[cell], 0)
        seen[lines[cell]] = rank[cell] + 1
    return sorted(cells, key=lambda i: (rank[i], lines[i], seeds[i], i))


def _within(groups: Mapping[str, Sequence[Item]], budget: int) -> list[Item]:
    """Groups with as many of their items as the run may have, taken in turn; what does not fit is left out."""
    turns = [
        (position, number, name)
        for number, (name, items) in enumerate(groups.items())
        for position in range(len(items))
    ]
    kept: dict[str, list[Item]] = {}
    used = count = 0
    for position, _, name in sorted(turns):
        size = len(json.dumps(groups[name][position], ensure_ascii=False))
        if count < PER_RUN and used + size <= budget:
            kept.setdefault(name, []).append(groups[name][position])
            used, count = used + size, count + 1
    return [{"label": name, "items": kept[name]} for name in groups if name in kept]


# ---------------------------------------------------------------------------------------------- one file
def read(path: Path) -> tuple[dict[str, list[Item]], int, str]:
    """Chosen trajectories of one file by group, how many it holds, and what was wrong with it, if anything.

    Read twice, line by line, so that a large file costs no memory: once to see what there is, once to take.
    """
    places: dict[str, list[int]] = {}
    count, why = 0, ""
    try:
        for number, raw in enumerate(_lines(path)):
            places.setdefault(_group(raw), []).append(number)
            count += 1
    except (OSError, zstandard.ZstdError) as error:
        why = f"{path.name} cannot be read to its end ({type(error).__name__})"
    order = sorted(places, key=lambda name: (name != "training", name))
    wanted = {number: name for name in order for number in _spread(places[name], PER_GROUP)}
    found: dict[str, list[Item]] = {name: [] for name in order}
    broken = 0
    for number, raw in zip(range(count), _lines(path), strict=False):
        if number in wanted:
            item = _item(raw)
            broken += item is None
            if item is not None:
                found[wanted[number]].append(item)
    if broken:
        why = "; ".join(filter(None, [why, f"{broken} of the chosen trajectories are not readable"]))
    return found, count, why


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        rest = b""
        while chunk := reader.read1(1 << 16):  # what can be had before a broken frame
            *whole, rest = (rest + chunk).split(b"\n")
            yield from filter(bytes.strip, whole)
        yield from [rest] if rest.strip() else []


def _group(raw: bytes) -> str:
    """`training`, or `evaluation on <panel>, skills <off or on>`."""
    start = raw.partition(b'"turns"')[0]
    about = {key.decode(): value.decode(errors="replace") for key, value in reversed(_ABOUT.findall(start))}
    if about.get("phase") != "evaluation":
        return "training" if about.get("phase") == "train" else about.get("phase", "phase not recorded")
    return f"evaluation on {about.get('panel', '?')}, skills {about.get('skills', '?')}"


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    """First, last and what lies evenly between."""
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[round(i * (len(numbers) - 1) / (count - 1))] for i in range(count)]


def _item(raw: bytes) -> Item | None:
    """What the page shows of one trajectory, all of it text."""
    try:
        item = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(item, dict):
        return None
    turns = [turn for turn in item.get("turns") or () if isinstance(turn, dict)]
    solved = bool(item.get("success"))
    task = _text(item.get("task") or item.get("task_id"))
    step = f"step {item['step']}: " if item.get("step") is not None else ""
    label = f"{step}{' '.join(task.split())[:90]}, {'solved' if solved else 'not solved'}"
    about = [
        f"{'solved' if solved else 'not solved'} in {len(turns)} steps",
        *(f"{name} {_text(item[key])}" for key, name in _ABOUT_ITEM if item.get(key) is not None),
    ]
    steps = [_step(turn) for turn in turns[:STEPS]]
    more = f"{len(turns) - STEPS} further steps are not shown" if len(turns) > STEPS else ""
    return _without_blanks(
        {"label": label, "task": task, "about": about, "skill": _text(item.get("skill")), "steps": steps, "more": more}
    )


_ABOUT_ITEM = (
    *(("score", "score"), ("termination", "ended:"), ("failure", "infrastructure failure:"), ("task_type", "type")),
    *(("step", "training step"), ("group", "group"), ("sample", "sample"), ("task_id", "task id")),
)


def _step(turn: Mapping[str, Any]) -> Item:
    flags = []
    if turn.get("valid") is False:
        flags.append(f"malformed: {_text(turn.get('invalid_reason')) or 'no reason recorded'}")
    elif turn.get("admissible") is False:
        flags.append("refused by the environment")
    elif turn.get("valid") is True:
        flags.append("valid")
    if turn.get("reward"):
        flags.append(f"reward {_text(turn['reward'])}")
    response, action = _text(turn.get("response")), _text(turn.get("action"))
    return _without_blanks(
        {
            "o": _text(turn.get("observation")),
            "r": response,
            "a": action if action != response else "",
            "s": _text(turn.get("skill")),
            "f": "; ".join(flags),
            "bad": turn.get("valid") is False or turn.get("admissible") is False,
            "k": _tokens(turn),
        }
    )


def _tokens(turn: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The response's tokens with how much the skill raised their log-probs, where both are recorded and fit."""
    tokens, values = turn.get("tokens"), turn.get("skill_advantage")
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        return []
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return []
    return [(_text(token), round(value, 4)) for token, value in zip(tokens[:400], values[:400], strict=True)]


def _without_blanks(item: Item) -> Item:
    return {key: value for key, value in item.items() if value}


def _text(value: Any) -> str:
    """Whatever was recorded, as text; what is left out at its end is counted."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    more = len(text) - LETTERS
    return f"{text[:LETTERS]}… ({more:,} more letters)" if more > 0 else text
