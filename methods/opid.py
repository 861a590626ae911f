"""OPID: on-policy skill distillation (arXiv:2606.26790, section 3 and algorithm 1).

An analyzer reads the finished trajectories and writes an episode skill for each and step skills for its critical
steps. The old policy scores the very tokens it sampled a second time, with the routed skill in the prompt; the shift
of the log-probs is a dense advantage on top of GRPO's:

    Delta_c(tau, t, l) = log pi_old(y_l | H(h_t, skill_c), y_<l) - log pi_old(y_l | h_t, y_<l)     nats, c in {ep, step}
    A_skill_c          = f(Delta_c) * m_c           m_c: tokens that channel c scored;  [R, T]
    A_OPID             = A_ep + lambda_k * (w_ep * A_skill_ep + w_step * A_skill_step)

A_ep is GRPO's advantage (methods/grpo.py). Under critical-first routing m_ep and m_step are disjoint, and with
w_ep = w_step this is the paper's A_ep + lambda_skill * A_skill; under additive routing both cover the critical steps.
f is the identity in paper and scripts. Options of the released code, in its order: normalisation with mean and
population deviation over the scored tokens of a channel, (x - mean) / (std + 1e-6), and only x - mean if
std <= 1e-6; then clipping to +-clip. lambda_k in [0, 1] is the schedule at training step k (methods/schedule.py).

The teacher is the old policy itself, so with every weight at 0 nothing is analysed or scored, and the result equals
GRPO's bit for bit. A trajectory whose analysis failed has no skill term.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from methods import grpo
from methods.interface import (
    Analysis,
    Batch,
    Deviation,
    Method,
    MethodConfig,
    MethodContext,
    MethodSpec,
    SignalConfig,
    TeacherRequest,
    Trajectory,
)
from methods.schedule import coefficient_scale
from methods.skills.analyzer import AnalyzerFailure
from methods.skills.routing import EPISODE, STEP, exchange_skills, route
from methods.validation import OWN_TRAJECTORY_ROUTERS

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-6  # added to the deviation when the signal is normalised (released code)

DEVIATIONS = (
    *grpo.DEVIATIONS,
    Deviation(
        topic="weight of the skill term",
        paper="lambda_skill = 0.001, constant, in every environment",
        code="w_ep = w_step = 0.001, constant, in every script",
        ours="per row (method.coef_episode, method.coef_step, method.schedule); the small models of scale=local use "
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


def skill_shift(batch: Batch, channel: str) -> tuple[Tensor, Tensor]:
    """Delta_c in nats, [R, T] and 0 where not scored, and m_c, [R, T] bool. Both are 0 for a channel without scores.

    Raises ValueError if a scored token has no finite shift.
    """
    import torch

    if channel not in batch.teacher:
        return torch.zeros_like(batch.old_logprobs), torch.zeros_like(batch.response_mask, dtype=torch.bool)
    scored = batch.teacher_mask[channel].bool() & batch.response_mask.bool()
    # where, not a product: whatever stands outside the mask (NaN too) must not matter
    shift = torch.where(scored, batch.teacher[channel] - batch.old_logprobs, 0.0).detach()
    if not bool(shift.isfinite().all()):
        raise ValueError(f"the teacher scores of channel {channel!r} hold a log-prob that is not finite")
    return shift.to(batch.old_logprobs.dtype), scored


def skill_advantage(batch: Batch, channel: str, signal: SignalConfig) -> Tensor:
    """A_skill_c = f(Delta_c) * m_c, [R, T]; nats, or dimensionless if normalised. f: module docstring."""
    shift, scored = skill_shift(batch, channel)
    if signal.normalize and bool(scored.any()):
        values = shift[scored]
        mean, deviation = values.mean(), values.std(unbiased=False)
        centred = values - mean
        shift = shift.masked_scatter(scored, centred / (deviation + EPS) if bool(deviation > EPS) else centred)
    return shift if signal.clip is None else shift.clamp(-signal.clip, signal.clip)


class Opid(Method):
    """GRPO plus the log-prob shift under skills of the policy's own trajectories."""

    def __init__(self, config: MethodConfig, context: MethodContext) -> None:
        super().__init__(config, context)
        if context.analyze is None and (config.coef_episode or config.coef_step):
            raise ValueError(
                f"row {config.id!r} needs an analyzer (MethodContext.analyze), because method.coef_episode="
                f"{config.coef_episode} and method.coef_step={config.coef_step} are not both 0; set `analyzer`"
            )
        self._analysed_step = 0
        self._analyses: Mapping[int, Analysis | None] = {}

    def _weights(self, step: int) -> dict[str, float]:
        scale = coefficient_scale(self.config.schedule, step, self.context.total_steps)
        return {EPISODE: scale * self.config.coef_episode, STEP: scale * self.config.coef_step}

    def after_rollout(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Analyse the trajectories, unless no skill has a weight at this step.

        Metrics: analysis_failures (count), analysis_failure_rate, analysis_dropped (step skills removed by validation),
        critical_steps (mean per analysed trajectory), without_donor (count, router=random only).
        Raises AnalyzerFailure above max_failure_rate.
        """
        self._analysed_step, self._analyses = step, {}
        usable = [t for t in trajectories if t.failure is None and t.turns]
        if self.context.analyze is None or not any(self._weights(step).values()) or not usable:
            return {}
        answers = self.context.analyze(usable)
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
        metrics = {
            "analysis_failures": float(failures),
            "analysis_failure_rate": failures / len(usable),
            "analysis_dropped": float(sum(a.dropped for a in given)),
            "critical_steps": sum(len(a.step_skills) for a in given) / max(len(given), 1),
        }
        self._analyses = {t.index: a for t, a in zip(usable, answers, strict=True)}
        if self.config.skill.router == "random":
            self._analyses, missing = exchange_skills(usable, self._analyses, self.context.seed, step)
            metrics["without_donor"] = float(missing)
        return metrics

    def teacher_requests(self, step: int, trajectories: Sequence[Trajectory]) -> list[TeacherRequest]:
        weights = self._weights(step)
        if not any(weights.values()):
            return []
        if self._analysed_step != step:
            raise RuntimeError(f"teacher_requests of step {step} came before after_rollout of that step")
        return route(self.config.skill.router, trajectories, self._analyses, weights[EPISODE] > 0, weights[STEP] > 0)

    def advantages(self, step: int, batch: Batch) -> Tensor:
        total = grpo.base_advantage(self.config.advantage, batch)
        for channel, weight in self._weights(step).items():
            if weight and channel in batch.teacher:
                total = total + weight * skill_advantage(batch, channel, self.config.signal)
        return total

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """Means over policy tokens unless said otherwise.

        advantage_abs |A_ep|; skill_abs |lambda * A_skill|; coef_scale; skill_tokens: share with a skill term;
        shift, shift_episode, shift_step: mean Delta in nats over scored tokens, before normalising and clipping.
        """
        mask = batch.response_mask.bool()
        base = grpo.base_advantage(self.config.advantage, batch)
        shifts = {channel: skill_shift(batch, channel) for channel in (EPISODE, STEP)}
        scored = shifts[EPISODE][1] | shifts[STEP][1]
        counts = {channel: int(found.sum()) for channel, (_, found) in shifts.items()}
        summed = sum(float(shift.double().sum()) for shift, _ in shifts.values())
        return {
            "advantage_abs": grpo.masked_mean(base.abs(), mask),
            "skill_abs": grpo.masked_mean((self.advantages(step, batch) - base).abs(), mask),
            "coef_scale": coefficient_scale(self.config.schedule, step, self.context.total_steps),
            "skill_tokens": grpo.masked_mean(scored.double(), mask),
            "shift": summed / max(sum(counts.values()), 1),
            "shift_episode": grpo.masked_mean(*shifts[EPISODE]),
            "shift_step": grpo.masked_mean(*shifts[STEP]),
        }


def check(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that OPID cannot honour."""
    row = f"row {config.id!r}"
    if not config.trains:
        raise ValueError(f"method.trains=false: {row} uses opid, which trains; use method.name=vanilla instead")
    if config.skill.source != "own_trajectory":
        raise ValueError(
            f"{row} sets method.skill.source={config.skill.source!r}, but opid takes skills from the policy's own "
            f"trajectories; set own_trajectory and one of the routers {', '.join(OWN_TRAJECTORY_ROUTERS)}"
        )
    if config.coef_step and config.skill.router != "episode_only" and config.skill.max_step_skills < 1:
        raise ValueError(
            f"{row} weighs step skills (method.coef_step={config.coef_step}) but allows none "
            "(method.skill.max_step_skills=0); raise it, or set method.skill.router=episode_only"
        )


SPEC = MethodSpec(
    name="opid",
    build=Opid,
    version=1,  # raise it with grpo.SPEC.version too: A_ep is part of this maths
    uses_teacher=True,
    needs=frozenset({"engine:teacher"}),
    paper="arXiv:2606.26790",
    deviations=DEVIATIONS,
    check=check,
)
