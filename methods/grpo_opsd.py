"""GRPO+OPSD: outcome reward and self-distillation, simply added (baseline of arXiv:2605.15155 and arXiv:2606.26790).

A is GRPO's (methods/grpo.py) and untouched; with l_t as in methods/opsd.py, [R, T] in nats:

    `grpo_opsd`            L = L_GRPO + lambda * Agg[sg(l_t) * log pi_theta(y_t | h_t)]
    `grpo_opsd_released`   L = L_GRPO + lambda * Agg[sigmoid(0) * (-l_t)],   sigmoid(0) = 1/2

The gradient of the second is -lambda/2 * Agg[grad log pi_theta(y_t | h_t)]: log pi_T is a constant, so the teacher is
scored and cancels. What is left imitates the own samples evenly, with mean zero over the policy's samples.

The parts: L_GRPO is eq. (3) of arXiv:2402.03300, the first row's second term eq. (9) of arXiv:2601.18734v3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from methods import grpo, teacher
from methods.auxiliary import AuxiliaryTeacher, Tokens, check_auxiliary, gated_gap, reverse_kl
from methods.interface import Deviation, MethodConfig, MethodSpec
from methods.opsd import WEIGHTS

if TYPE_CHECKING:
    from torch import Tensor

CONSTANT_GATE = 0.5  # sigmoid(beta * Delta) at beta = 0


def _deviations(ours: str) -> tuple[Deviation, ...]:
    loss = Deviation(
        topic="loss",
        paper="the policy loss plus self-distillation towards the skill-reading policy. SDAR's algorithm 5 prints the "
        "mean of log pi_theta - log pi_ref, of a frozen policy without a skill, which has no teacher in its gradient "
        "either; its table of settings has beta = 0",
        code="SDAR's loss with beta = 0: a gate of 1/2 everywhere, so the teacher's scores cancel out of the gradient",
        ours=ours,
        source="arXiv:2605.15155 appendices B, C; launch scripts of ZJU-REAL/SDAR@8b85c23",
    )
    weight = Deviation(
        topic="weight of the teacher's term",
        paper="lambda = 0.01, constant",
        code="0.01, constant",
        ours="per row (method.coef, method.schedule); small models (scale=local) use weight and course of the OPID "
        "row there, unsearched, because 0.01 belongs to billions of parameters over 150 steps",
        source="arXiv:2605.15155 appendix C; launch scripts of ZJU-REAL/SDAR@8b85c23",
    )
    return (loss, weight, *teacher.DEVIATIONS, *grpo.DEVIATIONS)


class GrpoOpsd(AuxiliaryTeacher):
    """GRPO plus the reverse KL to the skill-reading policy, on sampled tokens."""

    def token_loss(self, tokens: Tokens) -> Tensor:
        return reverse_kl(tokens)


class GrpoOpsdReleased(AuxiliaryTeacher):
    """GRPO plus half the gap: a teacher that is paid for and not heard."""

    def token_loss(self, tokens: Tokens) -> Tensor:
        return gated_gap(tokens, CONSTANT_GATE)


def check(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that GRPO+OPSD cannot honour."""
    check_auxiliary(config, WEIGHTS, policy_gradient=True)


SPEC = MethodSpec(
    name="grpo_opsd",
    build=GrpoOpsd,
    version=1,
    uses_teacher=True,
    needs=frozenset({"engine:teacher", "engine:aux_loss"}),
    paper="baseline of arXiv:2605.15155; self-distillation of arXiv:2601.18734",
    deviations=_deviations("the sampled-token gradient of the reverse KL; the released form has a row of its own"),
    check=check,
)

SPEC_RELEASED = MethodSpec(
    name="grpo_opsd_released",
    build=GrpoOpsdReleased,
    version=1,
    uses_teacher=False,
    teacher_cancels=True,
    needs=frozenset({"engine:teacher", "engine:aux_loss"}),
    paper="baseline of arXiv:2605.15155, as released",
    deviations=_deviations("as the code, its useless scoring included; the faithful form is row grpo_opsd"),
    check=check,
)
