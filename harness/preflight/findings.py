"""What a check found: one line each, with what is to be done about it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.files import RecordError, atomic_write_json, read_json_object
from harness.plan import Plan
from harness.redaction import redact
from harness.stages import Cell

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """status: ok | warning (it may go wrong, or could not be looked at) | problem (it will go wrong).

    key, value, origin: the setting that was looked at, and where it comes from; said: what is the case; fix: what to do
    about it, empty where nothing is to be done.
    """

    status: str
    key: str
    value: str
    origin: str
    said: str
    fix: str = ""


class ProbeCache:
    """Results of expensive checks, by the content of what was checked. A file that cannot be read is none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, kind: str, content: Any, max_age: float | None = None) -> dict[str, Any] | None:
        """max_age: seconds; None: results that hold for ever, because `content` says all that they depend on."""
        try:
            found = read_json_object(self._path(kind, content))
        except RecordError:
            return None
        if found is None or not isinstance(found.get("result"), dict):
            return None
        fresh = max_age is None or 0 <= time.time() - float(found.get("time", 0)) <= max_age
        return dict(found["result"]) if fresh else None

    def put(self, kind: str, content: Any, result: Mapping[str, Any]) -> None:
        path = self._path(kind, content)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_json(path, {"time": time.time(), "result": dict(result)})
        except (OSError, RecordError):  # a disk that is full is a finding of its own
            return

    def _path(self, kind: str, content: Any) -> Path:
        text = json.dumps(content, sort_keys=True, default=str)
        return self._folder / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@dataclass(frozen=True)
class Scope:
    """What is checked. todo: the selected cells that are not complete, and those whose weights they need; say: told
    what is being done."""

    plan: Plan
    todo: tuple[Cell, ...]
    cache: ProbeCache
    say: Callable[[str], None] = field(default=lambda text: None)

    @property
    def out(self) -> Path:
        return self.plan.out

    def finding(self, status: str, cell: Cell | None, key: str, value: object, said: str, fix: str = "") -> Finding:
        """A finding about a key of a cell's configuration (None: of the first); texts are made safe to show."""
        about = cell or (self.todo[0] if self.todo else None)
        origin = self.plan.origin(about, key) if about is not None else ""
        shown = "null" if value is None else str(value)
        return Finding(status, key, redact(shown), origin, redact(said), redact(fix))


def groups(scope: Scope, key: Callable[[Cell], object]) -> Iterator[tuple[Cell, list[Cell]]]:
    """Cells that share what `key` gives: the first of them, and all."""
    found: dict[str, list[Cell]] = {}
    for cell in scope.todo:
        found.setdefault(repr(key(cell)), []).append(cell)
    for cells in found.values():
        yield cells[0], cells
