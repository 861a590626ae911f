"""Vanilla: the backbone as it is, never trained, evaluated without or with a hand-written skill in its prompt.

With `rollout_skills_eval: [on]` and a skill library this is the Skill-Prompt baseline (arXiv:2606.26790, appendix B.2).
There is no maths: the harness evaluates the initial weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from methods.interface import Batch, Deviation, Method, MethodConfig, MethodSpec

if TYPE_CHECKING:
    from torch import Tensor

DEVIATIONS = (
    Deviation(
        topic="which skills Skill-Prompt reads",
        paper="skills of the task, by keywords",
        code="general skills and every task file with a keyword in the observation",
        ours="method.skill.router; task_type by default, keyword with protocol=paper and code",
        source="arXiv:2606.26790, appendix B.2; ZJU-REAL/SDAR@8b85c23",
    ),
)


class Vanilla(Method):
    """Refuses to take part in an update."""

    def advantages(self, step: int, batch: Batch) -> Tensor:
        raise RuntimeError(f"row {self.config.id!r} is vanilla (method.trains=false) and must not be trained")


def check(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that asks vanilla to train or to use a teacher."""
    if config.trains:
        raise ValueError(f"method.trains=true: row {config.id!r} uses vanilla, which never trains; set it to false")
    skill_term = config.coef or config.skill.source == "own_trajectory" or config.teacher.weights != "none"
    if skill_term or config.rollout_skills_train:
        raise ValueError(
            f"row {config.id!r} uses vanilla, which has neither a skill term nor rollouts for training: set "
            "method.coef=0, method.teacher.weights=none, method.rollout_skills_train=false and "
            "method.skill.source=none or library"
        )


SPEC = MethodSpec(
    name="vanilla",
    build=Vanilla,
    version=1,
    uses_teacher=False,
    paper="arXiv:2606.26790, appendix B.2 (Vanilla, Skill-Prompt)",
    deviations=DEVIATIONS,
    check=check,
)
