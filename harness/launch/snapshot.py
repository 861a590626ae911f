"""The code that jobs run: a copy made when they are submitted, so that what is edited later changes no queued job.

`<out>/snapshots/<digest>/` holds the packages and `snapshot.json`, which says what code it was. The digest is of every
file and of the code's identity, so the same code is copied once, and a copy is never changed.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness import provenance
from harness.files import RecordError, json_bytes, sync_folder, write_new, writing
from harness.provenance import SNAPSHOT_NAME, SNAPSHOT_PACKAGES, snapshot_digest, snapshot_files, this_code

FOLDER = "snapshots"
VERSION = 1


def snapshot(out: Path) -> Path:
    """The copy of the running code below the output folder `out`, made now if there is none.

    Two processes at once are fine. Raises RecordError (DiskFullError) when it cannot be written, or when an existing
    copy was changed.
    """
    sources = {name: _package_folder(name) for name in SNAPSHOT_PACKAGES}
    code = this_code()
    digest = snapshot_digest(sources, code)
    target = Path(out).absolute() / FOLDER / digest[:16]
    if target.is_dir():
        _check(target, code, digest)
    else:
        content = {"version": VERSION, "digest": digest, "created": time.time(), "code": code}
        _build(target, sources, json_bytes(content))
    return target


def environment(copy: Path | None = None, workdir: Path | None = None, inherited: str | None = None) -> dict[str, str]:
    """Environment variables with which Python imports the copy, and nothing of the harness from elsewhere.

    copy: None: the code that runs here, for processes that this one starts. workdir: where the command was given (None:
    the current folder); modules of the user's own there, named by `method.name=module:SPEC`, stay importable, after the
    copy. inherited: the PYTHONPATH before; None: of this process.
    """
    before = os.environ.get("PYTHONPATH", "") if inherited is None else inherited
    theirs = (entry for entry in before.split(os.pathsep) if entry)
    paths = [str(copy or _installed()), *theirs, str(workdir or Path.cwd())]
    # Without PYTHONSAFEPATH `python -m` would look into the working folder first, which may hold other sources.
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONSAFEPATH": "1"}


def _installed() -> Path:
    """Where the running code lies: all packages of the project are installed side by side."""
    return Path(provenance.__file__).resolve().parents[1]


def _package_folder(name: str) -> Path:
    folder = _installed() / name
    if not (folder / "__init__.py").is_file():
        raise RecordError(f"{folder} is not a folder of files, so jobs cannot be given a copy of the package {name!r}")
    return folder


def _build(target: Path, sources: Mapping[str, Path], content: bytes) -> None:
    scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    with writing(target):
        scratch.mkdir(parents=True)
        try:
            for relative, path in snapshot_files(sources):
                copy = scratch / relative
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)  # not its permissions: they may forbid writing, so deleting, the copy
            write_new(scratch / SNAPSHOT_NAME, content)
            for folder in _folders(scratch):
                sync_folder(folder)
            try:
                scratch.rename(target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise  # otherwise somebody else made it first, which is as good
            sync_folder(target.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _folders(root: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(root):
        yield Path(folder)


def _check(target: Path, code: Mapping[str, object], digest: str) -> None:
    found = snapshot_digest({name: target / name for name in SNAPSHOT_PACKAGES}, code)
    if found != digest:
        raise RecordError(
            f"the copy of the code in {target} was changed since it was made, and jobs may still run it; when none "
            f"does, delete it and repeat the command"
        )


__all__ = ["environment", "snapshot"]
