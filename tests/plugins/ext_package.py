"""The package of docs/extending.md: written out, built into a wheel and installed into a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"\*\*`([\w./]+)`\*\*\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"```console\n(.*?)\n```", PAGE, re.DOTALL)


def install(folder: Path, files: dict[str, str] = FILES) -> Path:
    """Build `files` and install them without their dependencies; returns the folder for PYTHONPATH."""
    source, site = folder / "source", folder / "site"
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder / "dist"), str(source)]
    subprocess.run(wheel, check=True, capture_output=True)
    (built,) = (folder / "dist").glob("*.whl")
    into = [*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(built)]
    subprocess.run(into, check=True, capture_output=True)
    return site


def python(site: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A python that sees the package and the project, wherever that is installed."""
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    environment["HARNESS_CACHE"] = str(site.parent / "cache")
    return subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True)
