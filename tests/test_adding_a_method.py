"""docs/adding_a_method.md as it stands: its files are written to a folder and its command is run there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.compose import composer
from methods import registry
from methods.faithful import UnfaithfulError, check_faithful
from methods.interface import MethodConfig

PAGE = (Path(__file__).parents[1] / "docs" / "adding_a_method.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"\*\*`([\w./]+)`\*\*\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"```console\n(.*?)\n```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_file_one_yaml_and_sixty_lines_at_most() -> None:
    assert [Path(name).suffix for name in FILES] == [".py", ".yaml"]
    assert sum(len(text.splitlines()) for text in FILES.values()) <= 60
    assert len(COMMANDS) == 1


@pytest.mark.slow
def test_the_command_trains_and_evaluates_it(folder: Path) -> None:
    words = COMMANDS[0].split()
    assert words[:3] == ["python", "-m", "harness"]
    done = subprocess.run(
        [sys.executable, *words[1:], "tracking=none"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 planned runs are complete" in done.stdout and "Damped shift" in done.stdout
    assert list((folder / "out" / "runs").glob("*/state.json"))


def config() -> MethodConfig:
    return composer(".").config(["method=damped"])[0].method


def test_it_is_accepted_and_its_knobs_are_checked(folder: Path) -> None:
    sys.modules.pop("damped", None)
    spec = registry.validate(config())
    check_faithful(spec, config())
    changed = config()
    changed.knobs = {"dampin": 0.5}
    with pytest.raises(ValueError, match="did you mean 'damping'"):
        registry.validate(changed)


def test_without_its_teacher_it_is_refused(folder: Path) -> None:
    """What the page says of methods that ignore their teacher, with this one."""
    deaf = FILES["damped.py"].replace("return base + self.coefficient(step) * weight * shift", "return base")
    assert deaf != FILES["damped.py"]
    (folder / "deaf_damped.py").write_text(deaf)
    changed = config()
    changed.name = "deaf_damped:SPEC"
    with pytest.raises(UnfaithfulError, match="changes no gradient of method 'damped'"):
        check_faithful(registry.validate(changed), changed)
