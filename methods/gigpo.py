"""GiGPO: group-in-group policy optimisation (Feng et al., arXiv:2505.10978).

A second comparison inside GRPO's: steps of one task group that started from the same state are compared with each
other by what came after them. Numbers as in v3, whose eqs. (5) and (7)
have neither c nor the 1e-6.

    A(tau, t)      = A_ep(tau, t) + omega * A_step(tau, t)                           eq. (8) [S], dimensionless with std
    A_ep           GRPO's advantage (methods/grpo.py)                                eq. (3)
    R_t            = sum_{k >= t} gamma^(k - t) * r_k  -  c * 1[step t is invalid]   eq. (5)  return units
    A_step(tau, t) = (R_t - mu_x) / (sigma_x + 1e-6),   or R_t - mu_x without std    eq. (7)
    mu_x, sigma_x  over the steps of all trajectories of the task whose anchor state is x, eq. (6);
                   each visit counts once

r_k is the raw reward of environment step k (`Batch.step_reward`), gamma the discount per environment step, and the
anchor state is what the environment said before the step (`Batch.observations`). anchor=exact: equal texts.
anchor=similar: in order of appearance, a text joins the first state whose first text has a difflib ratio of at least
`similarity` with it (difflib as it comes: in texts of 200 characters and more, frequent characters begin no match). The
penalty c of an invalid step counts for that step alone: it is not discounted into earlier ones. `stats_over` says which
deviation sigma_x is: the population's with trajectories, the unbiased one with steps.

At the edges: a state visited once, or whose visits all have the same R_t, gives exactly 0. omega = 0 is GRPO bit for
bit; "GiGPO without std" is std=false for both parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from methods import grpo
from methods.interface import AdvantageConfig, Batch, Deviation, MethodConfig, MethodSpec
from methods.signal import masked_mean
from methods.validation import ANCHORS, check_base

if TYPE_CHECKING:
    from torch import Tensor

DEVIATIONS = (
    *grpo.DEVIATIONS,
    grpo.POLICY_LOSS,
    Deviation(
        topic="deviation within an anchor state",
        paper="the group's standard deviation, or 1 (the variant without std)",
        code="unbiased over the rows of the state, duplicated rows included; mode mean_std_norm or mean_norm",
        ours="population (stats_over=trajectories) or unbiased (steps); method.advantage.std switches both parts; "
        "rows are never duplicated",
        source="arXiv:2505.10978; ZJU-REAL/SDAR@8b85c23 core_gigpo.py",
    ),
    Deviation(
        topic="anchor states",
        paper="the same environment state",
        code="equal observation texts; in Search texts with a difflib ratio of at least 0.9",
        ours="as the code (method.advantage.anchor, similarity)",
        source="ZJU-REAL/SDAR@8b85c23 core_gigpo.py",
    ),
    Deviation(
        topic="invalid responses in step returns",
        paper="not in the formula",
        code="the penalty is subtracted from the discounted return of that step, after discounting",
        ours="as the code",
        source="ZJU-REAL/SDAR@8b85c23 ray_trainer.py",
    ),
)


def step_returns(batch: Batch, gamma: float) -> Tensor:
    """R_t of each environment step, [S] float64, in return units. Raises ValueError without finite step rewards."""
    import torch

    if batch.step_reward is None or len(batch.step_reward) != len(batch.step_trajectory):
        raise ValueError(
            "method.advantage.estimator=gigpo needs one reward per environment step (Batch.step_reward), but the batch "
            f"has {'none' if batch.step_reward is None else len(batch.step_reward)} for "
            f"{len(batch.step_trajectory)} steps"
        )
    reward = batch.step_reward.double()
    if not bool(reward.isfinite().all()):
        raise ValueError("Batch.step_reward holds a value that is not finite; failed trajectories must be left out")
    # Backwards over step numbers, all trajectories at once: as many rounds as the longest trajectory has steps.
    running = reward.new_zeros(len(batch.group))
    returns = torch.empty_like(reward)
    order = torch.argsort(batch.step_number, descending=True, stable=True)
    for steps in torch.split(order, torch.bincount(batch.step_number).flip(0).tolist()):
        trajectory = batch.step_trajectory[steps]
        running[trajectory] = reward[steps] + gamma * running[trajectory]
        returns[steps] = running[trajectory]
    return returns - batch.invalid_penalty * batch.step_invalid.double()


def anchor_states(groups: Sequence[int], observations: Sequence[str], anchor: str, similarity: float) -> list[int]:
    """Number of the anchor state of each step, [S]; steps of different task groups never share one.

    groups: task group of each step. Linear in S for anchor=exact; for similar, each distinct text is compared with the
    states found so far in its group. Raises ValueError for an unknown `anchor`, and if there is not one text per step.
    """
    if anchor not in ANCHORS:
        raise ValueError(f"anchor={anchor!r} must be one of {', '.join(ANCHORS)}")
    if len(groups) != len(observations):
        raise ValueError(
            "method.advantage.estimator=gigpo needs one observation per environment step (Batch.observations), but the "
            f"batch has {len(observations)} for {len(groups)} steps"
        )
    state_of: dict[tuple[int, str], int] = {}
    firsts: dict[int, list[tuple[int, SequenceMatcher[str]]]] = {}  # group -> (state, matcher of its first text)
    states = 0
    found = []
    for key in zip(groups, observations, strict=True):
        if key not in state_of:
            group, text = key
            near = _similar(text, firsts.get(group, []), similarity) if anchor == "similar" else None
            if near is None:
                near, states = states, states + 1
                firsts.setdefault(group, []).append((near, SequenceMatcher(None, "", text)))
            state_of[key] = near
        found.append(state_of[key])
    return found


def _similar(text: str, firsts: Sequence[tuple[int, SequenceMatcher[str]]], similarity: float) -> int | None:
    for state, matcher in firsts:
        matcher.set_seq1(text)
        # dear ones last: the quick ratios are upper bounds of the true one
        if all(ratio() >= similarity for ratio in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)):
            return state
    return None


def _states(config: AdvantageConfig, batch: Batch) -> Tensor:
    """`anchor_states` of a batch, [S]; worked out once per batch, because comparing long texts takes seconds."""
    import torch

    key = ("gigpo.states", config.anchor, config.similarity)
    given = (batch.group, batch.step_trajectory, batch.observations)
    found = batch.memo.get(key)
    if found is None or any(one is not other for one, other in zip(found[0], given, strict=True)):
        groups = batch.group[batch.step_trajectory].tolist()
        states = anchor_states(groups, batch.observations, config.anchor, config.similarity)
        found = given, torch.tensor(states, dtype=torch.long, device=batch.group.device)
        batch.memo[key] = found
    states_of: Tensor = found[1]
    return states_of


def step_advantage(config: AdvantageConfig, batch: Batch) -> Tensor:
    """A_step of each environment step, [S] float64; dimensionless with std, else in return units."""
    import torch

    returns, state = step_returns(batch, config.gamma), _states(config, batch)
    visits = torch.bincount(state).double()
    total = torch.zeros_like(visits).index_add_(0, state, returns)
    centred = returns - (total / visits)[state]
    advantage = centred
    if config.std:
        spread = torch.zeros_like(visits).index_add_(0, state, centred.square())
        variance = spread / (visits if config.stats_over == "trajectories" else (visits - 1).clamp(min=1))
        advantage = centred / (variance.sqrt()[state] + grpo.EPS)
    low = torch.full_like(visits, float("inf")).scatter_reduce_(0, state, returns, "amin")
    high = torch.full_like(visits, float("-inf")).scatter_reduce_(0, state, returns, "amax")
    return torch.where((low == high)[state], torch.zeros_like(advantage), advantage)  # as in grpo: ties are exactly 0


def total_advantage(config: AdvantageConfig, batch: Batch) -> Tensor:
    """A_ep + omega * A_step of each environment step, [S] float64."""
    episode = grpo.group_advantage(batch, config.std, config.stats_over)
    return episode + config.omega * step_advantage(config, batch) if config.omega else episode


class Gigpo(grpo.Grpo):
    """Outcome reward and step returns: no teacher, no skill term."""

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """advantage_abs: mean |A| over policy tokens; step_advantage_abs: mean |omega * A_step| over them;
        anchored: share of steps whose state was visited more than once; state_visits: mean visits per state."""
        import torch

        config = self.config.advantage
        state = _states(config, batch)
        visits = torch.bincount(state)
        part = grpo.to_tokens(config.omega * step_advantage(config, batch), batch)
        return {
            **super().metrics(step, batch),
            "step_advantage_abs": masked_mean(part.abs(), batch.response_mask),
            "anchored": float((visits[state] > 1).double().mean()) if len(state) else 0.0,
            "state_visits": float(visits.double().mean()) if len(visits) else 0.0,
        }


def check(config: MethodConfig) -> None:
    """Raise ValueError for another estimator, and for keys that GiGPO would silently ignore."""
    check_base(config, "gigpo")
    if config.advantage.estimator != "gigpo":
        raise ValueError(
            f"row {config.id!r} uses gigpo but sets method.advantage.estimator={config.advantage.estimator!r}; "
            "set gigpo"
        )


SPEC = MethodSpec(
    name="gigpo",
    build=Gigpo,
    version=1,  # raise it with grpo.SPEC.version too: A_ep is part of this maths
    uses_teacher=False,
    paper="arXiv:2505.10978",
    deviations=DEVIATIONS,
    check=check,
)
