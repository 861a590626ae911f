"""The harness in Hydra applications: its sweeper and launchers, as real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from ext_package import PAGE, ROOT

from harness import hydra_jobs
from harness.cli import INCOMPLETE
from harness.commandline import parse
from harness.compose import composer
from harness.errors import ConfigError
from harness.files import RecordError
from harness.hydra_jobs import job_overrides, launch, merged
from harness.plan import Plan, build_plan
from harness.states import RunState

LAB = re.findall(r"```python\n# lab.py\n(.*?)```", PAGE, re.DOTALL)[0]
CONF = re.findall(r"```yaml\n# conf/lab.yaml\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """An application of somebody's own, as docs/extending.md has it."""
    (tmp_path / "lab.py").write_text(LAB)
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "lab.yaml").write_text(CONF)
    (tmp_path / "conf" / "sweep" / "ours.yaml").write_text(
        "title: Ours\nrows: [{method: vanilla, kind: baseline}, {method: grpo, base: vanilla, delta: [method]}]\n"
        "axes: {env: [alfworld], backbone: [tiny-s], fraction: [1.0], seed: [0]}\nset: {scale: test}\n"
    )
    return tmp_path


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_multirun_of_an_application_runs_cells_and_prints_the_table(lab: Path) -> None:
    words = ("lab.py", "-m", "method=vanilla", "scale=test", "tracking=none", "runtime.out=out")
    done = run(lab, *words, "protocol=fair")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 planned runs are complete" in done.stdout
    assert len(list((lab / "out" / "runs").glob("*/config.yaml"))) == 1
    again = run(lab, *words, "do=status")
    assert again.returncode == 0 and "1 complete" in again.stdout, again.stderr


@pytest.mark.slow
def test_plan_errors_and_sweeps_of_the_application(lab: Path) -> None:
    plan = run(lab, "lab.py", "-m", "sweep=ours", "do=plan", "runtime.out=out")
    assert plan.returncode == 0 and "Ours: 2 cells" in plan.stdout, plan.stderr
    wrong = run(lab, "lab.py", "-m", "sweep=ours", "training.steps=0", "runtime.out=out")
    assert wrong.returncode == 2 and "training.steps=0" in wrong.stderr and "nothing was started" in wrong.stderr
    assert not (lab / "out" / "runs").exists()
    two = run(lab, "lab.py", "-m", "sweep=ours", "hydra/launcher=harness_slurm", "launcher=local", "do=plan")
    assert two.returncode == 2 and "give one of them" in two.stderr


@pytest.mark.slow
def test_jobs_of_another_sweeper_are_runs_too(lab: Path) -> None:
    words = ["hydra/sweeper=basic", "method=vanilla", "scale=test", "tracking=none", "runtime.out=out"]
    done = run(lab, "lab.py", "-m", *words, "evaluation.panels=[seen],[unseen]")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 planned runs are complete" in done.stdout


@pytest.mark.slow
def test_the_command_line_goes_through_hydra_when_a_plugin_is_named(tmp_path: Path) -> None:
    words = ("sweep=quick", "method=grpo,opid", "do=plan", "out=out", "hydra.launcher.workers=1")
    done = run(tmp_path, "-m", "harness", "-m", *words)
    assert done.returncode == 0 and "Quick check: 2 cells" in done.stdout, done.stderr
    plain = run(tmp_path, "-m", "harness", *words[:-1])
    assert plain.stdout.splitlines()[:8] == done.stdout.splitlines()[:8]


@pytest.mark.slow
def test_another_launcher_gets_each_cell_as_overrides(tmp_path: Path) -> None:
    words = ("sweep=quick", "method=vanilla", "hydra/launcher=basic", "out=out", "tracking=none")
    done = run(tmp_path, "-m", "harness", "-m", *words, "hydra.sweep.dir=multi")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "out" / "runs").glob("*/episodes.parquet"))) == 1


def test_overrides_of_a_cell_compose_to_it() -> None:
    hydra = composer()
    command = parse(["sweep=quick", "method=retire_opd,opid", "training.lr=1e-3"], hydra.groups())
    plan = build_plan(hydra, command)
    for cell in (cell for cell in plan.selected if not cell.stage and not cell.requires):
        again = build_plan(hydra, parse(_without_names(job_overrides(hydra, command, cell)), hydra.groups()))
        assert [c.fingerprint for c in again.selected] == [cell.fingerprint]


def _without_names(overrides: list[str]) -> list[str]:
    return [text for text in overrides if not text.startswith(("method.id=", "method.label="))]


def test_jobs_become_one_plan_with_a_row_for_each_difference() -> None:
    hydra = composer()
    plan, names = merged(hydra, [["method=grpo", f"training.lr={lr}", "seed=1"] for lr in ("1e-4", "2e-4", "1e-4")])
    assert [row.id for row in plan.sweep.rows] == ["grpo/training.lr=0.0001", "grpo/training.lr=0.0002"]
    assert len(plan.cells) == 2 and names[0] == names[2] != names[1]
    assert {cell.config.seed for cell in plan.cells} == {1}
    with pytest.raises(ConfigError, match=r"training\.lrr"):
        merged(hydra, [["training.lrr=1"]])


@pytest.mark.parametrize(
    ("state", "job", "told"),
    [
        ("complete", "", ""),
        ("submitted", "7_0", ""),
        ("running", "7_0", ""),
        ("running", "", "is running"),
        ("failed", "", "is failed (it broke)"),
        ("pending", "", "is pending (it was not started)"),
        ("pending", "7_0", "is pending (job 7_0 ended)"),
    ],
)
def test_a_job_that_never_ran_is_not_told_to_hydra_as_completed(
    monkeypatch: pytest.MonkeyPatch, state: str, job: str, told: str
) -> None:
    from hydra.core.utils import JobStatus

    from harness import actions, actions_slurm

    def look(plan: Plan) -> tuple[dict[str, RunState], dict[str, str], dict[str, str]]:
        names = [cell.fingerprint for cell in plan.selected]
        found = RunState(state, error="it broke" if state == "failed" else None)
        jobs = dict.fromkeys(names, f"{job} WORD") if job else {}
        return dict.fromkeys(names, found), jobs, dict.fromkeys(jobs, f"job {job} ended")

    monkeypatch.setattr(hydra_jobs, "_composer", lambda loader, config: composer())
    monkeypatch.setattr(actions, "run", lambda plan: INCOMPLETE)
    monkeypatch.setattr(actions_slurm, "look", look)
    (job_return,) = launch(None, None, SimpleNamespace(arguments=list), [["method=vanilla", "scale=test"]])
    assert job_return.status == (JobStatus.FAILED if told else JobStatus.COMPLETED)
    if told:
        with pytest.raises(RuntimeError, match=re.escape(told)):
            _ = job_return.return_value


def test_records_that_cannot_be_read_are_an_error_of_the_multirun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness import actions

    def breaks(plan: Plan) -> int:
        raise RecordError("the disk is full")

    monkeypatch.setattr(hydra_jobs, "_composer", lambda loader, config: composer())
    monkeypatch.setattr(actions, "run", breaks)
    with pytest.raises(SystemExit) as left:
        launch(None, None, SimpleNamespace(arguments=list), [["method=vanilla", "scale=test"]])
    assert left.value.code == INCOMPLETE and "error: the disk is full" in capsys.readouterr().err


def test_plugins_import_nothing_that_is_heavy() -> None:
    code = (
        "import sys; from hydra.core.plugins import Plugins\n"
        "found = {c.__module__ for c in Plugins.instance().discover()}\n"
        "ours = {f'hydra_plugins.agentic_rl_harness.{m}' for m in ('sweeper', 'launcher', 'searchpath')}\n"
        "assert ours <= found, found\n"
        "heavy = {'torch', 'transformers', 'mlflow', 'optuna', 'pandas', 'numpy', 'ray'} & set(sys.modules)\n"
        "heavy |= {m for m in sys.modules if m.startswith(('harness', 'methods', 'envs'))}\n"
        "assert not heavy, heavy"
    )
    done = run(Path.cwd().parent, "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_wheel_and_editable_install_hold_the_plugins(tmp_path: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    wanted = (
        "core",
        "harness",
        "methods",
        "envs",
        "sweeps",
        "analysis",
        "hydra_plugins",
        "pyproject.toml",
        "README.md",
    )
    copy = tmp_path / "copy"
    for name in tracked:
        if name.split("/")[0] in wanted and not name.endswith((".safetensors", ".gz")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    code = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    for kind in ("build_wheel", "build_editable"):
        subprocess.run(
            [sys.executable, "-c", code, kind, str(tmp_path / kind)], cwd=copy, check=True, capture_output=True
        )
    (wheel,) = (tmp_path / "build_wheel").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hydra_plugins/agentic_rl_harness/launcher.py" in names and "hydra_plugins/__init__.py" not in names
    (editable,) = (tmp_path / "build_editable").glob("*.whl")
    (finder,) = (n for n in zipfile.ZipFile(editable).namelist() if n.endswith("finder.py"))
    text = zipfile.ZipFile(editable).read(finder).decode()
    assert f"NAMESPACES: dict[str, list[str]] = {{'hydra_plugins': ['{copy}/hydra_plugins']}}" in text
