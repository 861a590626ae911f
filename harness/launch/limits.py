"""What a site allows, from the words of `scontrol show config`, `sinfo` and `sacctmgr`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of a partition that are alike. mem_mb: 2^20 bytes per node."""

    nodes: int
    gpus: int
    cpus: int
    mem_mb: int


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. max_minutes: longest time limit of a job, None without one. nodes: all together. gpus_per_node,
    cpus_per_node, mem_mb (2^20 bytes): the most that any of its nodes has. state: `up`, `down`, `drain` or `inact`."""

    name: str
    max_minutes: int | None
    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    mem_mb: int
    state: str
    groups: tuple[NodeGroup, ...] = ()

    def nodes_with(self, gpus: int, cpus: int, mem_mb: float) -> int:
        """How many of its nodes have all of this."""
        return sum(g.nodes for g in self.groups if g.gpus >= gpus and g.cpus >= cpus and g.mem_mb >= mem_mb)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler takes.

    max_array_size     elements of one array (their numbers stay below it)
    max_submit_jobs    jobs and array elements that one user may have waiting or running; None without a limit
    max_job_count      jobs of all users that the controller keeps
    partitions         name -> Partition
    default_partition  where jobs go that name none; None if there is none
    cluster            its name
    """

    max_array_size: int
    max_submit_jobs: int | None
    max_job_count: int
    partitions: Mapping[str, Partition]
    default_partition: str | None = None
    cluster: str = ""


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config`: lines of `Name = value`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip():
            found.setdefault(name.strip(), value.strip())
    return found


def limits_from(config: Mapping[str, str], sinfo: str, max_submit: int | None) -> Limits:
    """Limits from `scontrol show config` and from `sinfo -h -e -o "%P|%a|%l|%D|%c|%m|%G"`."""
    partitions: dict[str, Partition] = {}
    default: str | None = None
    for line in sinfo.splitlines():
        fields = line.split("|")
        if len(fields) != 7:
            continue
        name, state, limit, nodes, cpus, memory, gres = (field.strip() for field in fields)
        if name.endswith("*"):
            name = name[:-1]
            default = name
        group = NodeGroup(_number(nodes), gpus_in(gres), _number(cpus), _number(memory))
        known = partitions.get(name)
        groups = (*(known.groups if known else ()), group)
        partitions[name] = Partition(
            name=name,
            max_minutes=minutes_in(limit),
            nodes=sum(item.nodes for item in groups),
            gpus_per_node=max(item.gpus for item in groups),
            cpus_per_node=max(item.cpus for item in groups),
            mem_mb=max(item.mem_mb for item in groups),
            state=state,
            groups=groups,
        )
    return Limits(
        max_array_size=_number(config.get("MaxArraySize", "")) or 1,
        max_submit_jobs=max_submit,
        max_job_count=_number(config.get("MaxJobCount", "")) or 10_000,  # its default: slurm.conf(5)
        partitions=partitions,
        default_partition=default,
        cluster=config.get("ClusterName", ""),
    )


def least_submit(associations: str, classes: str, account: str | None, qos: str | None) -> int | None:
    """The strictest limit on submitted jobs; None if there is none.

    associations: rows `DefaultAccount|Account|MaxSubmitJobs|GrpSubmitJobs|QOS|DefaultQOS` of the user. classes: rows
    `Name|MaxSubmitJobsPU|MaxSubmitJobsPA|GrpSubmitJobs`, one per quality of service. account, qos: the ones that will
    be used; None: the user's default, and where there is none, each that the user may use counts.
    """
    found: list[int] = []
    allowed: set[str] = set()
    for default, name, most, together, services, usual in _rows(associations, 6):
        wanted = account if account is not None else default
        if wanted and name.lower() != wanted.lower():
            continue
        found += _numbers((most, together))
        allowed.update({usual} if usual else {service for service in services.split(",") if service})
    if qos is not None:
        allowed = {qos}
    for service, per_user, per_account, together in _rows(classes, 4):
        if service in allowed:
            found += _numbers((per_user, per_account, together))
    return min(found, default=None)


def _rows(text: str, size: int) -> list[list[str]]:
    return [fields[:size] for line in text.splitlines() if len(fields := line.split("|")) >= size]


def _numbers(fields: Iterable[str]) -> list[int]:
    return [int(field) for field in fields if field.strip().isdigit()]


def _number(text: str) -> int:
    """The leading number of `16`, `16+` or `10001`; 0 if there is none."""
    found = re.match(r"\d+", text.strip())
    return int(found[0]) if found else 0


def gpus_in(gres: str) -> int:
    """GPUs of a node in Slurm's words: `gpu:h200:8(S:0-1),gpu:a100:2,nvme:1` -> 10."""
    total = 0
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        parts = item.strip().split(":")
        if parts[0] == "gpu":
            total += _number(parts[-1]) if len(parts) > 1 else 1
    return total


def minutes_in(limit: str) -> int | None:
    """Minutes of a time limit: `30`, `30:00`, `2:00:00`, `1-12`, `1-12:30`, `7-00:00:00`; None for `infinite`."""
    days, dash, clock = limit.rpartition("-")
    if not re.fullmatch(r"\d*", days) or not re.fullmatch(r"\d+(:\d+){0,2}", clock):
        return None
    parts = [int(part) for part in clock.split(":")]
    if dash:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:  # minutes[:seconds]
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    total = int(days or 0) * 1440 + hours * 60 + minutes
    return total + (1 if seconds and not total else 0)
