"""Job scripts: what of the configuration is in them, what must not be, and that do=plan shows the real text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_cluster import FakeCluster, option, settings_of
from launch_runs import make_run

from harness.config import LauncherConfig
from harness.launch import batches
from harness.launch.job import Job
from harness.launch.scheduler import Slurm
from harness.launch.script import OWN_OPTIONS, parameters, problems, script_text
from harness.launch.shapes import Shape
from harness.launch.tickets import Ticket

SHAPE = Shape(nodes=1, gpus_per_node=4, cpus_per_node=8, mem_gb=2.5, minutes=30)


def text(
    launcher: LauncherConfig | None = None, shape: Shape = SHAPE, size: int = 3, after: tuple[str, ...] = ()
) -> str:
    given = launcher or LauncherConfig(name="slurm")
    settings = parameters(
        given, shape, name="my sweep", threads=1, snapshot=Path("/out/snapshots/d"), size=size, after=after
    )
    return script_text(Path("/out/slurm/batch"), given, settings, size)


def test_a_shape_and_the_settings_of_a_site() -> None:
    launcher = LauncherConfig(
        name="slurm", partition="gpu", account="lab", qos="long", constraint="h200", parallel=2, signal_seconds=60,
        modules=["cuda/12", "a b"], setup=["ulimit -c 0"], environment={"NCCL_DEBUG": "WARN now"},
        container="apptainer exec --nv my.sif", python="/opt/python 3/bin/python",
        sbatch={"reservation": "night", "exclusive": True, "mail_user": None, "nice": False, "exclude": ["n1", "n2"]},
    )  # fmt: skip
    script = text(launcher)
    assert [option(script, key) for key in ("partition", "account", "qos", "constraint")] == [
        "gpu",
        "lab",
        "long",
        "h200",
    ]
    assert [option(script, key) for key in ("gpus-per-node", "cpus-per-task", "mem", "time")] == [
        "4",
        "8",
        "2560MB",
        "30",
    ]
    assert [option(script, key) for key in ("array", "signal", "job-name")] == ["0-2%2", "USR2@60", "my_sweep"]
    assert [option(script, key) for key in ("reservation", "exclusive", "exclude")] == ["night", "", "n1,n2"]
    assert "mail" not in script and "nice" not in script
    lines = script.splitlines()
    order = [
        lines.index(line) for line in ("module load cuda/12 || exit 1", "ulimit -c 0", "export NCCL_DEBUG='WARN now'")
    ]
    assert order == sorted(order) and "module load 'a b' || exit 1" in lines
    (run,) = [line for line in lines if line.startswith("srun")]
    assert "--cpus-per-task 8 apptainer exec --nv my.sif '/opt/python 3/bin/python' -u -m submitit" in run


def test_a_cpu_job_asks_for_no_gpu_and_no_module() -> None:
    script = text(shape=replace(SHAPE, gpus_per_node=0), size=1)
    assert option(script, "gpus-per-node") is None and option(script, "array") is None
    assert "module" not in script and "kill-on-bad-exit" not in script


def test_a_job_of_several_nodes_ends_with_its_leader() -> None:
    script = text(shape=replace(SHAPE, nodes=2))
    assert "--kill-on-bad-exit=1" in script and option(script, "ntasks-per-node") == "1"


def test_a_warning_comes_no_earlier_than_half_way() -> None:
    assert option(text(shape=replace(SHAPE, minutes=1)), "signal") == "USR2@30"


def test_dependencies() -> None:
    assert option(text(after=("5_1", "7")), "dependency") == "afterok:5_1:7"
    assert option(text(after=("5_1", "7")), "kill-on-invalid-dep") == "yes"


@pytest.mark.parametrize("size", [1, 3])
def test_what_plan_shows_is_what_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    cluster = FakeCluster(tmp_path / "clients")
    monkeypatch.setenv("PATH", f"{cluster.folder / 'bin'}:/usr/bin:/bin")
    launcher = LauncherConfig(name="slurm", partition="gpu", setup=["true"], sbatch={"reservation": "night"})
    settings = parameters(
        launcher, SHAPE, name="table", threads=1, snapshot=tmp_path / "snapshots" / "d", size=size, after=("5",)
    )
    runs = [make_run(tmp_path / "runs", seed) for seed in range(size)]
    order = batches.Order(tuple(Job(str(run.path)) for run in runs), tuple(Ticket("", 0.0) for _ in runs))
    folder = tmp_path / "slurm" / "a batch"
    batches.submit(folder, order, launcher, settings, Slurm())
    (submitted,) = cluster.scripts().values()
    assert submitted == script_text(folder, launcher, settings, size)


# ------------------------------------------------------------------------------------- what cannot be a script
@pytest.mark.parametrize("name", sorted(OWN_OPTIONS))
def test_options_that_are_decided_elsewhere_are_refused(name: str) -> None:
    for spelt in {name, name.replace("-", "_"), f"--{name}"}:
        (problem,) = problems(LauncherConfig(name="slurm", sbatch={spelt: "x"}), Path("/out"))
        assert problem.key == f"launcher.sbatch.{spelt}" and OWN_OPTIONS[name] in problem.fix


def test_options_are_written_without_dashes() -> None:
    (problem,) = problems(LauncherConfig(name="slurm", sbatch={"--nice": 1}), Path("/out"))
    assert "without dashes: nice" in problem.fix


def test_names_of_variables() -> None:
    (problem,) = problems(LauncherConfig(name="slurm", environment={"A B": "1"}), Path("/out"))
    assert "no name of a variable" in problem.fix


def test_secrets_do_not_get_into_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-planted-1a2b3c4d")
    (problem,) = problems(LauncherConfig(name="slurm", environment={"OTHER_API_KEY": "x"}), Path("/out"))
    assert "export OTHER_API_KEY before this command" in problem.fix
    for launcher in (
        LauncherConfig(name="slurm", setup=["export K=sk-planted-1a2b3c4d"]),
        LauncherConfig(name="slurm", environment={"K": "sk-planted-1a2b3c4d"}),
        LauncherConfig(name="slurm", container="run --key sk-planted-1a2b3c4d"),
        LauncherConfig(name="slurm", sbatch={"comment": "sk-planted-1a2b3c4d"}),
    ):
        (problem,) = problems(launcher, Path("/out"))
        assert "MY_API_KEY" in problem.fix and "sk-planted" not in str(problem)
    assert "sk-planted" not in text()


def test_folders_that_slurm_would_read_as_patterns() -> None:
    (problem,) = problems(LauncherConfig(name="slurm"), Path("/data/100%j"))
    assert problem.key == "runtime.out"
    assert not problems(LauncherConfig(name="slurm"), Path("/data/my results"))


def test_where_shared_artefacts_are_is_said_to_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_CACHE", raising=False)
    assert "HARNESS_CACHE" not in settings_of(text())
    monkeypatch.setenv("HARNESS_CACHE", "/shared/cache")
    assert settings_of(text())["HARNESS_CACHE"] == "/shared/cache"
