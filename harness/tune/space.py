"""The search space: dotted keys of the configuration and the values that a trial may give them.

    {low: 0.01, high: 1.0, log: true}      numbers between two bounds, both included; log: their logarithms are searched
    {low: 1, high: 8, step: 1}             on a grid; whole numbers where the key is one
    {choices: [grpo, gigpo]}               one of several

An entry that is null counts as absent. A key may stand as one dotted word or nested (`training: {lr: {...}}`).
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness import registry
from harness.commandline import AXES
from harness.config import RunConfig
from harness.errors import Problem, describe, nearest, suggest
from harness.fingerprint import CLASSES
from harness.schema import exists, keys, nearest_key

_SPEC = ("low", "high", "log", "step", "choices")
SECTIONS = ("method", "training", "analyzer")
_NAMES = ("method.id", "method.name", "method.label", "method.teacher.source", "method.trains")
Value = bool | int | float | str | None


@dataclass(frozen=True)
class Dimension:
    """One searched key. low, high, log, step: of numbers; whole: they are integers; choices: of anything else."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    whole: bool = False
    choices: tuple[Value, ...] = ()

    def suggest(self, trial: Any) -> Value:
        """The value that an Optuna trial gives the key (the same again if it gave one before)."""
        if self.choices:
            return typing.cast(Value, trial.suggest_categorical(self.key, list(self.choices)))
        if self.whole:
            step = int(self.step or 1)
            return int(trial.suggest_int(self.key, int(self.low), int(self.high), step=step, log=self.log))
        return float(trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log))

    def holds(self, value: Any) -> bool:
        """Whether a value lies in the space, so that a search may begin with it."""
        if self.choices:
            return any(value == c and isinstance(value, bool) == isinstance(c, bool) for c in self.choices)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        on_grid = self.step is None or math.isclose((value - self.low) / self.step % 1.0, 0.0, abs_tol=1e-9)
        return self.low <= value <= self.high and on_grid and (not self.whole or float(value).is_integer())

    def ends(self) -> tuple[Value, ...]:
        """The outermost values: what is checked before anything starts."""
        if self.choices:
            return self.choices
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def describe(self) -> str:
        if self.choices:
            return " | ".join(describe(c) for c in self.choices)
        also = [*(["log"] if self.log else []), *([f"step {self.step:g}"] if self.step else [])]
        return ", ".join([f"{self.low:g} to {self.high:g}", *also])


def space_of(
    common: Mapping[str, Any], of_row: Mapping[str, Any] | None, method: str, origin: str
) -> tuple[tuple[Dimension, ...], list[Problem]]:
    """The dimensions of one row, sorted by key, and everything wrong with them.

    common, of_row: `tune.space` and the row's part of `tune.rows`. method: `method.name`, whose knobs have types.
    """
    problems: list[Problem] = []
    merged = _read(common, "sweep.tune.space", origin, problems)
    merged |= _read(of_row or {}, "sweep.tune.rows", origin, problems)
    found = [
        dimension
        for key, spec in sorted(merged.items())
        if spec is not None and (dimension := _dimension(key, spec, method, origin, problems)) is not None
    ]
    return tuple(found), problems


def _read(
    node: Mapping[str, Any], where: str, origin: str, problems: list[Problem]
) -> dict[str, Mapping[str, Any] | None]:
    """Key -> its space. A key that stands both dotted and nested (an override of one of its bounds) is one."""
    found: dict[str, Mapping[str, Any] | None] = {}
    for key, spec in _flat(node, "", where, origin, problems):
        before = found.get(key)
        found[key] = {**before, **spec} if before and spec else spec
    return found


def _flat(
    node: Mapping[str, Any], prefix: str, where: str, origin: str, problems: list[Problem]
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    for name, inner in node.items():
        key = f"{prefix}{name}"
        if inner is None:
            yield key, None
        elif not isinstance(inner, Mapping):
            fix = "says no space; write {low: .., high: ..} or {choices: [..]}"
            problems.append(Problem(f"{where}.{key}", str(inner), origin, fix))
        elif set(inner) & set(_SPEC) or not inner:
            yield key, {name: given for name, given in inner.items() if given is not None or name not in _SPEC}
        else:
            yield from _flat(inner, f"{key}.", where, origin, problems)


def _dimension(
    key: str, spec: Mapping[str, Any], method: str, origin: str, problems: list[Problem]
) -> Dimension | None:
    before = len(problems)

    def wrong(fix: str, value: object = "") -> None:
        problems.append(Problem(f"sweep.tune: {key}", str(value), origin, fix))

    if refused := _refused(key):
        wrong(refused)
        return None
    for name in spec:
        if name not in _SPEC:
            wrong(suggest(str(name), _SPEC, "a space has"), name)
    if "choices" in spec:
        return _choices(key, spec, wrong) if len(problems) == before else None
    low, high, log, step = spec.get("low"), spec.get("high"), spec.get("log", False), spec.get("step")
    for name, number in (("low", low), ("high", high), *([("step", step)] if step is not None else [])):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            wrong(f"{name} must be a finite number", number)
    if not isinstance(log, bool):
        wrong("log must be true or false", log)
    if len(problems) > before:
        return None
    assert low is not None and high is not None
    kinds = _kinds(key, method)
    whole = int in kinds and float not in kinds
    if low >= high:
        wrong(f"low={low:g} must be below high={high:g}")
    if log and low <= 0:
        wrong("a logarithmic space begins above 0", low)
    if step is not None and (step <= 0 or log):
        wrong("step must be above 0, and has no meaning with log: true", step)
    if whole and any(not float(n).is_integer() for n in (low, high, step or 1)):
        wrong("is a whole number, and so are low, high and step")
    if kinds and not {int, float} & kinds:
        wrong("is no number; give it choices")
    if len(problems) > before:
        return None
    return Dimension(key, float(low), float(high), bool(log), None if step is None else float(step), whole)


def _choices(key: str, spec: Mapping[str, Any], wrong: Any) -> Dimension | None:
    options = spec["choices"]
    if len(spec) > 1:
        wrong("choices stand alone; an override of a space with bounds sets low, high, log and step to null")
    elif not isinstance(options, (list, tuple)) or len(options) < 2:
        wrong("choices must be a list of at least two values", options)
    elif any(not isinstance(o, (bool, int, float, str, type(None))) for o in options):
        wrong("choices must be numbers, words, true, false or null", options)
    elif len({repr(o) for o in options}) != len(options):
        wrong("choices names a value twice", options)
    else:
        return Dimension(key, choices=tuple(options))
    return None


def _refused(key: str) -> str:
    """Why a key cannot be searched; empty if it can."""
    if key in AXES:
        return "is an axis of the table; a search runs over settings of one row"
    if not exists(key, RunConfig):
        near = nearest_key(key)
        return "there is no such key" + (f"; did you mean {near}?" if near else "")
    section = key.partition(".")[0]
    if section in ("evaluation", "env"):
        return "decides what is measured, not how a run trains: trials that differ in it cannot be compared"
    if section not in SECTIONS or key in _NAMES:
        return f"cannot be searched; what can lies in {', '.join(SECTIONS)}"
    if keys(RunConfig).get(key) is not None and keys(RunConfig)[key].branch:
        inside = [k for k in keys(RunConfig) if k.startswith(f"{key}.")]
        near = nearest(key, inside)
        return f"is a section, not a value; search one of its keys, such as {near or inside[0]}"
    if CLASSES.get(key) == "runtime":
        return "changes no result"
    return ""


def _kinds(key: str, method: str) -> set[Any]:
    """Types that a key takes; empty if nobody knows."""
    head, _, name = key.rpartition(".")
    if head == "method.knobs":
        declared = registry.method_knobs(method)
        hint = typing.get_type_hints(declared).get(name) if declared is not None else None
    else:
        known = keys(RunConfig).get(key)
        hint = known.type if known is not None else None
    if hint is None:
        return set()
    return {hint, *typing.get_args(hint)}
