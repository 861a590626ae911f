"""The typed configuration of every cell: composed once per combination of files, whatever the number of seeds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from harness.commandline import AXES, CommandLine
from harness.compose import Composer
from harness.config import CommandConfig, RunConfig
from harness.sweep import Point, Row, Sweep

_GROUP_OF = {"training": "scale", "evaluation": "scale", "expected_seconds": "scale"}
_FILES = ("method", "env", "backbone")


class Cells:
    """Configurations of a sweep's cells, before their fraction and seed are set."""

    def __init__(self, composer: Composer, sweep: Sweep, command: CommandLine) -> None:
        self._composer = composer
        self._command = command
        self._sweep = sweep
        self._bases: dict[tuple[str, ...], tuple[str, str, str]] = {}
        self._found: dict[tuple[tuple[str, ...], tuple[str, str, str]], CommandConfig] = {}

    def command_config(self, row: Row, env: str, backbone: str) -> CommandConfig:
        """The composed configuration of a row in an environment on a backbone. Raises ConfigError.

        Files of one group normally touch their own part of the configuration only. Where that is proved by composing
        each file once beside the first combination, further combinations are put together from those parts; otherwise
        each is composed by Hydra.
        """
        overrides = self._key(row)
        wanted = (row.method, env, backbone)
        key = (overrides, wanted)
        if key not in self._found:
            self._found[key] = self._combined(overrides, wanted) or self._composed(overrides, wanted)
        return self._found[key]

    def config(self, row: Row, point: Point) -> RunConfig:
        """The run's configuration of one cell."""
        return run_config(self.command_config(row, point.env, point.backbone), row, point)

    def origin(self, row: Row, env: str, backbone: str, key: str) -> str:
        """Where the value of a dotted key comes from, in words."""
        parts = key.split(".")
        prefixes = {".".join(parts[: i + 1]) for i in range(len(parts))}
        if prefixes & (self._command.fixed.keys() | self._command.varied.keys() | self._command.axes.keys()):
            return "command line"
        if prefixes & row.overrides.keys():
            return f"{self._sweep.origin}, row {row.id}"
        if key in AXES:
            return self._sweep.origin
        group = _GROUP_OF.get(parts[0], parts[0])
        chosen = {"method": row.method, "env": env, "backbone": backbone}
        _, choices = self._composer.config(self._overrides(self._key(row), (row.method, env, backbone)))
        file = chosen.get(group, choices.get(group))
        return f"sweeps/{group}/{file}.yaml" if file else "sweeps/config.yaml"

    # ---------------------------------------------------------------------------------------------- composition
    def _key(self, row: Row) -> tuple[str, ...]:
        """What is overridden in a row: the sweep's and the row's settings, then the command line's."""
        fixed = {k: text for k, text in self._command.fixed.items() if k.partition(".")[0] != "sweep"}
        return tuple({**row.overrides, **fixed}.values())

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
            same_elsewhere = dataclasses.replace(other, **{group: getattr(base, group)}) == base
            if not (same_elsewhere and self._composer.is_plain(request)):
                return None
            parts[group] = getattr(other, group)
        if not self._composer.is_plain(self._overrides(overrides, first)):
            return None
        return dataclasses.replace(base, **parts)


def run_config(command: CommandConfig, row: Row | None = None, point: Point | None = None) -> RunConfig:
    """The part of a command's configuration that is a run's, named after its row and set to its fraction and seed.

    Paths to data are made absolute: a run may be taken up again from another folder.
    """
    values = {item.name: getattr(command, item.name) for item in dataclasses.fields(RunConfig)}
    env = command.env
    values["env"] = dataclasses.replace(env, data=_absolute(env.data), cache=_absolute(env.cache))
    if row is not None:
        values["method"] = dataclasses.replace(command.method, id=row.id, label=row_label(row, command))
    if point is not None:
        values.update(fraction=point.fraction, seed=point.seed)
    return RunConfig(**values)


def row_label(row: Row, command: CommandConfig) -> str:
    label = row.label or command.method.label
    return f"{label} ({row.variant})" if row.variant else label


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())
