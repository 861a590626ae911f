"""Skill-SD (arXiv:2604.10674): GRPO plus an importance-weighted k3 estimate of the KL to the skill-reading policy.

    l_t   = log pi_theta(y_t | h_t) - log pi_T(y_t | h_t+)                   nats, [R, T]
    k3_t  = exp(-l_t) - 1 + l_t                                              at least 0; exponent cut at 20
    rho_t = pi_theta(y_t | h_t) / pi_old(y_t | h_t)                          cut at 10
    L     = L_GRPO + lambda * Agg[rho_t * k3_t],   lambda = 0.001 in the paper

The advantage is untouched, the ratio is not clipped as PPO's. The gradient is
lambda * Agg[rho_t * l_t * grad log pi_theta], with rho_t <= 10 and l_t >= -20 (methods/auxiliary.py): at
theta = theta_old a policy gradient with advantage -lambda * l_t, the direction of OPID's skill advantage
(methods/opid.py).

In the paper (v1) l_t is eq. (10), the sum over tokens of rho_t * k3_t eq. (12) and L eq. (14) (docs/equations.md).
"""

from __future__ import annotations

from methods import grpo, teacher
from methods.auxiliary import CUTS, K3Teacher, check_auxiliary
from methods.interface import Deviation, MethodConfig, MethodSpec
from methods.opsd import WEIGHTS

DEVIATIONS = (
    Deviation(
        topic="source of skills",
        paper="summaries of the agent's own finished trajectories, picked from a buffer by an upper confidence bound",
        code="the baseline of arXiv:2605.15155 reads a static library instead",
        ours="as that baseline",
        source="arXiv:2604.10674; ZJU-REAL/SDAR@8b85c23",
    ),
    Deviation(
        topic="cuts of the loss",
        paper="none in the formula",
        code="exponent of k3 at 20, importance ratio at 10; what autograd leaves beyond the former pushes the token "
        "away from its teacher, by about 4.9e8",
        ours=CUTS,
        source="ZJU-REAL/SDAR@8b85c23",
    ),
    Deviation(
        topic="weight of the teacher's term",
        paper="lambda = 0.001, constant",
        code="0.001 in every script, constant (0.1 if a script says nothing)",
        ours="per row (method.coef, method.schedule); small models (scale=local) use weight and course of the OPID "
        "row there, unsearched, because 0.001 belongs to billions of parameters over 150 steps",
        source="arXiv:2604.10674; launch scripts of ZJU-REAL/SDAR@8b85c23",
    ),
    *teacher.DEVIATIONS,
    *grpo.DEVIATIONS,
)


class SkillSd(K3Teacher):
    """GRPO plus rho * k3."""


def check(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that Skill-SD cannot honour."""
    check_auxiliary(config, WEIGHTS, policy_gradient=True)


SPEC = MethodSpec(
    name="skill_sd",
    build=SkillSd,
    version=2,
    uses_teacher=True,
    needs=frozenset({"engine:teacher", "engine:aux_loss"}),
    paper="arXiv:2604.10674",
    deviations=DEVIATIONS,
    check=check,
)
