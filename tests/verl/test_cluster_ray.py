"""A Ray of a run's own inside a Slurm job: what is started where, with played srun, scontrol and ray."""

from __future__ import annotations

import json
import socket
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from harness.config import BackboneConfig, LauncherConfig, ResourcesConfig, RunConfig, RuntimeConfig
from harness.training.verl import cluster
from harness.training.verl.cluster import Allocation, Cluster, ClusterError, ray_over
from harness.training.verl.sizes import sizes_of

# Drops its own options, notes them, and becomes what it is to run.
SRUN = """
import json, os, sys
options = []
rest = sys.argv[1:]
while rest[0].startswith("--"):
    options.append(rest.pop(0))
host = next(o.partition("=")[2] for o in options if o.startswith("--nodelist="))
with open(os.path.join(os.environ["PLAYED"], f"srun-{host}.json"), "w") as file:
    json.dump({"options": options, "command": rest, "env": dict(os.environ)}, file)
os.environ["PLAYED_HOST"] = host
os.execv(rest[0], rest)
"""
# Has a child, as Ray has many; the head answers on its port.
RAY = """
import json, os, socket, subprocess, sys, time
folder, host = os.environ["PLAYED"], os.environ["PLAYED_HOST"]
if host in os.environ.get("PLAYED_BROKEN", "").split():
    print("no such library")
    sys.exit(7)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
scratch = next(a.partition("=")[2] for a in sys.argv if a.startswith("--temp-dir="))
os.makedirs(scratch, exist_ok=True)
open(os.path.join(scratch, "socket-" + host), "w").close()
port = [a.partition("=")[2] for a in sys.argv if a.startswith("--port=")]
if port and host not in os.environ.get("PLAYED_DEAF", "").split():
    server = socket.socket()
    server.bind(("", int(port[0])))
    server.listen()
with open(os.path.join(folder, f"ray-{host}.json"), "w") as file:
    pids = [os.getpid(), child.pid]
    json.dump({"arguments": sys.argv[1:], "pids": pids, "token": os.environ["RAY_AUTH_TOKEN"]}, file)
time.sleep(600)
"""
SCONTROL = """
import sys
print("\\n".join(sys.argv[-1].split(",")))
"""


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def lives(pid: int) -> bool:
    """Whether a process is there and is more than an entry that nobody has collected."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of what the played programs noted. Nothing of them is left afterwards."""
    monkeypatch.setattr(cluster, "SRUN", str(program(tmp_path / "srun", SRUN)))
    monkeypatch.setattr(cluster, "SCONTROL", str(program(tmp_path / "scontrol", SCONTROL)))
    monkeypatch.setattr(cluster, "RAY", program(tmp_path / "ray", RAY))
    monkeypatch.setattr(cluster, "_own_address", lambda hosts: "127.0.0.1")
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.05)
    monkeypatch.setenv("PLAYED", str(tmp_path))
    monkeypatch.setenv("SLURM_CPU_BIND", "of the step that runs this")
    yield tmp_path
    for noted in sorted(tmp_path.glob("ray-*.json")):
        gone = time.monotonic() + 20  # killed is not yet gone on a busy machine
        while any(map(lives, json.loads(noted.read_text())["pids"])):
            assert time.monotonic() < gone, noted.name
            time.sleep(0.05)


def config_of(nodes: int = 3) -> RunConfig:
    resources = ResourcesConfig(nodes=nodes, gpus_per_node=4, cpus_per_node=16)
    return RunConfig(
        backbone=BackboneConfig(name="big", kind="hub", path="x", heads=16, resources=resources),
        runtime=RuntimeConfig(device="cuda"),
        launcher=LauncherConfig(name="slurm"),
        engine="verl",
    )


HERE = Allocation(("n1", "n2", "n3"), "77-0")


def alive(folder: Path) -> Any:
    return lambda address, environment: len(list(folder.glob("ray-*.json")))


def noted(folder: Path, name: str) -> dict[str, Any]:
    found = json.loads((folder / f"{name}.json").read_text())
    assert isinstance(found, dict)
    return found


# ---------------------------------------------------------------------------------------------------------- what starts
def test_every_machine_gets_a_step_of_its_own_and_all_join(played: Path) -> None:
    with ray_over(config_of(), played / "logs", HERE, alive(played)) as given:
        head, worker = noted(played, "ray-n1"), noted(played, "ray-n3")
        assert given["RAY_ADDRESS"].startswith("127.0.0.1:") and head["token"] == worker["token"]
        assert "--head" in head["arguments"] and f"--address={given['RAY_ADDRESS']}" in worker["arguments"]
        options = noted(played, "srun-n2")["options"]
        assert {"--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n2", "--gpus-per-node=4"} <= set(options)
        sizes = sizes_of(config_of())
        assert f"--num-cpus={sizes.ray_cpus_per_node}" in worker["arguments"] and "--num-gpus=4" in worker["arguments"]
        scratch = Path(next(a.partition("=")[2] for a in head["arguments"] if a.startswith("--temp-dir=")))
        assert scratch.is_dir() and len(str(scratch)) < 45 and "77-0" in scratch.name
        environment = noted(played, "srun-n1")["env"]
        assert environment["RAY_AUTH_MODE"] == "token" and "SLURM_CPU_BIND" not in environment
    assert not scratch.exists()


def test_two_runs_on_the_same_machines_share_nothing(played: Path, tmp_path: Path) -> None:
    one, two = (Cluster(HERE, sizes_of(config_of()), tmp_path / "logs") for _ in range(2))
    assert one.address != two.address and one.folder != two.folder
    assert one.variables["RAY_AUTH_TOKEN"] != two.variables["RAY_AUTH_TOKEN"]
    for head in (True, False):
        command = cluster.node_command(one.folder, one.address, one.sizes, head)
        fixed = [a for a in command if "port=" in a and not a.endswith("=0")]
        ports = {a.rpartition("=")[2] for a in fixed}
        assert not ports & {"6379", "8265", "10001", "52365"}  # Ray's own defaults, which everybody has
        assert "stop" not in command  # `ray stop` ends every Ray of the user


def test_secrets_are_in_the_environment_and_in_no_command(played: Path) -> None:
    with ray_over(config_of(2), played / "logs", replace(HERE, hosts=HERE.hosts[:2]), alive(played)) as given:
        for name in ("n1", "n2"):
            assert given["RAY_AUTH_TOKEN"] not in json.dumps(noted(played, f"srun-{name}")["command"])
    assert given["RAY_AUTH_TOKEN"] not in "".join(p.read_text() for p in (played / "logs").iterdir())


def test_one_machine_needs_none_of_it(played: Path) -> None:
    with ray_over(config_of(1), played / "logs") as given:
        assert given == {}
    assert not list(played.glob("srun-*.json"))


# --------------------------------------------------------------------------------------------------------- what breaks
def test_a_machine_whose_ray_ends_is_named(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYED_BROKEN", "n2")
    with (
        pytest.raises(ClusterError, match="Ray on n2 ended with status 7: no such library"),
        ray_over(config_of(), played / "logs", HERE, alive(played)),
    ):
        raise AssertionError("it must not stand")


def test_a_head_that_does_not_answer(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYED_DEAF", "n1")
    monkeypatch.setattr(cluster, "START_SECONDS", 2.0)
    with (
        pytest.raises(ClusterError, match="does not stand after 2 s: its first machine, n1, does not answer"),
        ray_over(config_of(), played / "logs", HERE, alive(played)),
    ):
        raise AssertionError("it must not stand")


def test_machines_that_do_not_join(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later[0], sleep=time.sleep)
    monkeypatch.setattr(cluster, "time", clock)

    def only_one(address: str, environment: Any) -> int:
        later[0] = 2 * cluster.START_SECONDS
        return 1

    with (
        pytest.raises(ClusterError, match="1 of 3 machines have joined"),
        ray_over(config_of(), played / "logs", HERE, only_one),
    ):
        raise AssertionError("it must not stand")


def test_a_machine_that_is_lost_later_is_noticed(played: Path) -> None:
    made = Cluster(HERE, sizes_of(config_of()), played / "logs")
    try:
        made.start(alive(played))
        assert made.lost() is None
        psutil.Process(noted(played, "ray-n3")["pids"][0]).kill()
        deadline = time.monotonic() + 60
        while made.lost() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "Ray on n3 ended with status" in (made.lost() or "")
    finally:
        made.stop()


def test_without_srun(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SRUN", str(played / "nowhere"))
    with (
        pytest.raises(ClusterError, match="also from inside a container"),
        ray_over(config_of(), played / "logs", HERE, alive(played)),
    ):
        raise AssertionError("it must not stand")


# ------------------------------------------------------------------------------------------------------ the allocation
def test_the_machines_of_a_job(played: Path) -> None:
    given = {
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NODELIST": "a1,a2,a3",
        "SLURMD_NODENAME": "a2",
        "SLURM_RESTART_COUNT": "4",
    }
    assert Allocation.here(given) == Allocation(("a2", "a1", "a3"), "12-4")
    assert Allocation.here({"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "a1,a2"}).hosts == ("a1", "a2")
    with pytest.raises(ClusterError, match="this is none: use launcher=slurm"):
        Allocation.here({})
    with pytest.raises(ClusterError, match=r"the job has 3 machines \(n1, n2, n3\), the run wants 2"):
        Cluster(HERE, sizes_of(config_of(2)), played)


def test_scontrol_that_does_not_answer(played: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "a1,a2"}
    monkeypatch.setattr(cluster, "SCONTROL", str(program(played / "broken", "import sys; sys.exit('no controller')")))
    with pytest.raises(ClusterError, match="no controller"):
        Allocation.here(given)
    monkeypatch.setattr(cluster, "SCONTROL", str(program(played / "mute", "")))
    with pytest.raises(ClusterError, match="names no machine"):
        Allocation.here(given)
    monkeypatch.setattr(cluster, "SCONTROL", str(played / "nowhere"))
    with pytest.raises(ClusterError, match="does not answer"):
        Allocation.here(given)


def test_whether_ray_answers_is_asked_of_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    def says(text: str) -> Any:
        return lambda *a, **k: subprocess.CompletedProcess(a, 0, text, "")

    monkeypatch.setattr(cluster.subprocess, "run", says("noise\nalive 3\n"))
    assert cluster.joined("1.2.3.4:5", {}) == 3
    monkeypatch.setattr(cluster.subprocess, "run", says("ConnectionError"))
    assert cluster.joined("1.2.3.4:5", {}) == 0

    def hangs(*a: Any, **k: Any) -> Any:
        raise subprocess.TimeoutExpired("ray", 1)

    monkeypatch.setattr(cluster.subprocess, "run", hangs)
    assert cluster.joined("1.2.3.4:5", {}) == 0


def test_a_free_port_is_free() -> None:
    with socket.socket() as probe:
        probe.bind(("", cluster.free_port()))
