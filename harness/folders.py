"""Can the output folder take what a run writes? Asked before anything starts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from harness.errors import ConfigError, Problem

_PROBE_BYTES = 1 << 16


def check_writable(folder: Path, key: str, origin: str, min_free_gb: float) -> None:
    """Prove that files can be written below `folder` and that the disk has room. Leaves nothing behind.

    min_free_gb: least free space, 10^9 bytes. Raises ConfigError naming `key`.
    """
    shown = str(folder)
    for place in _places(folder):
        if not place.is_dir():
            raise ConfigError(Problem(key, shown, origin, f"{place} is not a folder; choose another {key}"))
        try:
            free = shutil.disk_usage(place).free
            _probe(place)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            fix = f"cannot write in {place} ({reason}); make it writable or choose another {key}"
            raise ConfigError(Problem(key, shown, origin, fix)) from error
        if free < min_free_gb * 1e9:
            fix = (
                f"only {free / 1e9:.2f} GB are free in {place}, and {min_free_gb:g} GB are asked for "
                f"(runtime.min_free_gb); free some space or choose another {key}"
            )
            raise ConfigError(Problem(key, shown, origin, fix))


def _places(folder: Path) -> Iterable[Path]:
    """The folder, or what exists of its path, and its subfolders that will be written to."""
    folder = folder.absolute()
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    yield existing
    if existing == folder:
        yield from (sub for name in ("runs", "results") if (sub := folder / name).exists())


def _probe(place: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=place, prefix=".write-test-") as file:
        file.write(b"\0" * _PROBE_BYTES)
        file.flush()
        os.fsync(file.fileno())
