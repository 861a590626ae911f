"""Errors of configuration: every one names key, value, where it came from and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FROM_COMMAND_LINE = "command line"  # as an origin


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the configuration.

    key     dotted key, e.g. `training.steps`; empty if no key is to blame
    value   what it was set to; empty if the key itself is wrong
    origin  `command line`, or the file that said so
    fix     what is wrong and what to do about it
    """

    key: str
    value: str
    origin: str
    fix: str

    def __str__(self) -> str:
        subject = f"{self.key}={self.value}" if self.value else self.key
        where = f" ({self.origin})" if self.origin else ""
        return f"{subject}{where}: {self.fix}" if subject else f"{self.fix}{where}"


class ConfigError(Exception):
    """Nothing was started: the configuration is wrong. Exit status 2."""

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None if none is close."""
    options = sorted(known)
    found = difflib.get_close_matches(name, options, n=1, cutoff=0.55)
    if found:
        return found[0]
    lower = {option.lower(): option for option in options}
    return lower.get(name.lower())


def suggest(name: str, known: Iterable[str], what: str = "known") -> str:
    """`did you mean 'x'? known: a, b, x`"""
    options = sorted(known)
    near = nearest(name, options)
    start = f"did you mean {near!r}? " if near else ""
    return f"{start}{what}: {', '.join(options) if options else 'none'}"


def describe(given: Any) -> str:
    """A value as it is shown in a message, spelt as in a configuration file."""
    if given is None:
        return "null"
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, Mapping):
        return "{" + ", ".join(f"{name}: {describe(below)}" for name, below in given.items()) + "}"
    return f"[{', '.join(map(describe, given))}]" if isinstance(given, (list, tuple)) else str(given)
