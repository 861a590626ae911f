"""The spool of a run: append-only JSON lines of metrics and events.

    {"t": unix seconds, "kind": "metrics", "step": int, "values": {name: float}}
    {"t": unix seconds, "kind": "event", "name": str, "data": {...}}

Not-a-number and infinities are written as the strings "nan", "inf", "-inf" (JSON has no such numbers, and `float()`
reads them back), followed by an event `non_finite_metric`. One process writes: the holder of the run's claim.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.files import RecordError, atomic_write, writing

_log = logging.getLogger(__name__)


def encode_number(value: float) -> float | str:
    """A finite number as it is; "nan", "inf" or "-inf" otherwise."""
    return value if math.isfinite(value) else str(value)


def _plain(value: Any) -> Any:
    """`value` as JSON knows it; objects it does not know become text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return encode_number(float(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in (sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value)]
    return str(value)


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    """One line, None if it is torn."""
    try:
        content = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    return content if isinstance(content, dict) and "kind" in content else None


class Spool:
    """Writer and reader of one spool file, which comes into being with the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    # ------------------------------------------------------------------------------------------------ writing
    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values` at training step `step` >= 0, durably. Raises DiskFullError, ValueError."""
        number = operator.index(step)
        if number < 0:
            raise ValueError(f"step of a metric is {number}, must be >= 0")
        numbers: dict[str, float] = {}
        for name, value in values.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"name of a metric at step {number} is {name!r}, must be a non-empty string")
            numbers[name] = float(value)
        encoded = {name: encode_number(value) for name, value in numbers.items()}
        data = _line({"t": time.time(), "kind": "metrics", "step": number, "values": encoded})
        broken = {name: str(value) for name, value in sorted(numbers.items()) if not math.isfinite(value)}
        if broken:
            data += self._event_line("non_finite_metric", {"step": number, "values": broken})
        self._append(data, durable=True)

    def event(self, name: str, /, **data: Any) -> None:
        """Record that something happened. `data` becomes JSON; unknown objects become text."""
        self._append(self._event_line(name, data), durable=False)

    @staticmethod
    def _event_line(name: str, data: Mapping[str, Any]) -> bytes:
        return _line({"t": time.time(), "kind": "event", "name": name, "data": _plain(data)})

    def _append(self, data: bytes, durable: bool) -> None:
        with writing(self.path):
            descriptor = self._open()
            size = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, data)
                while written < len(data):  # the disk filled up on the way: the next write says so
                    written += os.write(descriptor, data[written:])
            except OSError:
                self._undo(descriptor, size)
                raise
            if durable:
                os.fsync(descriptor)

    def _undo(self, descriptor: int, size: int) -> None:
        """Remove a half-written line. The reader copes with one, so failing here loses nothing."""
        try:
            if os.fstat(descriptor).st_size > size:
                os.ftruncate(descriptor, size)
        except OSError as error:
            _log.warning("a torn line stays at the end of %s: %s", self.path, error)

    def _open(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self.path, flags, 0o644)
            try:
                # A predecessor killed in mid-line: close its line, lest ours be glued to it.
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    os.write(descriptor, b"\n")
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
        return self._descriptor

    def close(self) -> None:
        """Sync and close the file. Writing again opens it again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with writing(self.path):
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def truncate_after(self, step: int) -> int:
        """Forget the metrics of steps > `step` (a run resumes from the checkpoint of `step`); returns how many lines.

        Events stay: they happened. Those after the first forgotten line get `"rewound": true`, and an event
        `spool_truncated` {after, dropped} is added. Rewrites the file in one step; nothing to forget, nothing changes.
        """
        self.close()
        kept: list[bytes] = []
        dropped = torn = 0
        for line in self._lines():
            content = _parse(line)
            if content is None:
                torn += 1
            elif content["kind"] == "metrics" and int(content["step"]) > step:
                dropped += 1
            elif dropped and content["kind"] == "event":
                kept.append(_line({**content, "rewound": True}))
            else:
                kept.append(line if line.endswith(b"\n") else line + b"\n")
        if not dropped and not torn:
            return 0
        if dropped:
            kept.append(self._event_line("spool_truncated", {"after": step, "dropped": dropped}))
        atomic_write(self.path, b"".join(kept))
        return dropped

    # ------------------------------------------------------------------------------------------------ reading
    def _lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                yield from file
        except FileNotFoundError:
            return
        except OSError as error:
            raise RecordError(f"cannot read {self.path}: {error}") from error

    def read(self) -> Iterator[dict[str, Any]]:
        """All entries in order. A torn line (its writer was killed) is left out; in mid-file that is logged."""
        torn = 0
        for line in self._lines():
            content = _parse(line) if line.strip() else None
            if content is not None:
                if torn:
                    _log.info("%s: %d torn line(s) left out", self.path, torn)
                    torn = 0
                yield content
            elif line.strip():
                torn += 1

    def tail(self, size: int = 16384) -> list[dict[str, Any]]:
        """The entries in the last `size` bytes: cheap, however long the run."""
        try:
            with self.path.open("rb") as file:
                length = file.seek(0, os.SEEK_END)
                file.seek(max(0, length - size))
                data = file.read()
        except FileNotFoundError:
            return []
        lines = data.split(b"\n")
        if length > size:
            lines = lines[1:]  # most likely cut
        return [content for content in map(_parse, lines) if content is not None]
