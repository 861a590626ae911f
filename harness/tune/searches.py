"""The searches of a command: one for each row, environment, backbone and fraction that it selects."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import registry
from harness.commandline import CommandLine
from harness.config import TuneConfig
from harness.errors import ConfigError, Problem, suggest
from harness.panels import VALIDATION
from harness.plan import Plan
from harness.record import planned_steps
from harness.schema import value
from harness.stages import Cell
from harness.sweep import Point, Row
from harness.tune.objectives import SUCCESS, Objective, judged, objectives_of
from harness.tune.space import Dimension, Value, space_of
from harness.tune.trials import Trials

SAMPLERS = ("tpe", "random", "qmc", "nsgaii")
PRUNERS = ("none", "median", "halving")
_RUNNABLE = re.compile(r"[^A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class Search:
    """One study.

    name: of its files and of the study, with a digest of all that makes its trials comparable; row: what is tuned;
    points: its cells' coordinates, one per seed; skills: which evaluation counts (off | on); steps: planned training
    steps of a run; start: the row's own values of the searched keys, None where they lie outside the space
    """

    name: str
    row: Row
    label: str
    points: tuple[Point, ...]
    dimensions: tuple[Dimension, ...]
    objectives: tuple[Objective, ...]
    skills: str
    steps: int
    start: Mapping[str, Value] | None

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(point.seed for point in self.points)

    @property
    def place(self) -> str:
        point = self.points[0]
        part = "" if point.fraction == 1.0 else f", fraction {point.fraction:g}"
        return f"{self.row.id} in {point.env} on {point.backbone}{part}"


def searches_of(plan: Plan, tune: TuneConfig, command: CommandLine, trials: Trials) -> tuple[Search, ...]:
    """Every selected search, its whole space validated at its ends. Raises ConfigError with all that is wrong."""
    origin = plan.sweep.origin
    groups: dict[tuple[str, str, str, float], list[Cell]] = {}
    for cell in plan.selected:
        if not cell.stage:
            p = cell.point
            groups.setdefault((p.row, p.env, p.backbone, p.fraction), []).append(cell)
    found = [*_settings(tune, origin), *_rows(tune, plan, origin)]
    dimensions: dict[tuple[str, str, str, float], tuple[Dimension, ...]] = {}
    for key, cells in groups.items():
        found += _refused(cells[0], tune, plan)
        row = cells[0].row
        of_row = tune.rows.get(row.id.partition("/")[0])
        dimensions[key], wrong = space_of(tune.space, of_row, cells[0].config.method.name, origin)
        found += wrong or _fixed(dimensions[key], row, command, origin)
    if not found:
        for key, cells in groups.items():
            found += _ends(trials, cells, dimensions[key])
    if found:
        raise ConfigError(list(dict.fromkeys(found)))
    return tuple(_search(cells, dimensions[key], tune, trials, plan.labels) for key, cells in groups.items())


def _search(
    cells: Sequence[Cell],
    dimensions: tuple[Dimension, ...],
    tune: TuneConfig,
    trials: Trials,
    labels: Mapping[str, str],
) -> Search:
    first = cells[0]
    points = tuple(cell.point for cell in cells)
    objectives = tuple(Objective(name, direction) for name, direction in tune.objectives.items())
    # What a trial is compared by must not depend on what the row's file says of the searched keys.
    corner = trials.make(first.row, points, {d.key: d.ends()[0] for d in dimensions}, "corner")
    content = {
        "runs": [cell.fingerprint for cell in corner.cells],
        "space": [repr(d) for d in dimensions],
        "objectives": [repr(o) for o in objectives],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    p = first.point
    name = _RUNNABLE.sub("_", f"{first.row.id}-{p.env}-{p.backbone}-{p.fraction:g}")[:80] + f"-{digest}"
    own = {d.key: value(first.config, d.key) for d in dimensions}
    start = own if all(d.holds(own[d.key]) for d in dimensions) else None
    kinds = first.config.method.rollout_skills_eval
    return Search(
        name=name,
        row=first.row,
        label=labels[first.row.id],
        points=points,
        dimensions=dimensions,
        objectives=objectives,
        skills="off" if "off" in kinds else kinds[0],
        steps=planned_steps(first.config),
        start=start,
    )


# ------------------------------------------------------------------------------------------------------------- checks
def _settings(tune: TuneConfig, origin: str) -> Iterator[Problem]:
    for key, given, known in (("sampler", tune.sampler, SAMPLERS), ("pruner", tune.pruner, PRUNERS)):
        if given not in known:
            yield Problem(f"sweep.tune.{key}", given, origin, suggest(given, known, "available"))
    for key, number, least in (
        ("trials", tune.trials, 1),
        ("startup", tune.startup, 0),
        ("parallel", tune.parallel, 0),
        ("sampler_seed", tune.sampler_seed, 0),
    ):
        if number < least:
            yield Problem(f"sweep.tune.{key}", str(number), origin, f"must be a whole number of at least {least}")
    if len(tune.objectives) > 1 and tune.pruner != "none":
        fix = "stops runs by one number on the way; with several objectives set sweep.tune.pruner=none"
        yield Problem("sweep.tune.pruner", tune.pruner, origin, fix)
    elif tune.pruner != "none" and dict(tune.objectives) != {SUCCESS: "max"}:
        fix = f"judges by {SUCCESS}, which must then be the objective; set sweep.tune.pruner=none"
        yield Problem("sweep.tune.pruner", tune.pruner, origin, fix)


def _rows(tune: TuneConfig, plan: Plan, origin: str) -> Iterator[Problem]:
    known = [row.id.partition("/")[0] for row in plan.sweep.rows]
    for name, space in tune.rows.items():
        if name not in known:
            yield Problem(f"sweep.tune.rows.{name}", "", origin, suggest(str(name), known, "rows"))
        elif not isinstance(space, Mapping):
            yield Problem(f"sweep.tune.rows.{name}", str(space), origin, "must map keys to spaces")


def _refused(cell: Cell, tune: TuneConfig, plan: Plan) -> Iterator[Problem]:
    """What a search may not look at, and rows that there is nothing to search in."""
    config, origin = cell.config, plan.sweep.origin
    spec = registry.env_spec(config.env.name)
    yield from objectives_of(tune.objectives, spec.panels, origin)
    if not config.method.trains:
        yield Problem("method", cell.row.id, origin, "does not train, so that there is nothing to tune")
    for panel in config.evaluation.panels:
        if panel != VALIDATION:
            yield Problem("evaluation.panels", panel, plan.origin(cell, "evaluation.panels"), judged(panel))
    if tune.pruner != "none" and config.evaluation.validate_every < 1:
        fix = "gives the pruner nothing to judge by; set training steps between looks, or sweep.tune.pruner=none"
        key = "evaluation.validate_every"
        yield Problem(key, "0", plan.origin(cell, key), fix)


def _fixed(dimensions: Sequence[Dimension], row: Row, command: CommandLine, origin: str) -> Iterator[Problem]:
    if not dimensions:
        fix = f"row {row.id!r} has nothing to search; give sweep.tune.space or sweep.tune.rows.{row.id} a key"
        yield Problem("sweep.tune.space", "", origin, fix)
    given = {*command.fixed, *command.varied}
    for d in dimensions:
        if any(d.key == key or d.key.startswith(f"{key}.") for key in given):
            fix = "is searched, so that it cannot be set, too; drop it here or set sweep.tune.space to other keys"
            yield Problem(d.key, "", "command line", fix)


def _ends(trials: Trials, cells: Sequence[Cell], dimensions: Sequence[Dimension]) -> list[Problem]:
    """What is wrong at the ends of the space, each key by itself beside the row's own values of the others."""
    found: list[Problem] = []
    row, points = cells[0].row, [cells[0].point]
    own: dict[str, Any] = {d.key: value(cells[0].config, d.key) for d in dimensions}
    inside = {d.key: own[d.key] if d.holds(own[d.key]) else d.ends()[0] for d in dimensions}
    for d in dimensions:
        for end in d.ends():
            try:
                trials.make(row, points, {**inside, d.key: end}, f"{d.key}={end}")
            except ConfigError as error:
                found += error.problems
    return found
