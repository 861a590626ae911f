"""Values that make sense: ranges, names, and combinations, checked for every cell before anything starts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.knobs import read_knobs
from harness import registry
from harness.config import RunConfig
from harness.errors import Problem, nearest, suggest
from harness.redaction import redact
from harness.schema import leaves, value
from harness.tracking_target import VARIABLE
from methods.skills.analyzers.settings import FORMATS, LIMIT_FIELDS, check_no_secret

if TYPE_CHECKING:
    from methods.interface import MethodSpec

Origin = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from low to high. above: low itself is refused; below: high itself is refused."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def holds(self, number: float) -> bool:
        low = number > self.low if self.above else number >= self.low
        return low and (number < self.high if self.below else number <= self.high) and math.isfinite(number)

    def __str__(self) -> str:
        low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        if math.isinf(self.high):
            return f"must be {low}"
        return f"must be {low} and {'below' if self.below else 'at most'} {self.high:g}"


COUNT, NATURAL, POSITIVE, WEIGHT = Range(1), Range(0), Range(0, above=True), Range(0)

RANGES: Mapping[str, Range] = {
    "fraction": Range(0, 1, above=True),
    "seed": Range(0, 2**31 - 1),
    "training.steps": COUNT,
    "training.tasks_per_step": COUNT,
    "training.group_size": COUNT,
    "training.temperature": POSITIVE,
    "training.max_prompt_tokens": COUNT,
    "training.max_response_tokens": COUNT,
    "training.lr": POSITIVE,
    "training.betas": Range(0, 1, below=True),
    "training.weight_decay": WEIGHT,
    "training.warmup_steps": NATURAL,
    "training.grad_clip": POSITIVE,
    "training.mini_batches": COUNT,
    "training.micro_batch_tokens": COUNT,
    "training.clip_low": Range(0, 1, above=True),
    "training.clip_high": POSITIVE,
    "training.dual_clip": Range(1, above=True),
    "training.kl_coef": WEIGHT,
    "training.entropy_coef": WEIGHT,
    "training.success_reward": POSITIVE,
    "training.invalid_penalty": WEIGHT,
    "training.max_failed_episodes": Range(0, 1),
    "evaluation.temperature": Range(0),
    "evaluation.repeats": COUNT,
    "evaluation.validate_every": NATURAL,
    "env.world_seed": NATURAL,
    "env.train_per_type": COUNT,
    "env.eval_per_type": COUNT,
    "env.max_steps": COUNT,
    "env.history": NATURAL,
    "env.validation_per_type": NATURAL,
    "backbone.hidden": COUNT,
    "backbone.layers": COUNT,
    "backbone.heads": COUNT,
    "backbone.intermediate": COUNT,
    "backbone.max_positions": COUNT,
    "backbone.demos": Range(2000),  # one shard of harness.backbones.warmstart
    "backbone.clone_tokens": COUNT,
    "backbone.clone_seed": NATURAL,
    "analyzer.temperature": Range(0, 2),
    "analyzer.max_output_tokens": COUNT,
    "analyzer.observation_chars": Range(100),
    "analyzer.skill_chars": Range(20),
    "analyzer.connect_timeout": POSITIVE,
    "analyzer.read_timeout": POSITIVE,
    "analyzer.retries": Range(0, 20),
    "analyzer.retry_delay": WEIGHT,
    "analyzer.retry_delay_max": WEIGHT,
    "analyzer.retry_after_max": WEIGHT,
    "analyzer.concurrency": Range(1, 1024),
    "analyzer.price_prompt": WEIGHT,
    "analyzer.price_completion": WEIGHT,
    "runtime.checkpoint_every": COUNT,
    "runtime.keep_trajectories": NATURAL,
    "runtime.env_workers": NATURAL,
    "runtime.eval_batch": COUNT,
    "runtime.threads": COUNT,
    "runtime.min_free_gb": NATURAL,
    "launcher.workers": NATURAL,
    "backbone.resources.nodes": COUNT,
    "backbone.resources.gpus_per_node": NATURAL,
    "backbone.resources.cpus_per_node": COUNT,
    "backbone.resources.mem_gb": POSITIVE,
    "backbone.resources.minutes": COUNT,
    "launcher.parallel": NATURAL,
    "launcher.max_array": NATURAL,
    "launcher.max_submitted": NATURAL,
    "launcher.requeues": NATURAL,
    "launcher.signal_seconds": COUNT,
    "launcher.poll_seconds": POSITIVE,
    "launcher.budget_gpu_hours": WEIGHT,
    "tracking.interval": WEIGHT,
    "verl.tensor_parallel": COUNT,
    "verl.sequence_parallel": COUNT,
    "verl.micro_batch": COUNT,
    "verl.score_micro_batch": COUNT,
    "verl.gpu_memory": Range(0, 1, above=True, below=True),
    "verl.batched_tokens": COUNT,
    "verl.sequences": COUNT,
    "verl.agent_workers": NATURAL,
    "verl.storage_units": NATURAL,
    "verl.ray_cpus": NATURAL,
    "verl.keep_checkpoints": COUNT,
    "verl.max_sampler_gap": POSITIVE,
    "vllm.concurrency": Range(1, 1024),
    "vllm.timeout": POSITIVE,
    "vllm.attempts": Range(1, 20),
}

NAMES: Mapping[str, tuple[str, ...]] = {
    "engine": tuple(registry.ENGINES),
    "launcher.name": registry.LAUNCHERS,
    "fraction_of": ("tasks", "steps"),
    "training.context": registry.CONTEXTS,
    "training.penalise": ("format", "inadmissible"),
    "evaluation.selection": ("last",),
    "analyzer.response_format": FORMATS,
    "analyzer.limit_field": LIMIT_FIELDS,
    "env.prompt": ("compact", "full"),
    "env.response": ("bare", "tagged"),
    "backbone.dtype": ("float32", "bfloat16"),
    "runtime.log_level": ("DEBUG", "INFO", "WARNING", "ERROR"),
    "verl.attn_implementation": ("auto", "flash_attention_2", "sdpa", "eager"),
}

TRAIN_PANEL = "train"  # as harness.run loads it
VALIDATION_PANEL = "validation"  # of methods that are validated while they train

_DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")


def problems(config: RunConfig, origin: Origin) -> list[Problem]:
    """Everything wrong with one cell's configuration, single values before combinations.

    origin: dotted key -> where its value came from.
    """
    found = list(_values(config, origin))
    return found if found else list(_combinations(config, origin))


def _values(config: RunConfig, origin: Origin) -> Iterator[Problem]:
    for key in leaves(RunConfig):
        given = value(config, key)
        allowed = RANGES.get(key)
        for item in given if isinstance(given, list) else [given]:
            if isinstance(item, float) and not math.isfinite(item):
                yield Problem(key, str(given), origin(key), "must be a finite number")
            elif allowed is not None and item is not None and not allowed.holds(item):
                yield Problem(key, str(given), origin(key), str(allowed))
        if key in NAMES and given not in NAMES[key]:
            yield Problem(key, str(given), origin(key), suggest(str(given), NAMES[key], "available"))
    try:
        check_no_secret(config.analyzer)  # of every row: what a record keeps must not be a key, used or not
    except ValueError as error:
        yield Problem("", "", "", str(error))
    if (uri := config.tracking.uri) and redact(uri) != uri:
        fix = f"must hold no password: records keep it; leave it null and set the variable {VARIABLE}, which none keeps"
        yield Problem("tracking.uri", redact(uri), origin("tracking.uri"), fix)
    if not _DEVICE.fullmatch(config.runtime.device):
        yield Problem("runtime.device", config.runtime.device, origin("runtime.device"), "must be cpu, cuda or cuda:N")
    if len(config.training.betas) != 2:
        yield Problem("training.betas", str(config.training.betas), origin("training.betas"), "must be two numbers")


def _combinations(config: RunConfig, origin: Origin) -> Iterator[Problem]:
    yield from _training(config, origin)
    yield from _backbone(config, origin)
    yield from _environment(config, origin)
    yield from _method(config, origin)
    yield from _engine(config, origin)


def _engine(config: RunConfig, origin: Origin) -> Iterator[Problem]:
    """What only one engine minds."""
    if config.engine == "verl":
        from harness.training.verl import sizes

        yield from sizes.problems(config, origin)
    elif config.engine == "vllm":
        from harness.training import vllm_settings

        yield from vllm_settings.problems(config, origin)


def _training(config: RunConfig, origin: Origin) -> Iterator[Problem]:
    training, method = config.training, config.method
    if not method.trains:
        return
    if method.advantage.estimator == "grpo" and training.group_size < 2:
        fix = f"must be at least 2: row {method.id!r} compares the rollouts of one task (advantage.estimator=grpo)"
        yield Problem("training.group_size", str(training.group_size), origin("training.group_size"), fix)
    skill = method.skill
    if (skill.source, skill.router) == ("own_trajectory", "random") and training.tasks_per_step < 2:
        fix = f"must be at least 2: row {method.id!r} exchanges the skills of a step's tasks (skill.router=random)"
        yield Problem("training.tasks_per_step", str(training.tasks_per_step), origin("training.tasks_per_step"), fix)
    episodes = training.tasks_per_step * training.group_size
    if training.mini_batches > episodes:
        fix = f"cannot be more than the {episodes} episodes of a step (tasks_per_step x group_size)"
        yield Problem("training.mini_batches", str(training.mini_batches), origin("training.mini_batches"), fix)


def _backbone(config: RunConfig, origin: Origin) -> Iterator[Problem]:
    backbone, training = config.backbone, config.training
    if wrong := registry.unknown_backbone_kind(backbone.kind):
        yield Problem("", "", origin("backbone.kind"), wrong)
        return
    if backbone.kind == "hub":
        if not backbone.path:
            fix = "needs a transformers folder or a hub id, because backbone.kind=hub"
            yield Problem("backbone.path", "null", origin("backbone.path"), fix)
        return
    # What else a package's kind cannot honour says its identity().
    if backbone.kind == "embedded" and backbone.hidden % (2 * backbone.heads):
        fix = f"backbone.hidden={backbone.hidden} must be an even multiple of it"
        yield Problem("backbone.heads", str(backbone.heads), origin("backbone.heads"), fix)
    longest = training.max_prompt_tokens + training.max_response_tokens
    if longest > backbone.max_positions:
        fix = (
            f"with training.max_response_tokens={training.max_response_tokens} makes {longest} tokens, more than "
            f"backbone.max_positions={backbone.max_positions}; set less here or backbone.max_positions={longest}, or "
            "choose a backbone that reads more"
        )
        yield Problem(
            "training.max_prompt_tokens", str(training.max_prompt_tokens), origin("training.max_prompt_tokens"), fix
        )


def _environment(config: RunConfig, origin: Origin) -> Iterator[Problem]:
    try:
        spec = registry.env_spec(config.env.name)
    except ValueError as error:
        yield Problem("env.name", config.env.name, origin("env.name"), str(error))
        return
    engines = spec.metadata.get("engines", (config.env.engine,))
    if config.env.engine not in engines:
        fix = suggest(config.env.engine, engines, f"engines of env={spec.name}")
        yield Problem("env.engine", config.env.engine, origin("env.engine"), fix)
    panels = config.evaluation.panels
    if not panels or len(set(panels)) != len(panels):
        fix = f"must name at least one panel, each once; env={spec.name} has {', '.join(spec.panels)}"
        yield Problem("evaluation.panels", str(panels), origin("evaluation.panels"), fix)
    for panel in panels:
        if panel not in spec.panels:
            fix = suggest(panel, spec.panels, f"panels of env={spec.name}")
            yield Problem("evaluation.panels", panel, origin("evaluation.panels"), fix)
    yield from _knobs("env.knobs", spec.knobs, config.env.knobs, f"environment {spec.name!r}", origin)
    if config.method.trains and TRAIN_PANEL in panels:
        others = ", ".join(name for name in spec.panels if name not in (TRAIN_PANEL, VALIDATION_PANEL))
        fix = f"is what row {config.method.id!r} trains on; evaluate it on {others}"
        yield Problem("evaluation.panels", TRAIN_PANEL, origin("evaluation.panels"), fix)
    if config.env.data is not None and not Path(config.env.data).is_dir():
        fix = "is not a folder; env.data=null plays generated games"
        yield Problem("env.data", config.env.data, origin("env.data"), fix)


def _method(config: RunConfig, origin: Origin) -> Iterator[Problem]:
    from methods import registry as methods

    try:
        spec = methods.get(config.method.name)
        if wrong_knobs := list(
            _knobs("method.knobs", spec.knobs, config.method.knobs, f"method {spec.name!r}", origin)
        ):
            yield from wrong_knobs
            return
        methods.validate(config.method)
    except ValueError as error:
        yield Problem("", "", "", str(error))
        return
    yield from _validation(config, spec, origin)
    if config.method.skill.router == "general" and config.env.prompt == "compact":
        fix = "chooses no workflow line, which is all that env.prompt=compact shows of skills; set env.prompt=full"
        yield Problem("method.skill.router", "general", origin("method.skill.router"), fix)
    if config.method.skill.source == "own_trajectory" and (wrong := registry.known_analyzer(config.analyzer.name)):
        yield Problem("analyzer.name", config.analyzer.name, origin("analyzer.name"), wrong)
        return
    if config.method.skill.source == "own_trajectory" and (unfit := registry.unfit_analyzer(config)):
        yield Problem("", "", "", unfit)
        return
    try:
        missing = registry.missing_capabilities(config)
    except ValueError:
        return  # the unknown environment is reported already
    for capability, holder in missing:
        fix = f"row {config.method.id!r} needs the capability {capability}, which {holder} does not offer"
        yield Problem(f"method={config.method.id}", "", "", fix)


def _validation(config: RunConfig, spec: MethodSpec, origin: Origin) -> Iterator[Problem]:
    """A run that is validated while it trains needs tasks for that; if that changes its course, nothing else is judged
    by them."""
    regularly = config.method.trains and config.evaluation.validate_every > 0
    if not (spec.validates or regularly):
        return
    try:
        panels = registry.env_spec(config.env.name).panels
    except ValueError:
        return  # the unknown environment is reported already
    if VALIDATION_PANEL not in panels and not spec.validates:
        fix = f"asks for looks at the panel {VALIDATION_PANEL}, which env={config.env.name} does not have; set 0"
        key = "evaluation.validate_every"
        yield Problem(key, str(config.evaluation.validate_every), origin(key), fix)
    elif VALIDATION_PANEL not in panels:
        fix = f"row {config.method.id!r} is validated while it trains, and env={config.env.name} has no such panel"
        yield Problem("method.name", f"{spec.name} (panel {VALIDATION_PANEL})", origin("method.name"), fix)
    if spec.validates and VALIDATION_PANEL in config.evaluation.panels:
        others = ", ".join(name for name in panels if name not in (TRAIN_PANEL, VALIDATION_PANEL))
        fix = f"decides when row {config.method.id!r} changes its course; judge it by {others}"
        yield Problem("evaluation.panels", VALIDATION_PANEL, origin("evaluation.panels"), fix)


def _knobs(
    where: str, declared: type[Any] | None, given: Mapping[str, Any], owner: str, origin: Origin
) -> Iterator[Problem]:
    """Each knob by itself: whether it exists, and whether its value has the right type."""
    known = () if declared is None else tuple(item.name for item in fields(declared))
    for name in given:
        key = f"{where}.{name}"
        if declared is None or name not in known:
            yield Problem(key, str(given[name]), origin(key), no_such_knob(owner, where, name, known))
            continue
        try:
            read_knobs(declared, {name: given[name]}, where)
        except ValueError as error:
            yield Problem("", "", origin(key), str(error))


def no_such_knob(owner: str, where: str, name: str, known: Iterable[str]) -> str:
    """What is wrong with a knob that `owner` does not declare."""
    options = sorted(known)
    near = nearest(name, options)
    meant = f"; did you mean {where}.{near}?" if near else "."
    return f"is no knob of {owner}{meant} Knobs: {', '.join(options) or 'none'}"
