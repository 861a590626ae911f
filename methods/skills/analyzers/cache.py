"""Answers on disk: one small file per question, shared by every run and process that may write to the folder.

A file appears whole or not at all. Who stores first wins, and everybody goes on with what is stored: a resumed run gets
the answers that the broken one got. Whatever cannot be read back counts as absent, is counted, and is replaced.
Files are not synced: after a power failure some may be empty, which is the same as damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CACHE_VERSION = 1  # layout of a file
MAX_ENTRY_BYTES = 1_000_000

_log = logging.getLogger(__name__)


def cache_key(**parts: Any) -> str:
    """sha256 of everything that decides an answer, by name."""
    text = json.dumps({"cache": CACHE_VERSION, **parts}, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class AnswerCache:
    """corrupt: files that were there and could not be used, so far. Not for several threads at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._warned = False
        self.corrupt = 0

    def get(self, key: str) -> Mapping[str, Any] | None:
        """The stored answer, or None."""
        found = self._read(self._path(key), key)
        if isinstance(found, str):
            self.corrupt += 1
            _log.warning("the cached answer %s is left aside: %s", self._path(key), found)
            return None
        return found

    def put(
        self, key: str, content: Mapping[str, Any], usable: Callable[[Mapping[str, Any]], bool] = lambda _: True
    ) -> Mapping[str, Any]:
        """Store an answer unless a usable one is stored already; returns the stored one.

        usable: whether an answer that is there can be gone on with; one that cannot would be asked for at every run. A
        folder that cannot be written to costs a warning: the answer itself is at hand.
        """
        path = self._path(key)
        scratch = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                scratch.write_text(_entry(key, content), encoding="ascii")
                with contextlib.suppress(FileExistsError):
                    os.link(scratch, path)  # fails if the file exists: nobody's answer is overwritten
                    return content
                earlier = self._read(path, key)
                if isinstance(earlier, Mapping) and usable(earlier):
                    return earlier
                scratch.replace(path)
            finally:
                scratch.unlink(missing_ok=True)
        except OSError as error:
            if not self._warned:
                _log.warning("answers are not cached: %s cannot be written (%s)", path, error.strerror or error)
            self._warned = True
        return content

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"

    def _read(self, path: Path, key: str) -> Mapping[str, Any] | str | None:
        """The answer, None if there is no file, or what is wrong with it."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_ENTRY_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"it cannot be read ({error.strerror or error})"
        if len(data) > MAX_ENTRY_BYTES:
            return f"it is larger than {MAX_ENTRY_BYTES} bytes"
        try:
            entry = json.loads(data)
        except (ValueError, RecursionError) as error:
            return f"it is no JSON ({type(error).__name__})"
        if not isinstance(entry, dict) or not isinstance(entry.get("answer"), dict):
            return "it holds no answer"
        if entry.get("key") != key or entry.get("sha256") != _digest(entry["answer"]):
            return "its content does not match its checksum"
        answer: Mapping[str, Any] = entry["answer"]
        return answer


def _entry(key: str, content: Mapping[str, Any]) -> str:
    return json.dumps({"key": key, "sha256": _digest(content), "answer": content}, ensure_ascii=True) + "\n"


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()
