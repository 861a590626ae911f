"""What one run asks of a scheduler, from its backbone and engine, and from what the site changes in that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from harness import registry
from harness.config import RunConfig
from harness.errors import ConfigError, Problem, suggest
from harness.launch.limits import Limits

KEY = "launcher.resources"


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """nodes; gpus_per_node; cpus_per_node (cores); mem_gb (2^30 bytes per node); minutes (time limit of one job)."""

    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_node: int = 1
    mem_gb: float = 3.0
    minutes: int = 60

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        gpus = f" x {self.gpus_per_node} GPU{'' if self.gpus_per_node == 1 else 's'}" if self.gpus_per_node else ""
        return (
            f"{self.nodes} node{'' if self.nodes == 1 else 's'}{gpus}, {self.cpus_per_node} "
            f"core{'' if self.cpus_per_node == 1 else 's'} and {self.mem_gb:g} GB per node, {self.minutes} min"
        )


_LEAST = {"nodes": 1, "gpus_per_node": 0, "cpus_per_node": 1, "minutes": 1}


def shape_of(config: RunConfig) -> Shape:
    """What a job of this run asks for.

    `backbone.resources`, changed by the entries of `launcher.resources` for the backbone, then for backbone and engine,
    then for backbone, engine and environment. The local engine is one process: it gets one node with its share of one
    GPU, or none with runtime.device=cpu, whatever the entries say. Raises ConfigError for entries that make no sense.
    """
    entries = config.launcher.resources
    if wrong := list(problems(entries)):
        raise ConfigError(wrong)
    resources = config.backbone.resources
    shape = Shape(**{item.name: getattr(resources, item.name) for item in fields(Shape)})
    backbone, engine, env = config.backbone.name, config.engine, config.env.name
    shape = replace(shape, **entries.get(backbone) or {})
    local = engine == "local"
    if local:
        shape = _of_one_process(shape)
    for key in (f"{backbone}/{engine}", f"{backbone}/{engine}/{env}"):
        shape = replace(shape, **entries.get(key) or {})
    if local:
        gpus = 0 if config.runtime.device.partition(":")[0] == "cpu" else 1
        shape = replace(shape, nodes=1, gpus_per_node=gpus)
    return replace(shape, mem_gb=float(shape.mem_gb))


def _of_one_process(shape: Shape) -> Shape:
    """One GPU of one node, and its share of that node's cores and memory."""
    share = max(shape.gpus_per_node, 1)
    return replace(
        shape,
        nodes=1,
        gpus_per_node=min(shape.gpus_per_node, 1),
        cpus_per_node=max(1, shape.cpus_per_node // share),
        mem_gb=shape.mem_gb / share,
    )


def problems(entries: Mapping[str, Any], backbones: Iterable[str] | None = None, origin: str = "") -> Iterator[Problem]:
    """What is wrong with `launcher.resources`. backbones: the names that exist; None: any name is taken."""
    from envs import registry as env_registry

    known = None if backbones is None else sorted(set(backbones))
    engines, envs = sorted(registry.ENGINES), sorted(env_registry.names())
    for entry, values in sorted(entries.items()):
        key = f"{KEY}.{entry}"
        parts = entry.split("/")
        form = "entries are called <backbone>, <backbone>/<engine> or <backbone>/<engine>/<env>"
        if len(parts) > 3 or not all(parts):
            yield Problem(key, "", origin, form)
            continue
        for what, name, options in zip(("backbone", "engine", "env"), parts, (known, engines, envs), strict=False):
            if options is not None and name not in options:
                yield Problem(key, "", origin, f"there is no {what} {name!r}; {suggest(name, options)}; {form}")
        if values is None:
            continue
        if not isinstance(values, Mapping):
            fix = f"must name what changes, e.g. {{minutes: 120}}; {', '.join(asdict(Shape()))} can be changed"
            yield Problem(key, str(values), origin, fix)
            continue
        yield from _wrong_values(key, values, origin)


def _wrong_values(key: str, values: Mapping[str, Any], origin: str) -> Iterator[Problem]:
    names = [item.name for item in fields(Shape)]
    for name, value in values.items():
        place = f"{key}.{name}"
        if name not in names:
            yield Problem(place, str(value), origin, f"no such resource; {suggest(str(name), names)}")
        elif name == "mem_gb":
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                yield Problem(place, str(value), origin, "must be a number above 0 (2^30 bytes per node)")
        elif not isinstance(value, int) or isinstance(value, bool) or value < _LEAST[name]:
            yield Problem(place, str(value), origin, f"must be a whole number, at least {_LEAST[name]}")


def gpu_hours(shapes: Iterable[Shape]) -> float:
    """GPU hours of one job of each shape that uses its whole time limit once, which is what `launcher.budget_gpu_hours`
    is compared with. A node's GPUs count whether used or not."""
    return sum(shape.gpus * shape.minutes / 60 for shape in shapes)


def gpu_hours_words(hours: float, requeues: int) -> str:
    """How messages put GPU hours by the time limits."""
    again = f" (each may come back {requeues} times: launcher.requeues)" if requeues else ""
    return f"at most {hours:.2f} GPU hours if every job uses its whole time limit once{again}"


def misfit(shape: Shape, limits: Limits, partition: str | None) -> str | None:
    """Why a job of this shape can never start in a partition (None: the default one); None if it can."""
    name = partition or limits.default_partition
    if name is None:
        return f"the site has no default partition; set launcher.partition to one of {', '.join(limits.partitions)}"
    found = limits.partitions.get(name)
    if found is None:
        return f"there is no partition {name!r}; {suggest(name, limits.partitions)}"
    if found.max_minutes is not None and shape.minutes > found.max_minutes:
        return f"{shape.minutes} minutes are asked for, partition {name} allows {found.max_minutes}"
    fit = found.nodes_with(shape.gpus_per_node, shape.cpus_per_node, shape.mem_gb * 1024)
    if fit < shape.nodes:
        return (
            f"{shape} are asked for, but partition {name} has {fit} such node{'' if fit == 1 else 's'} (its "
            f"{found.nodes} nodes have up to {found.gpus_per_node} GPUs, {found.cpus_per_node} cores and "
            f"{found.mem_mb / 1024:.0f} GB)"
        )
    return None
