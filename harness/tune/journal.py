"""The journal of a study: Optuna's file of one JSON object per line, kept readable whatever happens to a writer.

Optuna's own backend appends to whatever the file ends with. A command that is killed, or meets a full disk, in
mid-line leaves one without an end; the next entry would be glued to it, and the study could never be read again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import get_lock_file

from harness.files import RecordError, write_all, writing

_log = logging.getLogger(__name__)
_BLOCK = 65536


class Journal(JournalFileBackend):
    """Raises RecordError (DiskFullError) where the file cannot be written; what was in it before is then intact."""

    def __init__(self, path: Path) -> None:
        with writing(path):
            super().__init__(str(path))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Entries, all or none of them, after what is whole. Under the lock that all commands share."""
        text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in logs)
        with writing(Path(self._file_path)), get_lock_file(self._lock):
            descriptor = os.open(self._file_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                whole = _whole(descriptor, size)
                if whole < size:
                    os.ftruncate(descriptor, whole)
                    _log.warning("cut a torn line of %d bytes off %s", size - whole, self._file_path)
                try:
                    os.lseek(descriptor, whole, os.SEEK_SET)
                    write_all(descriptor, text.encode())
                    os.fsync(descriptor)
                except BaseException:
                    with contextlib.suppress(OSError):  # then the next writer cuts it off
                        os.ftruncate(descriptor, whole)
                    raise
            finally:
                os.close(descriptor)

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Every whole entry from this number on."""
        try:
            yield from super().read_logs(log_number_from)
        except ValueError as error:
            raise RecordError(
                f"{self._file_path} holds a line that is no entry of a study ({error}): take that line out, or move "
                "the file away and the search begins anew (runs that are complete are not run again)"
            ) from error
        except OSError as error:
            raise RecordError(f"cannot read {self._file_path}: {error}") from error


def _whole(descriptor: int, size: int) -> int:
    """Bytes of the file up to the end of its last whole line."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
