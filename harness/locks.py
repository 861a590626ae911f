"""Locks between processes of one machine: `flock` on a small file. The kernel frees them when the holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.files import RecordError, writing


class LockTimeoutError(RecordError):
    """Somebody else held the lock for longer than the caller wanted to wait."""


@contextlib.contextmanager
def file_lock(
    path: Path, timeout: float | None = None, on_wait: Callable[[], None] | None = None, poll: float = 0.05
) -> Iterator[None]:
    """Hold the lock on `path` (created if missing, never deleted: deleting a lock file breaks mutual exclusion).

    timeout: seconds to wait, None for ever; then LockTimeoutError. on_wait: called once if the lock is not free at
    once. Not re-entrant: taking it twice in one process waits for itself.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _acquire(descriptor, path, timeout, on_wait, poll)
        yield
    finally:
        os.close(descriptor)  # frees the lock


def _acquire(
    descriptor: int, path: Path, timeout: float | None, on_wait: Callable[[], None] | None, poll: float
) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    waited = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                raise RecordError(
                    f"cannot lock {path} ({error.strerror}): this file system has no locks; use another folder"
                ) from error
        if not waited and on_wait is not None:
            on_wait()
        waited = True
        if deadline is not None and time.monotonic() >= deadline:
            raise LockTimeoutError(f"{path} is locked by another process (waited {timeout:g} s)")
        time.sleep(poll)
