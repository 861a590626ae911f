"""Where a result came from: code, packages, machine and command. Never environment variables, never secrets."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.redaction import redact_arguments

VERSION = 1
# Whose versions can change a number or its meaning.
PACKAGES = (
    "agentic-rl-harness",
    "alfworld",
    "hydra-core",
    "mlflow",
    "numpy",
    "omegaconf",
    "pandas",
    "pyarrow",
    "pyserini",
    "safetensors",
    "scipy",
    "tantivy",
    "textworld",
    "tokenizers",
    "torch",
    "transformers",
    "verl",
    "vllm",
)
# Job numbers, the only facts taken from the environment: they are no secrets and lead back to the scheduler's logs.
SLURM_IDS = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT")
# Folders of the repository whose content can change a result.
RESULT_SOURCES = ("envs", "harness", "methods", "sweeps")
# A copy of the code for jobs (harness.launch.snapshot) holds these packages, and a file that says what code it is of.
SNAPSHOT_NAME = "snapshot.json"
SNAPSHOT_PACKAGES = ("analysis", "core", "envs", "harness", "methods", "sweeps")
_ROOT = Path(__file__).resolve().parents[1]
_SOURCE_SUFFIXES = (".py", ".yaml", ".yml", ".toml", ".jinja")


def _git(arguments: list[str], folder: Path) -> bytes | None:
    """Standard output of a git command, None where there is no git or no repository."""
    try:
        finished = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments], capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout if finished.returncode == 0 else None


def code_identity(folder: Path) -> dict[str, Any]:
    """Commit, and what was changed without a commit, of the repository that holds `folder`.

    commit: hex id or None outside a repository. dirty: tracked changes, or untracked source files. diff_sha256: hash of
    both, None when clean. Equal triples mean equal code.
    """
    commit = _git(["rev-parse", "HEAD"], folder)
    top = _git(["rev-parse", "--show-toplevel"], folder)
    diff = _git(["diff", "HEAD", "--binary", "--no-ext-diff", "--no-color"], folder)
    if commit is None or top is None or diff is None:
        return {"commit": None, "dirty": None, "diff_sha256": None}
    root = Path(os.fsdecode(top.rstrip(b"\n")))
    listed = _git(["ls-files", "-z", "--others", "--exclude-standard"], root) or b""
    untracked = sorted(name for name in map(os.fsdecode, listed.split(b"\0")) if name.endswith(_SOURCE_SUFFIXES))
    digest = hashlib.sha256(diff)
    for name in untracked:
        digest.update(f"\0{name}\0".encode(errors="surrogateescape"))
        try:
            digest.update((root / name).read_bytes())
        except FileNotFoundError:  # removed since it was listed
            continue
    dirty = bool(diff) or bool(untracked)
    return {"commit": commit.decode().strip(), "dirty": dirty, "diff_sha256": digest.hexdigest() if dirty else None}


@functools.lru_cache(maxsize=1)
def this_code() -> dict[str, Any]:
    """`code_identity` of this package, looked up once per process. A copy made for jobs says what it is a copy of."""
    return _copied_code(_ROOT) or code_identity(Path(__file__).resolve().parent)


def snapshot_files(sources: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """(name below the copy, file) of every file of the packages, in a fixed order. sources: package -> its folder."""
    for package, folder in sorted(sources.items()):
        for path in sorted(folder.rglob("*")):
            if "__pycache__" not in path.parts and path.suffix != ".pyc" and path.is_file():
                yield f"{package}/{path.relative_to(folder).as_posix()}", path


def snapshot_digest(sources: Mapping[str, Path], code: Mapping[str, object]) -> str:
    """Hash of the names and contents of the packages' files, and of the code's identity. Raises OSError."""
    digest = hashlib.sha256(json.dumps(dict(code), sort_keys=True).encode())
    for name, path in snapshot_files(sources):
        content = path.read_bytes()
        digest.update(f"\0{name}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def _copied_code(root: Path) -> dict[str, Any] | None:
    """The identity in a copy's snapshot.json; None if `root` is no copy.

    A copy that was changed is no commit's code: dirty, with the hash of what it is now.
    """
    try:
        content = json.loads((root / SNAPSHOT_NAME).read_text(encoding="utf-8"))
        code, digest = content["code"], content["digest"]
        known = {name: code[name] for name in ("commit", "dirty", "diff_sha256")}
        found = snapshot_digest({name: root / name for name in SNAPSHOT_PACKAGES}, code)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known if found == digest else {**known, "dirty": True, "diff_sha256": found}


@functools.lru_cache(maxsize=64)
def equals_commit(commit: str, root: Path = _ROOT) -> bool:
    """Whether what makes results (RESULT_SOURCES below `root`, nothing else) is that of a commit.

    False where that cannot be told: no git, no repository, or a commit that it does not hold. Looked up once.
    """
    if (copied := _copied_code(root)) is not None:
        return bool(copied["commit"] == commit and not copied["dirty"])
    existing = [name for name in RESULT_SOURCES if (root / name).exists()]
    changed = _git(["diff", "--name-only", "--no-ext-diff", commit, "--", *existing], root)
    listed = _git(["ls-files", "-z", "--others", "--exclude-standard", "--", *existing], root)
    if changed is None or listed is None or changed.strip():
        return False
    return not any(os.fsdecode(name).endswith(_SOURCE_SUFFIXES) for name in listed.split(b"\0"))


@functools.lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    """Installed versions of `PACKAGES`, without importing any of them."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def module_identity(path: str) -> dict[str, Any] | None:
    """Where a method comes from that is named by its import path, `package.module:ATTRIBUTE`; None for other names.

    No version of this package speaks for such code: its file is recorded with a hash (None if it cannot be read).
    """
    module, colon, _ = path.partition(":")
    if not colon:
        return None
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        digest = None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        digest = None
    return {"path": path, "file": file, "sha256": digest}


def gather(device: str, method: str = "") -> dict[str, Any]:
    """The content of provenance.json. device: the device asked for, e.g. `cpu`; method: `method.name`."""
    return {
        "version": VERSION,
        "created": time.time(),
        "git": this_code(),
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "packages": package_versions(),
        "host": {
            "name": socket.gethostname(),
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        },
        "device": device,
        "slurm": {name.lower(): os.environ[name] for name in SLURM_IDS if name in os.environ},
        "argv": redact_arguments(list(sys.argv)),
        "workdir": str(Path.cwd()),
        "method_module": module_identity(method),
    }
