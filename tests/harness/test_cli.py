from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import actions, cli
from harness.compose import Composer, composer
from harness.errors import ConfigError, Problem
from harness.record import RunDirectory
from harness.states import COMPLETE, FAILED

ROOT = Path(__file__).parents[2]


def _rows(sweep: str) -> int:
    return len(yaml.safe_load((ROOT / "sweeps" / "sweep" / f"{sweep}.yaml").read_text())["rows"])


QUICK, MAIN = _rows("quick"), 3 * 3 * _rows("main_table")  # cells: main_table has three environments and seeds


class World:
    """Stands in for what makes artefacts, runs cells, tracks and tabulates; remembers what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import analysis.outputs
        import analysis.tables
        import harness.launch.local
        import harness.prepare
        import harness.tracking

        self.prepared: list[Any] = []
        self.started: list[str] = []
        self.synced = 0
        self.fail: set[str] = set()
        self.stop = False
        self.crash: BaseException | None = None
        monkeypatch.setattr(harness.prepare, "prepare", self._prepare)
        monkeypatch.setattr(harness.launch.local, "run_cells", self._run_cells)
        monkeypatch.setattr(harness.tracking, "needs_sync", lambda runs, uri, experiment: bool(self.started))
        monkeypatch.setattr(harness.tracking, "sync", self._sync)
        monkeypatch.setattr(analysis.tables, "write_main_table", self._table)
        monkeypatch.setattr(analysis.outputs, "write_extras", lambda out, sweep: [f"FIGURES AND REPORT of {sweep}"])

    def _prepare(self, config: Any, progress: Any) -> None:
        if self.crash is not None:
            raise self.crash
        self.prepared.append(config)

    def _run_cells(
        self,
        runs: Sequence[RunDirectory],
        workers: int,
        show: Any,
        retry_failed: bool,
        requires: Mapping[str, Sequence[str]],
        before: Callable[[RunDirectory], object],
    ) -> Any:
        from harness.launch.local import LaunchReport

        assert retry_failed
        outcomes: dict[str, str] = {}
        for run in sorted(runs, key=lambda run: run.fingerprint in requires):
            needed = [RunDirectory(run.path.parent / name) for name in requires.get(run.fingerprint, ())]
            if any(not other.state().is_complete for other in needed):
                outcomes[run.fingerprint] = "pending"
                continue
            self.started.append(run.fingerprint)
            before(run)
            state = run.state()
            if run.load_config().method.id in self.fail:
                run.write_state(state=FAILED, error="the engine broke", failure_class="env")
            elif not self.stop:
                done = {name: {"requested": 1, "graded": 1, "excluded": 0} for name in state.declared}
                run.write_state(last_step=state.planned_steps, evaluations=done, state=COMPLETE)
            outcomes[run.fingerprint] = run.state().state
        return LaunchReport(outcomes, {k: "the engine broke" for k, v in outcomes.items() if v == FAILED}, self.stop)

    def _sync(self, runs: Sequence[RunDirectory], uri: str, experiment: str, *, ask_server: bool) -> Any:
        from harness.tracking import SyncReport

        self.synced += 1
        return SyncReport(len(runs), 0)

    def _table(self, out: Path, sweep: str) -> dict[str, Any]:
        plan = json.loads((out / "results" / sweep / "plan.json").read_text())
        states = [cell["state"] for cell in plan["cells"]]
        files = {kind: out / "results" / sweep / f"main_table.{kind}" for kind in ("csv", "md", "html")}
        return {**files, "text": f"TABLE {states.count(COMPLETE)}/{len(states)}", "incomplete": 0}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, stand_in_env: None, package_hydra: Composer) -> World:
    def shared(config_dir: str | None = None, searchpath: Sequence[str] = ()) -> Composer:
        return composer(config_dir, searchpath) if config_dir or searchpath else package_hydra

    monkeypatch.setattr("harness.compose.composer", shared)
    return World(monkeypatch)


def test_a_sweep_runs_what_is_missing_and_prints_the_table(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep=quick", f"out={tmp_path}"]
    assert cli.main(command) == 0
    printed = capsys.readouterr()
    assert f"TABLE {QUICK}/{QUICK}" in printed.out and "main_table.md" in printed.out
    assert len(world.started) == QUICK and world.synced == 1
    # What runs share is prepared once: without the training panel, with it, and with the one for validation, too.
    assert len(world.prepared) == 3
    world.started.clear()
    assert cli.main(command) == 0
    assert not world.started and world.synced == 1 and len(world.prepared) == 3
    printed = capsys.readouterr()
    assert "nothing to run" in printed.err and f"TABLE {QUICK}/{QUICK}" in printed.out


def test_a_selection_runs_only_its_cells(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep=main_table", "method=grpo", "env=webshop", "seed=1", f"out={tmp_path}"]) == 0
    assert len(world.started) == 1
    assert f"TABLE 1/{MAIN}" in capsys.readouterr().out


def test_failed_cells_give_status_3_and_are_named(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.fail = {"opid"}
    command = ["sweep=quick", f"out={tmp_path}"]
    assert cli.main(command) == 3
    printed = capsys.readouterr()
    assert "failed: OPID seed 0" in printed.err and "the engine broke" in printed.err
    assert f"TABLE {QUICK - 1}/{QUICK}" in printed.out
    world.fail = set()
    world.started.clear()
    assert cli.main(command) == 0
    assert len(world.started) == 1


def test_a_single_run(world: World, tmp_path: Path) -> None:
    assert cli.main(["method=opid", "env=alfworld", "backbone=tiny-s", "seed=3", f"out={tmp_path}"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    config = RunDirectory(run).load_config()
    assert (config.method.id, config.seed) == ("opid", 3)
    assert json.loads((tmp_path / "results/single/plan.json").read_text())["cells"][0]["run_dir"] == f"runs/{run.name}"


def test_a_single_run_with_a_teacher(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["method=retire_opd", f"out={tmp_path}"]
    world.fail = {"skill_grpo"}
    assert cli.main(command) == 3
    printed = capsys.readouterr()
    assert "2 of 2 cells to run, 1 only as a teacher of others" in printed.err
    assert "failed: Skill-GRPO (teacher) seed 0" in printed.err and "1 failed, 1 pending" in printed.err
    assert cli.main([*command, "do=status"]) == 3
    assert "RetireOPD seed 0: waits for its teacher, Skill-GRPO (teacher) seed 0" in capsys.readouterr().out
    assert len(world.started) == 1
    world.fail = set()
    assert cli.main(command) == 0
    assert len(world.started) == 3
    assert cli.main([*command, "do=status"]) == 0
    assert cli.main(command) == 0 and len(world.started) == 3


def test_a_protocol_is_in_the_title(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "conf" / "protocol"
    folder.mkdir(parents=True)
    (folder / "lab.yaml").write_text("# test\nenvs: {alfworld: {training.kl_coef: 0.5}}\n")
    command = [f"--config-dir={folder.parent}", "method=grpo", "protocol=lab", f"out={tmp_path}"]
    assert cli.main([*command, "do=plan"]) == 0
    printed = capsys.readouterr().out
    assert "Single run (protocol=lab): 1 cells" in printed and "protocol: lab" in printed
    assert json.loads((tmp_path / "results/single/plan.json").read_text())["title"] == "Single run (protocol=lab)"
    assert cli.main([*command, "--cfg", "job"]) == 0
    assert "kl_coef: 0.5" in capsys.readouterr().out


def test_do_plan_starts_nothing(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep=main_table", "do=plan", f"out={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert f"{MAIN} cells, {MAIN} pending" in printed and "vanilla_skill" in printed and "plan.json" in printed
    assert [p.name for p in tmp_path.iterdir()] == ["results"]
    assert not world.prepared and not world.started and not world.synced


def test_do_status_only_reads(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep=quick", "do=status", f"out={tmp_path}"]) == 3
    assert list(tmp_path.iterdir()) == []
    assert f"{QUICK} cells, {QUICK} pending" in capsys.readouterr().out
    world.fail = {"opid"}
    cli.main(["sweep=quick", f"out={tmp_path}"])
    capsys.readouterr()
    assert cli.main(["sweep=quick", "do=status", f"out={tmp_path}"]) == 3
    printed = capsys.readouterr().out
    assert f"1 failed, {QUICK - 1} complete" in printed and "the engine broke" in printed and "3/3" in printed


def test_do_tables(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep=quick", "do=tables", f"out={tmp_path}"]) == 3
    printed = capsys.readouterr().out
    assert f"TABLE 0/{QUICK}" in printed and "FIGURES AND REPORT of quick" in printed
    assert not world.started


@pytest.mark.parametrize("do", ["run", "plan", "tables"])
def test_results_of_changed_settings_are_named(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], do: str
) -> None:
    cli.main(["sweep=quick", "training.lr=1e-4", f"do={do}", f"out={tmp_path}"])
    name = "quick+training.lr-0.0001"
    assert f"called {name}: python -m analysis sweep={name} out={tmp_path}" in capsys.readouterr().out
    assert [p.name for p in (tmp_path / "results").iterdir()] == [name]
    cli.main(["sweep=quick", f"do={do}", f"out={tmp_path}"])
    assert "called" not in capsys.readouterr().out


def test_tracking_can_be_left_out(world: World, tmp_path: Path) -> None:
    assert cli.main(["sweep=quick", "tracking=none", f"out={tmp_path}"]) == 0
    assert world.synced == 0


def test_an_outage_of_tracking_costs_nothing(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import harness.tracking

    def down(*_: object, **__: object) -> object:
        raise ConnectionError("no route")

    monkeypatch.setattr(harness.tracking, "sync", down)
    assert cli.main(["sweep=quick", f"out={tmp_path}"]) == 0
    printed = capsys.readouterr()
    assert "warning: records were not copied" in printed.err and "no route" in printed.err
    assert f"TABLE {QUICK}/{QUICK}" in printed.out


def test_interruptions_say_how_to_go_on(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.stop = True
    assert cli.main(["sweep=quick", f"out={tmp_path}"]) == 130
    assert "the same command again goes on" in capsys.readouterr().err
    world.crash = KeyboardInterrupt()
    assert cli.main(["sweep=quick", f"out={tmp_path}"]) == 130
    assert "the same command again goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep=main_tabel"], "did you mean 'main_table'?"),
        (["sweep=main_table", "training.stepz=1"], "did you mean training.steps?"),
        (["sweep=main_table", "+training.stepz=1"], "did you mean training.steps?"),
        (["sweep=main_table", "method=opidd"], "did you mean 'opid'?"),
        (["method=opidd"], "did you mean 'opid'?"),
        (["sweep=main_table", "fraction=-1"], "fraction=-1.0 (command line): must be above 0 and at most 1"),
        (["fraction=-0.5"], "fraction=-0.5 (command line): must be above 0 and at most 1"),
        (["sweep=main_table", "training.steps=many"], "training.steps=many (command line): must be a whole number"),
        (["training.penalise=fromat"], "did you mean 'format'?"),
        (["--confg", "job"], "did you mean '--cfg'?"),
        (["--cfg"], "needs a value"),
        (["--cfg", "jobs"], "did you mean 'job'?"),
        (["--config-dir", "/nowhere/at/all"], "is not a folder"),
    ],
)
def test_mistakes_give_status_2_and_start_nothing(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    out = tmp_path / "out"
    assert cli.main([f"out={out}", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.startswith("error: ") and not printed.out
    assert not out.exists() and not world.prepared and not world.started


@pytest.mark.parametrize("do", ["run", "plan", "tables"])
def test_an_output_folder_that_cannot_be_written_gives_status_2(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], do: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert cli.main(["sweep=quick", f"do={do}", f"out={tmp_path / 'file'}"]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert not world.prepared and not world.started


def test_a_full_disk_gives_status_2(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep=quick", f"out={tmp_path}", "runtime.min_free_gb=1e9"]) == 2
    assert "GB are free" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [] and not world.prepared


def test_a_damaged_run_directory_gives_status_2(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["method=grpo", f"out={tmp_path}"]
    world.stop = True
    cli.main(command)
    (run,) = (tmp_path / "runs").iterdir()
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"\n  steps: \d+", "\n  steps: 9999", text))
    world.stop = False
    assert cli.main(command) == 2
    assert "training.steps" in capsys.readouterr().err


def test_a_failure_to_prepare_is_told(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world.crash = FileNotFoundError("game 7 is missing")
    assert cli.main(["method=grpo", f"out={tmp_path}"]) == 3
    printed = capsys.readouterr().err
    assert "game 7 is missing" in printed and "Traceback" not in printed
    assert not world.started


def test_a_row_that_uses_skills_speaks_for_its_group_and_an_unfit_backbone_gives_status_2(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep=quick", f"out={tmp_path}"]
    world.crash = ConfigError(Problem("backbone", "tiny-s", "", "it FAILS"))
    assert cli.main(command) == 2
    printed = capsys.readouterr()
    assert "backbone=tiny-s: it FAILS" in printed.err and "nothing was started" in printed.err
    world.crash = None
    assert not world.started and cli.main(command) == 0
    assert all(config.method.skill.source != "none" for config in world.prepared)


def test_a_cache_that_cannot_be_written_gives_status_2(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    command = ["sweep=quick", f"out={tmp_path}", f"env.cache={tmp_path / 'file'}"]
    assert cli.main(command) == 2
    assert "env.cache=" in capsys.readouterr().err and not world.prepared and not (tmp_path / "results").exists()


def test_cfg_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--cfg", "job", "method=opid", "training.steps=7", "sweep=quick"]) == 0
    printed = capsys.readouterr().out
    assert "steps: 7" in printed and "id: opid\n" in printed and "title: Quick check" in printed


def test_a_bare_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "usage: python -m harness" in capsys.readouterr().out


def test_multirun_flag_is_accepted(world: World, tmp_path: Path) -> None:
    assert cli.main(["-m", "method=vanilla", f"out={tmp_path}"]) == 0


def test_an_output_folder_that_cannot_be_names_who_said_so(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for words in (["method=grpo", "do=plan"], ["sweep=tune", "method=opid", "env=alfworld"]):
        assert cli.main([*words, f"out={tmp_path}/file"]) == 2
        assert f"runtime.out={tmp_path}/file (command line): " in capsys.readouterr().err
    assert cli.main(["sweep=tune", "method=opid", "evaluation.panels=[unseen]", "do=plan", f"out={tmp_path}"]) == 2
    assert "evaluation.panels=unseen (command line): " in capsys.readouterr().err


def test_config_dir(world: World, tmp_path: Path, config_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config_dir / "method").mkdir()
    (config_dir / "method" / "mine.yaml").write_text("# mine\ndefaults: [opid, _self_]\nid: mine\ncoef: 0.125\n")
    assert cli.main([f"--config-dir={config_dir}", "method=mine", f"out={tmp_path}", "do=plan"]) == 0
    assert "mine" in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------- as users start it
def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=300,
    )


def test_help_names_every_group_and_key() -> None:
    done = start("--help")
    assert done.returncode == 0 and not done.stderr
    words = ("sweep=main_table", "opid_random", "tiny-m", "steps=40", "runtime.{out=.", "exit status", "--cfg job")
    words += ("code | fair | paper", "method.knobs.NAME")
    assert all(word in done.stdout for word in words)


def _examples() -> list[list[str]]:
    from harness.help import help_text

    lines = (line.strip() for line in help_text().partition("\ngroups")[0].splitlines())
    commands = (line.partition("   ")[0] for line in lines if line.startswith("python -m harness "))
    words = [[word for word in command.split() if "=" in word] for command in commands]
    plain = [[word for word in one if not word.startswith(("do=", "out="))] for one in words]
    return [one for number, one in enumerate(plain) if one not in plain[:number]]


@pytest.mark.parametrize("words", _examples(), ids=" ".join)
def test_every_example_of_the_help_is_a_plan(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert cli.main([*words, "do=plan", f"out={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert " pending" in printed or "search, on the panel validation" in printed


def test_the_help_has_examples_and_spells_defaults_as_files_do() -> None:
    assert len(_examples()) >= 10
    from harness.help import help_text

    text = help_text()
    assert "verl.{" in text and "vllm.{" in text and "<factory>" not in text and "Config(" not in text
    assert "extra={}" in text and "eager=false" in text and "base_url=null" in text


def test_a_python_without_what_is_needed_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import analysis.__main__
    from core.dependencies import MODULES

    def lacking(name: str) -> Any:
        def fail(*_: object) -> Any:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        return fail

    monkeypatch.setattr("harness.compose.composer", lacking("hydra"))
    assert cli.main(["sweep=quick", "do=plan"]) == 2
    told = capsys.readouterr().err
    assert "no module hydra" in told and "run `make install`" in told and ".venv/bin/python" in told
    monkeypatch.setattr(analysis.__main__, "main", lacking("pandas.core"))
    assert analysis.__main__.run(["sweep=quick"]) == 2
    assert "no module pandas" in capsys.readouterr().err
    monkeypatch.setattr("harness.compose.composer", lacking("my_plugin"))
    with pytest.raises(ModuleNotFoundError):  # a mistake of the code, or of a package: its traceback helps
        cli.main(["sweep=quick", "do=plan"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert len(MODULES) == len(project) + 1  # PyYAML comes with Hydra
    names = {re.split(r"[<>=!~\[]", line)[0] for line in project}
    assert {"hydra" if name == "hydra-core" else name for name in names} == MODULES - {"yaml"}


def test_a_folder_given_twice_and_a_key_given_twice(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert cli.main(["--config-dir", f"{tmp_path}/a", f"--config-dir={tmp_path}/b", "method=grpo", "do=plan"]) == 2
    assert f"--config-dir={tmp_path}/b (command line): is given twice" in capsys.readouterr().err
    assert cli.main(["sweep=quick", "sweep=main_table", "do=plan"]) == 2
    assert "sweep=main_table (command line): is given twice, and sweep=quick before" in capsys.readouterr().err
    assert cli.main(["hydra.searchpath=[x", "method=grpo"]) == 2
    assert "hydra.searchpath=[x (command line): cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hydra/launcher=nope", "method=grpo"], "hydra/launcher=nope (command line): available: basic, harness_local"),
        (["hydra/launcher=harness_local", "method=typo"], "method=typo (command line): available: gigpo"),
        (["hydra/launcher=harness_local", "sweep=main_tabel"], "did you mean 'main_table'?"),
        (["hydra/launcher=basic", "training.setps=1"], "did you mean training.steps?"),
        (["hydra.launcher.foo=3", "method=grpo"], "hydra.launcher.foo (command line): Could not override"),
        (["hydra/launcher=harness_local", "do=plan", "do=run"], "is given twice"),
    ],
)
def test_a_multiruns_mistakes_are_told_as_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main(["-m", *words]) == 2
    told = capsys.readouterr()
    assert said in told.err and "Traceback" not in told.err and "Could not find" not in told.err


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m harness --help | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=ROOT)
    assert "usage" in done.stdout and "Traceback" not in done.stderr


def test_shell_completion() -> None:
    line = "harness method=op"
    done = start("-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
    assert "method=opid" in done.stdout


def test_info_is_hydras() -> None:
    done = start("--info", "searchpath", "protocol=paper")
    assert done.returncode == 0 and "harness://" in done.stdout and "sweeps |" in done.stdout


HEAVY = ("torch", "transformers", "mlflow", "textworld", "alfworld", "pandas", "scipy")


@pytest.mark.parametrize("arguments", [["--help"], ["sweep=main_table", "do=plan", "sweep.axes.seed=[%s]"]])
def test_help_and_plan_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    """1,000 cells and some."""
    number = 1000 // (MAIN // 3) + 1
    seeds = ",".join(map(str, range(number)))
    given = [a % seeds if "%s" in a else a for a in arguments]
    if "do=plan" in given:
        given.append(f"out={tmp_path}")
    code = (
        "import sys\nfrom harness.cli import main\n"
        f"status = main({given!r})\n"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "print('STATUS', status, 'HEAVY', heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stdout.splitlines()[-1] == "STATUS 0 HEAVY []", done.stdout[-500:] + done.stderr
    if "do=plan" in given:
        (folder,) = (tmp_path / "results").iterdir()  # another set of seeds is another table than the sweep's own
        assert folder.name.startswith("main_table+sweep.axes.seed-0_1_2_")
        assert len(json.loads((folder / "plan.json").read_text())["cells"]) == number * MAIN // 3


def test_messages_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    actions.say("working")
    assert capsys.readouterr() == ("", "working\n")
