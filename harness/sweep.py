"""A sweep as data: rows x axes, minus exclusions, and the part of it that a command selects. Composes nothing."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.commandline import AXES, CommandLine, as_override, axis_value, check_group, check_key
from harness.compose import named, render
from harness.config import SweepConfig
from harness.configs import available_files
from harness.errors import FROM_COMMAND_LINE, ConfigError, Problem, describe, nearest, suggest
from harness.schema import exists, nearest_key
from harness.typed import checked
from harness.validate import RANGES

KINDS = ("method", "control", "baseline")
GRID_AXES = ("env", "backbone", "fraction", "seed")
SINGLE = "single"

# Names of sweeps are folders; "/" in a row's name sets off what the command line varied.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_NAME_FIX = "letters, digits, and _ . + -"
_SLUG_LENGTH, _DIGEST_LENGTH = 60, 8

Groups = Mapping[str, Sequence[str]]
Place = Callable[[str], str]  # dotted key -> who says so


@dataclass(frozen=True)
class Row:
    """One row of the table. overrides: key -> Hydra override of this row; axes: axis -> its values.

    stage: no row of the table, only the teacher of one (made by harness.cells).
    """

    id: str
    method: str
    label: str | None
    kind: str
    base: str | None
    delta: tuple[str, ...]
    overrides: Mapping[str, str]
    axes: Mapping[str, tuple[Any, ...]]
    variant: str = ""  # what the command line varied in this copy of the row
    stage: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """Coordinates of one cell."""

    row: str
    method: str
    env: str
    backbone: str
    fraction: float
    seed: int


@dataclass(frozen=True)
class Sweep:
    """name: folder of results (see `results_name`); origin: where it is defined; points: every cell, rows in order;
    selected: those wanted; changes: what the command line changed in every cell; common: key -> override that the sweep
    sets in every row."""

    name: str
    title: str
    origin: str
    rows: tuple[Row, ...]
    points: tuple[Point, ...]
    selected: frozenset[Point]
    changes: tuple[str, ...] = ()
    common: Mapping[str, str] = field(default_factory=dict)


def expand(config: SweepConfig, file: str, command: CommandLine, groups: Groups, origin: str = "") -> Sweep:
    """The cells of sweep file `file`, and those that the command line selects. origin: where the file is, to be shown.
    Raises ConfigError."""
    origin = origin or f"sweeps/sweep/{file}.yaml"

    def place(key: str) -> str:
        given = any(key == k or key.startswith(f"{k}.") for k in command.fixed)
        return FROM_COMMAND_LINE if given else origin

    if not config.rows:
        raise ConfigError(Problem("sweep.rows", "[]", place("sweep.rows"), "a sweep needs at least one row"))
    common = _overrides(config.set, "sweep.set", place("sweep.set"), groups)
    rows = _cross(_rows(config, common, place, groups), command.varied)
    points = _exclude(list(_grid(rows)), config.exclude, place("sweep.exclude"))
    wanted = {axis: _known_names(points, axis, given) for axis, given in command.axes.items()}
    selected = _select(points, wanted, file, origin, groups)
    name, title = config.name or file, config.title or file
    if "sweep.name" not in command.fixed:
        name = results_name(name, command.changes)
    if not _NAME.fullmatch(name):
        raise ConfigError(Problem("sweep.name", name, place("sweep.name"), f"names a folder; use {_NAME_FIX}"))
    return Sweep(name, title, origin, rows, tuple(points), selected, command.changes, common)


def results_name(name: str, changes: Iterable[str]) -> str:
    """Folder of the results of sweep `name` with `changes` (`KEY=VALUE`); the name itself if there are none.

    A table of changed settings must not take the place of the sweep's own: `main_table` with training.lr=0.1 becomes
    `main_table+training.lr-0.1`, whatever the order of the changes. What cannot stand in a name, or makes it too long,
    gives way to a digest.
    """
    ordered = sorted(changes)
    if not ordered:
        return name
    # A key holds no "-", so that the first one ends it: without a digest no two changes share a name.
    plain = "+".join(change.replace("=", "-", 1) for change in ordered)
    slug = re.sub(r"[^A-Za-z0-9_.+-]+", "_", re.sub(r"""[][{}()'" ]""", "", plain))
    if slug != plain or "+" in "".join(ordered) or len(slug) > _SLUG_LENGTH:
        digest = hashlib.sha256("\n".join(ordered).encode()).hexdigest()[:_DIGEST_LENGTH]
        slug = f"{slug[:_SLUG_LENGTH]}-{digest}"
    return f"{name}+{slug}"


def single(command: CommandLine, defaults: Mapping[str, str], fraction: float, seed: int) -> Sweep:
    """Without `sweep=`: one row per method named, crossed with whatever axes were given several values.

    defaults: group -> file chosen by sweeps/config.yaml.
    """
    given = {axis: command.axes.get(axis) for axis in AXES}
    axes: dict[str, tuple[Any, ...]] = {
        "env": given["env"] or (defaults["env"],),
        "backbone": given["backbone"] or (defaults["backbone"],),
        "fraction": given["fraction"] or (fraction,),
        "seed": given["seed"] or (seed,),
    }
    methods = dict.fromkeys(given["method"] or (defaults["method"],))
    rows = _cross(tuple(Row(m, m, None, "method", None, (), {}, axes) for m in methods), command.varied)
    points = tuple(_grid(rows))
    return Sweep(
        SINGLE, "Single run" if len(points) == 1 else "Runs", FROM_COMMAND_LINE, rows, points, frozenset(points)
    )


# --------------------------------------------------------------------------------------------------------------- rows
def _rows(config: SweepConfig, common: Mapping[str, str], place: Place, groups: Groups) -> tuple[Row, ...]:
    shared = {
        axis: _axis(axis, getattr(config.axes, axis), f"sweep.axes.{axis}", place(f"sweep.axes.{axis}"), groups)
        for axis in GRID_AXES
        if not all(axis in row.axes for row in config.rows)
    }
    origin = place("sweep.rows")
    rows: list[Row] = []
    for number, row in enumerate(config.rows):
        where = f"sweep.rows[{number}]"
        check_group("method", row.method, f"{origin}, {where}", groups)
        if row.kind not in KINDS:
            raise ConfigError(Problem(f"{where}.kind", row.kind, origin, suggest(row.kind, KINDS)))
        for axis in row.axes:
            if axis not in GRID_AXES:
                raise ConfigError(Problem(f"{where}.axes.{axis}", "", origin, suggest(axis, GRID_AXES, "axes")))
        for key in row.delta:
            if not exists(key):
                near = nearest_key(key)
                fix = "there is no such key" + (f"; did you mean {near}?" if near else "")
                raise ConfigError(Problem(f"{where}.delta", key, origin, fix))
        own = {axis: _axis(axis, values, f"{where}.axes.{axis}", origin, groups) for axis, values in row.axes.items()}
        axes = {axis: own[axis] if axis in own else shared[axis] for axis in GRID_AXES}
        overrides = {**common, **_overrides(row.set, f"{where}.set", origin, groups)}
        identifier = row.id or row.method
        if not _NAME.fullmatch(identifier):
            raise ConfigError(Problem(f"{where}.id", identifier, origin, f"use {_NAME_FIX}"))
        rows.append(Row(identifier, row.method, row.label, row.kind, row.base, tuple(row.delta), overrides, axes))
    _check_names(rows, origin)
    return tuple(rows)


def _check_names(rows: Sequence[Row], origin: str) -> None:
    names = [row.id for row in rows]
    for number, row in enumerate(rows):
        where = f"sweep.rows[{number}]"
        if names.count(row.id) > 1:
            fix = "two rows have this name; give each an `id` of its own"
            raise ConfigError(Problem(f"{where}.id", row.id, origin, fix))
        if row.base is not None and (row.base not in names or row.base == row.id):
            others = [n for n in names if n != row.id]
            raise ConfigError(Problem(f"{where}.base", row.base, origin, suggest(row.base, others, "rows")))
        if row.delta and row.base is None:
            fix = "says what may differ from a base row, but the row has no `base`"
            raise ConfigError(Problem(f"{where}.delta", ", ".join(row.delta), origin, fix))


def _axis(axis: str, values: Any, where: str, origin: str, groups: Groups) -> tuple[Any, ...]:
    listed = list(values) if isinstance(values, (list, tuple)) else [values]
    if not listed:
        raise ConfigError(Problem(where, "[]", origin, f"name at least one {axis}"))
    typed = tuple(axis_value(axis, v, f"{origin}, {where}", groups) for v in listed)
    if len(set(typed)) != len(typed):
        raise ConfigError(Problem(where, describe(listed), origin, "names a value twice"))
    return typed


def _overrides(settings: Mapping[str, Any], where: str, origin: str, groups: Groups) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in settings.items():
        if key in AXES or key in ("do", "sweep"):
            fix = "is an axis of the table; put it under `axes` or make it a row"
            raise ConfigError(Problem(f"{where}.{key}", str(value), origin, fix))
        check_key(key, str(value), f"{origin}, {where}", groups)
        check_group(key, value, f"{origin}, {where}", groups)
        if key not in groups and (faults := checked(key, value)[1]):
            raise ConfigError([Problem(f.key, f.value, f"{origin}, {where}", f.fix) for f in faults])
        found[key] = as_override(key, render(value), groups)
    return found


def _cross(rows: tuple[Row, ...], varied: Mapping[str, tuple[str, ...]]) -> tuple[Row, ...]:
    """Every row with every combination of values that the command line gave to keys that are no axis."""
    if not varied:
        return rows
    found: list[Row] = []
    for row in rows:
        for combination in itertools.product(*varied.values()):
            suffix = ",".join(text.lstrip("+") for text in combination)
            overrides = {**row.overrides, **dict(zip(varied, combination, strict=True))}
            base = None if row.base is None else f"{row.base}/{suffix}"
            name = f"{row.id}/{suffix}"
            found.append(replace(row, id=name, base=base, overrides=overrides, variant=suffix))
    return tuple(found)


# -------------------------------------------------------------------------------------------------------------- cells
def _grid(rows: Iterable[Row]) -> Iterator[Point]:
    for row in rows:
        for values in itertools.product(*(row.axes[axis] for axis in GRID_AXES)):
            yield Point(row.id, row.method, *values)


def _exclude(points: list[Point], entries: Sequence[Mapping[str, Any]], origin: str) -> list[Point]:
    fields = ("row", *AXES)
    kept = points
    for number, entry in enumerate(entries):
        where = f"sweep.exclude[{number}]"
        for key in entry:
            if key not in fields:
                raise ConfigError(Problem(f"{where}.{key}", "", origin, suggest(key, fields, "fields")))
        if not entry:
            raise ConfigError(Problem(where, "{}", origin, "names nothing; it would leave out every cell"))
        if not any(_matches(point, entry) for point in points):
            text = ", ".join(f"{k}: {v}" for k, v in entry.items())
            fix = "matches no cell of this sweep; correct it or drop it"
            raise ConfigError(Problem(where, f"{{{text}}}", origin, fix))
        kept = [point for point in kept if not _matches(point, entry)]
    if not kept:
        raise ConfigError(Problem("sweep.exclude", "", origin, "leaves out every cell of the sweep"))
    return kept


def _matches(point: Point, entry: Mapping[str, Any]) -> bool:
    def holds(key: str, wanted: Any) -> bool:
        listed = wanted if isinstance(wanted, (list, tuple)) else [wanted]
        here = _row_names(point) if key == "row" else (getattr(point, key),)
        return any(value in listed for value in here)

    return all(holds(key, wanted) for key, wanted in entry.items())


def _row_names(point: Point) -> tuple[str, ...]:
    """A row's name, and without what the command line varied."""
    return (point.row, point.row.partition("/")[0])


def _select(
    points: Sequence[Point], wanted: Mapping[str, tuple[Any, ...]], file: str, origin: str, groups: Groups
) -> frozenset[Point]:
    """The cells whose coordinates are all among those wanted; `method` also finds rows by their name."""
    for axis, values in wanted.items():
        present = dict.fromkeys(c for point in points for c in _coordinates(point, axis))
        for value in values:
            if axis in RANGES and not RANGES[axis].holds(value):  # nothing that the sweep could be widened by
                raise ConfigError(Problem(axis, str(value), FROM_COMMAND_LINE, str(RANGES[axis])))
            if value not in present:
                raise ConfigError(_not_in_sweep(axis, value, list(present), file, origin, groups))
    return frozenset(
        point
        for point in points
        if all(any(c in values for c in _coordinates(point, axis)) for axis, values in wanted.items())
    ) or _nothing(wanted, file)


def _known_names(points: Sequence[Point], axis: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values as the sweep calls them: a file may have a second name (backbone=tiny is tiny-s)."""
    present = {c for point in points for c in _coordinates(point, axis)}
    return tuple(v if v in present or not isinstance(v, str) else _sweeps_name(axis, v, present) for v in values)


def _sweeps_name(axis: str, value: str, present: set[Any]) -> str:
    other = named(axis, value)
    return other if other in present else value


def _coordinates(point: Point, axis: str) -> tuple[Any, ...]:
    if axis != "method":
        return (getattr(point, axis),)
    return (point.method, *_row_names(point))


def _not_in_sweep(axis: str, value: Any, present: Sequence[Any], file: str, origin: str, groups: Groups) -> Problem:
    listed = ", ".join(str(v) for v in present)
    alone = f"to run it by itself leave `sweep=` away: {axis}={value}"
    if axis == "method":
        exists = value in groups["method"]
        near = nearest(str(value), [*(str(v) for v in present), *([] if exists else groups["method"])])
        meant = f"did you mean {near!r}?" if near else ""
        if exists:
            wider = f"{meant} Else add" if meant else "add"
            fix = f"is no row of sweep {file} ({listed}); {wider} it to {origin}, or {alone}"
        else:
            known = meant or available_files("", groups["method"])
            fix = f"is neither a row of sweep {file} ({listed}) nor a method file; {known}"
    else:
        wider = ",".join(str(v) for v in (*present, value))
        fix = f"is not in sweep {file} ({listed}); widen it with sweep.axes.{axis}=[{wider}], or {alone}"
    return Problem(axis, str(value), FROM_COMMAND_LINE, fix)


def _nothing(wanted: Mapping[str, tuple[Any, ...]], file: str) -> frozenset[Point]:
    text = " ".join(f"{axis}={','.join(str(v) for v in values)}" for axis, values in wanted.items())
    raise ConfigError(Problem("", "", FROM_COMMAND_LINE, f"{text} selects no cell of sweep {file}"))
