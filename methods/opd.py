"""OPD and GRPO+OPD: on-policy distillation from a frozen, skill-trained teacher (baselines of arXiv:2609.20784).

The teacher is the final policy of a run of GRPO with skills in its prompt (`teacher.run`); it reads a skill, the
student does not. With l_t, k3_t and rho_t as in methods/skill_sd.py, but pi_T of the frozen weights, [R, T]:

    L_OPD      = lambda * Agg[rho_t * (exp(-l_t) - 1 + l_t)],   lambda = 0.01
    `opd`        L = L_OPD                A = 0: no outcome reward
    `grpo_opd`   L = L_GRPO + L_OPD       the advantage untouched

The paper's L_OPD is the reverse KL to the teacher, eq. (3) of its v2, estimated on the sampled token, eq. (4); L is its
eq. (5). The form above is the released code's; at theta = theta_old both have the gradient l_t * grad log pi_theta.
"""

from __future__ import annotations

from methods import grpo, teacher
from methods.auxiliary import CUTS, K3Teacher, check_auxiliary
from methods.interface import Deviation, MethodConfig, MethodSpec

WEIGHTS = ("frozen",)

LOSS = Deviation(
    topic="distillation loss",
    paper="one-sample reverse KL on the student's tokens",
    code="importance-weighted k3, exponent cut at 20 and ratio at 10",
    ours=f"{CUTS}. Without a cut and at the rollout policy the gradients of all three are the same",
    source="arXiv:2609.20784; ZJU-REAL/SDAR with RetireOPD, opd_trainer",
)
REFERENCE = Deviation(
    topic="KL to the initial policy",
    paper="coefficient 0.01",
    code="0.01 in the run that makes the teacher, none in the student's",
    ours="set once for all rows of a table (training.kl_coef); protocol=paper and protocol=code follow the sources",
    source="arXiv:2609.20784; launch scripts of ZJU-REAL/SDAR with RetireOPD",
)
WEIGHT = Deviation(
    topic="weight of the teacher's term",
    paper="lambda = 0.01, constant",
    code="0.01, constant",
    ours="per row (method.coef); beside outcome rewards the small models of scale=local use the weight of the OPID row "
    "there, unsearched and constant, because 0.01 belongs to billions of parameters over 150 steps",
    source="arXiv:2609.20784; launch scripts of ZJU-REAL/SDAR with RetireOPD",
)
TEACHER = Deviation(
    topic="which weights of its run the teacher has",
    paper="those with the best success on the validation set, which is also SR_T",
    code="a path that the launch script is given",
    ours="those after its last training step, the ones that a table shows for every row",
    source="arXiv:2609.20784 appendix A.5; launch scripts of ZJU-REAL/SDAR with RetireOPD",
)
DEVIATIONS = (LOSS, TEACHER, *teacher.DEVIATIONS[:2], REFERENCE)
DEVIATIONS_GRPO = (LOSS, WEIGHT, TEACHER, *teacher.DEVIATIONS[:2], REFERENCE, *grpo.DEVIATIONS)


class Opd(K3Teacher):
    """rho * k3 towards the frozen teacher; the base advantage says whether outcome rewards count too."""


def check(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that OPD cannot honour."""
    check_auxiliary(config, WEIGHTS, policy_gradient=False)


def check_grpo(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that GRPO+OPD cannot honour."""
    check_auxiliary(config, WEIGHTS, policy_gradient=True)


SPEC = MethodSpec(
    name="opd",
    build=Opd,
    version=2,
    uses_teacher=True,
    needs=frozenset({"engine:teacher", "engine:aux_loss"}),
    paper="baseline of arXiv:2609.20784",
    deviations=DEVIATIONS,
    check=check,
)

SPEC_GRPO = MethodSpec(
    name="grpo_opd",
    build=Opd,
    version=2,
    uses_teacher=True,
    needs=frozenset({"engine:teacher", "engine:aux_loss"}),
    paper="baseline of arXiv:2609.20784",
    deviations=DEVIATIONS_GRPO,
    check=check_grpo,
)
