"""Where generated worlds and translations are kept, and how processes share them without meeting half a file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from envs.interface import EnvConfig

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
