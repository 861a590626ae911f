"""How one run is spread over GPUs and processes: sizes computed from its configuration, and what cannot work.

verl checks little of this itself. Too few logical cores, for one, make it wait for ever without a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from harness.config import RunConfig
from harness.errors import Problem
from harness.launch.shapes import shape_of

# Ray reserves this many logical cores beside each GPU: verl's ResourcePoolManager colocates up to three workers there.
CPUS_PER_GPU = 3
EPISODES_PER_AGENT = 16
AGENTS_PER_NODE = 8  # verl's default for a whole run
STORAGE_PER_NODE = 2  # verl advises at least two per machine
REWARD_WORKERS = 1  # the agent loop scores episodes itself; verl still wants one

# Papers count micro-batches in rows whose lengths they do not print; a budget of tokens takes them to be half full.
ROW_FILL = 0.5

NOT_SPREAD = (
    "verl spreads a row's tokens over GPUs (verl.sequence_parallel) in flash attention only, and any other attention "
    "would see each GPU's part alone, without an error; use flash_attention_2, or verl.sequence_parallel=1"
)

# Environment steps per episode, for estimates only; assumed averages, as in sweeps/protocol/paper.yaml.
STEPS_PER_EPISODE: Mapping[str, int] = {"alfworld": 16, "webshop": 8, "search_qa": 2}


@dataclass(frozen=True, slots=True)
class Sizes:
    """One run's sizes.

    gpus: workers that train, also on a CPU, where each is a process; data_parallel: groups of them that hold different
    rows; replicas: copies of the model that sample; longest: tokens of the longest row; update_tokens, score_tokens:
    budget of one forward on one GPU with and without gradients; rows: of one iteration, expected; mini_batch_rows: of
    one optimiser step, expected; ray_cpus: logical cores over all machines, ray_cpus_per_node on each
    """

    nodes: int
    gpus_per_node: int
    on_gpu: bool
    data_parallel: int
    tensor_parallel: int
    sequence_parallel: int
    replicas: int
    longest: int
    update_tokens: int
    score_tokens: int
    episodes: int
    rows: int
    mini_batches: int
    mini_batch_rows: int
    agent_workers: int
    storage_units: int
    ray_cpus: int
    ray_cpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def text(self) -> str:
        """One line for people."""
        what = "GPU" if self.on_gpu else "CPU process"
        place = f"{self.nodes} x {self.gpus_per_node} {what}{'es' if not self.on_gpu else 's'}"
        return (
            f"{place}: dp {self.data_parallel}, sp {self.sequence_parallel}, {self.replicas} samplers of tp "
            f"{self.tensor_parallel}; about {self.rows} rows an iteration in {self.mini_batches} optimiser steps of "
            f"{self.mini_batch_rows}; {self.update_tokens} tokens per GPU with gradients, {self.score_tokens} without; "
            f"{self.agent_workers} agents, {self.ray_cpus} logical cores for Ray"
        )


def sizes_of(config: RunConfig) -> Sizes:
    """Sizes of a run, whether or not they can work (see `problems`)."""
    training, verl = config.training, config.verl
    nodes, gpus_per_node, on_gpu = place_of(config)
    gpus = nodes * gpus_per_node
    sequence, tensor = max(1, verl.sequence_parallel), max(1, verl.tensor_parallel)
    longest = training.max_prompt_tokens + training.max_response_tokens
    episodes = training.tasks_per_step * training.group_size
    steps = min(STEPS_PER_EPISODE.get(config.env.name, config.env.max_steps), config.env.max_steps)
    rows = episodes if training.context == "growing" else episodes * steps
    agents = verl.agent_workers or max(
        1, min(AGENTS_PER_NODE * nodes, math.ceil(episodes / EPISODES_PER_AGENT), training.tasks_per_step)
    )
    storage = verl.storage_units or (STORAGE_PER_NODE * nodes if on_gpu else 1)
    replicas = max(1, gpus // tensor)
    # Everything that asks Ray for a core: workers and what is reserved beside them, storage and its controller, agents,
    # reward workers, the task runner, one server per replica, and one more for whatever starts beside them.
    ray_cpus = verl.ray_cpus or CPUS_PER_GPU * gpus + storage + 1 + agents + REWARD_WORKERS + 1 + replicas + 1
    return Sizes(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        on_gpu=on_gpu,
        data_parallel=max(1, gpus // sequence),
        tensor_parallel=tensor,
        sequence_parallel=sequence,
        replicas=replicas,
        longest=longest,
        update_tokens=_budget(verl.micro_batch, longest, sequence),
        score_tokens=_budget(verl.score_micro_batch, longest, sequence),
        episodes=episodes,
        rows=rows,
        mini_batches=training.mini_batches,
        mini_batch_rows=math.ceil(rows / training.mini_batches),
        agent_workers=agents,
        storage_units=storage,
        ray_cpus=ray_cpus,
        ray_cpus_per_node=math.ceil(ray_cpus / nodes) + 1,
    )


def row_fill(longest: int) -> float:
    """Tokens that a row is taken to have. longest: of the longest one."""
    return longest * ROW_FILL


def _budget(rows: int, longest: int, sequence: int) -> int:
    """Tokens of one forward on one GPU: `rows` at their usual length, and never less than the longest row."""
    return math.ceil(max(longest, rows * row_fill(longest)) / sequence)


def scoring_tokens(budget: int, longest: int, sequence: int) -> int:
    """Tokens of one forward of rows that are only scored, on one GPU: `budget`, and room for the longest of them, which
    a teacher's prompt can make longer than any that is sampled. sequence: GPUs that share a row's tokens, by which verl
    multiplies this."""
    return max(budget, math.ceil(longest / sequence))


def least_ray_cpus(config: RunConfig) -> int:
    """Logical cores without which actors of a run would wait for ever."""
    return sizes_of(replace(config, verl=replace(config.verl, ray_cpus=0))).ray_cpus - 1


def place_of(config: RunConfig) -> tuple[int, int, bool]:
    """(machines, workers on each, whether they are GPUs): those of the run's job. On a CPU one worker."""
    if config.runtime.device.partition(":")[0] == "cpu":
        return 1, 1, False
    shape = shape_of(config)
    return shape.nodes, shape.gpus_per_node, True


# --------------------------------------------------------------------------------------------------------------- checks
Origin = Callable[[str], str]


def problems(config: RunConfig, origin: Origin) -> Iterator[Problem]:
    """What cannot work with engine=verl, and verl itself would notice late or never."""

    def wrong(key: str, given: object, fix: str) -> Problem:
        return Problem(key, str(given), origin(key), fix)

    verl, backbone = config.verl, config.backbone
    nodes, per_node, on_gpu = place_of(config)
    gpus = nodes * per_node
    if on_gpu and per_node < 1:
        fix = "engine=verl on runtime.device=cuda needs at least one GPU; set it, or choose a backbone that has it"
        yield wrong("backbone.resources.gpus_per_node", per_node, fix)
        return
    if per_node % verl.tensor_parallel:
        fix = f"must divide the {per_node} GPUs of a machine: the GPUs of one copy of the model share a machine"
        yield wrong("verl.tensor_parallel", verl.tensor_parallel, fix)
    elif backbone.kind == "hub" and backbone.heads % verl.tensor_parallel:
        fix = f"must divide the model's attention heads, backbone.heads={backbone.heads}"
        yield wrong("verl.tensor_parallel", verl.tensor_parallel, fix)
    if gpus % verl.sequence_parallel:
        yield wrong("verl.sequence_parallel", verl.sequence_parallel, f"must divide the {gpus} GPUs of a run")
    elif backbone.kind == "hub" and backbone.heads % verl.sequence_parallel:
        fix = f"must divide the model's attention heads, backbone.heads={backbone.heads}"
        yield wrong("verl.sequence_parallel", verl.sequence_parallel, fix)
    if verl.sequence_parallel > 1 and verl.attn_implementation in ("sdpa", "eager"):
        yield wrong("verl.attn_implementation", verl.attn_implementation, f"cannot be: {NOT_SPREAD}")
    longest = config.training.max_prompt_tokens + config.training.max_response_tokens
    if backbone.kind == "hub" and longest > backbone.max_positions:
        fix = f"is less than the {longest} tokens of the longest row (training.max_prompt_tokens + max_response_tokens)"
        yield wrong("backbone.max_positions", backbone.max_positions, fix)
    if backbone.kind == "hub" and backbone.revision is not None and _is_hub_id(backbone.path):
        fix = "engine=verl loads the newest revision of a hub id; download this one and set backbone.path to its folder"
        yield wrong("backbone.revision", backbone.revision, fix)
    episodes = config.training.tasks_per_step * config.training.group_size
    if config.method.trains and config.training.context == "growing" and episodes < gpus // verl.sequence_parallel:
        fix = (
            f"x training.tasks_per_step makes {episodes} rows an iteration for {gpus // verl.sequence_parallel} workers"
        )
        yield wrong("training.group_size", config.training.group_size, fix)
    if verl.ray_cpus and verl.ray_cpus < (needed := least_ray_cpus(config)):
        fix = f"is less than the {needed} that verl's actors ask for, and verl would wait for ever; 0 computes it"
        yield wrong("verl.ray_cpus", verl.ray_cpus, fix)
    if on_gpu and config.launcher.name == "local" and config.launcher.workers != 1:
        fix = "runs of engine=verl take all GPUs of a machine, so one at a time; set launcher.workers=1"
        yield wrong("launcher.workers", config.launcher.workers, fix)
    if on_gpu and config.launcher.name == "local" and nodes > 1:
        fix = "launcher=local has one machine; set 1, or use launcher=slurm"
        yield wrong("backbone.resources.nodes", nodes, fix)


def _is_hub_id(path: str | None) -> bool:
    """Whether a backbone's path is no folder here."""
    from pathlib import Path

    return bool(path) and not Path(path or "").expanduser().is_dir()
