"""What was planned and what became of it, and what made the runs, as tables of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from analysis.code import Code
from analysis.collect import grouped
from analysis.render import LEFT, RIGHT, Block, Text
from analysis.tableset import Tables, about, line_label
from analysis.text import listed
from harness.files import RecordError, read_json_object

STATES = ("complete", "running", "interrupted", "failed", "submitted", "pending", "unreadable")
LISTED = 400  # runs in the list of runs
NONE = "–"


def completeness(tables: Tables) -> Block:
    """Every line of the plan: how many of its runs are in which state, and what became of its episodes."""
    cells = tables.records.cells
    states = [*STATES, *sorted(set(cells["state"]) - set(STATES))]
    shown = [state for state in states if state == "complete" or (cells["state"] == state).any()]
    codes: dict[object, set[str]] = {}
    for (line, _), found in tables.codes.items():
        codes.setdefault(line, set()).update(found)
    rows = []
    for number, group in grouped(cells, "line"):
        line = tables.records.lines[int(number)]
        counts = Counter(group["state"])
        played = [counted for each in group["evaluations"] for counted in each.values()]
        totals = (sum(_count(one, key) for one in played) for key in ("requested", "graded", "excluded"))
        texts = (line_label(tables, line), str(len(group)), *(str(counts[state]) for state in shown))
        numbers = (f"{total:,}" for total in totals)
        warned = ", ".join(sorted(codes.get(line, ()))) or NONE
        lacking = counts["complete"] < len(group)
        first = Text(texts[0], strong=lacking)
        rows.append((first, *map(Text, texts[1:]), *map(Text, numbers), Text(warned)))
    return Block(
        "Planned runs and their states",
        ("Row", "Planned", *map(str.capitalize, shown), "Episodes requested", "graded", "excluded", "Warnings"),
        tuple(rows),
        "Every planned run is counted once. Bold: a row that lacks a run. Episodes: as the runs declare them, of all "
        "panels; excluded are infrastructure failures. Warnings by name; their words stand below.",
        LEFT + RIGHT * (len(shown) + 4) + LEFT,
    )


def _count(counted: Any, key: str) -> int:
    value = counted.get(key) if isinstance(counted, Mapping) else None
    return value if isinstance(value, int) else 0


def panels(tables: Tables) -> list[Block]:
    """What each number was measured on, in full."""
    found: dict[tuple[str, ...], list[str]] = {}
    for (line, place, metric, _), cell in tables.success.items():
        if metric.value == "success_micro" and cell.protocol:
            p = cell.protocol
            told = (p["panel_hash"], str(cell.n_tasks), p["data_version"], p["prompt_protocol"], p["context"])
            key = (line.env, about(place), *told, p["temperature"], p["selection"])
            found.setdefault(key, []).append(line_label(tables, line))
    rows = [(*map(Text, key), Text(listed(dict.fromkeys(who), 12))) for key, who in sorted(found.items())]
    header = ("Environment", "Panel", "Hash", "Tasks", "Data", "Prompt protocol", "Context", "Temperature", "Selection")
    block = Block(
        "Panels and protocols of evaluation",
        (*header, "Rows"),
        tuple(rows),
        "Rows are compared only where all of this is equal.",
        LEFT * 3 + RIGHT + LEFT * 3 + RIGHT + LEFT * 2,
    )
    return [block] if rows else []


def provenance(out: Path, tables: Tables) -> list[Block]:
    """Code, packages, machines and commands of all runs that began, and the runs by themselves."""
    cells = tables.records.cells
    found: dict[tuple[str, str], int] = {}
    each: list[Mapping[str, Any]] = []
    for folder, codes in zip(cells["run_dir"], cells["codes"], strict=True):
        content = _read(out / folder / "provenance.json")
        each.append(content)
        told = [*(("code", _code(code)) for code in codes if content), *_facts(content)]
        for fact in dict.fromkeys(told):
            found[fact] = found.get(fact, 0) + 1
    order = {name: number for number, name in enumerate(("code", "command", "device", "machine", "system", "python"))}
    facts = sorted(found.items(), key=lambda item: (order.get(item[0][0], len(order)), item[0]))
    differing = {what for (what, _), count in Counter((what, "") for what, _ in found).items() if count > 1}
    rows = tuple(
        (Text(what, strong=what in differing), Text(value), Text(f"{count} of {len(cells)}"))
        for (what, value), count in facts
    )
    made = [
        Block(
            "What made the runs",
            ("What", "As recorded", "Runs"),
            rows,
            "From provenance.json and the attempts of each run. Bold: not the same in all runs. Rows of the table "
            "whose runs were made by different code are warned of.",
            LEFT * 2 + RIGHT,
        )
    ]
    return [*made, _runs(tables, each)]


def _runs(tables: Tables, provenances: Iterable[Mapping[str, Any]]) -> Block:
    cells = tables.records.cells
    columns = ("line", "seed", "state", "last_step", "planned_steps", "codes", "fingerprint", "requires")
    rows: list[tuple[Text, ...]] = []
    for values, content in zip(cells[list(columns)].itertuples(index=False), provenances, strict=True):
        if len(rows) == LISTED:
            break
        line, seed, state, last, planned, codes, name, requires = values
        texts = (
            *(line_label(tables, tables.records.lines[line]), str(seed), state),
            *(f"{last}/{planned}" if planned else NONE, ", then ".join(map(str, codes)) if content else NONE),
            *(str(content.get("device") or NONE), name, ", ".join(requires) or NONE),
        )
        rows.append(tuple(map(Text, texts)))
    more = len(cells) - len(rows)
    told = f" The first {LISTED} of {len(cells):,} runs; the others stand in plan.json." if more else ""
    return Block(
        "Runs",
        ("Row", "Seed", "State", "Steps", "Code", "Device", "Run", "Needs the weights of"),
        tuple(rows),
        f"Each run has the folder runs/<run>.{told}",
        LEFT + RIGHT + LEFT + RIGHT + LEFT * 4,
    )


def _read(path: Path) -> Mapping[str, Any]:
    """What cannot be read is warned of already: see runfiles.read_state."""
    try:
        return read_json_object(path) or {}
    except RecordError:
        return {}


def _code(code: Code) -> str:
    return f"{code.commit or 'commit unknown'}{f', with changes {code.diff}' if code.diff else ''}"


def _facts(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, value) of one provenance.json."""
    python, packages, host = (_mapping(content.get(key)) for key in ("python", "packages", "host"))
    argv = content.get("argv")
    facts = [
        ("python", " ".join(str(python[key]) for key in ("implementation", "version") if python.get(key))),
        *((f"package {name}", str(version)) for name, version in packages.items()),
        ("machine", f"{host['name']}, {host.get('cores', '?')} cores" if host.get("name") else ""),
        ("system", " ".join(str(host[key]) for key in ("system", "release", "machine") if host.get(key))),
        ("device", str(content.get("device") or "")),
        # The program's own folder says nothing about the run.
        ("command", " ".join(map(str, argv[1:])) if isinstance(argv, list) else ""),
    ]
    return [(what, value) for what, value in facts if value]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
