"""Structured configuration of one run (`RunConfig`) and of one command (`CommandConfig`: a run, and what to do).

These dataclasses are the schema of the Hydra configuration in `sweeps/`: unknown keys and wrong types are errors.
Every leaf field of `RunConfig` is classed `identity` (it can change a result) or `runtime` (it cannot) in
`harness.fingerprint.CLASSES`; a test fails until each new field is classed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envs.interface import EnvConfig
from methods.interface import MethodConfig
from methods.skills.analyzers.settings import AnalyzerConfig as AnalyzerConfig  # Hydra group `analyzer`


@dataclass
class ResourcesConfig:
    """Part of the `backbone` group: what one run of it asks of a scheduler. Never part of a run's identity."""

    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_node: int = 1
    mem_gb: float = 3.0  # per node, 2^30 bytes
    minutes: int = 60  # time limit of one job; a run that needs more goes on in the next


@dataclass
class BackboneConfig:
    """Hydra group `backbone`; comments in sweeps/backbone/*.yaml."""

    name: str = "tiny-s"
    kind: str = "embedded"  # embedded (made by the project) | hub (a local transformers folder or hub id)
    path: str | None = None  # kind=hub: folder or hub id
    revision: str | None = None  # kind=hub: pinned revision
    hidden: int = 64  # kind=embedded: width
    layers: int = 2
    heads: int = 4
    intermediate: int = 160
    max_positions: int = 1024
    demos: int = 32000  # behaviour cloning: demonstrations
    clone_tokens: int = 24_000_000  # behaviour cloning: training tokens
    clone_seed: int = 0
    dtype: str = "float32"
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    by_env: dict[str, Any] = field(default_factory=dict)  # env -> dotted key -> value: verl.* and backbone.resources.*


@dataclass
class TrainingConfig:
    """Part of the `scale` group: how a run trains. Shared by every row of a table."""

    steps: int = 40  # optimiser iterations (one rollout batch each)
    tasks_per_step: int = 8
    group_size: int = 4  # rollouts per task
    context: str = "growing"  # growing (one row per episode) | per_step (one row per environment step)
    temperature: float = 1.0
    max_prompt_tokens: int = 960
    max_response_tokens: int = 16
    lr: float = 3e-4
    betas: list[float] = field(default_factory=lambda: [0.9, 0.99])
    weight_decay: float = 0.0
    warmup_steps: int = 0
    grad_clip: float = 1.0
    mini_batches: int = 2  # optimiser steps per iteration
    micro_batch_tokens: int = 2048  # padded tokens per forward of the update
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0
    kl_coef: float = 0.0  # k3 to the frozen initial policy, loss term
    entropy_coef: float = 0.0
    success_reward: float = 1.0
    invalid_penalty: float = 0.02
    penalise: str = "inadmissible"  # format | inadmissible: which steps count as invalid
    max_failed_episodes: float = 0.5  # share of a step's or a validation's episodes that may be broken


@dataclass
class EvaluationConfig:
    """Part of the `scale` group: how a checkpoint is evaluated. Each task of a panel exactly `repeats` times."""

    panels: list[str] = field(default_factory=list)  # empty: those that the environment is judged by
    temperature: float = 0.4
    repeats: int = 1
    selection: str = "last"  # last: the checkpoint of the last planned step
    validate_every: int = 0  # training steps between looks at the panel `validation` on the way; 0: none


@dataclass
class TrackingConfig:
    """Hydra group `tracking`."""

    enabled: bool = True
    uri: str | None = None  # None: sqlite file `<out>/mlflow.db`
    experiment: str | None = None  # None: the sweep's name
    interval: float = 60.0  # seconds between imports while runs are under way; 0: only afterwards


@dataclass
class LauncherConfig:
    """Hydra group `launcher`: where runs execute. Never part of a run's identity."""

    name: str = "local"  # local | slurm
    workers: int = 0  # local: runs at a time; 0: as many as the process may use cores
    # What follows is for launcher=slurm; comments in sweeps/launcher/slurm.yaml.
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    modules: list[str] = field(default_factory=list)
    container: str | None = None  # command that stands before python in a job
    setup: list[str] = field(default_factory=list)  # shell lines before the run
    environment: dict[str, str] = field(default_factory=dict)
    python: str | None = None  # interpreter in jobs; None: this one
    sbatch: dict[str, Any] = field(default_factory=dict)  # further options of sbatch, without dashes
    resources: dict[str, Any] = field(default_factory=dict)  # what this site changes in backbone.resources
    parallel: int = 0  # elements of an array at a time; 0: no limit
    max_array: int = 0  # elements of one array; 0: what the scheduler allows
    max_submitted: int = 0  # jobs in the queue at a time; 0: what the scheduler allows
    requeues: int = 3  # times that one job may go back to the queue
    signal_seconds: int = 120  # before the time limit: the run is asked to stop
    poll_seconds: float = 15.0  # between looks at the scheduler
    budget_gpu_hours: float | None = None  # a plan that may cost more is refused


@dataclass
class VerlConfig:
    """Section `verl`, read by engine=verl (and, where that applies, engine=vllm); comments in sweeps/config.yaml.

    All but `extra` only spreads the work. What a batch is made of is in `training`, which every engine reads.
    """

    tensor_parallel: int = 1
    sequence_parallel: int = 1
    micro_batch: int = 8
    score_micro_batch: int = 16
    gpu_memory: float = 0.6
    param_offload: bool = False
    optimizer_offload: bool = False
    gradient_checkpointing: bool = True
    attn_implementation: str = "auto"
    eager: bool = False
    batched_tokens: int = 8192
    sequences: int = 256
    agent_workers: int = 0
    storage_units: int = 0
    ray_cpus: int = 0
    keep_checkpoints: int = 2
    max_sampler_gap: float = 0.5  # nats
    extra: dict[str, Any] = field(default_factory=dict)  # further keys of verl's own configuration


@dataclass
class VllmConfig:
    """Section `vllm`, read by engine=vllm; comments in sweeps/config.yaml. How a policy is reached, not which."""

    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    concurrency: int = 64
    timeout: float = 600.0
    attempts: int = 4


@dataclass
class RuntimeConfig:
    """How and where a run executes: no result depends on it, but for the kind of device, and for rounding."""

    out: str = "."  # runs/ and results/ are made below this folder
    checkpoint_every: int = 5  # training steps
    keep_trajectories: int = 8  # sampled trajectories kept per training step and per evaluation
    env_workers: int = 0  # 0: environments live in the run's own process
    eval_batch: int = 64  # episodes in lock-step during evaluation; same results up to rounding
    threads: int = 1  # torch threads of one run; same results up to rounding
    device: str = "cpu"  # its kind (cpu, cuda) is part of a run's identity
    log_level: str = "INFO"
    min_free_gb: float = 0.5  # free space (10^9 bytes) that `out` must have before anything starts


@dataclass
class RunConfig:
    """One cell: method x backbone x env x fraction x seed x scale."""

    method: MethodConfig = field(default_factory=MethodConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    analyzer: AnalyzerConfig = field(default_factory=AnalyzerConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    verl: VerlConfig = field(default_factory=VerlConfig)
    vllm: VllmConfig = field(default_factory=VllmConfig)
    scale: str = "local"  # name of the `scale` file: a label, its values are in training, evaluation and env
    engine: str = "local"
    protocol: str = "fair"  # fair | paper | code
    fraction: float = 1.0  # share of the train panel, in (0, 1]
    fraction_of: str = "tasks"  # tasks | steps
    seed: int = 0


# ------------------------------------------------------------------------------------------------ sweeps and commands
@dataclass
class RowConfig:
    """One row of a sweep's table: a method file, plus what differs from it.

    method  file in sweeps/method/
    id      name of the row, unique in the sweep; None: the method's name
    label   how tables call the row; None: the method's label
    kind    method | control | baseline
    base    id of another row. The planner refuses any difference from it that `delta` does not declare
    delta   dotted keys that may differ from `base`; a key stands for everything below it
    set     dotted key -> value, for this row only
    axes    axis -> values, where this row has fewer or other values than the sweep
    """

    method: str = ""
    id: str | None = None
    label: str | None = None
    kind: str = "method"
    base: str | None = None
    delta: list[str] = field(default_factory=list)
    set: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)


@dataclass
class AxesConfig:
    """Values every row is crossed with. The rows are the remaining axis."""

    env: list[str] = field(default_factory=list)
    backbone: list[str] = field(default_factory=list)
    fraction: list[float] = field(default_factory=lambda: [1.0])
    seed: list[int] = field(default_factory=lambda: [0])


@dataclass
class TuneConfig:
    """What makes a sweep a search (`sweep=tune`); comments in sweeps/sweep/tune.yaml, rules in harness.tune.space.

    space       dotted key -> {low, high, log, step} or {choices}, for every row
    rows        id of a row -> the same, for that row only; null takes a key of `space` away
    objectives  name -> max | min, see harness.tune.objectives
    """

    trials: int = 20  # in all, whatever was done before
    space: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)
    objectives: dict[str, str] = field(default_factory=lambda: {"validation/success": "max"})
    sampler: str = "tpe"
    pruner: str = "median"
    startup: int = 5  # trials before the sampler models anything and the pruner stops anything
    sampler_seed: int = 0
    parallel: int = 0  # trials at a time of one command; 0: what launcher.workers or launcher.parallel makes


@dataclass
class SweepConfig:
    """Hydra group `sweep`: rows x axes, minus `exclude`.

    name     folder below <out>/results/; None: the file's name
    set      dotted key (or group) -> value, for every row
    exclude  each entry names values of row, method, env, backbone, fraction, seed; a cell that matches all of one
             entry is left out. An entry that matches no cell is an error
    tune     None, or what is searched: the cells are then the start of a search and no table
    """

    name: str | None = None
    title: str = ""
    rows: list[RowConfig] = field(default_factory=list)
    axes: AxesConfig = field(default_factory=AxesConfig)
    set: dict[str, Any] = field(default_factory=dict)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    tune: TuneConfig | None = None


@dataclass
class CommandConfig(RunConfig):
    """What the command line composes: the run's keys, a sweep, and what to do.

    expected_seconds: `<method>`, `<method>/<backbone>` or `<method>/<backbone>/<env>` -> CPU seconds of one cell,
      measured, for `do=plan`; the most specific key counts.
    by_env: env file -> dotted key -> value, what a scale sets in one environment only.
    backbones: what a sweep is crossed with at this scale in place of its own axis; empty: the sweep's.
    """

    do: str = "run"  # see harness.commandline.DO
    wait: bool = False  # launcher=slurm: stay until every cell has an outcome
    sweep: SweepConfig | None = None
    expected_seconds: dict[str, float] = field(default_factory=dict)
    by_env: dict[str, Any] = field(default_factory=dict)
    backbones: list[str] = field(default_factory=list)
