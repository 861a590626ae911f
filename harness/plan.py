"""From a command line to validated cells with fingerprints, and plan.json. Starts nothing, imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import registry
from harness.cells import Cells, row_label, run_config
from harness.commandline import CommandLine
from harness.compose import Composer
from harness.config import CommandConfig, RunConfig
from harness.errors import ConfigError, Problem
from harness.fingerprint import differences, fingerprint, identity
from harness.sweep import Point, Row, Sweep, expand, single
from harness.validate import RANGES, describe, problems
from harness.versions import versions

PLAN_VERSION = 1
PENDING = "pending"


@dataclass(frozen=True)
class Cell:
    """One run of the plan. expected_seconds: CPU seconds, None if nobody measured it."""

    point: Point
    row: Row
    config: RunConfig
    fingerprint: str
    selected: bool
    expected_seconds: float | None


@dataclass(frozen=True)
class Plan:
    """command: the configuration common to all cells; sweep: rows and points; cells: in the order of the rows."""

    sweep: Sweep
    command: CommandConfig
    cells: tuple[Cell, ...]
    labels: Mapping[str, str]

    @property
    def out(self) -> Path:
        return Path(self.command.runtime.out).expanduser().absolute()

    @property
    def results(self) -> Path:
        return self.out / "results" / self.sweep.name

    @property
    def runs(self) -> Path:
        return self.out / "runs"

    @property
    def selected(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.selected)

    @property
    def title(self) -> str:
        """The sweep's title, with whatever the command line changed in every cell."""
        return f"{self.sweep.title} ({', '.join(self.sweep.changes)})" if self.sweep.changes else self.sweep.title


def build_plan(composer: Composer, command: CommandLine) -> Plan:
    """Compose and validate every cell once. Raises ConfigError with everything that is wrong."""
    common, choices = _common(composer, command)
    if common.sweep is not None and command.sweep is not None:
        sweep = expand(common.sweep, command.sweep, command, composer.groups())
        common = composer.config(requested(composer, command, sweep))[0]
    else:
        sweep = single(command, choices, common.fraction, common.seed)
    cells = Cells(composer, sweep, command)
    rows = {row.id: row for row in sweep.rows}
    _check_values(sweep, rows, cells)
    _check_deltas(sweep, rows, cells)
    found = _fingerprinted(sweep, rows, cells)
    _check_distinct(found)
    present = {cell.row.id: cell for cell in found}
    first = {i: cells.command_config(rows[i], c.point.env, c.point.backbone) for i, c in present.items()}
    labels = {i: row_label(rows[i], config) for i, config in first.items()}
    return Plan(sweep, common, tuple(found), labels)


def _common(composer: Composer, command: CommandLine) -> tuple[CommandConfig, Mapping[str, str]]:
    """The configuration without any row's own settings. A sweep's keys need a sweep."""
    in_sweep = [key for key in command.fixed if key.partition(".")[0] == "sweep"]
    if in_sweep and command.sweep is None:
        raise ConfigError(Problem(in_sweep[0], "", "command line", "has a meaning only with sweep=NAME"))
    return composer.config(requested(composer, command))


def requested(composer: Composer, command: CommandLine, sweep: Sweep | None = None) -> list[str]:
    """Overrides of the configuration that a command's cells share, and that `--cfg job` shows."""
    groups = composer.groups()
    axes = [f"{a}={values[0]}" for a, values in command.axes.items() if a not in groups or values[0] in groups[a]]
    chosen = [] if command.sweep is None else [f"sweep={command.sweep}"]
    settings = {**(sweep.common if sweep else {}), **command.fixed}
    return [*axes, *chosen, *settings.values()]


# ------------------------------------------------------------------------------------------------------------- checks
def _combinations(points: Iterable[Point]) -> dict[tuple[str, str, str], Point]:
    """(row, env, backbone) -> the first of its points."""
    found: dict[tuple[str, str, str], Point] = {}
    for point in points:
        found.setdefault((point.row, point.env, point.backbone), point)
    return found


def _check_values(sweep: Sweep, rows: Mapping[str, Row], cells: Cells) -> None:
    """Every selected combination of files, and every fraction and seed."""
    found: dict[Problem, None] = {}
    selected = [point for point in sweep.points if point in sweep.selected]
    for (row_id, env, backbone), point in _combinations(selected).items():
        row = rows[row_id]
        config = run_config(cells.command_config(row, env, backbone), point=point)

        def origin(key: str, row: Row = row, env: str = env, backbone: str = backbone) -> str:
            return cells.origin(row, env, backbone, key)

        found.update(dict.fromkeys(problems(config, origin)))
    for axis in ("fraction", "seed"):
        for number, point in {getattr(p, axis): p for p in selected}.items():
            if not RANGES[axis].holds(number):
                where = cells.origin(rows[point.row], point.env, point.backbone, axis)
                found[Problem(axis, str(number), where, str(RANGES[axis]))] = None
    if found:
        raise ConfigError(list(found))


def _check_deltas(sweep: Sweep, rows: Mapping[str, Row], cells: Cells) -> None:
    """A row with a base differs from it where it says, and nowhere else."""
    found: dict[Problem, None] = {}
    for row_id, env, backbone in _combinations(sweep.points):
        row = rows[row_id]
        if row.base is None:
            continue
        ours = identity(run_config(cells.command_config(row, env, backbone)))
        theirs = identity(run_config(cells.command_config(rows[row.base], env, backbone)))
        changed = differences(theirs, ours)
        undeclared = {key: pair for key, pair in changed.items() if not any(_covers(d, key) for d in row.delta)}
        for key, (before, now) in undeclared.items():
            fix = (
                f"row {row.id!r} differs from its base {row.base!r} here ({describe(before)} there), which its delta "
                f"[{', '.join(row.delta)}] does not declare; undo the difference or declare it"
            )
            found[Problem(key, describe(now), cells.origin(row, env, backbone, key), fix)] = None
        for declared in row.delta:
            if not any(_covers(declared, key) for key in changed):
                fix = f"row {row.id!r} declares this difference from {row.base!r}, but there is none"
                found[Problem("delta", declared, sweep.origin, fix)] = None
    if found:
        raise ConfigError(list(found))


def _covers(declared: str, key: str) -> bool:
    return key == declared or key.startswith(declared + ".")


def _check_distinct(cells: Iterable[Cell]) -> None:
    """Two rows of a sweep must not be the same experiment under two names."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.fingerprint, cell)
        if other is not cell:
            fix = (
                f"rows {other.row.id!r} and {cell.row.id!r} are the same experiment: nothing that can change a result "
                "differs between them. Drop one, or give it the setting that was meant to differ"
            )
            raise ConfigError(Problem("", "", "", fix))


def _fingerprinted(sweep: Sweep, rows: Mapping[str, Row], cells: Cells) -> list[Cell]:
    known = _Identities()
    found: list[Cell] = []
    for point in sweep.points:
        row = rows[point.row]
        command = cells.command_config(row, point.env, point.backbone)
        config = cells.config(row, point)
        try:
            name = known.fingerprint(config)
        except (ValueError, FileNotFoundError) as error:
            raise ConfigError(Problem("", "", "", f"row {row.id!r}: {error}")) from error
        times = command.expected_seconds
        expected = times.get(f"{row.method}/{config.backbone.name}", times.get(row.method))
        found.append(Cell(point, row, config, name, point in sweep.selected, expected))
    return found


class _Identities:
    """Identities of task panels and initial policies, each asked for once."""

    def __init__(self) -> None:
        self._panels: dict[tuple[str, str], str] = {}
        self._backbones: dict[tuple[str, str], str] = {}

    def fingerprint(self, config: RunConfig) -> str:
        env = repr(config.env)
        key = (repr(config.backbone), env)
        if key not in self._backbones:
            self._backbones[key] = registry.backbone_identity(config.backbone, config.env)
        return fingerprint(
            config, versions(config), self._backbones[key], {p: self._panel(config, env, p) for p in _used(config)}
        )

    def _panel(self, config: RunConfig, env: str, panel: str) -> str:
        if (env, panel) not in self._panels:
            self._panels[env, panel] = registry.panel_identity(config.env, panel)
        return self._panels[env, panel]


def _used(config: RunConfig) -> list[str]:
    """Panels that a run uses: the train panel only if it trains."""
    return ["train", *config.evaluation.panels] if config.method.trains else list(config.evaluation.panels)


# ------------------------------------------------------------------------------------------------------------- states
def states(plan: Plan) -> dict[str, str]:
    """Fingerprint -> state of every cell, from its run directory alone."""
    from harness.record import RunDirectory

    found: dict[str, str] = {}
    for cell in plan.cells:
        path = plan.runs / cell.fingerprint
        found[cell.fingerprint] = RunDirectory(path).state().state if path.is_dir() else PENDING
    return found


def write_plan(plan: Plan, state_of: Mapping[str, str]) -> Path:
    """Write <out>/results/<sweep>/plan.json in one step; what tables and figures are made from. Returns its path."""
    from harness.files import atomic_write_json

    used = {cell.row.id for cell in plan.cells}
    content = {
        "version": PLAN_VERSION,
        "sweep": plan.sweep.name,
        "title": plan.title,
        "scale": plan.command.scale if not plan.cells else plan.cells[0].config.scale,
        "changes": list(plan.sweep.changes),
        "rows": [
            {"id": row.id, "label": plan.labels[row.id], "kind": row.kind} for row in plan.sweep.rows if row.id in used
        ],
        "cells": [_cell_record(cell, state_of[cell.fingerprint]) for cell in plan.cells],
    }
    path = plan.results / "plan.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_json(path, content)
    return path


def _cell_record(cell: Cell, state: str) -> dict[str, Any]:
    config = cell.config
    return {
        "fingerprint": cell.fingerprint,
        "row": cell.row.id,
        "method": config.method.name,
        "backbone": config.backbone.name,
        "env": config.env.name,
        "fraction": config.fraction,
        "seed": config.seed,
        "scale": config.scale,
        "protocol": config.protocol,
        "trains": config.method.trains,
        "delta": list(cell.row.delta),
        "base": cell.row.base,
        "selected": cell.selected,
        "state": state,
        # Relative to the folder that holds runs/ and results/, so that the whole can be moved.
        "run_dir": f"runs/{cell.fingerprint}",
    }
