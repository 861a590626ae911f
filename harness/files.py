"""Durable small files: atomic replacement, and clear errors when the disk is full or read-only."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# EFBIG: the process may not write a file this large (`ulimit -f`, some quotas). The way on is the same: make room.
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class RecordError(RuntimeError):
    """A record cannot be read or written. `failure_class` says how a run that ends with it is counted."""

    failure_class = "infra"


class DiskFullError(RecordError):
    """There was no room to write; what was there before is intact."""

    failure_class = "disk"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn OSError into RecordError (DiskFullError when there is no room), naming `path` and the way on."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_ERRNOS:
            raise DiskFullError(
                f"no room to write {path} ({error.strerror}): free space or choose another runtime.out, then run the "
                "same command again; what was recorded before is intact"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise RecordError(
                f"may not write {path} ({error.strerror}): choose a writable runtime.out or change its permissions"
            ) from error
        raise RecordError(f"cannot write {path}: {error}") from error


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in `folder` durable. File systems without this ability are left alone."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """os.write until everything is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_new(path: Path, data: bytes) -> None:
    """Create `path` (which must not exist) with `data` and sync it; nothing is left behind on failure."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def scratch_name(path: Path) -> Path:
    """A name beside `path` that no other process or thread uses."""
    return path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")


def atomic_write(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: readers see the old or the new content, also after a crash or a power failure."""
    with writing(path):
        scratch = scratch_name(path)
        write_new(scratch, data)
        try:
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def atomic_write_json(path: Path, content: Any) -> None:
    """`atomic_write` of readable JSON. NaN and infinity are errors: they are no JSON."""
    atomic_write(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def read_json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`; None if there is no such file. RecordError if it holds anything else."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot read {path}: {error}") from error
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(f"{path} is not valid JSON ({error}); move it away to have the run start afresh") from error
    if not isinstance(content, dict):
        raise RecordError(f"{path} holds a JSON {type(content).__name__}, expected an object")
    return content
