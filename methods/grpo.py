"""GRPO: group-relative policy optimisation without a value function.

Source: Shao et al., DeepSeekMath, arXiv:2402.03300v3, section 4.1 (objective: eq. (3); advantage under outcome
supervision: section 4.1.2, not numbered). The same advantage, per trajectory of an agent, is A_ep of GiGPO
(arXiv:2505.10978v3, eq. (3)) and of OPID (arXiv:2606.26790v1, section 3.4, not numbered):

    A_ep(tau, t, l) = (R(tau) - mu_q) / sigma_q,     mu_q, sigma_q over the N rollouts of task q

Here an environment step is the unit that is scored, because the penalty for an invalid response belongs to one step:

    s(tau, t) = R(tau) - c * 1[step t of tau is invalid]                     (return units)
    A(tau, t) = (s(tau, t) - mu_q) / (sigma_q + 1e-6),   or s - mu_q without std
    mu_q      = sum_i w_i s_i / sum_i w_i            over the steps i of all trajectories of task q

    stats_over=trajectories: w_i = 1 / (number of steps of i's trajectory), so that each trajectory counts once;
        sigma_q^2 = sum_i w_i (s_i - mu_q)^2 / sum_i w_i, the population variance. Without invalid steps this is exactly
        the paper's population standard deviation over the returns of the N trajectories.
    stats_over=steps: w_i = 1; sigma_q^2 = sum_i (s_i - mu_q)^2 / (n - 1), the unbiased variance of the released code,
        where long trajectories weigh more.

Why the variance within trajectories is counted too: dividing by the deviation of trajectory means alone explodes when
all means agree but single steps were penalised (0.01 / 1e-6 = 10,000).

Declared behaviour at the edges: if all step scores of a group are equal (a group of one step included), every advantage
of that group is exactly 0. A trajectory without any step has no advantage and counts nowhere. The policy loss
(clipping, KL) belongs to the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from methods.interface import AdvantageConfig, Batch, Deviation, Method, MethodConfig, MethodSpec
from methods.signal import masked_mean
from methods.validation import STATS_OVER, check_base

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-6  # added to sigma, as in the released code of GRPO's descendants and of OPID

DEVIATIONS = (
    Deviation(
        topic="group statistics",
        paper="mean and population standard deviation over the trajectories of a group",
        code="mean and unbiased standard deviation over all environment steps of a group, duplicated rows included",
        ours="trajectories by default (each counts once), steps on request; rows are never duplicated",
        source="arXiv:2606.26790 section 3.4; jinyangwu/OPID@37a15a5 gigpo/core_gigpo.py, ray_trainer.py adjust_batch",
    ),
    Deviation(
        topic="division by the standard deviation",
        paper="always",
        code="mode mean_std_norm for ALFWorld-3B and Search, mean_norm (no division) in the other scripts",
        ours="one setting for all rows of a table (method.advantage.std)",
        source="arXiv:2606.26790 section 3.4; launch scripts of jinyangwu/OPID@37a15a5",
    ),
    Deviation(
        topic="invalid responses",
        paper="a penalty is not part of the advantage's formula",
        code="subtracted from the score of the invalid step before the group statistics; only format counts",
        ours="as the code; training.penalise says whether format or admissibility counts",
        source="jinyangwu/OPID@37a15a5 gigpo/core_gigpo.py and agent_system/environments",
    ),
    Deviation(
        topic="mean over tokens",
        paper="per response, then over responses",
        code="over the tokens of each micro-batch, then over micro-batches, so that tokens of a micro-batch with few "
        "of them weigh more",
        ours="over all policy tokens of a mini-batch alike, however it is cut into micro-batches, under every protocol",
        source="arXiv:2402.03300; jinyangwu/OPID@37a15a5 verl/trainer/ppo",
    ),
    Deviation(
        topic="groups without contrast",
        paper="undefined (sigma = 0)",
        code="ties give 0; a group of a single row keeps its raw score (mean 0, std 1)",
        ours="exactly 0 in both cases",
        source="jinyangwu/OPID@37a15a5 gigpo/core_gigpo.py episode_norm_reward",
    ),
)

POLICY_LOSS = Deviation(  # of methods without a teacher; those with one tell it in words of their own
    topic="policy loss",
    paper="clipped loss and KL to the initial policy, 0.01 (SDAR's appendix: in every environment)",
    code="also dual clip 3.0 (SDAR's algorithm 2 has one too, without a value) and an entropy bonus of 0.001 (OPID's "
    "Search script: none); KL 0.001 in Search",
    ours="set once for all rows of a table (training.*); protocol=paper and code follow the sources",
    source="arXiv:2402.03300; arXiv:2605.15155 appendix C; scripts of ZJU-REAL/SDAR@8b85c23, jinyangwu/OPID@37a15a5",
)


def step_scores(batch: Batch) -> Tensor:
    """[S] float64, in return units: R(tau) minus the penalty of each invalid step. Raises ValueError if not finite."""
    scores = batch.returns.double()[batch.step_trajectory] - batch.invalid_penalty * batch.step_invalid.double()
    if not bool(scores.isfinite().all()):
        raise ValueError("Batch.returns holds a value that is not finite; failed trajectories must not be in the batch")
    return scores


def group_advantage(batch: Batch, std: bool, stats_over: str) -> Tensor:
    """A(tau, t) of each environment step, [S] float64, dimensionless with `std`, else in return units.

    Formula, and what mean and deviation are taken over: module docstring. Raises ValueError for an unknown
    `stats_over` and for returns that are not finite.
    """
    import torch

    if stats_over not in STATS_OVER:
        raise ValueError(f"stats_over={stats_over!r} must be one of {', '.join(STATS_OVER)}")
    scores = step_scores(batch)
    labels, group_of_trajectory = torch.unique(batch.group, return_inverse=True)
    group = group_of_trajectory[batch.step_trajectory]  # [S]
    groups = len(labels)

    def total(values: Tensor) -> Tensor:
        return values.new_zeros(groups).index_add_(0, group, values)

    weight = torch.ones_like(scores)
    if stats_over == "trajectories":
        steps = torch.bincount(batch.step_trajectory, minlength=len(batch.group)).double()
        weight = 1.0 / steps[batch.step_trajectory]
    mass = total(weight)
    centred = scores - (total(weight * scores) / mass)[group]
    advantage = centred
    if std:
        spread = total(weight * centred.square())
        # n - 1 = 0 only for a group of one step, which is zeroed below
        variance = spread / (mass if stats_over == "trajectories" else (mass - 1).clamp(min=1))
        advantage = centred / (variance.sqrt()[group] + EPS)

    # Rounding of the mean must not turn a tie into a signal, so ties are found by comparison and set to exactly 0.
    low = scores.new_full((groups,), float("inf")).scatter_reduce_(0, group, scores, "amin")
    high = scores.new_full((groups,), float("-inf")).scatter_reduce_(0, group, scores, "amax")
    return torch.where((low == high)[group], torch.zeros_like(advantage), advantage)


def to_tokens(per_step: Tensor, batch: Batch) -> Tensor:
    """Spread one value per environment step, [S], over the policy tokens of that step: [R, T], 0 outside the mask.

    The result has the dtype of `batch.old_logprobs` and carries no gradient. Raises ValueError if a policy token
    belongs to no environment step.
    """
    import torch

    mask = batch.response_mask.bool()
    out = torch.zeros_like(batch.old_logprobs)
    step = batch.token_step[mask]
    if step.numel() and not bool(((step >= 0) & (step < len(per_step))).all()):
        raise ValueError(
            f"Batch.token_step holds {int(step.min())}..{int(step.max())} inside response_mask, "
            f"but the batch has environment steps 0..{len(per_step) - 1}"
        )
    out[mask] = per_step.detach().to(out.dtype)[step]
    return out


def base_advantage(config: AdvantageConfig, batch: Batch) -> Tensor:
    """[R, T] base advantage that every method stands on: pg_coef * A of GRPO or GiGPO, or 0 for estimator=none."""
    import torch

    if config.estimator == "none":
        return torch.zeros_like(batch.old_logprobs)
    if config.estimator == "gigpo":
        from methods import gigpo  # which stands on this module

        per_step = gigpo.total_advantage(config, batch)
    else:
        per_step = group_advantage(batch, config.std, config.stats_over)
    # 1.0 * x == x in floating point, so the factor costs no bit of equality between methods
    return to_tokens(config.pg_coef * per_step, batch)


class Grpo(Method):
    """Outcome reward alone: no teacher, no skill term."""

    def advantages(self, step: int, batch: Batch) -> Tensor:
        return base_advantage(self.config.advantage, batch)

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """advantage_abs: mean |A| over policy tokens."""
        return {"advantage_abs": masked_mean(self.advantages(step, batch).abs(), batch.response_mask)}


def check(config: MethodConfig) -> None:
    """Raise ValueError for keys that GRPO would silently ignore."""
    check_base(config, "grpo")
    if config.advantage.estimator == "gigpo":
        raise ValueError(
            f"row {config.id!r} uses grpo but sets method.advantage.estimator=gigpo; use method.name=gigpo"
        )


SPEC = MethodSpec(
    name="grpo",
    build=Grpo,
    version=1,
    uses_teacher=False,
    paper="arXiv:2402.03300",
    deviations=(*DEVIATIONS, POLICY_LOSS),
    check=check,
)
