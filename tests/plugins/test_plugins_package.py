"""A real package with a method, an environment, a backbone and configuration: docs/extending.md as it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ext_package import COMMANDS, FILES, install, python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("package"))


def harness(site: Path, cwd: Path, *words: str) -> str:
    done = python(site, cwd, "-m", "harness", *words)
    return done.stdout + done.stderr


def test_it_stands_in_help_in_errors_and_on_the_search_path(site: Path, tmp_path: Path) -> None:
    told = harness(site, tmp_path, "--help")
    assert "A rollout against the whole batch [ext-agents 0.1]" in told
    assert "A door that opens at the right word [ext-agents 0.1]" in told and "not usable" not in told
    assert "did you mean 'batch_mean'?" in harness(site, tmp_path, "method=batch_maen")
    assert "did you mean 'door'?" in harness(site, tmp_path, "env=dor")
    kind = harness(site, tmp_path, "env=door", "backbone=ext_random", "backbone.kind=ext_randm", "do=plan")
    assert "backbone.kind='ext_randm' is unknown; did you mean 'ext_random'?" in kind
    path = harness(site, tmp_path, "--info", "searchpath", "method=batch_mean")
    assert "harness.configs: ext of ext-agents 0.1" in path and "ext_agents/conf" in path


def test_the_command_of_the_page_trains_and_evaluates_it(site: Path, tmp_path: Path) -> None:
    (command,) = COMMANDS
    words = command.split()
    assert words[:3] == ["python", "-m", "harness"]
    done = python(site, tmp_path, *words[1:], "tracking=none")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 planned runs are complete" in done.stdout and "Batch mean" in done.stdout
    (state,) = (tmp_path / "out" / "runs").glob("*/state.json")
    assert json.loads(state.read_text())["evaluations"]["test/off"]["graded"] == 2


BROKEN = {
    **FILES,
    "pyproject.toml": FILES["pyproject.toml"]
    .replace('name = "ext-agents"', 'name = "bad-agents"')
    .replace("ext_agents", "bad_agents")
    .replace('batch_mean = "bad', 'grpo = "elsewhere:SPEC"\nbatch_mean = "bad')
    .replace('ext = "bad_agents.conf"', 'ext = "bad_agents.configs"\nalso = "bad_agents.conf"'),
}
BROKEN = {name.replace("ext_agents", "bad_agents"): text for name, text in BROKEN.items()}
BROKEN["bad_agents/batch_mean.py"] = "raise RuntimeError('it wants a GPU')\n"
del BROKEN["bad_agents/conf/__init__.py"]


def test_a_broken_package_is_an_error_of_whoever_asks_for_it(tmp_path: Path) -> None:
    site = install(tmp_path, BROKEN)
    plan = ("env=alfworld", "scale=test", "do=plan", "out=out")
    fine = python(site, tmp_path, "-m", "harness", "method=opid", *plan)
    assert fine.returncode == 0, fine.stderr
    asked = harness(site, tmp_path, "method=grpo", "method.name=batch_mean", *plan)
    assert "method 'batch_mean' is bad_agents.batch_mean:SPEC of bad-agents 0.1" in asked
    assert "cannot be loaded: RuntimeError: it wants a GPU" in asked
    twice = harness(site, tmp_path, "method=grpo", *plan)
    assert "'grpo' is offered by elsewhere:SPEC of bad-agents 0.1" in twice and "rename or uninstall" in twice
    lost = harness(site, tmp_path, "method=batch_mean", *plan)
    assert "bad_agents.configs of bad-agents 0.1" in lost and "there is no package bad_agents.configs" in lost
    assert "has no __init__.py" in lost
    told = harness(site, tmp_path, "--help")
    assert told.count("not usable:") == 2 and "bad-agents 0.1" in told
