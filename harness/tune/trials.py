"""From parameters to cells: a trial is its row with the searched keys set, once per seed, planned like other cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.cells import Cells, row_label, run_config
from harness.commandline import CommandLine, as_override
from harness.compose import Composer, render
from harness.errors import ConfigError, Problem
from harness.plan import Plan
from harness.stages import Cell, CellMaker
from harness.sweep import Point, Row
from harness.tune.space import Value
from harness.validate import problems


@dataclass(frozen=True)
class Made:
    """A trial's runs. cells: one per seed, in the order of the seeds; teachers: runs that they need first."""

    cells: tuple[Cell, ...]
    teachers: tuple[Cell, ...]
    labels: Mapping[str, str]  # fingerprint -> how progress calls it

    @property
    def all(self) -> tuple[Cell, ...]:
        return tuple({cell.fingerprint: cell for cell in (*self.teachers, *self.cells)}.values())


class Trials:
    """Makes the cells of trials, each composed and validated once, here in the parent."""

    def __init__(self, composer: Composer, command: CommandLine, plan: Plan) -> None:
        self._cells = Cells(composer, plan.sweep, command)
        self._maker = CellMaker(self._cells)
        self._groups = composer.groups()

    def make(self, row: Row, points: Sequence[Point], params: Mapping[str, Value], name: str) -> Made:
        """The runs of `row` with `params`; name: what sets them apart, such as `trial 3`. Raises ConfigError."""
        varied = self._row(row, params, name)
        first = points[0]
        found: dict[Problem, None] = {}
        for one in (varied, *self._maker.teachers(varied, first.env, first.backbone)):
            config = self._cells.command_config(one, first.env, first.backbone)
            whole = run_config(config, one, first, self._cells.common_knobs)

            def origin(key: str, one: Row = one) -> str:
                if key in params:
                    return f"sweep.tune, {name}"
                return self._cells.origin(one, first.env, first.backbone, key)

            found.update(dict.fromkeys(problems(whole, origin)))
        if found:
            raise ConfigError(list(found))
        cells = tuple(self._maker.cell(varied, replace(point, row=varied.id), True) for point in points)
        teachers = self._needed(cells)
        label = row_label(varied, self._cells.command_config(varied, first.env, first.backbone))
        labels = {cell.fingerprint: f"{label} seed {cell.point.seed}" for cell in cells}
        labels |= {cell.fingerprint: f"{cell.row.id} (teacher) seed {cell.point.seed}" for cell in teachers}
        return Made(cells, teachers, labels)

    def _row(self, row: Row, params: Mapping[str, Value], name: str) -> Row:
        settings = {key: as_override(key, render(value), self._groups) for key, value in params.items()}
        return replace(
            row,
            id=f"{row.id}/{name}",
            variant=", ".join(filter(None, [row.variant, name])),
            base=None,
            overrides={**row.overrides, **settings},
        )

    def _needed(self, cells: Sequence[Cell]) -> tuple[Cell, ...]:
        """The teachers of the cells, whoever needs nobody first."""
        found: dict[str, Cell] = {}

        def add(names: Sequence[str]) -> None:
            for name in names:
                stage = self._maker.stages[name]
                add(stage.requires)
                found.setdefault(name, stage)

        for cell in cells:
            add(cell.requires)
        return tuple(found.values())
