"""Which step of a trajectory is scored under which skill.

OPID, critical-first routing (arXiv:2606.26790, section 3): the skill of step t is its step skill if t is critical
(the analyzer gave it one), else the episode skill. The other routers are the paper's ablations and a control:

    critical_first  step skill on critical steps, episode skill on all others
    episode_only    episode skill on every step
    step_only       step skill on critical steps, nothing elsewhere
    additive        episode skill on every step, and critical steps scored a second time with the step skill alone
    random          critical_first with the skills of another task's trajectory (see `exchange_skills`)

A kind of skill whose weight is 0 is treated as absent, as in the released code: critical_first without a step weight
scores every step with the episode skill, without an episode weight only the critical steps.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from methods.interface import Analysis, TeacherRequest, Trajectory
from methods.signal import EPISODE, STEP


def route(
    router: str,
    trajectories: Sequence[Trajectory],
    analyses: Mapping[int, Analysis | None],
    episode: bool,
    step: bool,
) -> list[TeacherRequest]:
    """What to score, in the order of trajectories and steps.

    analyses: by trajectory index; a trajectory with None or without an entry is not scored at all
    episode, step: whether that kind of skill has a weight
    No step appears twice in one channel. All steps of a trajectory that share the episode skill are one request.
    Raises ValueError if an analysis names a step that its trajectory does not have.
    """
    requests: list[TeacherRequest] = []
    for trajectory in trajectories:
        analysis = analyses.get(trajectory.index)
        if analysis is None:
            continue
        steps = range(len(trajectory.turns))
        absent = sorted(k for k in analysis.step_skills if k not in steps)
        if absent:
            raise ValueError(
                f"the analysis of trajectory {trajectory.index} ({trajectory.task_id}) has skills for steps {absent}, "
                f"but it has only {len(steps)} steps; analyzers must pass their answers through validate_analysis"
            )
        critical = sorted(analysis.step_skills) if step and router != "episode_only" else []
        covered = set() if router == "additive" else set(critical)
        rest = tuple(k for k in steps if k not in covered)
        if episode and router != "step_only" and rest:
            requests.append(TeacherRequest(EPISODE, trajectory.index, rest, episode_skill=analysis.episode_skill))
        requests.extend(
            TeacherRequest(STEP, trajectory.index, (k,), step_skill=analysis.step_skills[k]) for k in critical
        )
    return requests


def exchange_skills(
    trajectories: Sequence[Trajectory], analyses: Mapping[int, Analysis | None], seed: int, step: int
) -> tuple[dict[int, Analysis | None], int]:
    """Give each analysed trajectory the skills of a trajectory of another task; returns (analyses, without a donor).

    A control: same amount of text and of scoring, wrong content. The donor is drawn among the analysed trajectories of
    other tasks (thus of other task groups), by a generator that depends only on (seed, step, trajectory index). A
    trajectory keeps the positions of its own critical steps; their texts are the donor's step skills in order,
    repeated if there are too few. If that donor has none, another donor gives them; if no donor has any, those steps
    get the donor's episode skill. A trajectory without any donor gets None: a step may be about one task, where the end
    of an epoch draws it again or the environments of the others broke.
    """
    exchanged: dict[int, Analysis | None] = {}
    missing = 0
    for trajectory in trajectories:
        own = analyses.get(trajectory.index)
        if own is None:
            exchanged[trajectory.index] = None
            continue
        donors = [
            other
            for t in trajectories
            if t.task_id != trajectory.task_id
            if (other := analyses.get(t.index)) is not None
        ]
        if not donors:
            exchanged[trajectory.index] = None
            missing += 1
            continue
        draw = random.Random(f"random-skills/{seed}/{step}/{trajectory.index}")
        donor = draw.choice(donors)
        texts = _texts(donor) or _texts(draw.choice([d for d in donors if d.step_skills] or [donor]))
        positions = sorted(own.step_skills) if texts else []
        exchanged[trajectory.index] = Analysis(
            donor.episode_skill, {k: texts[i % len(texts)] for i, k in enumerate(positions)}
        )
    return exchanged, missing


def _texts(analysis: Analysis) -> list[str]:
    return [analysis.step_skills[k] for k in sorted(analysis.step_skills)]
