"""A Ray of one run's own over the machines of its Slurm job.

Several jobs may share a machine, and Ray's defaults make them one cluster: fixed ports, one folder in /tmp, and a note
there that says where the newest cluster is. So each run's Ray gets ports that are free, a folder named after the job,
and a token without which nobody joins; its address is passed on by RAY_ADDRESS. It is ended process by process; what
ends every Ray of a user (`ray stop`) is never called.

Each machine's part is a step of the job (`srun --overlap`) that runs this module, which starts `ray start --block`, and
takes it down together with what descends from it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.config import RunConfig
from harness.training.verl.sizes import Sizes, sizes_of

START_SECONDS = 300.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.5
GRACE_SECONDS = 3.0  # for what descends from Ray to end by itself
ANSWER_SECONDS = 60.0  # for one question to scontrol or to Ray
SRUN, SCONTROL = "srun", "scontrol"
RAY = Path(sys.executable).with_name("ray")
# Of the step that this process itself runs in; a step of its own must not inherit how that one is cut.
_OF_A_STEP = (
    "SLURM_STEP",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_TASKS_PER_NODE",
    "SLURM_CPU_BIND",
    "SLURM_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_MEM_",
    "SLURM_DISTRIBUTION",
)


class ClusterError(RuntimeError):
    """Ray does not stand, or stands no more; the message says on which machine, and what its log ends with."""

    failure_class = "infra"


@dataclass(frozen=True, slots=True)
class Allocation:
    """The machines of this job, this one first. job: its number, with restarts, as part of a folder's name."""

    hosts: tuple[str, ...]
    job: str

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None) -> Allocation:
        """Raises ClusterError outside of a job, and if Slurm does not say which machines it has."""
        given = os.environ if environment is None else environment
        job, nodes = given.get("SLURM_JOB_ID"), given.get("SLURM_JOB_NODELIST")
        if not job or not nodes:
            raise ClusterError(
                "a run over several machines starts Ray inside its Slurm job, and this is none: use launcher=slurm, or "
                "backbone.resources.nodes=1"
            )
        hosts = tuple(_answer([SCONTROL, "show", "hostnames", nodes]).split())
        if not hosts:
            raise ClusterError(f"scontrol names no machine for {nodes!r}")
        own = given.get("SLURMD_NODENAME", hosts[0])
        first = [host for host in hosts if host == own] or [hosts[0]]
        ordered = (*first, *(host for host in hosts if host not in first))
        return cls(ordered, f"{job}-{given.get('SLURM_RESTART_COUNT') or 0}")


@contextlib.contextmanager
def ray_over(
    config: RunConfig,
    logs: Path,
    allocation: Allocation | None = None,
    alive: Callable[[str, Mapping[str, str]], int] | None = None,
) -> Iterator[dict[str, str]]:
    """Environment variables with which a process of this run finds its Ray; empty for runs on one machine.

    logs: folder for one log per machine. alive: address, environment -> machines that have joined. Raises ClusterError
    if Ray does not stand within START_SECONDS.
    """
    sizes = sizes_of(config)
    if sizes.nodes == 1:
        yield {}
        return
    cluster = Cluster(allocation or Allocation.here(), sizes, logs)
    try:
        cluster.start(alive or joined)
        yield cluster.variables
    finally:
        cluster.stop()


class Cluster:
    """One Ray. variables: see ray_over."""

    def __init__(self, allocation: Allocation, sizes: Sizes, logs: Path) -> None:
        if len(allocation.hosts) != sizes.nodes:
            raise ClusterError(
                f"the job has {len(allocation.hosts)} machines ({', '.join(allocation.hosts)}), the run wants "
                f"{sizes.nodes} (backbone.resources.nodes)"
            )
        self.allocation, self.sizes, self.logs = allocation, sizes, logs
        self.address = f"{_own_address(allocation.hosts)}:{free_port()}"
        # Sockets lie in it, whose names may have 107 characters.
        self.folder = Path("/tmp", f"rl-{allocation.job}-{secrets.token_hex(3)}")
        self.variables = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._steps: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, alive: Callable[[str, Mapping[str, str]], int]) -> None:
        """Start every machine's part, and wait until all have joined. Raises ClusterError."""
        self.logs.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + START_SECONDS
        head, *others = self.allocation.hosts
        self._launch(head, head=True)
        while not _listens(self.address):
            self._wait(deadline, f"its first machine, {head}, does not answer on {self.address}")
        for host in others:
            self._launch(host, head=False)
        while (count := alive(self.address, self.environment())) < len(self.allocation.hosts):
            self._wait(deadline, f"{count} of {len(self.allocation.hosts)} machines have joined")

    def environment(self) -> dict[str, str]:
        """Of steps and of processes that talk to this Ray."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_STEP)}
        return {**kept, **self.variables}

    def lost(self) -> str | None:
        """What ended although it should not have; None if everything stands."""
        for host, step in self._steps.items():
            if (status := step.poll()) is not None:
                return f"Ray on {host} ended with status {status}: {_tail(self._log(host))}"
        return None

    def stop(self) -> None:
        """End this cluster's steps, and nothing else."""
        for step in self._steps.values():
            if step.poll() is None:
                step.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for step in self._steps.values():
            try:
                step.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                step.kill()
                step.wait()

    # ---------------------------------------------------------------------------------------------------------- steps
    def _launch(self, host: str, head: bool) -> None:
        with self._log(host).open("ab") as log:
            try:
                self._steps[host] = subprocess.Popen(
                    [*step_command(host, self.sizes), *node_command(self.folder, self.address, self.sizes, head)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.environment(),
                )
            except OSError as error:
                raise ClusterError(
                    f"{SRUN} cannot be started ({error}): runs over several machines call it from inside the job, also "
                    "from inside a container (launcher.container)"
                ) from error

    def _log(self, host: str) -> Path:
        return self.logs / f"ray-{host}.log"

    def _wait(self, deadline: float, what: str) -> None:
        if problem := self.lost():
            raise ClusterError(problem)
        if time.monotonic() > deadline:
            ends = "; ".join(f"{host}: {_tail(self._log(host))}" for host in self._steps)
            raise ClusterError(f"Ray does not stand after {START_SECONDS:g} s: {what}. Logs end with {ends}")
        time.sleep(POLL_SECONDS)


def step_command(host: str, sizes: Sizes) -> list[str]:
    """srun for one machine, beside the step that this process runs in and with all of the job's resources there."""
    gpus = [f"--gpus-per-node={sizes.gpus_per_node}"] if sizes.on_gpu else []
    return [
        SRUN,
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={host}",
        "--mem=0",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        *gpus,
    ]


def node_command(folder: Path, address: str, sizes: Sizes, head: bool) -> list[str]:
    """This module on one machine, and what it is to run there. Every port is free or chosen by the system."""
    host, _, port = address.rpartition(":")
    own = ["--head", f"--node-ip-address={host}", f"--port={port}", f"--ray-client-server-port={free_port()}"]
    mine = own if head else [f"--address={address}"]
    return [
        sys.executable,
        "-m",
        "harness.training.verl.cluster",
        str(folder),
        str(RAY),
        "start",
        "--block",
        *mine,
        *(["--include-dashboard=false"] if head else []),
        f"--temp-dir={folder}",
        f"--num-cpus={sizes.ray_cpus_per_node}",
        f"--num-gpus={sizes.gpus_per_node}",
        "--node-manager-port=0",
        "--object-manager-port=0",
        "--dashboard-agent-listen-port=0",
        "--dashboard-agent-grpc-port=0",
        "--runtime-env-agent-port=0",
        "--metrics-export-port=0",
        "--disable-usage-stats",
    ]


def free_port() -> int:
    """A TCP port that nobody listens on here, now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def joined(address: str, environment: Mapping[str, str]) -> int:
    """Machines that are part of the Ray at an address; 0 while it does not answer. Asks from a process of its own."""
    program = (
        "import ray; ray.init(log_to_driver=False, logging_level='error'); "
        "print('alive', sum(bool(node['Alive']) for node in ray.nodes()))"
    )
    try:
        said = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "RAY_ADDRESS": address},
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return 0
    found = [line.split()[1] for line in said.splitlines() if line.startswith("alive ")]
    return int(found[-1]) if found else 0


def _answer(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{command[0]} does not answer: {error}") from error
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def _own_address(hosts: Sequence[str]) -> str:
    """The address of this machine that the others reach: the one it would send to them from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((socket.gethostbyname(hosts[-1]), 9))  # sends nothing
        except OSError as error:
            raise ClusterError(f"{hosts[-1]} has no address here: {error}") from error
        return str(probe.getsockname()[0])


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2):
            return True
    except OSError:
        return False


def _tail(path: Path, lines: int = 3) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "(no log)"
    return " | ".join(text.strip().splitlines()[-lines:]) or "(nothing)"


# ---------------------------------------------------------------------------------------- on each machine, inside srun
def _session(leader: int) -> list[psutil.Process]:
    """Living processes of the session that a process began."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.getsid(process.pid) == leader and process.pid != leader:
                found.append(process)
    return found


def serve(folder: Path, command: Sequence[str]) -> int:
    """Run `ray start --block` until it ends or this process is told to; then end what descends from it, by id, and
    remove its folder. Exit status: Ray's own."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
    # Slurm warns every step of a job before its time limit; the run decides when Ray ends. Ray inherits this.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    process = subprocess.Popen(command, start_new_session=True)
    family: dict[tuple[int, float], psutil.Process] = {}
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):  # before it is told to end: children of a dead process are not found
            for child in psutil.Process(process.pid).children(recursive=True):
                family.setdefault((child.pid, child.create_time()), child)
        if asked:
            process.terminate()
            asked.clear()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    # Those that were started since the last look are not in the family, but in the session that was made for Ray.
    for child in _session(process.pid):
        family.setdefault((child.pid, child.create_time()), child)
    left = [child for child in family.values() if child.is_running()]
    _, left = psutil.wait_procs(left, timeout=GRACE_SECONDS)
    for child in left:
        with contextlib.suppress(psutil.Error):
            child.kill()
    shutil.rmtree(folder, ignore_errors=True)
    return process.returncode


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), sys.argv[2:]))
