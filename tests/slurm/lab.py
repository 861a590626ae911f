"""A real Slurm cluster on this machine: one controller, virtual nodes with fake GPUs, and accounting if wanted.

    python tests/slurm/lab.py [--folder DIR] [--without-accounting] [--nodes N] [--gpus N]

starts one, prints a line of JSON (`{"ready": true, "conf": ..., "folder": ..., "nodes": [...]}`) and keeps it until it
is asked to end by SIGTERM or Ctrl-C; clients need `export SLURM_CONF=<conf>`. With `--attached` it reads commands from
standard input, one per line, answers each with a line of JSON, and also ends when that closes, so that it never
outlives whoever holds the other end:

    power-off NODE    the node's daemon and every process of jobs on it are killed: a machine that died
    kill-daemon NODE  the daemon alone is killed; its jobs go on unseen: a machine that lost its network
    start NODE        the node's daemon is started again

All daemons are children of this process, in the foreground, and whatever they start is inherited by it when its parent
dies (PR_SET_CHILD_SUBREAPER), zombies included. So what there is to kill at the end is known from the process tree,
without pid files or names; and a daemon is killed by the kernel if this process is (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import pwd
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from lab_config import ACCOUNT, CLUSTER, SMALL_ACCOUNT, SMALL_LIMIT, Places, Settings, files

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb", "sacctmgr", "sacct")
PACKAGES = (
    "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge slurmdbd slurm-wlm-mysql-plugin "
    "mariadb-server-core mariadb-client-core"
)
START_SECONDS = 120.0
POLL_SECONDS = 0.1
_PDEATHSIG, _SUBREAPER = 1, 36  # linux/prctl.h
_LOCAL_PORTS = range(20_000, 32_000)  # below those that Linux gives to outgoing connections
_libc = ctypes.CDLL(None)


class LabError(RuntimeError):
    """The cluster did not start, or does not do what was asked; the message holds the ends of its logs."""


def search_path() -> str:
    """PATH with the folders of daemons in it, which users often lack."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def missing_programs(accounting: bool = True) -> list[str]:
    """Programs that this machine lacks, of those that the cluster consists of."""
    wanted = PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ())
    return [name for name in wanted if shutil.which(name, path=search_path()) is None]


def free_ports(number: int) -> tuple[int, ...]:
    """Ports that nobody listens on at 127.0.0.1 now. If somebody is faster, starting fails and is repeated."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_LOCAL_PORTS, 500):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == number:
            return tuple(found)
    raise LabError(f"fewer than {number} free ports on 127.0.0.1")


def _bound_to_parent() -> None:
    _libc.prctl(_PDEATHSIG, signal.SIGKILL)


class Supervisor:
    """Starts, watches and ends the daemons of one cluster."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.places = Places(folder)
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | {
            "SLURM_CONF": str(self.places.conf),
            "MYSQL_UNIX_PORT": str(self.places.database),
            "PATH": search_path(),
            "LC_ALL": "C",
        }
        _libc.prctl(_SUBREAPER, 1)

    # ------------------------------------------------------------------------------------------------------- starting
    def start(self) -> None:
        """Bring everything up; LabError with the logs if it does not come."""
        self.places.make(self.settings)
        user = pwd.getpwuid(os.getuid()).pw_name
        host = socket.gethostname().partition(".")[0]
        made = files(self.settings, self.places, free_ports(self.settings.ports), user, host)
        for name, (text, mode) in sorted(made.items()):
            path = self.places.root / "etc" / name
            path.touch(mode)
            path.chmod(mode)
            path.write_text(text, encoding="utf-8")
        self._start_munge()
        if self.settings.accounting:
            self._start_database(user)
            self._start_accounting(user)
        self._spawn("slurmctld", "slurmctld", "-D", "-f", str(self.places.conf))
        for node in self.settings.names:
            self.start_node(node)
        self._wait("slurmctld", self._answers("scontrol", "ping"))
        self._wait("slurmctld", self._all_idle)

    def _start_munge(self) -> None:
        key = self.places.root / "etc" / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        run = self.places.root / "run"
        self._spawn(
            "munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.places.munge}",
            f"--pid-file={run / 'munged.pid'}", f"--seed-file={run / 'munged.seed'}",
            f"--log-file={self.places.log('munged')}", "--num-threads=2",
        )  # fmt: skip
        self._wait("munged", self._answers("munge", "-S", str(self.places.munge), "-n"))

    def _start_database(self, user: str) -> None:
        data = self.places.root / "db"
        install = ["mariadb-install-db", "--no-defaults", f"--user={user}", f"--datadir={data}", "--skip-test-db"]
        install += ["--auth-root-authentication-method=normal", "--basedir=/usr"]
        self._run(install)
        # No network at all: the socket lies in a folder that only this user may enter.
        self._spawn(
            "mariadbd", "mariadbd", "--no-defaults", f"--user={user}", f"--datadir={data}", "--skip-networking",
            f"--socket={self.places.database}", f"--pid-file={data / 'mariadbd.pid'}", "--skip-log-bin",
            "--performance-schema=OFF", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900",
        )  # fmt: skip
        client = ["mariadb", "--no-defaults", f"--socket={self.places.database}", "--user=root", "-e"]
        self._wait("mariadbd", self._answers(*client, "select 1"))
        who = f"'{user}'@'localhost'"
        self._run([*client, f"create user if not exists {who}; grant all on *.* to {who}"])

    def _start_accounting(self, user: str) -> None:
        self._spawn("slurmdbd", "slurmdbd", "-D")
        self._wait("slurmdbd", self._answers("sacctmgr", "-n", "show", "cluster"))
        for words in (
            f"cluster {CLUSTER}",
            f"account {ACCOUNT} Description=lab Organization=lab",
            f"account {SMALL_ACCOUNT} Description=small Organization=lab",
            f"user {user} Account={ACCOUNT} DefaultAccount={ACCOUNT}",
            f"user {user} Account={SMALL_ACCOUNT} MaxSubmitJobs={SMALL_LIMIT}",
        ):
            self._run(["sacctmgr", "-i", "-Q", "add", *words.split()])

    def start_node(self, node: str) -> None:
        self._spawn(node, "slurmd", "-D", "-N", node, "-f", str(self.places.conf))

    def _all_idle(self) -> bool:
        """Whether all nodes have reported to the controller."""
        done = self._client("sinfo", "-h", "-N", "-p", "main", "-o", "%T")
        return done.returncode == 0 and done.stdout.split() == ["idle"] * self.settings.nodes

    # ------------------------------------------------------------------------------------------------------ processes
    def _spawn(self, name: str, *command: str) -> None:
        with self.places.log(name).open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.places.root,
                start_new_session=True,  # Ctrl-C in a terminal is for us, not for them
                preexec_fn=_bound_to_parent,
            )

    def _client(self, *command: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=15)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", "no answer within 15 s")

    def _answers(self, *command: str) -> Callable[[], bool]:
        return lambda: self._client(*command).returncode == 0

    def _run(self, command: Sequence[str]) -> None:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=START_SECONDS)
        if done.returncode:
            raise LabError(f"{' '.join(command)} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")

    def _wait(self, name: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            self.reap()
            if self.daemons[name].returncode is not None:
                raise LabError(f"{name} ended with status {self.daemons[name].returncode}\n{self._logs()}")
            if time.monotonic() > deadline:
                raise LabError(f"{name} is not ready after {START_SECONDS:.0f} s\n{self._logs()}")
            time.sleep(POLL_SECONDS)

    def _logs(self) -> str:
        parts = []
        for path in sorted((self.places.root / "log").iterdir()):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
            parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)

    def reap(self) -> None:
        """Collect children that have ended: daemons, and orphans that became ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for daemon in self.daemons.values():
                if daemon.pid == pid:
                    daemon.returncode = os.waitstatus_to_exitcode(status)

    # ------------------------------------------------------------------------------------------------------- commands
    def kill_daemon(self, node: str) -> None:
        self._kill([psutil.Process(self.daemons[node].pid)])

    def power_off(self, node: str) -> None:
        """Kill the node's daemon and all that runs of jobs on it, so that nobody can tell the controller."""
        self.kill_daemon(node)
        self._kill(self._processes_on(node))

    def _processes_on(self, node: str) -> list[psutil.Process]:
        """Job processes of a node, each after those that it descends from."""
        me, found = psutil.Process(), {}
        for process in me.children(recursive=True):
            try:
                if process.environ().get("SLURMD_NODENAME") != node:
                    continue
                chain = [process, *process.parents()]
            except psutil.Error:
                continue  # it has just ended
            below = [one.pid for one in chain].index(me.pid)
            for one in reversed(chain[:below]):  # slurmstepd, the batch script, what it started
                found.setdefault(one.pid, one)
        return list(found.values())

    def _kill(self, processes: Sequence[psutil.Process]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        deadline = time.monotonic() + 10
        while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes if psutil.pid_exists(p.pid)):
            if time.monotonic() > deadline:
                raise LabError(f"cannot kill {[p.pid for p in processes]}")
            self.reap()
            time.sleep(0.02)
        self.reap()

    def stop(self) -> None:
        """Kill everything that descends from this process."""
        deadline = time.monotonic() + 20
        while children := psutil.Process().children(recursive=True):
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            self.reap()
            if time.monotonic() > deadline:
                raise LabError(f"still there: {children}")
            time.sleep(0.02)

    def serve(self, attached: bool) -> None:
        """Until standard input closes (attached), or for ever: signals end it by an exception."""
        rest = b""
        while True:
            self.reap()
            if not attached:
                time.sleep(0.2)
                continue
            if not select.select([0], [], [], 0.2)[0]:
                continue
            if not (read := os.read(0, 4096)):
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                tell(**self._obey(line.decode()))

    def _obey(self, line: str) -> dict[str, object]:
        command, _, node = line.partition(" ")
        known = {"power-off": self.power_off, "kill-daemon": self.kill_daemon, "start": self.start_node}
        if command not in known or node not in self.settings.names:
            return {"error": f"{line!r}: one of {', '.join(known)} and a node of {', '.join(self.settings.names)}"}
        try:
            known[command](node)
        except (LabError, psutil.Error) as error:
            return {"error": str(error)}
        return {"done": line}


def tell(**words: object) -> None:
    print(json.dumps(words), flush=True)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def bring_up(settings: Settings, folder: Path, attempts: int = 3) -> Supervisor:
    """A running cluster; started again where a port was taken in between."""
    for left in reversed(range(attempts)):
        supervisor = Supervisor(settings, folder)
        try:
            supervisor.start()
            return supervisor
        except BaseException as error:
            supervisor.stop()
            if not left or "ddress already in use" not in str(error):
                raise
            shutil.rmtree(folder)
            folder.mkdir(mode=0o700)
    raise AssertionError("unreachable")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where everything lies; short; default: a new temporary folder")
    parser.add_argument("--without-accounting", action="store_true", help="no slurmdbd: sacct does not work")
    parser.add_argument("--attached", action="store_true", help="obey standard input, end when it closes")
    parser.add_argument("--nodes", type=int, default=Settings.nodes)
    parser.add_argument("--gpus", type=int, default=Settings.gpus, help="fake GPUs of each node")
    options = parser.parse_args()
    settings = Settings(nodes=options.nodes, gpus=options.gpus, accounting=not options.without_accounting)
    if lacking := missing_programs(settings.accounting):
        tell(error=f"not installed: {', '.join(lacking)} (Debian: apt-get install {PACKAGES})")
        return 2
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    begin = time.monotonic()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="lab", dir="/tmp"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    supervisor = None
    try:
        supervisor = bring_up(settings, folder)
        seconds = round(time.monotonic() - begin, 2)
        tell(ready=True, conf=str(supervisor.places.conf), folder=str(folder), nodes=settings.names, seconds=seconds)
        supervisor.serve(options.attached)
    except LabError as error:
        tell(error=str(error))
        return 1
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # nothing may come between the end and its end
        if supervisor is not None:
            supervisor.stop()
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
