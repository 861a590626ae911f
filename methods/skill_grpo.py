"""Skill-GRPO: GRPO whose rollouts have a library skill in the prompt; evaluated without it, and with it (Skill-GRPO*).

Source: the baseline of SDAR (arXiv:2605.15155) and OPID (arXiv:2606.26790, appendix B.2), with skills after SkillRL
(arXiv:2602.08234) but without its warm start on traces and without evolution of the library.

    A(tau, t) = GRPO's advantage (methods/grpo.py); h_t is the history with the skill of the task in it

In SkillRL (v1) the policy conditioned on skills is eq. (5), the advantage eq. (8) and the objective eq. (9).

The skill stands in the policy's own prompt while it samples and learns, so the rollout, update and reference log-probs
are all conditioned on it. There is no teacher and no further term. One training gives two results:
`rollout_skills_eval: [off, on]` is the row without and the row with skills, of the same weights.
"""

from __future__ import annotations

from methods import grpo
from methods.interface import Deviation, MethodConfig, MethodSpec
from methods.validation import check_base

DEVIATIONS = (
    *grpo.DEVIATIONS,
    grpo.POLICY_LOSS,
    Deviation(
        topic="retrieval",
        paper="skills of the task, by keywords",
        code="SDAR: every task file with any keyword in the observation, which lists commands, so that several may "
        "match; Search: general skills only. OPID's own repository cannot run this baseline",
        ours="method.skill.router; task_type by default, keyword with protocol=paper and code",
        source="ZJU-REAL/SDAR@8b85c23 main_skill_grpo; jinyangwu/OPID@37a15a5",
    ),
    Deviation(
        topic="place of the skill",
        paper="in the prompt",
        code="before the observation, inside the user message, at every step",
        ours="after the task (method.skill.placement=task), or before everything (front); never cut by truncation",
        source="ZJU-REAL/SDAR@8b85c23 main_skill_grpo",
    ),
)


class SkillGrpo(grpo.Grpo):
    """The maths of GRPO; what differs is in the rollouts (method.rollout_skills_train)."""


def check(config: MethodConfig) -> None:
    """Raise ValueError unless the policy trains with library skills in its prompt, by GRPO's advantage."""
    check_base(config, "skill_grpo")
    if not config.rollout_skills_train:
        raise ValueError(
            f"row {config.id!r} uses skill_grpo but sets method.rollout_skills_train=false, which is GRPO; set it to "
            "true, or use method.name=grpo"
        )
    if config.advantage.estimator != "grpo":
        raise ValueError(
            f"row {config.id!r} uses skill_grpo but sets method.advantage.estimator={config.advantage.estimator!r}; "
            "set grpo"
        )


SPEC = MethodSpec(
    name="skill_grpo",
    build=SkillGrpo,
    version=1,  # raise it with grpo.SPEC.version too
    uses_teacher=False,
    paper="arXiv:2605.15155, arXiv:2606.26790, appendix B.2",
    deviations=DEVIATIONS,
    check=check,
)
