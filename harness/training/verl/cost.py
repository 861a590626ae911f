"""What a run at the papers' scale is expected to cost: GPU hours and analyzer calls, from sizes and stated assumptions.

Nothing here was measured at that scale. Published: steps, batches, forwards per step, and one time (an iteration of
GiGPO took 363 s, arXiv:2505.10978). Assumed: the constants of `Assumptions`; benchmarks/gpu.py measures some of them on
your machine. Per training iteration of R rows with t = prompt + response tokens each and N parameters:

    compute   = 2 N R (prompt + f t) + c N R t       multiply-adds counted as two; f forwards that only score, c = 8 for
                                                     the update (2 forward, 4 backward, 2 computed again)
    seconds   = compute / (GPUs x peak x efficiency) + steps x response / speed + overhead
    GPU hours = GPUs x (iterations x seconds + evaluations) / 3600
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.config import RunConfig
from harness.training.verl.sizes import Sizes, sizes_of

VOCABULARY = 151_936  # Qwen2.5 and Qwen3
TIED_BELOW = 3584  # width from which Qwen2.5 has an output matrix of its own


@dataclass(frozen=True, slots=True)
class Assumptions:
    """peak: multiply-adds x 2 per second and GPU in bfloat16 (H100 and H800, dense); efficiency: share of it that
    training and scoring reach; speed: tokens per second of one sequence while it samples among others; overhead:
    seconds of an iteration for weights to the samplers, environments and waiting; prompt, response: share of the
    longest length that is used on average; last: share of an episode's longest length that the slowest one takes."""

    peak: float = 989e12
    efficiency: float = 0.35
    speed: float = 60.0
    overhead: float = 45.0
    prompt: float = 0.5
    response: float = 0.3
    last: float = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run. iteration_s: one training iteration; gpu_hours: all of it; analyzer_calls: without repairs."""

    iteration_s: float
    gpu_hours: float
    analyzer_calls: int

    def text(self) -> str:
        calls = f", {self.analyzer_calls:,} analyzer calls" if self.analyzer_calls else ""
        return f"about {self.gpu_hours:.0f} GPU hours ({self.iteration_s:.0f} s an iteration){calls}"


def parameters(config: RunConfig) -> float:
    """Parameters of a Qwen-like model, from its widths; within a tenth of what is published for those shipped here."""
    backbone = config.backbone
    width = backbone.hidden
    block = 2.25 * width * width + 3 * width * backbone.intermediate  # keys and values are an eighth of the width
    matrices = 1 if width < TIED_BELOW else 2
    return backbone.layers * block + matrices * VOCABULARY * width


def scoring_forwards(config: RunConfig) -> int:
    """Forwards of a step without gradients: rollout policy, reference, teacher. Sources: docs/paper_scale.md."""
    additive = config.method.skill.router == "additive"
    teacher = 0 if config.method.teacher.weights == "none" else 2 if additive else 1
    return 1 + (config.training.kl_coef > 0) + teacher


def cost_of(config: RunConfig, assumed: Assumptions | None = None) -> Cost:
    """Expected cost of one run on GPUs, its evaluations included, those of its teachers not."""
    from harness.record import planned_steps

    given, sizes = assumed or Assumptions(), sizes_of(config)
    steps = planned_steps(config)
    iteration = _iteration(config, sizes, given) if config.method.trains else 0.0
    evaluations = len(config.evaluation.panels) * len(config.method.rollout_skills_eval)
    # An evaluation is a rollout of as many episodes as a panel has; panels are about as large as two batches.
    evaluation = 2 * evaluations * _latency(config, given)
    calls = sizes.episodes * steps if config.method.trains and config.method.skill.source == "own_trajectory" else 0
    hours = sizes.gpus * (steps * iteration + evaluation) / 3600
    return Cost(iteration, hours, calls)


def _latency(config: RunConfig, given: Assumptions) -> float:
    """Seconds of a rollout: the slowest episode takes all of its steps, and steps follow each other."""
    return given.last * config.env.max_steps * given.response * config.training.max_response_tokens / given.speed


def _iteration(config: RunConfig, sizes: Sizes, given: Assumptions) -> float:
    prompt = given.prompt * config.training.max_prompt_tokens
    tokens = prompt + given.response * config.training.max_response_tokens
    per_parameter = sizes.rows * (2 * prompt + 2 * scoring_forwards(config) * tokens + 8 * tokens)
    computing = per_parameter * parameters(config) / (sizes.gpus * given.peak * given.efficiency)
    return computing + _latency(config, given) + given.overhead
