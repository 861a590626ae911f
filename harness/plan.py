"""From a command line to validated cells with fingerprints, and plan.json. Starts nothing, imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import registry
from harness.cells import Cells, row_label
from harness.commandline import CommandLine, as_override
from harness.compose import PROTOCOL, Composer, render
from harness.config import CommandConfig, SweepConfig
from harness.errors import ConfigError, Problem
from harness.plan_checks import Changes, Combination, check_deltas, check_distinct, check_labels, check_values
from harness.protocols import FAIR, Protocols
from harness.stages import Cell, CellMaker, with_teachers
from harness.states import COMPLETE, PENDING
from harness.sweep import Row, Sweep, expand, single

PLAN_VERSION = 2


@dataclass(frozen=True)
class Plan:
    """A command's cells.

    command: the configuration common to all cells; sweep: rows and points; cells: in the order of the rows, then
    teachers that are no row; labels: row or teacher -> how tables and messages call it; changes: what each row with a
    base changes in it, in each environment and on each backbone; origin_of: row, environment, backbone, dotted key ->
    where its value comes from
    """

    sweep: Sweep
    command: CommandConfig
    cells: tuple[Cell, ...]
    labels: Mapping[str, str]
    changes: Mapping[Combination, Changes]
    origin_of: Callable[[Row, str, str, str], str] | None = field(default=None, compare=False, repr=False)

    def origin(self, cell: Cell, key: str) -> str:
        """Where the value of a dotted key of a cell comes from, in words; "" where nobody knows."""
        point = cell.point
        return "" if self.origin_of is None else self.origin_of(cell.row, point.env, point.backbone, key)

    @property
    def out_origin(self) -> str:
        """Who says where the output goes."""
        return self.origin(self.cells[0], "runtime.out") if self.cells else ""

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
        """The sweep's title, with what the command line changed in every cell, and the protocol if it is not fair."""
        changes = list(self.sweep.changes)
        protocols = {cell.config.protocol for cell in self.cells} - {FAIR}
        if protocols and not any(change.startswith(f"{PROTOCOL}=") for change in changes):
            changes.append(f"{PROTOCOL}={', '.join(sorted(protocols))}")
        return f"{self.sweep.title} ({', '.join(changes)})" if changes else self.sweep.title

    def cell(self, fingerprint: str) -> Cell:
        return self._by_name[fingerprint]

    @cached_property
    def _by_name(self) -> Mapping[str, Cell]:
        return {cell.fingerprint: cell for cell in self.cells}

    @cached_property
    def varying(self) -> frozenset[str]:
        """Axes of which the cells have several values, of env, backbone and fraction."""
        axes = ("env", "backbone", "fraction")
        return frozenset(name for name in axes if len({getattr(cell.point, name) for cell in self.cells}) > 1)


def build_plan(composer: Composer, command: CommandLine) -> Plan:
    """Compose and validate every cell once. Raises ConfigError with everything that is wrong."""
    common, choices = _common(composer, command)
    if common.sweep is not None and command.sweep is not None:
        where = composer.where("sweep", command.sweep)
        sweep = expand(_crossed(common, common.sweep, command), command.sweep, command, composer.groups(), where)
        common = composer.config(requested(composer, command, sweep))[0]
    else:
        sweep = single(command, choices, common.fraction, common.seed)
    cells = Cells(composer, sweep, command)
    rows = {row.id: row for row in sweep.rows}
    maker = CellMaker(cells)
    check_values(sweep, rows, cells, maker)
    changes = check_deltas(sweep, rows, cells)
    of_rows = [
        replace(
            maker.cell(rows[point.row], point, point in sweep.selected),
            changed=changes.get((point.row, point.env, point.backbone), {}),
        )
        for point in sweep.points
    ]
    check_distinct(of_rows)
    found = with_teachers(of_rows, maker.stages)
    labels: dict[str, str] = {}
    for cell in found:
        if cell.row.id not in labels:
            command_config = cells.command_config(cell.row, cell.point.env, cell.point.backbone)
            labels[cell.row.id] = row_label(cell.row, command_config)
    check_labels(sweep.rows, labels, {row.method: cells.where("method", row.method) for row in sweep.rows})
    return Plan(sweep, common, tuple(found), labels, changes, cells.origin)


def _crossed(common: CommandConfig, sweep: SweepConfig, command: CommandLine) -> SweepConfig:
    """The sweep with the backbones of its scale, where that has some and the command line does not say otherwise."""
    if not common.backbones or {"sweep.axes.backbone", "sweep.axes"} & command.fixed.keys():
        return sweep
    return replace(sweep, axes=replace(sweep.axes, backbone=list(common.backbones)))


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


def shown(composer: Composer, command: CommandLine) -> list[str]:
    """As `requested`, with what the protocol says for the method and the environment: for `--cfg job`."""
    given = requested(composer, command)
    config, choices = composer.config(given)
    protocols = Protocols(composer)
    values = protocols.values(config.protocol, choices["method"], choices["env"], lambda: "command line")
    preset = [as_override(key, render(value), composer.groups()) for key, value in values.items()]
    fixed = list(command.fixed.values())
    return [*given[: len(given) - len(fixed)], *preset, *fixed]


# ------------------------------------------------------------------------------------------------------------- states
def states(plan: Plan) -> dict[str, str]:
    """Fingerprint -> state of every cell, from its run directory alone."""
    from harness.record import RunDirectory

    found: dict[str, str] = {}
    for cell in plan.cells:
        path = plan.runs / cell.fingerprint
        found[cell.fingerprint] = RunDirectory(path).state().state if path.is_dir() else PENDING
    return found


def missing(plan: Plan, state_of: Mapping[str, str]) -> list[Cell]:
    """What must be run for the selected rows to be complete: those that are not, and what they require."""
    known = {cell.fingerprint: cell for cell in plan.cells}
    wanted: set[str] = set()
    todo = [c.fingerprint for c in plan.selected if not c.stage]
    while todo:
        name = todo.pop()
        if state_of[name] != COMPLETE and name not in wanted:
            wanted.add(name)
            todo += known[name].requires
    return [cell for cell in plan.cells if cell.fingerprint in wanted]


def write_plan(plan: Plan, state_of: Mapping[str, str]) -> Path:
    """Write <out>/results/<sweep>/plan.json in one step; what tables and figures are made from. Returns its path."""
    from harness.files import atomic_write_json

    method_of = {cell.row.id: cell.config.method.name for cell in plan.cells if not cell.stage}
    content = {
        "version": PLAN_VERSION,
        "sweep": plan.sweep.name,
        "title": plan.title,
        "scale": plan.command.scale if not plan.cells else plan.cells[0].config.scale,
        "changes": list(plan.sweep.changes),
        "rows": [
            _row_record(row, plan.labels[row.id], method_of[row.id]) for row in plan.sweep.rows if row.id in method_of
        ],
        "cells": [_cell_record(cell, plan.labels[cell.row.id], state_of[cell.fingerprint]) for cell in plan.cells],
    }
    path = plan.results / "plan.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_json(path, content)
    return path


def _row_record(row: Row, label: str, method: str) -> dict[str, Any]:
    spec = registry.method_spec(method)
    return {
        "id": row.id,
        "label": label,
        "kind": row.kind,
        "base": row.base,
        "delta": list(row.delta),
        "uses_teacher": spec.uses_teacher,
        "teacher_cancels": spec.teacher_cancels,
    }


def _cell_record(cell: Cell, label: str, state: str) -> dict[str, Any]:
    config = cell.config
    return {
        "fingerprint": cell.fingerprint,
        "row": cell.row.id,
        "label": label,
        "method": config.method.name,
        "backbone": config.backbone.name,
        "embedded": config.backbone.kind == "embedded",
        "analyzer": config.analyzer.name if config.method.skill.source == "own_trajectory" else None,
        "env": config.env.name,
        "fraction": config.fraction,
        "fraction_of": config.fraction_of,
        "seed": config.seed,
        "scale": config.scale,
        "protocol": config.protocol,
        "trains": config.method.trains,
        "delta": list(cell.row.delta),
        "base": cell.row.base,
        "changed": {key: list(pair) for key, pair in cell.changed.items()},
        "preset": list(cell.preset),
        "requires": list(cell.requires),
        "stage": cell.stage,
        "selected": cell.selected,
        "state": state,
        # Relative to the folder that holds runs/ and results/, so that the whole can be moved.
        "run_dir": f"runs/{cell.fingerprint}",
    }
