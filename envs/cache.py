"""Where what is made once is kept, and how processes share it without meeting half a file."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from envs.interface import EnvConfig

log = logging.getLogger(__name__)

VARIABLE = "HARNESS_CACHE"


def cache_root(config: EnvConfig | None = None) -> Path:
    """`env.cache` if given, else `$HARNESS_CACHE`, else `~/.cache/agentic-rl-harness`. Not created here."""
    if config is not None and config.cache:
        return Path(config.cache).expanduser()
    from_environment = os.environ.get(VARIABLE)
    if from_environment:
        return Path(from_environment).expanduser()
    return Path.home() / ".cache" / "agentic-rl-harness"


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes, waiting as long as it takes.

    The kernel frees it when the holder dies. The file stays: deleting a lock file would let two processes hold it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """The file appears whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        os.replace(temporary, path)  # noqa: PTH105 - str and Path alike
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # noqa: PTH108
        raise


def made_once(folder: Path, mark: str, fill: Callable[[Path], None]) -> Path:
    """The folder, with a file `mark` in it; if there is none it is filled by `fill(new empty folder)`.

    Processes that ask at once fill it once, and it appears whole: what was left half made by hand is replaced.
    """
    if not (folder / mark).exists():
        with file_lock(folder.with_name(f"{folder.name}.lock")):
            if not (folder / mark).exists():
                own = re.compile(rf"\.{re.escape(folder.name)}\.\w+")
                for left in [path for path in folder.parent.iterdir() if own.fullmatch(path.name)]:
                    shutil.rmtree(left)  # of a maker that was killed: the lock says that none is at work
                made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
                try:
                    fill(made)
                    made.chmod(0o755)  # others may share the cache
                    if folder.exists():
                        shutil.rmtree(folder)
                    made.rename(folder)
                finally:
                    shutil.rmtree(made, ignore_errors=True)
    return folder


# -------------------------------------------------------------------------------------------------- digests of files
def file_sha256(path: Path) -> str:
    """Hex digest of a file."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            total.update(chunk)
    return total.hexdigest()


def kept_sha256(path: Path, notes: Path) -> str:
    """Digest of a file, remembered in the folder `notes` by its size and time of change.

    Planning asks often, and files have gigabytes. A note that cannot be read or written costs time, nothing else.
    """
    status = path.stat()
    return _noted(path, status.st_size, status.st_mtime_ns, notes)


@lru_cache(maxsize=256)
def _noted(path: Path, size: int, changed: int, notes: Path) -> str:
    note, key = notes / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}.json", [size, changed]
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
        if found["key"] == key:
            return str(found["sha256"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("the note of the digest of %s in %s cannot be read (%s); reading the file again", path, note, error)
    sha256 = file_sha256(path)
    try:
        write_atomically(note, json.dumps({"key": key, "sha256": sha256}).encode())
    except OSError as error:
        log.warning("the digest of %s cannot be kept in %s (%s); the file is read again each time", path, note, error)
    return sha256
