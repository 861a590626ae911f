"""OPSD: on-policy self-distillation (arXiv:2601.18734) as a baseline of agents: the teacher alone, no outcome reward.

The teacher is the policy itself, reading a skill that the student does not see; it scores the tokens that the student
sampled. With Agg the token mean, h_t the student's prompt and h_t+ the same with the skill:

    l_t       = log pi_theta(y_t | h_t) - log pi_T(y_t | h_t+)                 nats, [R, T]
    `opsd`            L = lambda * Agg[sg(l_t) * log pi_theta(y_t | h_t)]      the gradient of KL(pi_theta || pi_T)
    `opsd_released`   L = lambda * Agg[sg(sigmoid(-beta * l_t)) * (-l_t)]      SDAR's loss (methods/sdar.py), beta = 5

and A = 0 in both. The first is eq. (9) of the paper (v3), whose A_n is -l_t; the paper's main objective is a divergence
over the whole vocabulary, eq. (8) with eqs. (6) and (7). The second is released code and has no number.

Where the teacher agrees (l = 0) the first has no gradient; the second still raises every token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.knobs import read_knobs
from methods import teacher
from methods.auxiliary import AuxiliaryTeacher, Tokens, check_auxiliary, gated_gap, reverse_kl, sigmoid_gate
from methods.interface import Deviation, MethodConfig, MethodContext, MethodSpec

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = ("old", "ema")

_DEVIATIONS = (
    Deviation(
        topic="what is compared",
        paper="a divergence between teacher and student over the whole vocabulary, cut per token; single-turn "
        "mathematics; the teacher reads the reference solution",
        code="log-probs of the sampled tokens; the teacher reads skills of a library",
        ours="as the code",
        source="arXiv:2601.18734; ZJU-REAL/SDAR@8b85c23 opsd_trainer",
    ),
)
_PAPER = (
    "a divergence between teacher and student. SDAR's algorithm 3 prints this baseline as the mean of log pi_theta - "
    "log pi_ref, of a frozen policy without a skill, which has no teacher in its gradient; its table of settings has "
    "lambda = 0.01 and beta = 5"
)
_SOURCE = "arXiv:2601.18734; arXiv:2605.15155 appendices B, C; ZJU-REAL/SDAR@8b85c23 opsd_trainer"
DEVIATIONS = (
    *_DEVIATIONS,
    Deviation(
        topic="loss",
        paper=_PAPER,
        code="SDAR's gated gap (beta 5) without a policy gradient: row opsd_released",
        ours="the sampled-token gradient of the reverse KL; the released form has a row of its own",
        source=_SOURCE,
    ),
    *teacher.DEVIATIONS,
)
DEVIATIONS_RELEASED = (
    *_DEVIATIONS,
    Deviation(
        topic="loss",
        paper=_PAPER,
        code="SDAR's gated gap (beta 5) without a policy gradient; it raises every sampled token",
        ours="as the code; the faithful form is row opsd",
        source=_SOURCE,
    ),
    *teacher.DEVIATIONS,
)


class Opsd(AuxiliaryTeacher):
    """Reverse KL to the skill-reading policy, on sampled tokens."""

    def token_loss(self, tokens: Tokens) -> Tensor:
        return reverse_kl(tokens)


@dataclass(frozen=True)
class ReleasedKnobs:
    """beta: steepness of the gate, per nat."""

    beta: float = 5.0


class OpsdReleased(AuxiliaryTeacher):
    """The gated gap alone."""

    def __init__(self, config: MethodConfig, context: MethodContext) -> None:
        super().__init__(config, context)
        self.knobs = read_knobs(ReleasedKnobs, config.knobs, "method.knobs")

    def token_loss(self, tokens: Tokens) -> Tensor:
        return gated_gap(tokens, sigmoid_gate(tokens.shift, self.knobs.beta))


def check(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that OPSD cannot honour."""
    check_auxiliary(config, WEIGHTS, policy_gradient=False)


def check_released(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that released OPSD cannot honour."""
    check(config)
    check_beta(config, read_knobs(ReleasedKnobs, config.knobs, "method.knobs").beta)


def check_beta(config: MethodConfig, beta: float) -> None:
    """Raise ValueError unless the gate listens to its teacher."""
    if beta <= 0:
        raise ValueError(
            f"method.knobs.beta={beta} must be positive (row {config.id!r}): with 0 the gate is a half everywhere and "
            "the teacher cancels out of the gradient; that is method=grpo_opsd_released"
        )


SPEC = MethodSpec(
    name="opsd",
    build=Opsd,
    version=1,
    uses_teacher=True,
    needs=frozenset({"engine:teacher", "engine:aux_loss"}),
    paper="arXiv:2601.18734",
    deviations=DEVIATIONS,
    check=check,
)

SPEC_RELEASED = MethodSpec(
    name="opsd_released",
    build=OpsdReleased,
    version=1,
    uses_teacher=True,
    needs=frozenset({"engine:teacher", "engine:aux_loss"}),
    paper="arXiv:2601.18734, as released with arXiv:2605.15155",
    deviations=DEVIATIONS_RELEASED,
    knobs=ReleasedKnobs,
    check=check_released,
)
