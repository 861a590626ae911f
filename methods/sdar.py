"""SDAR (arXiv:2605.15155): GRPO plus a gated gap between the skill-reading policy and the student.

    Delta_t = log pi_T(y_t | h_t+) - log pi_theta(y_t | h_t)                 nats, [R, T]; log pi_T is a constant
    L_SDAR  = Agg[g_t * Delta_t],     L = L_GRPO + lambda * L_SDAR           lambda = 0.01, beta = 5 in the paper
    g_t     = sg(sigmoid(beta * x_t)), where x_t is, by gate,
        gap       Delta_t                            row sdar
        soft_or   1 - (1 - h_t) * (1 - Delta_t)      row sdar_soft_or
        entropy   h_t                                row sdar_entropy

h_t = H_t / entropy_unit, with H_t the entropy in nats of the student's next-token distribution at the sampling
temperature. The paper's is in nats (entropy_unit = 1); log(vocabulary size) would make it a share of the largest one.

The gradient is -lambda * Agg[g_t * grad log pi_theta(y_t)]: every sampled token is raised, one that the teacher doubts
by less, and none is lowered; with Delta_t = 0 the weight is still 1/2. The value of L_SDAR is no KL: it is negative
where the teacher finds tokens less likely. The entropy gate does not read the teacher, whose scores therefore cancel
out of the gradient; it is registered under a name of its own that says so.

L_GRPO is eq. (2) of the paper (v1); gap, gates and losses (sections 2.2 and 2.3, algorithm 1) have no number there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.knobs import read_knobs
from core.names import require_known
from methods import grpo, teacher
from methods.auxiliary import AuxiliaryTeacher, Tokens, check_auxiliary, gated_gap, sigmoid_gate
from methods.interface import Batch, Deviation, MethodConfig, MethodContext, MethodSpec
from methods.opsd import WEIGHTS, check_beta
from methods.signal import EPISODE, masked_mean, skill_shift

if TYPE_CHECKING:
    from torch import Tensor

GATES = ("gap", "soft_or")  # those that read the teacher
ENTROPY = "entropy"

_WEIGHT = Deviation(
    topic="weight of the teacher's term",
    paper="lambda = 0.01, constant",
    code="0.01 in every script, constant (0.1 if a script says nothing)",
    ours="per row (method.coef, method.schedule); small models (scale=local) use weight and course of the OPID row "
    "there, unsearched, because 0.01 belongs to billions of parameters over 150 steps",
    source="arXiv:2605.15155 appendix C; launch scripts of ZJU-REAL/SDAR@8b85c23",
)
_SELECTION = Deviation(
    topic="which skills the teacher reads",
    paper="keyword matching in the main table; a bandit, all and random as comparisons",
    code="general skills and those of one task type, by a rule per environment; no bandit",
    ours="method.skill.router, task_type by default; no bandit",
    source="arXiv:2605.15155 table 2; ZJU-REAL/SDAR@8b85c23",
)
_ENTROPY = Deviation(
    topic="gates that read the entropy",
    paper="entropy and soft-OR gates beside the gap gate",
    code="the gap gate alone",
    ours="both, with the entropy in nats divided by method.knobs.entropy_unit (1, as the paper). The teacher cancels "
    "out of the entropy gate's gradient, so that gate is a method of its own, sdar_entropy",
    source="arXiv:2605.15155 section 2.3; ZJU-REAL/SDAR@8b85c23",
)
DEVIATIONS = (_WEIGHT, _SELECTION, _ENTROPY, *teacher.DEVIATIONS, *grpo.DEVIATIONS)


@dataclass(frozen=True)
class Knobs:
    """gate: gap | soft_or (sdar) | entropy (sdar_entropy);  beta: steepness of the gate, per unit of what it reads
    entropy_unit: nats that count as an entropy of 1; not for gap"""

    gate: str = "gap"
    beta: float = 5.0
    entropy_unit: float = 1.0


class Sdar(AuxiliaryTeacher):
    """GRPO plus the gap, weighed by a gate."""

    def __init__(self, config: MethodConfig, context: MethodContext) -> None:
        super().__init__(config, context)
        self.knobs = read_knobs(Knobs, config.knobs, "method.knobs")

    def token_loss(self, tokens: Tokens) -> Tensor:
        entropy = tokens.entropy / self.knobs.entropy_unit
        read = {"gap": tokens.shift, "soft_or": soft_or(entropy, tokens.shift), ENTROPY: entropy}[self.knobs.gate]
        return gated_gap(tokens, sigmoid_gate(read, self.knobs.beta))

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """Those of AuxiliaryTeacher; with the gap gate also gate: its mean, and gate_open: share above a half, over the
        scored tokens under the rollout policy."""
        found = super().metrics(step, batch)
        if self.knobs.gate == "gap":
            shift, scored = skill_shift(batch, EPISODE)
            gate = sigmoid_gate(shift, self.knobs.beta)
            found |= {"gate": masked_mean(gate, scored), "gate_open": masked_mean((gate > 0.5).double(), scored)}
        return found


def soft_or(first: Tensor, second: Tensor) -> Tensor:
    """1 - (1 - a)(1 - b), [R, T]: the probability of either, if both were independent probabilities."""
    return 1 - (1 - first) * (1 - second)


def check(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that SDAR with a gate that reads the teacher cannot honour."""
    knobs = _checked(config, GATES, f"(row {config.id!r}; entropy, from which the teacher cancels, is sdar_entropy's)")
    check_beta(config, knobs.beta)


def check_entropy(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that SDAR with the entropy gate cannot honour."""
    _checked(config, (ENTROPY,), f"(row {config.id!r}; the other gates are method.name=sdar)")


def _checked(config: MethodConfig, gates: tuple[str, ...], hint: str) -> Knobs:
    check_auxiliary(config, WEIGHTS, policy_gradient=True)
    knobs = read_knobs(Knobs, config.knobs, "method.knobs")
    require_known("method.knobs.gate", knobs.gate, gates, hint)
    if knobs.entropy_unit <= 0:
        raise ValueError(
            f"method.knobs.entropy_unit={knobs.entropy_unit} must be a positive number of nats (row {config.id!r}); 1 "
            "leaves the entropy in nats"
        )
    return knobs


SPEC = MethodSpec(
    name="sdar",
    build=Sdar,
    version=1,
    uses_teacher=True,
    needs=frozenset({"engine:teacher", "engine:aux_loss"}),
    paper="arXiv:2605.15155",
    deviations=DEVIATIONS,
    knobs=Knobs,
    check=check,
)

SPEC_ENTROPY = MethodSpec(
    name="sdar_entropy",
    build=Sdar,
    version=1,
    uses_teacher=False,
    teacher_cancels=True,
    needs=frozenset({"engine:teacher", "engine:aux_loss"}),
    paper="arXiv:2605.15155",
    deviations=DEVIATIONS,
    knobs=Knobs,
    check=check_entropy,
)
