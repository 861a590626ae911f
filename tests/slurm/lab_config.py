"""What the daemons of a laboratory cluster are told: slurm.conf and its companions as text.

Everything points into one folder and at the loopback address; nothing of the machine's own configuration is read. Tried
with Slurm 22.05. Option names are those of `man slurm.conf`, `man slurmdbd.conf`, `man gres.conf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CLUSTER, ACCOUNT, SMALL_ACCOUNT = "lab", "lab", "small"
SMALL_LIMIT = 3  # jobs that SMALL_ACCOUNT may have in the queue
HIGH, LOW = "main", "scavenge"  # partitions; a job in HIGH sends those in LOW back to the queue


@dataclass(frozen=True)
class Settings:
    """Shape of the cluster. cpus, gpus, mem_mb: what each node pretends to have; accounting: slurmdbd behind sacct;
    silence_s: a node that says nothing for so long is down; requeue_s: least seconds from requeue to restart."""

    nodes: int = 4
    cpus: int = 16
    gpus: int = 2
    mem_mb: int = 64_000
    accounting: bool = True
    max_array: int = 1001  # Slurm's default: indices stay below it
    silence_s: int = 10
    requeue_s: int = 5  # less than 5 and Slurm takes its default, 120

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"gpu{number}" for number in range(1, self.nodes + 1))

    @property
    def ports(self) -> int:
        """Loopback ports needed: controller, database daemon, one per node."""
        return 2 + self.nodes


@dataclass(frozen=True)
class Places:
    """Where things are below the folder of the cluster, which must have a short name: sockets live in it."""

    root: Path

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def munge(self) -> Path:
        return self.root / "run" / "munge.sock"

    @property
    def database(self) -> Path:
        return self.root / "run" / "db.sock"

    def log(self, name: str) -> Path:
        return self.root / "log" / f"{name}.log"

    def make(self, settings: Settings) -> None:
        for name in ("etc", "run", "log", "state", "dev", "db"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for node in settings.names:
            (self.root / "spool" / node).mkdir(parents=True, exist_ok=True)
        for number in range(settings.gpus):
            device = self.root / "dev" / f"gpu{number}"
            if not device.is_symlink():
                device.symlink_to("/dev/null")  # slurmd wants a device, or it sets no CUDA_VISIBLE_DEVICES


def files(
    settings: Settings, places: Places, ports: tuple[int, ...], user: str, host: str
) -> Mapping[str, tuple[str, int]]:
    """File below etc/ -> (text, mode)."""
    made = {
        "slurm.conf": (_slurm(settings, places, ports, user, host), 0o644),
        "gres.conf": (_gres(settings, places), 0o644),
        "cgroup.conf": ("CgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainRAMSpace=no\n", 0o644),
    }
    if settings.accounting:
        made["slurmdbd.conf"] = (_slurmdbd(places, ports, user), 0o600)
    return made


def _lines(values: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _slurm(settings: Settings, places: Places, ports: tuple[int, ...], user: str, host: str) -> str:
    controller, database, *nodes = ports
    root = places.root
    common: dict[str, object] = {
        "ClusterName": CLUSTER,
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": controller,
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        # cred_expire also is the least time between a requeue and the next start; the default is two minutes
        "AuthInfo": f"socket={places.munge},cred_expire={settings.requeue_s}",
        "CredType": "cred/munge",
        "StateSaveLocation": root / "state",
        "SlurmdSpoolDir": root / "spool" / "%n",
        "SlurmctldPidFile": root / "run" / "slurmctld.pid",
        "SlurmdPidFile": root / "run" / "slurmd.%n.pid",
        "SlurmctldDebug": "info",
        "SlurmdDebug": "info",
        # neither systemd nor control groups nor MPI
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "PropagateResourceLimits": "NONE",
        # nodes may claim more than the machine has, and come back by themselves
        "SlurmdParameters": "config_overrides",
        "ReturnToService": 2,
        "TreeWidth": 50,
        # jobs go to the emptiest node, so that a few of them visit all nodes
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory,CR_LLN",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "sched_interval=2,bf_interval=2,sched_min_interval=0,batch_sched_delay=0,"
        "default_queue_depth=2000",
        "PriorityType": "priority/basic",
        "GresTypes": "gpu",
        "MaxArraySize": settings.max_array,
        "MaxJobCount": 20_000,
        "MinJobAge": 300,
        "JobRequeue": 1,
        "KillWait": 5,
        "SlurmctldTimeout": 30,
        "SlurmdTimeout": settings.silence_s,
        "MessageTimeout": 20,
        "TCPTimeout": 5,
        "UnkillableStepTimeout": 60,
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        # a preempted job also gets the signal of its --signal (from 23.02 on: PreemptParameters=send_user_signal)
        "SlurmctldParameters": "preempt_send_user_signal",
    }
    if settings.accounting:
        common |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": database,
            "AccountingStoragePass": places.munge,  # clients of slurmdbd find the socket by this key only
            "AccountingStorageTRES": "gres/gpu",
            "AccountingStorageEnforce": "qos,limits",
            "JobAcctGatherType": "jobacct_gather/linux",
            "JobAcctGatherFrequency": "task=2",
            "JobAcctGatherParams": "OverMemoryKill",  # the only thing that watches memory without control groups
        }
    else:
        common["AccountingStorageType"] = "accounting_storage/none"
    text = _lines(common)
    for node, port in zip(settings.names, nodes, strict=True):
        text += (
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={settings.cpus} Boards=1 "
            f"SocketsPerBoard=1 CoresPerSocket={settings.cpus} ThreadsPerCore=1 RealMemory={settings.mem_mb} "
            f"Gres=gpu:fake:{settings.gpus} State=UNKNOWN\n"
        )
    every = "Nodes=ALL MaxTime=INFINITE DefaultTime=60 State=UP DefMemPerCPU=1000"
    text += f"PartitionName={HIGH} {every} Default=YES PriorityTier=10 PreemptMode=OFF\n"
    text += f"PartitionName={LOW} {every} Default=NO PriorityTier=1 PreemptMode=REQUEUE GraceTime=0\n"
    return text


def _gres(settings: Settings, places: Places) -> str:
    devices = places.root / "dev" / f"gpu[0-{settings.gpus - 1}]"
    return f"NodeName={settings.names[0][:-1]}[1-{settings.nodes}] Name=gpu Type=fake File={devices}\n"


def _slurmdbd(places: Places, ports: tuple[int, ...], user: str) -> str:
    return _lines(
        {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={places.munge}",
            "DbdHost": "localhost",
            "DbdAddr": "127.0.0.1",
            "DbdPort": ports[1],
            "SlurmUser": user,
            "PidFile": places.root / "run" / "slurmdbd.pid",
            "DebugLevel": "info",
            "StorageType": "accounting_storage/mysql",
            # `localhost` means a socket to MariaDB's client; which one it finds in MYSQL_UNIX_PORT
            "StorageHost": "localhost",
            "StorageUser": user,
            "StorageLoc": "slurm_acct",
        }
    )
