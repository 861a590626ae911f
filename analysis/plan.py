"""What a sweep planned: plan.json, and the lines that its cells make in a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, Problem, suggest
from harness.files import RecordError, read_json_object

PLAN_VERSION = 1
LINE_KEYS = ("row", "backbone", "env", "fraction", "scale", "protocol")
CELL_KEYS = ("fingerprint", "method", "seed", "run_dir", *LINE_KEYS)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table: all seeds of one row on one backbone, environment, data fraction, scale and protocol.

    trains: whether its runs update the policy; None if the plan does not say (older plans)
    """

    row: str
    backbone: str
    env: str
    fraction: float
    scale: str
    protocol: str
    label: str = field(compare=False)
    kind: str = field(compare=False)
    method: str = field(compare=False)
    trains: bool | None = field(compare=False, default=None)

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

    if plan.get("version") != PLAN_VERSION:
        raise wrong(f"version is {plan.get('version')!r}, this code reads version {PLAN_VERSION}")
    rows, cells = plan.get("rows"), plan.get("cells")
    if not isinstance(rows, list) or not isinstance(cells, list) or not cells:
        raise wrong("`rows` and `cells` must be lists, and `cells` must not be empty")
    known_rows = {row.get("id") for row in rows}
    for number, cell in enumerate(cells):
        missing = [key for key in CELL_KEYS if key not in cell]
        if missing:
            raise wrong(f"cells[{number}] has no {', '.join(missing)}")
        if cell["row"] not in known_rows:
            raise wrong(f"cells[{number}].row is {cell['row']!r}, which is not among `rows`")
    return plan


def _remedy(sweep: str) -> str:
    """The command that writes the plan: results of changed settings are called `<sweep>+<changes>`."""
    name, plus, _ = sweep.partition("+")
    return f"`python -m harness sweep={name} do=plan`{' with the same changes as before' if plus else ''}"


def lines_of(plan: Mapping[str, Any]) -> tuple[tuple[Line, ...], list[int]]:
    """Lines in the order of the plan's rows, and the line of each cell."""
    rank = {row["id"]: (position, row) for position, row in enumerate(plan["rows"])}
    order: dict[Line, int] = {}
    of_cell: list[Line] = []
    for cell in plan["cells"]:
        position, row = rank[cell["row"]]
        line = Line(
            **{key: cell[key] for key in LINE_KEYS},
            label=row.get("label", row["id"]),
            kind=row.get("kind", "method"),
            method=cell["method"],
            trains=cell.get("trains"),
        )
        order.setdefault(line, position)
        of_cell.append(line)
    ordered = sorted(order, key=lambda line: order[line])  # stable: first appearance within a row
    index = {line: number for number, line in enumerate(ordered)}
    return tuple(ordered), [index[line] for line in of_cell]
