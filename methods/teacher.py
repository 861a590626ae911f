"""Methods whose teacher sees a library skill: what they share, so that each module holds its own maths alone.

The teacher scores the student's tokens with the skill that `skill.router` chooses for the trajectory's task standing in
every prompt of the trajectory; the student never sees a skill. Whose weights score is `teacher.weights`.
"""

from __future__ import annotations

from collections.abc import Sequence

from methods.interface import (
    Batch,
    Deviation,
    Method,
    MethodConfig,
    MethodContext,
    TeacherRequest,
    Trajectory,
)
from methods.schedule import coefficient_scale
from methods.signal import EPISODE, masked_mean, skill_shift

DEVIATIONS = (  # what every method with such a teacher shares
    Deviation(
        topic="place of the skill in the teacher's prompt",
        paper="the teacher's prompt is the student's with skills added",
        code="before the first token of the chat template; then cut on the left, so that a prompt that is too "
        "long loses its skill",
        ours="inside the user message (method.skill.placement); the skill is never cut, and every cut is counted",
        source="ZJU-REAL/SDAR@8b85c23 build_teacher_batch",
    ),
    Deviation(
        topic="skill library",
        paper="skills distilled from other models' trajectories (arXiv:2602.08234)",
        code="that library as Markdown: general skills and those of one task type",
        ours="texts written for this project; small models with a closed vocabulary read one line, the workflow of the "
        "task type",
        source="arXiv:2605.15155; ZJU-REAL/SDAR@8b85c23",
    ),
    Deviation(
        topic="sizes of policy loss, KL and entropy terms",
        paper="KL to the initial policy with coefficient 0.01",
        code="as the paper (Search: 0.001), plus dual clip 3.0 and an entropy bonus of 0.001",
        ours="set once for all rows of a table (training.*); protocol=paper and protocol=code follow the sources",
        source="arXiv:2605.15155 appendix C; launch scripts of ZJU-REAL/SDAR@8b85c23",
    ),
)


class LibraryTeacher(Method):
    """One request per trajectory over all its steps, while the coefficient is above 0; none at 0."""

    def __init__(self, config: MethodConfig, context: MethodContext) -> None:
        super().__init__(config, context)
        if context.library is None and config.coef:
            raise ValueError(
                f"row {config.id!r} needs a skill library (MethodContext.library), because method.coef={config.coef} "
                "is not 0; choose an environment that has one"
            )

    def coefficient(self, step: int) -> float:
        """lambda at training step `step` (from 1)."""
        return self.config.coef * coefficient_scale(self.config.schedule, step, self.context.total_steps)

    def teacher_requests(self, step: int, trajectories: Sequence[Trajectory]) -> list[TeacherRequest]:
        library = self.context.library
        if library is None or not self.coefficient(step):
            return []
        return [
            TeacherRequest(EPISODE, t.index, tuple(range(len(t.turns))), episode_skill=library(t))
            for t in trajectories
            if t.failure is None and t.turns
        ]

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """coef: lambda of this step; shift: mean Delta in nats over scored tokens; shift_abs: mean |Delta|;
        skill_tokens: share of policy tokens that were scored."""
        shift, scored = skill_shift(batch, EPISODE)
        return {
            "coef": self.coefficient(step),
            "shift": masked_mean(shift, scored),
            "shift_abs": masked_mean(shift.abs(), scored),
            "skill_tokens": masked_mean(scored.double(), batch.response_mask),
        }


def check_library_teacher(config: MethodConfig, weights: tuple[str, ...] = ("old", "ema")) -> None:
    """Raise ValueError unless the row trains and has a library teacher with one of `weights`."""
    row = f"row {config.id!r} (method.name={config.name})"
    if not config.trains:
        raise ValueError(f"method.trains=false: {row} trains; use method.name=vanilla instead")
    if config.skill.source != "library":
        raise ValueError(
            f"{row} sets method.skill.source={config.skill.source!r}, but its teacher reads a skill library; "
            "set method.skill.source=library"
        )
    if config.teacher.weights not in weights:
        raise ValueError(
            f"{row} sets method.teacher.weights={config.teacher.weights!r}, but its teacher is one of: "
            f"{', '.join(weights)}"
        )
    if config.rollout_skills_train:
        raise ValueError(f"{row} sets method.rollout_skills_train=true, but its student never sees a skill")
