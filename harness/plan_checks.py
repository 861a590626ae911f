"""What the planner refuses: bad values, undeclared differences from a base row, one experiment under two names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from harness import registry
from harness.cells import Cells, run_config
from harness.errors import ConfigError, Problem, describe
from harness.fingerprint import differences, identity
from harness.launch import shapes
from harness.schema import value
from harness.stages import Cell, CellMaker
from harness.sweep import Point, Row, Sweep
from harness.validate import RANGES, no_such_knob, problems

Combination = tuple[str, str, str]  # row, environment file, backbone file
Changes = Mapping[str, tuple[Any, Any]]


def combinations(points: Iterable[Point]) -> dict[Combination, Point]:
    """(row, env, backbone) -> the first of its points."""
    found: dict[Combination, Point] = {}
    for point in points:
        found.setdefault((point.row, point.env, point.backbone), point)
    return found


# ------------------------------------------------------------------------------------------------------------- values
def check_values(sweep: Sweep, rows: Mapping[str, Row], cells: Cells, maker: CellMaker) -> None:
    """Every selected combination of files and its teachers, and every fraction and seed. Raises ConfigError."""
    found: dict[Problem, None] = {}
    selected = [point for point in sweep.points if point in sweep.selected]
    several = combinations(selected)
    check_named(several, rows, cells, maker)
    found.update(dict.fromkeys(_common_knobs(several, rows, cells)))
    for (row_id, env, backbone), point in several.items():
        for row in (rows[row_id], *maker.teachers(rows[row_id], env, backbone)):
            config = run_config(cells.command_config(row, env, backbone), row, point, cells.common_knobs)

            def origin(key: str, row: Row = row, env: str = env, backbone: str = backbone) -> str:
                return cells.origin(row, env, backbone, key)

            found.update(dict.fromkeys(problems(config, origin)))
            if config.launcher.resources:  # asking where it comes from composes the combination
                # A site's figures may be for backbones of other sweeps: any that exists may be named.
                known = {*cells.file_names("backbone"), config.backbone.name}
                wrong = shapes.problems(config.launcher.resources, known, origin(shapes.KEY))
                found.update(dict.fromkeys(wrong))
    for axis in ("fraction", "seed"):
        for number, point in {getattr(p, axis): p for p in selected}.items():
            if not RANGES[axis].holds(number):
                where = cells.origin(rows[point.row], point.env, point.backbone, axis)
                found[Problem(axis, str(number), where, str(RANGES[axis]))] = None
    if found:
        raise ConfigError(list(found))


def check_named(several: Iterable[Combination], rows: Mapping[str, Row], cells: Cells, maker: CellMaker) -> None:
    """Every file of a method or an environment says whose code it is. Without a name it would run as what the schema
    begins with, under a name of its own. Raises ConfigError."""
    found: dict[Problem, None] = {}
    for row_id, env, backbone in several:
        for row in (rows[row_id], *maker.teachers(rows[row_id], env, backbone)):
            if missing := cells.unnamed(row, env):
                group, file = missing
                example = "grpo" if group == "method" else "alfworld"
                fix = (
                    "is set neither here nor in a file that this one inherits from; add `name: ...` (a registered one "
                    f"or module:SPEC), or inherit from another file: `defaults: [{example}, _self_]`"
                )
                found[Problem(f"{group}.name", "", cells.where(group, file), fix)] = None
    if found:
        raise ConfigError(list(found))


def _common_knobs(several: Iterable[Combination], rows: Mapping[str, Row], cells: Cells) -> Iterator[Problem]:
    """A knob that is set for all rows must concern at least one of those selected."""
    if not cells.common_knobs:
        return
    listed = list(several)
    for where, kind, ask in (
        ("method.knobs", "method", registry.method_knobs),
        ("env.knobs", "environment", registry.env_knobs),
    ):
        names = {
            getattr(cells.command_config(rows[i], env, backbone), where.partition(".")[0]).name: None
            for i, env, backbone in listed
        }
        declared = [ask(name) for name in names]
        known = [item.name for knobs in declared if knobs is not None for item in fields(knobs)]
        owner = f"{kind} {next(iter(names))!r}" if len(names) == 1 else f"any {kind} here ({', '.join(names)})"
        for key in sorted(cells.common_knobs):
            head, _, name = key.rpartition(".")
            if head == where and name not in known:
                row_id, env, backbone = listed[0]
                origin = cells.origin(rows[row_id], env, backbone, key)
                yield Problem(key, "", origin, no_such_knob(owner, where, name, known))


# ------------------------------------------------------------------------------------------------------------- deltas
def check_deltas(sweep: Sweep, rows: Mapping[str, Row], cells: Cells) -> dict[Combination, Changes]:
    """What each row with a base changes in it. Raises ConfigError if that is not what the row declares.

    What the protocol makes of a row may differ without being declared (see `by_protocol`).
    """
    found: dict[Problem, None] = {}
    of_row: dict[Combination, Changes] = {}
    for row_id, env, backbone in combinations(sweep.points):
        row = rows[row_id]
        if row.base is None:
            continue
        base = rows[row.base]
        changed = _changes(cells, base, row, env, backbone)
        of_row[row_id, env, backbone] = changed
        preset = {*cells.preset(base, env, backbone), *cells.preset(row, env, backbone)}
        waived = by_protocol(cells, base, row, env, backbone, changed)
        for key, (before, now) in changed.items():
            if key in waived or any(_covers(known, key) for known in row.delta):
                continue
            fix = (
                f"row {row.id!r} differs from its base {row.base!r} here ({describe(before)} there), which its delta "
                f"[{', '.join(row.delta)}] does not declare; undo the difference or declare it"
            )
            found[Problem(key, describe(now), cells.origin(row, env, backbone, key), fix)] = None
        for declared in row.delta:
            decided = any(_covers(declared, key) or _covers(key, declared) for key in preset)
            if not decided and not any(_covers(declared, key) for key in changed):
                fix = f"row {row.id!r} declares this difference from {row.base!r}, but there is none"
                found[Problem("delta", declared, sweep.origin, fix)] = None
    if found:
        raise ConfigError(list(found))
    return of_row


def by_protocol(cells: Cells, base: Row, row: Row, env: str, backbone: str, changed: Changes) -> frozenset[str]:
    """Which changed keys differ for no other reason than the protocol.

    In each of the two rows it says the value that is there or, in one of them, the row leaves the key alone: neither
    its settings nor its method's files give it (see Cells.gives). What a row gives itself is its own difference, to be
    declared, whatever the protocol says of the other.
    """
    sides = ((base, row, 0), (row, base, 1))
    presets = [cells.preset(one, env, backbone) for one, _, _ in sides]

    def decided(key: str, side: int) -> bool:
        return key in presets[side] and presets[side][key] == changed[key][side]

    return frozenset(
        key
        for key in changed
        if any(decided(key, side) for *_, side in sides)
        and all(decided(key, side) or not cells.gives(one, key, other) for one, other, side in sides)
    )


def _changes(cells: Cells, base: Row, row: Row, env: str, backbone: str) -> Changes:
    """Dotted key -> (value in the base row, value here), of all that can change a result.

    A frozen teacher is named by its method. Where that is the same, the teachers differ in nothing but what the rows
    differ in, too. A key that both rows have alike and only one of them uses (the analyzer's) is no change of its own.
    """
    theirs, ours = (
        run_config(cells.command_config(r, env, backbone), common_knobs=cells.common_knobs) for r in (base, row)
    )
    keys = {*differences(identity(theirs), identity(ours))}
    if theirs.method.teacher.run != ours.method.teacher.run:
        keys.add("method.teacher.run")
    found = {key: (value(theirs, key), value(ours, key)) for key in sorted(keys)}
    return {key: (before, now) for key, (before, now) in found.items() if before != now}


def _covers(declared: str, key: str) -> bool:
    return key == declared or key.startswith(declared + ".")


def check_distinct(cells: Sequence[Cell]) -> None:
    """Two rows of a sweep must not be the same experiment under two names. Raises ConfigError."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.fingerprint, cell)
        if other is not cell:
            fix = (
                f"rows {other.row.id!r} and {cell.row.id!r} are the same experiment: nothing that can change a result "
                "differs between them. Drop one, or give it the setting that was meant to differ"
            )
            raise ConfigError(Problem("", "", "", fix))


def check_labels(rows: Iterable[Row], labels: Mapping[str, str], where: Mapping[str, str] | None = None) -> None:
    """Two rows of a table must not be called alike: nobody could tell which is which. labels: row -> its label, of the
    rows that have cells; where: method file -> where it is, to be shown. Raises ConfigError."""
    seen: dict[str, Row] = {}
    for row in rows:
        if row.id not in labels:
            continue
        other = seen.setdefault(labels[row.id], row)
        if other is not row:
            place = (where or {}).get(row.method, "")
            fix = (
                f"rows {other.id!r} and {row.id!r} would both be called so in every table; give one a `label` of its "
                "own, in its method's file or in the sweep's row"
            )
            raise ConfigError(Problem("method.label", labels[row.id], place, fix))
