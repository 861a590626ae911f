"""RLSD: the reward gives the direction, a teacher with a skill the size (arXiv:2604.03128; a baseline of SDAR, OPID).

    Delta_t = log pi_old(y_t | h+, y_<t) - log pi_old(y_t | h, y_<t)          eq. (13)  nats; h+: with library skill
    w_t     = clip(exp(sign(A) * Delta_t), 1 - eps, 1 + eps)                  eqs. (14), (15)  no gradient, no unit
    A_t     = A * ((1 - lambda_k) + lambda_k * w_t)                           text after eq. (15)  [R, T]

A is the base advantage (GRPO's, methods/grpo.py). lambda_k = coef * schedule(k): the paper lets it fall linearly from
0.5 to 0 over the first 50 steps, the scripts of SDAR (arXiv:2605.15155) over 100; both have eps = 0.2. The sign of A_t
is always that of A, and |A_t / A| lies in [1 - lambda_k * eps, 1 + lambda_k * eps]. Tokens that the teacher did not
score keep A.

Computed as A * (1 + lambda_k * (w_t - 1)), which is the same and gives exactly A where w_t = 1: without a shift, and
at lambda_k = 0, RLSD is its base bit for bit. At lambda_k = 0 nothing is scored.

The paper's w_t is the weight before clipping, eq. (14); eq. (15) clips it. Its loss, eq. (16), takes
min(w_t * A, clip(w_t) * A) instead, which leaves one side unclipped and has neither lambda nor pi_theta / pi_old.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.knobs import read_knobs
from methods import grpo, teacher
from methods.interface import Batch, Deviation, MethodConfig, MethodContext, MethodSpec
from methods.signal import EPISODE, masked_mean, shaped_shift
from methods.teacher import LibraryTeacher, check_library_teacher

if TYPE_CHECKING:
    from torch import Tensor

DEVIATIONS = (
    *grpo.DEVIATIONS,
    Deviation(
        topic="course of lambda",
        paper="0.5, falling linearly to 0 over the first 50 steps; SDAR's table of settings has 0.5 too",
        code="the scripts of SDAR: 0.5 to 0 over 100 of 150 steps; defaults of the code: over 50. Whether its first "
        "step has the whole weight is not known to us",
        ours="method.coef and method.schedule: over the planned steps by default, over 50 with protocol=paper, over "
        "100 with protocol=code; the first step has the whole weight, step length + 1 none",
        source="arXiv:2604.03128; arXiv:2605.15155 appendix C; scripts of ZJU-REAL/SDAR@8b85c23",
    ),
    Deviation(
        topic="bounds of the weight",
        paper="1 - eps and 1 + eps with eps = 0.2",
        code="eps = 0.2 in every script",
        ours="as both (method.knobs.eps)",
        source="arXiv:2604.03128; scripts of ZJU-REAL/SDAR@8b85c23",
    ),
    Deviation(
        topic="loss around the weight",
        paper="eq. (16): min(w A, clip(w) A), where the weight stands in the place of the ratio of policies; no KL "
        "term, no entropy bonus. Its settings name clip bounds of 0.2 below and 0.28 above",
        code="GRPO's clipped loss on the scaled advantage, with KL to the initial policy",
        ours="as the code: eqs. (13) to (15) and the interpolation give the advantage, the loss is that of every "
        "row (training.clip_low, clip_high, kl_coef), with protocol=paper as SDAR and OPID set it for their baselines",
        source="arXiv:2604.03128; ZJU-REAL/SDAR@8b85c23",
    ),
    Deviation(
        topic="weights of the teacher",
        paper="a copy of the policy, renewed every 10 steps",
        code="the policy of the rollout",
        ours="as the code (method.teacher.weights=old)",
        source="arXiv:2604.03128; ZJU-REAL/SDAR@8b85c23",
    ),
    Deviation(
        topic="teacher forward at lambda = 0",
        paper="not needed",
        code="still run after the decay has ended",
        ours="skipped",
        source="ZJU-REAL/SDAR@8b85c23",
    ),
    Deviation(
        topic="domain",
        paper="reasoning over images, single turn; the teacher reads a reference answer",
        code="agents; the teacher reads the skills of a static library",
        ours="as the code",
        source="arXiv:2604.03128; ZJU-REAL/SDAR@8b85c23",
    ),
    *teacher.DEVIATIONS,
)


@dataclass(frozen=True)
class Knobs:
    """eps: how far a weight w_t may be from 1, no unit; between 0 and 1."""

    eps: float = 0.2


class Rlsd(LibraryTeacher):
    """The base advantage, scaled token by token."""

    def __init__(self, config: MethodConfig, context: MethodContext) -> None:
        super().__init__(config, context)
        self.knobs = read_knobs(Knobs, config.knobs, "method.knobs")

    def weights(self, step: int, batch: Batch) -> Tensor:
        """1 + lambda_k * (w_t - 1), [R, T]; 1 where nothing was scored."""
        base = grpo.base_advantage(self.config.advantage, batch)
        return self._weights(step, batch, base)

    def _weights(self, step: int, batch: Batch, base: Tensor) -> Tensor:
        eps = self.knobs.eps
        shift = shaped_shift(batch, EPISODE, self.config.signal)
        # exp of a huge shift is infinite, which the clip makes 1 + eps
        weight = (base.sign() * shift).exp().clamp(1 - eps, 1 + eps)
        return 1 + self.coefficient(step) * (weight - 1)

    def advantages(self, step: int, batch: Batch) -> Tensor:
        base = grpo.base_advantage(self.config.advantage, batch)
        return base * self._weights(step, batch, base) if self.coefficient(step) else base

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """advantage_abs: mean |A| over policy tokens; scale: mean |A_t / A|; clipped: share of policy tokens whose
        w_t stands at a bound; and the teacher's (methods/teacher.py)."""
        mask, eps = batch.response_mask.bool(), self.knobs.eps
        base = grpo.base_advantage(self.config.advantage, batch)
        exponent = base.sign() * shaped_shift(batch, EPISODE, self.config.signal)
        clipped = (exponent >= math.log1p(eps)) | (exponent <= math.log1p(-eps))
        return {
            **super().metrics(step, batch),
            "advantage_abs": masked_mean(base.abs(), mask),
            "scale": masked_mean(self._weights(step, batch, base), mask),
            "clipped": masked_mean(clipped.double(), mask),
        }


def check(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that RLSD cannot honour."""
    check_library_teacher(config)
    row, eps = f"row {config.id!r}", read_knobs(Knobs, config.knobs, "method.knobs").eps
    if config.coef > 1:
        raise ValueError(f"method.coef={config.coef} must be at most 1 ({row}): it is RLSD's share of the teacher")
    if not 0 < eps < 1:
        raise ValueError(f"method.knobs.eps={eps} must be above 0 and below 1 ({row})")
    if config.advantage.estimator == "none" or not config.advantage.pg_coef:
        raise ValueError(
            f"{row} has no base advantage (method.advantage.estimator={config.advantage.estimator}, "
            f"pg_coef={config.advantage.pg_coef}), so rlsd has nothing to scale"
        )


SPEC = MethodSpec(
    name="rlsd",
    build=Rlsd,
    version=1,  # raise it with grpo.SPEC.version too: A is part of this maths
    uses_teacher=True,
    needs=frozenset({"engine:teacher"}),
    paper="arXiv:2604.03128",
    deviations=DEVIATIONS,
    knobs=Knobs,
    check=check,
)
