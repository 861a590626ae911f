"""Made-up runs of RetireOPD: what each step asks for, loses and says, with gaps and successes as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from methods_helpers import context, make_batch, row, trajectories

from methods import registry
from methods.interface import Batch, Method, MethodConfig, Validation

TEACHER = 0.8  # SR_T
STEPS = 30
Gap = Callable[[int], float]


@dataclass(frozen=True)
class Played:
    """What each training step did, in order. requests: teacher requests; losses: sum of the auxiliary loss, None if
    there was none; metrics: of `metrics` and `after_validation`; validated: steps at which a validation was wanted."""

    requests: list[int]
    losses: list[float | None]
    metrics: list[dict[str, float]]
    validated: list[int]

    @property
    def last_taught(self) -> int:
        return max((n for n, count in enumerate(self.requests, start=1) if count), default=0)


def batch_of(step: int, gap: float | None) -> Batch:
    """A batch whose gap K_n is `gap` in each trajectory (one row each); without teacher scores if it is None."""
    batch = make_batch(step, "growing", channels="additive")
    if gap is None:
        return replace(batch, teacher={}, teacher_mask={})
    mask = batch.response_mask
    noise = torch.randn(mask.shape, generator=torch.Generator().manual_seed(step))
    noise = noise - (noise * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    scores = torch.where(mask, batch.old_logprobs - gap + 0.1 * noise, 0.0)
    return replace(batch, teacher={"episode": scores}, teacher_mask={"episode": mask})


def play(method: Method, gap: Gap, success: Mapping[int, float], steps: Sequence[int]) -> Played:
    """Training steps `steps` in the order of the engine's calls. success: of the window that ends at a step."""
    found = Played([], [], [], [])
    played = trajectories()
    for step in steps:
        method.after_rollout(step, played)
        requests = method.teacher_requests(step, played)
        batch = batch_of(step, gap(step) if requests else None)
        method.advantages(step, batch)
        metrics = method.metrics(step, batch)
        live = batch.old_logprobs - 0.1
        loss = method.aux_loss(step, batch, live, torch.zeros_like(live))
        if method.wants_validation(step):
            found.validated.append(step)
            metrics = {**metrics, **method.after_validation(step, Validation(success[step], 20))}
        found.requests.append(len(requests))
        found.losses.append(None if loss is None else float(loss.sum()))
        found.metrics.append(metrics)
    return found


def build(config: MethodConfig, teacher: float = TEACHER) -> Method:
    method = registry.build(config, context(total_steps=STEPS))
    if method.measures_teacher:
        method.teacher_measured(Validation(teacher, 20))
    return method


def run(name: str, gap: Gap, success: Mapping[int, float], *overrides: str, teacher: float = TEACHER) -> Played:
    return play(build(row(name, *overrides), teacher), gap, success, range(1, STEPS + 1))


def by_window(*values: float) -> Gap:
    """K_n = values[m - 1] in window m of five steps; the last value from then on."""
    return lambda step: values[min((step - 1) // 5, len(values) - 1)]


def ends(*values: float) -> dict[int, float]:
    """Success after steps 5, 10, ...; the last value from then on."""
    return {5 * m: values[min(m - 1, len(values) - 1)] for m in range(1, STEPS // 5 + 1)}


FALLING = by_window(1.0, 0.8, 0.6, 0.4, 0.3, 0.2)
STUCK = by_window(1.0, 1.01, 1.02, 1.03, 1.04, 1.05)  # opens a little, so that rounding of scores does not decide
GOOD, POOR = ends(0.8), ends(0.1)
