"""What a sweep planned: plan.json, and the lines that its cells make in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, Problem, suggest
from harness.files import RecordError, read_json_object

# Version 1 knew no teachers of other runs, and said nothing of what a row changes.
PLAN_VERSIONS = (1, 2)
LINE_KEYS = ("row", "backbone", "env", "fraction", "scale", "protocol")
CELL_KEYS = ("fingerprint", "method", "seed", "run_dir", *LINE_KEYS)
BY_SEED = "another in each seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a table: all seeds of one row on one backbone, environment, data fraction, scale and protocol.

    stage: no row of the table, only the teacher of one
    trains: whether its runs update the policy; None if the plan does not say (older plans)
    base: row that this one is compared with; changed: key -> (value there, value here), all that differs
    preset: keys that the protocol sets here; cancels: its released teacher cancels out of the gradient
    footnotes: remarks of the plan
    fraction_of: what a fraction counts, `tasks` or `steps`
    embedded: whether its model was made by the project; None if the plan does not say (older plans)
    analyzer: who wrote its skills from trajectories: a name, None if nobody, empty if the plan does not say
    """

    row: str
    backbone: str
    env: str
    fraction: float
    scale: str
    protocol: str
    stage: bool = False
    label: str = field(compare=False)
    kind: str = field(compare=False)
    method: str = field(compare=False)
    trains: bool | None = field(compare=False, default=None)
    base: str | None = field(compare=False, default=None)
    changed: Mapping[str, tuple[Any, Any]] = field(compare=False, default_factory=dict)
    preset: tuple[str, ...] = field(compare=False, default=())
    cancels: bool = field(compare=False, default=False)
    footnotes: tuple[str, ...] = field(compare=False, default=())
    fraction_of: str = field(compare=False, default="tasks")
    embedded: bool | None = field(compare=False, default=None)
    analyzer: str | None = field(compare=False, default="")

    @property
    def share(self) -> str:
        """`20% of data` or `20% of steps`"""
        return f"{self.fraction:.0%} of {'steps' if self.fraction_of == 'steps' else 'data'}"

    @property
    def setting(self) -> tuple[str, str, float, str, str]:
        """Everything but the row: lines are compared only within one setting."""
        return (self.backbone, self.env, self.fraction, self.scale, self.protocol)


def plan_path(out: Path, sweep: str) -> Path:
    return out / "results" / sweep / "plan.json"


def load_plan(out: Path, sweep: str) -> dict[str, Any]:
    """The plan of a sweep. ConfigError if there is none or if it cannot be understood."""
    path = plan_path(out, sweep)
    try:
        plan = read_json_object(path)
    except RecordError as error:
        raise ConfigError(Problem("sweep", sweep, "", str(error))) from error
    if plan is None:
        planned = [p.parent.name for p in (out / "results").glob("*/plan.json")]
        fix = (
            f"there is no {path} ({suggest(sweep, planned, what='planned here')}); make it with "
            f"{_remedy(sweep)}, or point `out` to the folder that holds results/"
        )
        raise ConfigError(Problem("sweep", sweep, "command line", fix))

    def wrong(what: str) -> ConfigError:
        return ConfigError(Problem("sweep", sweep, str(path), f"{what}; make it again with {_remedy(sweep)}"))

    if plan.get("version") not in PLAN_VERSIONS:
        raise wrong(f"version is {plan.get('version')!r}, this code reads version {max(PLAN_VERSIONS)}")
    rows, cells = plan.get("rows"), plan.get("cells")
    if not isinstance(rows, list) or not isinstance(cells, list) or not cells:
        raise wrong("`rows` and `cells` must be lists, and `cells` must not be empty")
    known_rows = {row.get("id") for row in rows}
    for number, cell in enumerate(cells):
        missing = [key for key in CELL_KEYS if key not in cell]
        if missing:
            raise wrong(f"cells[{number}] has no {', '.join(missing)}")
        if cell["row"] not in known_rows and not cell.get("stage"):
            raise wrong(f"cells[{number}].row is {cell['row']!r}, which is not among `rows`")
    return plan


def _remedy(sweep: str) -> str:
    """The command that writes the plan: results of changed settings are called `<sweep>+<changes>`."""
    name, plus, _ = sweep.partition("+")
    return f"`python -m harness sweep={name} do=plan`{' with the same changes as before' if plus else ''}"


def lines_of(plan: Mapping[str, Any]) -> tuple[tuple[Line, ...], list[int]]:
    """Lines in the order of the plan's rows, runs that are only teachers last, and the line of each cell."""
    rank = {row["id"]: (position, row) for position, row in enumerate(plan["rows"])}
    cells_of: dict[Line, list[Mapping[str, Any]]] = {}
    of_cell: list[Line] = []
    for cell in plan["cells"]:
        row = rank[cell["row"]][1] if cell["row"] in rank else {}
        line = Line(
            **{key: cell[key] for key in LINE_KEYS},
            stage=bool(cell.get("stage")),
            label=row.get("label") or cell.get("label") or cell["row"] or cell["method"],
            kind="teacher" if cell.get("stage") else row.get("kind", "method"),
            method=cell["method"],
            trains=cell.get("trains"),
            base=row.get("base", cell.get("base")),
            cancels=bool(row.get("teacher_cancels")),
            footnotes=tuple(row.get("footnotes") or ()),
            fraction_of=cell.get("fraction_of") or "tasks",
            embedded=cell.get("embedded"),
            analyzer=cell.get("analyzer", ""),
        )
        cells_of.setdefault(line, []).append(cell)
        of_cell.append(line)
    full = {line: replace(line, **_shared(cells)) for line, cells in cells_of.items()}
    # Stable: first appearance within a row.
    ordered = sorted(full.values(), key=lambda line: (line.stage, rank.get(line.row, (len(rank),))[0]))
    index = {line: number for number, line in enumerate(ordered)}
    return tuple(ordered), [index[line] for line in of_cell]


def _shared(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the cells of a line say of their difference from the base, and of the protocol."""
    changed: dict[str, tuple[Any, Any]] = {}
    for cell in cells:
        for key, (before, now) in (cell.get("changed") or {}).items():
            if changed.setdefault(key, (before, now)) != (before, now):
                changed[key] = tuple(a if a == b else BY_SEED for a, b in zip(changed[key], (before, now), strict=True))  # type: ignore[assignment]
    preset = sorted({key for cell in cells for key in cell.get("preset") or ()})
    return {"changed": {key: changed[key] for key in sorted(changed)}, "preset": tuple(preset)}
