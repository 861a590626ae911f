"""OPID: on-policy skill distillation (arXiv:2606.26790, section 3 and algorithm 1).

An analyzer reads the finished trajectories and writes an episode skill for each and step skills for its critical
steps. The old policy scores the very tokens it sampled a second time, with the routed skill in the prompt; the shift
of the log-probs is a dense advantage on top of GRPO's:

    Delta_c(tau, t, l) = log pi_old(y_l | H(h_t, skill_c), y_<l) - log pi_old(y_l | h_t, y_<l)     nats, c in {ep, step}
    A_skill_c          = f(Delta_c) * m_c           m_c: tokens that channel c scored;  [R, T]
    A_OPID             = A_ep + lambda_k * (w_ep * A_skill_ep + w_step * A_skill_step),  lambda_k = coef * schedule(k)

A_ep is GRPO's advantage (methods/grpo.py). Under critical-first routing m_ep and m_step are disjoint, and with
w_ep = w_step this is the paper's A_ep + lambda_skill * A_skill; under additive routing both cover the critical steps.
f is the identity in paper and scripts. Options of the released code, in its order: normalisation with mean and
population deviation over the scored tokens of a channel, (x - mean) / (std + 1e-6), and only x - mean if
std <= 1e-6; then clipping to +-clip. lambda_k in [0, 1] is the schedule at training step k (methods/schedule.py).

The teacher is the old policy itself, so with every weight at 0 nothing is analysed or scored, and the result equals
GRPO's bit for bit. A trajectory whose analysis failed has no skill term.

No formula of section 3 has a number in the paper (v1). Its appendix has numbers: Delta is eq. (1), in A.1, and the
teacher under critical-first routing eq. (14), in A.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.knobs import read_knobs
from methods import grpo
from methods.interface import (
    Analysis,
    Batch,
    Deviation,
    Method,
    MethodConfig,
    MethodContext,
    MethodSpec,
    TeacherRequest,
    Trajectory,
)
from methods.schedule import coefficient_scale
from methods.signal import EPISODE, STEP, masked_mean, shaped_shift, skill_shift
from methods.skills.analyzer import AnalyzerFailure
from methods.skills.routing import exchange_skills, route
from methods.validation import OWN_TRAJECTORY_ROUTERS

if TYPE_CHECKING:
    from torch import Tensor

DEVIATIONS = (
    *grpo.DEVIATIONS,
    Deviation(
        topic="weight of the skill term",
        paper="lambda_skill = 0.001, constant, in every environment",
        code="w_ep = w_step = 0.001, constant, in every script",
        ours="per row (method.coef, method.knobs, method.schedule); the small models of scale=local use "
        "0.25 falling linearly (1/L of it at the last of L steps), because 0.001 belongs to billions of parameters at "
        "a learning rate of 1e-6. It was picked among several weights, constant and falling, by how well OPID did in "
        "an earlier study of small models on games of this kind; GRPO has no such setting and got no search of its "
        "own, which favours OPID",
        source="arXiv:2606.26790 section 4; launch scripts of jinyangwu/OPID@37a15a5",
    ),
    Deviation(
        topic="clipping of the shift",
        paper="none",
        code="available (clip_teacher_adv), off in every script",
        ours="per row (method.signal.clip); 2 nats for the small models, whose shifts on bad actions are large: taken "
        "from the same earlier study, as the weight was",
        source="jinyangwu/OPID@37a15a5 gigpo/core_gigpo.py compute_teacher_token_advantage",
    ),
    Deviation(
        topic="what an analyzer reads",
        paper="task, outcome and the numbered steps of the trajectory",
        code="observation, whole response (reasoning included) and discounted return of each step",
        ours="observation, action and whether it had an effect; an observation beyond analyzer.observation_chars loses "
        "its middle; neither reasoning nor return. analyzer=rules reads the same",
        source="jinyangwu/OPID@37a15a5 opid/analysis.py",
    ),
    Deviation(
        topic="how an analyzer is asked and heard",
        paper="temperature 0.4",
        code="no temperature is sent; the first object with an episode skill wins, be it an echo of the schema; no "
        "second question, no cache, no time limit",
        ours="the temperature is sent (analyzer.temperature); exactly one object with an episode skill is accepted; "
        "one second question after an unusable answer; answers are cached. analyzer=rules asks no model at all",
        source="jinyangwu/OPID@37a15a5 opid/analysis.py",
    ),
    Deviation(
        topic="failed analyses",
        paper="not described",
        code="the trajectory has no skill term; an outage turns training into GRPO with a warning",
        ours="the trajectory has no skill term; above method.skill.max_failure_rate the run stops with the reason",
        source="jinyangwu/OPID@37a15a5 opid/analysis.py, verl/trainer/ppo/ray_trainer.py",
    ),
    Deviation(
        topic="policy loss",
        paper="clipped loss and KL to the initial policy",
        code="also dual clip 3.0 and, except in Search, an entropy bonus of 0.001",
        ours="set once for all rows of a table (training.*)",
        source="arXiv:2606.26790 section 3; jinyangwu/OPID@37a15a5 verl/trainer/ppo/core_algos.py",
    ),
)


@dataclass(frozen=True)
class Knobs:
    """weight_episode, weight_step: w_ep and w_step, weights of the two kinds of skill, no unit."""

    weight_episode: float = 1.0
    weight_step: float = 1.0


class Opid(Method):
    """GRPO plus the log-prob shift under skills of the policy's own trajectories."""

    def __init__(self, config: MethodConfig, context: MethodContext) -> None:
        super().__init__(config, context)
        self.knobs = read_knobs(Knobs, config.knobs, "method.knobs")
        given = context.library if config.skill.source == "library" else context.analyze
        if given is None and config.coef:
            what = "a skill library" if config.skill.source == "library" else "an analyzer"
            raise ValueError(f"row {config.id!r} needs {what}, because method.coef={config.coef} is not 0")
        self._step = 0
        self._usable: list[Trajectory] = []
        self._pending: Future[list[Analysis | None]] | None = None
        self._found: dict[str, float] = {}

    def _weights(self, step: int) -> dict[str, float]:
        scale = self.config.coef * coefficient_scale(self.config.schedule, step, self.context.total_steps)
        return {EPISODE: scale * self.knobs.weight_episode, STEP: scale * self.knobs.weight_step}

    def after_rollout(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Have the analyzer begin, unless no skill has a weight now; `teacher_requests` collects the answers."""
        self._step, self._pending, self._found = step, None, {}
        self._usable = [t for t in trajectories if t.failure is None and t.turns]
        if self._usable and self.context.analyze is not None and any(self._weights(step).values()):
            self._pending = self.context.analyze(self._usable)
        return {}

    def teacher_requests(self, step: int, trajectories: Sequence[Trajectory]) -> list[TeacherRequest]:
        """Raises AnalyzerFailure if more than max_failure_rate of the analyses failed."""
        weights = self._weights(step)
        if not any(weights.values()):
            return []
        if self._step != step:
            raise RuntimeError(f"teacher_requests of step {step} came before after_rollout of that step")
        return route(
            self.config.skill.router, trajectories, self._analyses(step), weights[EPISODE] > 0, weights[STEP] > 0
        )

    def _analyses(self, step: int) -> Mapping[int, Analysis | None]:
        """Skills by trajectory index."""
        if self.config.skill.source == "library":
            library = self.context.library
            return {} if library is None else {t.index: Analysis(library(t), {}) for t in self._usable}
        if self._pending is None:
            return {}
        answers, usable = self._pending.result(), self._usable
        if len(answers) != len(usable):
            raise ValueError(f"the analyzer gave {len(answers)} answers for {len(usable)} trajectories")
        given = [a for a in answers if a is not None]
        failures = len(usable) - len(given)
        if failures / len(usable) > self.config.skill.max_failure_rate:
            raise AnalyzerFailure(
                f"step {step}: {failures} of {len(usable)} analyses failed, more than method.skill.max_failure_rate="
                f"{self.config.skill.max_failure_rate} allows (row {self.config.id!r}). Going on would train without "
                "skills. Repair the analyzer, or raise the rate if that many failures are expected"
            )
        self._found = {
            "analysis_failures": float(failures),
            "analysis_failure_rate": failures / len(usable),
            "analysis_dropped": float(sum(a.dropped for a in given)),
            "critical_steps": sum(len(a.step_skills) for a in given) / max(len(given), 1),
        }
        analyses: Mapping[int, Analysis | None] = {t.index: a for t, a in zip(usable, answers, strict=True)}
        if self.config.skill.router == "random":
            analyses, missing = exchange_skills(usable, analyses, self.context.seed, step)
            self._found["without_donor"] = float(missing)
        return analyses

    def advantages(self, step: int, batch: Batch) -> Tensor:
        total = grpo.base_advantage(self.config.advantage, batch)
        for channel, weight in self._weights(step).items():
            if weight and channel in batch.teacher:
                total = total + weight * shaped_shift(batch, channel, self.config.signal)
        return total

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """Means over policy tokens unless said otherwise.

        advantage_abs |A_ep|; skill_abs |lambda * A_skill|; coef_scale; skill_tokens: share with a skill term;
        shift, shift_episode, shift_step: mean Delta in nats over scored tokens, before normalising and clipping.
        Of analyses: analysis_failures (count), analysis_failure_rate, analysis_dropped (step skills removed by
        validation), critical_steps (mean per analysed trajectory), without_donor (count, router=random only).
        """
        mask = batch.response_mask.bool()
        base = grpo.base_advantage(self.config.advantage, batch)
        shifts = {channel: skill_shift(batch, channel) for channel in (EPISODE, STEP)}
        scored = shifts[EPISODE][1] | shifts[STEP][1]
        counts = {channel: int(found.sum()) for channel, (_, found) in shifts.items()}
        summed = sum(float(shift.double().sum()) for shift, _ in shifts.values())
        return {
            **self._found,
            "advantage_abs": masked_mean(base.abs(), mask),
            "skill_abs": masked_mean((self.advantages(step, batch) - base).abs(), mask),
            "coef_scale": coefficient_scale(self.config.schedule, step, self.context.total_steps),
            "skill_tokens": masked_mean(scored.double(), mask),
            "shift": summed / max(sum(counts.values()), 1),
            "shift_episode": masked_mean(*shifts[EPISODE]),
            "shift_step": masked_mean(*shifts[STEP]),
        }


def check(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that OPID cannot honour."""
    row, knobs = f"row {config.id!r}", read_knobs(Knobs, config.knobs, "method.knobs")
    if not config.trains:
        raise ValueError(f"method.trains=false: {row} uses opid, which trains; use method.name=vanilla instead")
    if config.skill.source not in ("own_trajectory", "library"):
        raise ValueError(
            f"{row} sets method.skill.source={config.skill.source!r}, but opid takes skills from the policy's own "
            f"trajectories (own_trajectory, with one of the routers {', '.join(OWN_TRAJECTORY_ROUTERS)}) or, as an "
            "ablation, from a library"
        )
    if config.teacher.weights != "old":
        raise ValueError(
            f"{row} sets method.teacher.weights={config.teacher.weights!r}, but opid's teacher is the old policy; "
            "set old"
        )
    for name, weight in (("weight_episode", knobs.weight_episode), ("weight_step", knobs.weight_step)):
        if weight < 0:
            raise ValueError(f"method.knobs.{name}={weight} must not be negative ({row})")
    own = config.skill.source == "own_trajectory"
    if own and knobs.weight_step and config.skill.router != "episode_only" and config.skill.max_step_skills < 1:
        raise ValueError(
            f"{row} weighs step skills (method.knobs.weight_step={knobs.weight_step}) but allows none "
            "(method.skill.max_step_skills=0); raise it, or set method.skill.router=episode_only"
        )


SPEC = MethodSpec(
    name="opid",
    build=Opid,
    version=2,  # raise it with grpo.SPEC.version too: A_ep is part of this maths
    uses_teacher=True,
    needs=frozenset({"engine:teacher"}),
    paper="arXiv:2606.26790",
    deviations=DEVIATIONS,
    knobs=Knobs,
    check=check,
)
