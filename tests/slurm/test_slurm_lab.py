"""The laboratory cluster itself: what it offers, and that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import lab
import psutil
import pytest
import slurm_cluster
from lab_config import Settings
from slurm_cluster import LAB, Cluster, ClusterError, laboratory, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.slurm]


def descendants(cluster: Cluster) -> list[psutil.Process]:
    return psutil.Process(cluster._process.pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def test_jobs_get_gpus_of_their_own_on_all_nodes(cluster_without_accounting: Cluster, tmp_path: Path) -> None:
    cluster = cluster_without_accounting
    script = f"echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES > {tmp_path}/$SLURM_ARRAY_TASK_ID; sleep 3"
    cluster.client("sbatch", "-o", "/dev/null", "--array=0-7", "--gres=gpu:1", "--mem=100", "--wrap", script)
    wait_until(lambda: len([p for p in tmp_path.iterdir() if p.read_text()]) == 8, 60, "eight jobs")
    said = sorted(path.read_text().strip() for path in tmp_path.iterdir())
    assert said == [f"{node} {gpu}" for node in cluster.nodes for gpu in (0, 1)]
    with pytest.raises(ClusterError, match="not available"):
        cluster.client("sbatch", "--gres=gpu:3", "--wrap", "true")


def test_a_node_without_power_takes_its_jobs_with_it_and_comes_back(
    cluster_without_accounting: Cluster, tmp_path: Path
) -> None:
    cluster = cluster_without_accounting
    script = f"trap '' TERM; echo $$ > {tmp_path}/$SLURMD_NODENAME; sleep 300"
    for node in ("gpu1", "gpu2"):
        cluster.client("sbatch", "-o", "/dev/null", "-w", node, "--mem=100", "--no-requeue", "--wrap", script)
    wait_until(lambda: len([p for p in tmp_path.iterdir() if p.read_text()]) == 2, 60, "two jobs")
    one, two = (psutil.Process(int((tmp_path / node).read_text())) for node in ("gpu1", "gpu2"))
    with_children = [one, *one.children(recursive=True)]
    cluster.order("power-off gpu1")
    assert not alive(with_children) and alive([two])
    wait_until(lambda: cluster.node_state("gpu1").startswith("down"), 120, "the controller to notice")
    cluster.order("start gpu1")
    wait_until(lambda: cluster.node_state("gpu1") == "idle", 60, "the node to come back")
    cluster.order("kill-daemon gpu2")
    assert alive([two])
    cluster.order("start gpu2")
    cluster.client("scancel", "--signal=KILL", "--full", "-u", str(os.getuid()))
    cluster.client("scancel", "-u", str(os.getuid()))
    wait_until(lambda: not alive([two]) and not cluster.queue(), 60, "the end of the job")


def test_unknown_orders_are_refused(cluster_without_accounting: Cluster) -> None:
    for order in ("power-off gpu9", "explode gpu1"):
        with pytest.raises(ClusterError, match="power-off"):
            cluster_without_accounting.order(order)


def test_it_ends_with_whoever_holds_it_even_when_killed(tmp_path: Path) -> None:
    if lab.missing_programs(accounting=False):
        pytest.skip("no Slurm here")
    holder = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from slurm_cluster import Cluster; c = Cluster('--without-accounting')\n"
        "c.client('sbatch', '-o', '/dev/null', '--mem=100', '--wrap', 'trap \"\" TERM; sleep 300')\n"
        "while not c.queue() or c.queue()[0][1] != 'RUNNING': pass\n"
        "print(c._process.pid, c.folder, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, str(LAB.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        supervisor = psutil.Process(int(pid))
        # Beside munged, slurmctld and four slurmd the job's own processes, which start after it is said to run.
        wait_until(lambda: len(supervisor.children(recursive=True)) > 7, 30, "the processes of the job")
        family = [supervisor, *supervisor.children(recursive=True)]
        process.kill()
    wait_until(lambda: not alive(family), 30, "the end of everything")
    assert not Path(folder).exists()


def test_it_ends_on_a_signal(tmp_path: Path) -> None:
    if lab.missing_programs(accounting=False):
        pytest.skip("no Slurm here")
    folder = Path("/tmp") / f"lab{os.getpid()}x"
    command = [sys.executable, str(LAB), "--without-accounting", "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["ready"]
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 128 + signal.SIGTERM
            assert not alive(family)
            assert (folder / "log" / "slurmctld.log").exists()  # a folder that was asked for stays
        finally:
            process.kill()
            subprocess.run(["rm", "-r", str(folder)], check=True)


# ------------------------------------------------------------------------------------------- without any daemon
def test_a_machine_without_slurm_skips_and_the_gate_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_cluster, "missing_programs", lambda accounting: ["slurmctld"])
    monkeypatch.delenv(slurm_cluster.REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"slurmctld.*apt-get install"), laboratory():
        pass
    monkeypatch.setenv(slurm_cluster.REQUIRE, "1")
    with pytest.raises(pytest.fail.Exception, match="slurmctld"), laboratory():
        pass


def test_programs_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "search_path", lambda: "")
    assert lab.missing_programs(accounting=False) == list(lab.PROGRAMS)
    assert lab.missing_programs() == [*lab.PROGRAMS, *lab.ACCOUNTING_PROGRAMS]


def test_ports_are_free_and_different() -> None:
    ports = lab.free_ports(Settings().ports)
    assert len(set(ports)) == 6
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_taken_port_is_tried_again_and_other_troubles_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Fails(lab.Supervisor):
        troubles: list[str] = []  # noqa: RUF012

        def __init__(self, settings: Settings, folder: Path) -> None:
            self.folder = folder

        def start(self) -> None:
            if self.troubles:
                raise lab.LabError(self.troubles.pop())

        def stop(self) -> None:
            pass

    monkeypatch.setattr(lab, "Supervisor", Fails)
    folder = tmp_path / "lab"
    folder.mkdir()
    Fails.troubles = ["error: bind: Address already in use"] * 2
    assert lab.bring_up(Settings(), folder).folder == folder
    Fails.troubles = ["something else", "something else"]
    with pytest.raises(lab.LabError, match="something else"):
        lab.bring_up(Settings(), folder)
    assert Fails.troubles == ["something else"]


def test_gate_makefile_and_message_name_the_same_packages() -> None:
    project = LAB.parents[2]
    packages = set(lab.PACKAGES.split())
    for name in ("Makefile", ".ci/run"):
        assert packages <= set((project / name).read_text().replace("(", " ").replace(")", " ").split()), name
