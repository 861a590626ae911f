"""Cells with their fingerprints, and the cells whose weights they need first: a frozen teacher is another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness import registry
from harness.cells import Cells
from harness.config import RunConfig
from harness.errors import ConfigError, Problem
from harness.fingerprint import fingerprint
from harness.sweep import Point, Row
from harness.validate import VALIDATION_PANEL
from harness.versions import versions


@dataclass(frozen=True)
class Cell:
    """One run of the plan.

    expected_seconds: CPU seconds, None if nobody measured it
    requires: fingerprints of the runs that must be complete before this one starts
    stage: no row of the table, only the teacher of one
    changed: dotted key -> (value of the base row, value here), of all that differs; empty without a base
    preset: dotted keys that the protocol decides here
    """

    point: Point
    row: Row
    config: RunConfig
    fingerprint: str
    selected: bool
    expected_seconds: float | None
    requires: tuple[str, ...] = ()
    stage: bool = False
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    preset: tuple[str, ...] = ()


class CellMaker:
    """Makes cells of rows and points, and those of their teachers."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._identities = _Identities()
        self._teachers: dict[tuple[str, str, str], tuple[Row, ...]] = {}
        self._made: dict[tuple[str, str, str, float, int], Cell] = {}
        self.stages: dict[str, Cell] = {}  # fingerprint -> cell of a teacher, in the order in which they were needed

    def teachers(self, row: Row, env: str, backbone: str) -> tuple[Row, ...]:
        """As Cells.teachers."""
        key = (row.id, env, backbone)
        if key not in self._teachers:
            self._teachers[key] = self._cells.teachers(row, env, backbone)
        return self._teachers[key]

    def cell(self, row: Row, point: Point, selected: bool) -> Cell:
        """The cell of a row; its teachers are in `stages`. Raises ConfigError."""
        teacher: Cell | None = None
        for stage in reversed(self.teachers(row, point.env, point.backbone)):  # whoever needs nobody comes first
            teacher = self._stage(stage, replace(point, row=stage.id, method=stage.method), teacher)
        return self._cell(row, point, selected, teacher)

    def _stage(self, row: Row, point: Point, teacher: Cell | None) -> Cell:
        key = (row.id, point.env, point.backbone, point.fraction, point.seed)
        if key not in self._made:
            made = replace(self._cell(row, point, False, teacher), stage=True)
            self._made[key] = self.stages.setdefault(made.fingerprint, made)
        return self._made[key]

    def _cell(self, row: Row, point: Point, selected: bool, teacher: Cell | None) -> Cell:
        command = self._cells.command_config(row, point.env, point.backbone)
        config = self._cells.config(row, point)
        if teacher is not None:
            source = replace(config.method.teacher, source=teacher.fingerprint)
            config = replace(config, method=replace(config.method, teacher=source))
        try:
            name = self._identities.fingerprint(config)
        except (ValueError, FileNotFoundError) as error:
            raise ConfigError(Problem("", "", "", f"row {row.id!r}: {error}")) from error
        expected = measured(command.expected_seconds, row.method, config.backbone.name, point.env)
        requires = () if teacher is None else (teacher.fingerprint,)
        preset = tuple(self._cells.preset(row, point.env, point.backbone))
        if preset:  # measured with the settings of the scale
            expected = None
        return Cell(point, row, config, name, selected, expected, requires, preset=preset)


def measured(times: Mapping[str, float], method: str, backbone: str, env: str) -> float | None:
    """CPU seconds of a cell from what was measured: of this method on this backbone in this environment, else on this
    backbone, else of this method. None: nobody measured it."""
    names = (method, f"{method}/{backbone}", f"{method}/{backbone}/{env}")
    return next((times[name] for name in reversed(names) if name in times), None)


def with_teachers(cells: Sequence[Cell], stages: Mapping[str, Cell]) -> list[Cell]:
    """The cells of rows, then the teachers that are no row. Whoever is selected selects those that it requires."""
    found = {cell.fingerprint: cell for cell in stages.values()}
    found |= {cell.fingerprint: cell for cell in cells}
    ordered = [*dict.fromkeys([*(c.fingerprint for c in cells), *found])]
    wanted = {name for name in ordered if found[name].selected}
    todo = sorted(wanted)
    while todo:
        more = [name for name in found[todo.pop()].requires if name not in wanted]
        wanted.update(more)
        todo += more
    return [replace(found[name], selected=name in wanted) for name in ordered]


class _Identities:
    """Identities of task panels and initial policies, and versions of code, each asked for once."""

    def __init__(self) -> None:
        self._panels: dict[tuple[str, str], str] = {}
        self._backbones: dict[tuple[str, str], str] = {}
        self._versions: dict[str, Mapping[str, Any]] = {}

    def fingerprint(self, config: RunConfig) -> str:
        env = repr(config.env)
        key = (repr(config.backbone), env)
        if key not in self._backbones:
            self._backbones[key] = registry.backbone_identity(config.backbone, config.env)
        method = config.method
        code = repr((method.name, method.skill, config.analyzer, config.env))  # all that decides which code is used
        if code not in self._versions:
            self._versions[code] = versions(config)
        panels = {name: self._panel(config, env, name) for name in used_panels(config)}
        return fingerprint(config, self._versions[code], self._backbones[key], panels)

    def _panel(self, config: RunConfig, env: str, panel: str) -> str:
        if (env, panel) not in self._panels:
            self._panels[env, panel] = registry.panel_identity(config.env, panel)
        return self._panels[env, panel]


def identity_of(config: RunConfig) -> str:
    """Fingerprint of a run that is no cell of a plan. Raises ValueError, FileNotFoundError."""
    return _Identities().fingerprint(config)


def used_panels(config: RunConfig) -> list[str]:
    """Panels that a run uses: `train` only if it trains, `validation` only if its method, or
    evaluation.validate_every, asks for that on the way."""
    regularly = config.method.trains and config.evaluation.validate_every > 0
    validates = regularly or registry.method_spec(config.method.name).validates
    before = [*(["train"] if config.method.trains else []), *([VALIDATION_PANEL] if validates else [])]
    return list(dict.fromkeys([*before, *config.evaluation.panels]))
