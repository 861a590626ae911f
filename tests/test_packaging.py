"""An installed copy has everything that a checkout has: configuration, facts, weights, published numbers."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("core", "harness", "methods", "envs", "sweeps", "analysis", "hydra_plugins")


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_packages(tmp_path):
    copy = tmp_path / "copy"  # building leaves folders behind: not in the checkout
    tracked = subprocess.run(
        ["git", "ls-files", "--", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")[:-1]
    if not tracked:
        pytest.skip("no git checkout: what belongs to the project is unknown")
    for name in [*tracked, "pyproject.toml", "README.md"]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
    ]
    subprocess.run([*command, str(copy)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert not set(tracked) - set(zipfile.ZipFile(wheel).namelist())
