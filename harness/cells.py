"""The typed configuration of every cell: composed once per combination of files, whatever the number of seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.knobs import resolve_knobs
from harness import by_env, registry
from harness.commandline import AXES, CommandLine, as_override
from harness.compose import Composer, render
from harness.config import CommandConfig, RunConfig
from harness.errors import ConfigError, Problem, suggest
from harness.protocols import Protocols, apply
from harness.schema import value
from harness.sweep import Point, Row, Sweep

_GROUP_OF = {"training": "scale", "evaluation": "scale", "expected_seconds": "scale", "by_env": "scale"}
_FILES = ("method", "env", "backbone")
KNOBS = ("method.knobs.", "env.knobs.")


class Cells:
    """Configurations of a sweep's cells, before their fraction and seed are set."""

    def __init__(self, composer: Composer, sweep: Sweep, command: CommandLine) -> None:
        self._composer = composer
        self._command = command
        self._sweep = sweep
        self._protocols = Protocols(composer)
        self._bases: dict[tuple[str, ...], tuple[str, str, str]] = {}
        self._found: dict[tuple[tuple[str, ...], tuple[str, str, str]], CommandConfig] = {}
        self._presets: dict[tuple[tuple[str, ...], tuple[str, str, str]], Mapping[str, Any]] = {}
        self._stages: dict[str, Row] = {}
        # Knobs set for all rows at once concern only the methods and environments that declare them.
        given = {*sweep.common, *command.fixed, *command.varied}
        self.common_knobs = frozenset(key for key in given if key.startswith(KNOBS))

    def file_names(self, group: str) -> tuple[str, ...]:
        """Names of the files of a group, those of installed packages included."""
        return self._composer.groups()[group]

    def command_config(self, row: Row, env: str, backbone: str) -> CommandConfig:
        """The composed configuration of a row in an environment on a backbone, its protocol included. ConfigError.

        Files of one group normally touch their own part of the configuration only. Where that is proved by composing
        each file once beside the first combination, further combinations are put together from those parts; otherwise
        each is composed by Hydra.
        """
        overrides = self._key(row)
        wanted = (row.method, env, backbone)
        key = (overrides, wanted)
        if key not in self._found:
            combined = self._combined(overrides, wanted)
            plain = combined or self._composed(overrides, wanted)
            # What depends on other keys (${...}) must be composed again if those change.
            free = combined is not None or self._composer.is_plain(self._overrides(overrides, wanted))
            self._found[key], self._presets[key] = self._with_protocol(plain, free, row, wanted)
        return self._found[key]

    def config(self, row: Row, point: Point) -> RunConfig:
        """The run's configuration of one cell."""
        return run_config(self.command_config(row, point.env, point.backbone), row, point, self.common_knobs)

    def preset(self, row: Row, env: str, backbone: str) -> Mapping[str, Any]:
        """Dotted key -> value of everything that the protocol decides in a row."""
        self.command_config(row, env, backbone)
        return self._presets[self._key(row), (row.method, env, backbone)]

    def gives(self, row: Row, key: str, other: Row) -> bool:
        """Whether a row gives a dotted key that `other` does not give like it: in its settings, or in a file of its
        method that is none of the other's."""
        mine, theirs = ({k.lstrip("+"): text for k, text in r.overrides.items()} for r in (row, other))
        apart = (k for k, text in mine.items() if theirs.get(k) != text)
        return any(key == k or key.startswith(f"{k}.") for k in apart) or self._protocols.sets_apart(
            row.method, other.method, key
        )

    def unnamed(self, row: Row, env: str) -> tuple[str, str] | None:
        """Group and file of a row's method or environment that says nowhere whose code it is: neither the file, nor
        one that it inherits from, nor an override sets `name`. None if both do."""
        given = {k.lstrip("+") for k in (*row.overrides, *self._fixed(row), *self._command.varied)}
        for group, file in (("method", row.method), ("env", env)):
            key = f"{group}.name"
            if not {group, key} & given and not self._protocols.says(group, file, key):
                return group, file
        return None

    def where(self, group: str, file: str) -> str:
        """Where a file is, to be shown."""
        return self._composer.where(group, file)

    def origin(self, row: Row, env: str, backbone: str, key: str) -> str:
        """Where the value of a dotted key comes from, in words."""
        parts = key.split(".")
        prefixes = {".".join(parts[: i + 1]) for i in range(len(parts))}
        if prefixes & (self._fixed(row).keys() | self._command.varied.keys()) or key in self._command.axes:
            return "command line"
        if prefixes & row.overrides.keys():
            return f"{self._sweep.origin}, row {row.id}"
        if key in AXES:
            return self._sweep.origin
        files = (row.method, env, backbone)
        if prefixes & self._presets.get((self._key(row), files), {}).keys():
            return self._protocols.origin(self._found[self._key(row), files].protocol)
        if (known := self._found.get((self._key(row), files))) and (source := by_env.source(known, env, key)):
            return f"{self.origin(row, env, backbone, source)}, {source}.{env}"
        group = _GROUP_OF.get(parts[0], parts[0])
        chosen = {"method": row.method, "env": env, "backbone": backbone}
        _, choices = self._composer.config(self._overrides(self._key(row), files))
        file = chosen.get(group, choices.get(group))
        return self._composer.where(group, file) if file else self._composer.primary

    # -------------------------------------------------------------------------------------------------- teachers
    def teachers(self, row: Row, env: str, backbone: str) -> tuple[Row, ...]:
        """The row of a frozen teacher, that of its teacher, and so on; none if the row has no such teacher.

        A teacher is its method's file in a cell that equals the student's in everything else: what the command line or
        the row sets in `method.*` is the student's alone; what a sweep sets for all of its rows holds for teachers too.
        Raises ConfigError for a teacher that does not exist, has no weights of its own, or has itself as a teacher.
        """
        found: list[Row] = []
        current = row
        while True:
            teacher = self.command_config(current, env, backbone).method.teacher
            if teacher.source is not None:
                fix = "is filled in by the planner; name the teacher's method file in method.teacher.run"
                raise ConfigError(self._problem(current, env, backbone, "method.teacher.source", teacher.source, fix))
            if teacher.weights != "frozen" or teacher.run is None:
                return tuple(found)
            known = self._composer.groups()["method"]
            if teacher.run not in known:
                fix = suggest(teacher.run, known, "files in sweeps/method")
                raise ConfigError(self._problem(current, env, backbone, "method.teacher.run", teacher.run, fix))
            if teacher.run in (names := [other.method for other in found]):
                told = " -> ".join([row.method, *names, teacher.run])
                fix = f"teachers go round in a circle: {told}"
                raise ConfigError(self._problem(current, env, backbone, "method.teacher.run", teacher.run, fix))
            stage = self._stage(row, teacher.run)
            if not self.command_config(stage, env, backbone).method.trains:
                fix = "does not train, so that its run leaves no weights; name a method that does"
                raise ConfigError(self._problem(current, env, backbone, "method.teacher.run", teacher.run, fix))
            found.append(stage)
            current = stage

    def _stage(self, student: Row, method: str) -> Row:
        """The row of a teacher: the table's own where it has that; students whose teachers are set alike share it."""
        settings = {k: text for k, text in self._sweep.common.items() if not k.startswith("method.teacher")}
        settings |= {k: text for k, text in student.overrides.items() if not k.startswith("method.")}
        variant = ",".join(settings[k].lstrip("+") for k in self._command.varied if k in settings)
        name = f"{method}/{variant}" if variant else method
        stage = Row(name, method, None, "method", None, (), settings, {}, variant, stage=True)
        own = next((row for row in self._sweep.rows if row.id == name), None)
        if own is not None and own.method == method and self._key(own) == self._key(stage):
            return own
        if own is not None or self._stages.setdefault(name, stage) != stage:
            stage = replace(stage, id=f"{name} for {student.id}")
        return stage

    def _problem(self, row: Row, env: str, backbone: str, key: str, given: str, fix: str) -> Problem:
        return Problem(key, given, self.origin(row, env, backbone, key), f"row {row.id!r}: {fix}")

    # -------------------------------------------------------------------------------------------------- protocol
    def _with_protocol(
        self, plain: CommandConfig, free: bool, row: Row, files: tuple[str, str, str]
    ) -> tuple[CommandConfig, Mapping[str, Any]]:
        """The configuration with what its files say of this environment, and its protocol, where nobody overrides it;
        and what the protocol decides. free: no ${...} in it."""
        overrides = self._key(row)
        groups = self._composer.groups()

        def origin(key: str) -> str:
            return self.origin(row, files[1], files[2], key)

        preset = self._protocols.values(plain.protocol, files[0], files[1], lambda: origin("protocol"))
        given = {**by_env.values(plain, files[1], groups["env"], origin), **preset}
        settings = {k.lstrip("+"): text for k, text in {**row.overrides, **self._fixed(row)}.items()}
        values = {key: given[key] for key in given if key not in settings}
        presets = {key: given[key] for key in preset if key in values}
        if not values:
            return plain, presets
        nested = any(a.startswith(f"{b}.") or b.startswith(f"{a}.") for a in values for b in settings)
        if free and not nested:
            return apply(plain, values), presets
        before = tuple(as_override(key, render(given), groups) for key, given in values.items())
        composed = self._composed((*before, *overrides), files)
        return composed, {key: given for key, given in presets.items() if value(composed, key) == given}

    # ---------------------------------------------------------------------------------------------- composition
    def _key(self, row: Row) -> tuple[str, ...]:
        """What is overridden in a row: the sweep's and the row's settings, then the command line's."""
        return tuple({**row.overrides, **self._fixed(row)}.values())

    def _fixed(self, row: Row) -> dict[str, str]:
        """What the command line sets in a row: a teacher's method is its own."""
        not_here = ("sweep", "method") if row.stage else ("sweep",)
        return {k: text for k, text in self._command.fixed.items() if k.partition(".")[0] not in not_here}

    @staticmethod
    def _overrides(overrides: tuple[str, ...], files: tuple[str, str, str]) -> list[str]:
        return [*(f"{group}={name}" for group, name in zip(_FILES, files, strict=True)), *overrides]

    def _composed(self, overrides: tuple[str, ...], files: tuple[str, str, str]) -> CommandConfig:
        return self._composer.config(self._overrides(overrides, files))[0]

    def _combined(self, overrides: tuple[str, ...], wanted: tuple[str, str, str]) -> CommandConfig | None:
        """`wanted`, made of compositions that differ from the first one in one file; None if that is unsafe."""
        first = self._bases.setdefault(overrides, wanted)
        differing = [i for i in range(len(_FILES)) if wanted[i] != first[i]]
        if len(differing) < 2:
            return None
        base = self._composed(overrides, first)
        parts = {}
        for i in differing:
            files = (*first[:i], wanted[i], *first[i + 1 :])
            request = self._overrides(overrides, (files[0], files[1], files[2]))
            other = self._composer.config(request)[0]
            group = _FILES[i]
            same_elsewhere = replace(other, **{group: getattr(base, group)}) == base
            if not (same_elsewhere and self._composer.is_plain(request)):
                return None
            parts[group] = getattr(other, group)
        if not self._composer.is_plain(self._overrides(overrides, first)):
            return None
        return replace(base, **parts)


def run_config(
    command: CommandConfig, row: Row | None = None, point: Point | None = None, common_knobs: Container[str] = ()
) -> RunConfig:
    """The part of a command's configuration that is a run's, named after its row and set to its fraction and seed.

    Knobs are complete: those that nobody set have their defaults. Without evaluation panels the environment's own are
    taken. common_knobs: dotted knobs set for many rows at once, which concern only the methods and environments that
    declare them. Paths to data are made absolute: a run may be taken up again from another folder.
    """
    values = {item.name: getattr(command, item.name) for item in dataclasses.fields(RunConfig)}
    env, method = command.env, command.method
    values["env"] = replace(
        env,
        data=_absolute(env.data),
        cache=_absolute(env.cache),
        knobs=_resolved(registry.env_knobs(env.name), env.knobs, "env.knobs", common_knobs),
    )
    knobs = _resolved(registry.method_knobs(method.name), method.knobs, "method.knobs", common_knobs)
    values["method"] = replace(method, knobs=knobs)
    if not command.evaluation.panels:
        values["evaluation"] = replace(command.evaluation, panels=registry.judged_by(env.name))
    values["analyzer"] = replace(command.analyzer, answers=_absolute(command.analyzer.answers))
    if row is not None:
        values["method"] = replace(values["method"], id=row.id, label=row_label(row, command))
    if point is not None:
        values.update(fraction=point.fraction, seed=point.seed)
    return RunConfig(**values)


def _resolved(declared: type[Any] | None, given: dict[str, Any], where: str, common: Container[str]) -> dict[str, Any]:
    """Every knob with its value; as given where that is wrong, which harness.validate reports with its origin."""
    names = () if declared is None else {item.name for item in dataclasses.fields(declared)}
    kept = {name: v for name, v in given.items() if name in names or f"{where}.{name}" not in common}
    try:
        return resolve_knobs(declared, kept, where)
    except ValueError:
        return kept


def row_label(row: Row, command: CommandConfig) -> str:
    label = row.label or command.method.label
    return f"{label} ({row.variant})" if row.variant else label


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())
