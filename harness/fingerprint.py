"""Which run is this? A hash over everything that can change its result, and nothing else.

Identity fields of the configuration, the versions of the code that decides numbers (harness.versions), what decides
the initial policy, and the identity of every task panel the run touches go in. Names and labels do not: two rows that
train alike are one run, whatever a table calls them (the planner refuses that within one sweep, and shares the run
between sweeps).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, cast

from harness.config import AnalyzerConfig, RunConfig
from harness.schema import keys, leaves, value

FINGERPRINT_VERSION = 3

Class = Literal["identity", "runtime"]

_IDENTITY = """
    method.name method.trains method.advantage.estimator method.advantage.std method.advantage.stats_over
    method.advantage.pg_coef method.advantage.omega method.advantage.gamma method.advantage.anchor
    method.advantage.similarity method.skill.source method.skill.router method.skill.max_step_skills
    method.skill.max_failure_rate method.skill.placement method.skill.top_k method.skill.encoder
    method.teacher.weights method.teacher.decay method.teacher.source method.signal.clip method.signal.normalize
    method.schedule.kind method.schedule.start method.schedule.stop method.schedule.length method.coef method.knobs
    method.rollout_skills_train method.rollout_skills_eval
    env.name env.engine env.world_seed env.train_per_type env.eval_per_type env.max_steps env.history env.prompt
    env.response env.validation_per_type env.knobs
    backbone.kind backbone.path backbone.revision backbone.hidden backbone.layers backbone.heads backbone.intermediate
    backbone.max_positions backbone.demos backbone.clone_tokens backbone.clone_seed backbone.dtype
    training.steps training.tasks_per_step training.group_size training.context training.temperature
    training.max_prompt_tokens training.max_response_tokens training.lr training.betas training.weight_decay
    training.warmup_steps training.grad_clip training.mini_batches training.micro_batch_tokens training.clip_low
    training.clip_high training.dual_clip training.kl_coef training.entropy_coef training.success_reward
    training.invalid_penalty training.penalise
    evaluation.panels evaluation.temperature evaluation.repeats evaluation.selection evaluation.validate_every
    analyzer.name analyzer.model analyzer.temperature analyzer.max_output_tokens analyzer.response_format
    analyzer.observation_chars analyzer.skill_chars
    engine protocol fraction fraction_of seed
    runtime.device
    verl.extra
"""

# Names and labels (the teacher's run is known by its fingerprint, method.teacher.source); where data and records lie
# (what the data are is in the panels' identity); how the work is spread.
# Batches and threads change the order of sums: results are equal up to rounding, which a sampled token can turn on.
_RUNTIME = """
    method.id method.label method.teacher.run backbone.name scale
    env.data env.cache
    training.max_failed_episodes
    tracking.enabled tracking.uri tracking.experiment tracking.interval
    analyzer.base_url analyzer.api_key_env analyzer.limit_field analyzer.connect_timeout analyzer.read_timeout
    analyzer.retries analyzer.retry_delay analyzer.retry_delay_max analyzer.retry_after_max analyzer.concurrency
    analyzer.price_prompt analyzer.price_completion analyzer.cache analyzer.record analyzer.answers
    backbone.resources.nodes backbone.resources.gpus_per_node backbone.resources.cpus_per_node
    backbone.resources.mem_gb backbone.resources.minutes
    launcher.name launcher.workers launcher.partition launcher.account launcher.qos launcher.constraint launcher.modules
    launcher.container launcher.setup launcher.environment launcher.python launcher.sbatch launcher.resources
    launcher.parallel launcher.max_array launcher.max_submitted launcher.requeues launcher.signal_seconds
    launcher.poll_seconds launcher.budget_gpu_hours
    runtime.out runtime.checkpoint_every runtime.keep_trajectories runtime.env_workers runtime.eval_batch
    runtime.threads runtime.log_level runtime.min_free_gb
    verl.tensor_parallel verl.sequence_parallel verl.micro_batch verl.score_micro_batch verl.gpu_memory
    verl.param_offload verl.optimizer_offload verl.gradient_checkpointing
    verl.attn_implementation verl.eager verl.batched_tokens verl.sequences verl.agent_workers verl.storage_units
    verl.ray_cpus verl.keep_checkpoints verl.max_sampler_gap
    vllm.base_url vllm.model vllm.api_key_env vllm.concurrency vllm.timeout vllm.attempts
    backbone.by_env
"""

CLASSES: Mapping[str, Class] = {
    **dict.fromkeys(_IDENTITY.split(), "identity"),
    **dict.fromkeys(_RUNTIME.split(), "runtime"),
}

# An identity field added later -> the value that earlier runs had without saying so. While a run has that value the
# field is left out of the hash, so that a new option does not disown the runs made before it. Likewise a knob, by its
# full name: `env.knobs.ranker`.
ADDED_LATER: Mapping[str, Any] = {"evaluation.validate_every": 0, "env.knobs.ranker": "own"}


def _canonical(name: str, given: Any) -> Any:
    """The one JSON spelling of a value: numbers of float fields are floats, NaN and infinity are refused."""
    if name == "runtime.device":  # which of several equal devices does not matter
        return str(given).partition(":")[0]
    numeric = name in _float_fields() or name.startswith(_FREE_NUMBERS)
    if isinstance(given, (list, tuple)):
        return [_number(name, item) if numeric else item for item in given]
    return _number(name, given) if numeric else given


# Knobs have types that the schema does not know: 1 and 1.0 are one value, as they are in every method that reads them.
_FREE_NUMBERS = ("method.knobs.", "env.knobs.")


@lru_cache(maxsize=1)
def _float_fields() -> frozenset[str]:
    return frozenset(name for name, key in keys(RunConfig).items() if "float" in str(key.type))


def _number(name: str, given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        return given
    if not math.isfinite(given):
        raise ValueError(f"{name}={given}: a run with a value that is not finite has no identity")
    return float(given) + 0.0  # -0.0 becomes 0.0


def _deciding(env: str, knobs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of an environment's knobs that can change a result, by `metadata["knob_identity"]` of its spec; without it
    all of them. What is not installed is told elsewhere."""
    from harness import registry

    try:
        tell = registry.env_spec(env).metadata.get("knob_identity") if knobs else None
    except ValueError:
        return knobs
    return knobs if tell is None else cast("Mapping[str, Any]", tell(knobs))


def identity(config: RunConfig) -> dict[str, Any]:
    """Dotted key -> value of every identity field, in a fixed order and spelling; each knob is a key of its own.

    Who writes the skills of other rows is nothing to a run that has no analyzer: its keys stand at their defaults.
    """
    if config.method.skill.source != "own_trajectory":
        config = replace(config, analyzer=AnalyzerConfig())
    found: dict[str, Any] = {}
    for name in leaves(RunConfig):
        if CLASSES.get(name) == "runtime":  # a field that nobody classed counts as identity
            continue
        given = value(config, name)
        if name == "env.knobs":
            given = _deciding(config.env.name, given)
        if isinstance(given, Mapping):
            found.update({f"{name}.{key}": _canonical(f"{name}.{key}", given[key]) for key in sorted(given)})
        else:
            found[name] = _canonical(name, given)
    return {k: v for k, v in found.items() if k not in ADDED_LATER or v != ADDED_LATER[k]}


def fingerprint(config: RunConfig, versions: Mapping[str, Any], backbone: str, panels: Mapping[str, str]) -> str:
    """16 hex digits naming the run.

    versions: as of harness.versions. backbone: identity of the initial policy. panels: panel name -> identity of its
    tasks, for each panel the run uses. Raises ValueError for NaN and infinity.
    """
    payload = {
        "version": FINGERPRINT_VERSION,
        "config": identity(config),
        "code": dict(versions),
        "backbone": backbone,
        "panels": dict(panels),
    }
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (value in one, value in other) wherever two identities differ."""
    return {k: (one.get(k), other.get(k)) for k in sorted({*one, *other}) if one.get(k) != other.get(k)}
