"""Whose log-probs a teacher's scores are: the rollout policy's, a frozen network's, or a moving average's.

    old     the policy that sampled; no weights of its own
    frozen  the final weights of another run, loaded when first needed and let go when the method is done with it
    ema     theta_T <- decay * theta_T + (1 - decay) * theta after each training step, from the initial weights; float32

All are one object to the training loop: `network()` scores, `after_update` follows the student, `release` frees memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from harness.training.network import Network

if TYPE_CHECKING:
    from methods.interface import TeacherConfig


class Teacher:
    """The rollout policy itself."""

    own_weights = True  # of the policy that sampled

    def __init__(self, policy: Network) -> None:
        self._policy = policy

    def network(self) -> Network:
        """Whose forward passes score. May load weights."""
        return self._policy

    def after_update(self) -> None:
        """The policy has made a training step."""

    def release(self) -> None:
        """Nothing more will be asked for: free what can be freed. `network` still works."""

    @property
    def module(self) -> torch.nn.Module | None:
        """Weights that a checkpoint must keep, or None."""
        return None


class FrozenTeacher(Teacher):
    """load: makes the teacher's network; called when it is first needed, and again after `release`."""

    own_weights = False

    def __init__(self, load: Callable[[], Network]) -> None:
        self._load = load
        self._loaded: Network | None = None

    def network(self) -> Network:
        if self._loaded is None:
            self._loaded = self._load()
            self._loaded.model.requires_grad_(False)
        return self._loaded

    def release(self) -> None:
        self._loaded = None


class AverageTeacher(Teacher):
    """The moving average. decay: share of the old average that stays, in [0, 1]; 0 is the rollout policy."""

    own_weights = False

    def __init__(self, policy: Network, decay: float) -> None:
        super().__init__(policy)
        self._decay = decay
        # In float32 whatever the policy has: in half precision a small step would round to none.
        average = copy.deepcopy(policy.model).float().requires_grad_(False)
        self._average = Network(average, str(policy.device))

    def network(self) -> Network:
        return self._average

    @torch.no_grad()
    def after_update(self) -> None:
        pairs = zip(self._average.model.parameters(), self._policy.model.parameters(), strict=True)
        for mean, current in pairs:
            mean.lerp_(current.to(mean.dtype), 1 - self._decay)

    @property
    def module(self) -> torch.nn.Module:
        return self._average.model  # type: ignore[no-any-return]


def make_teacher(config: TeacherConfig, policy: Network, load: Callable[[], Network] | None) -> Teacher:
    """The teacher of a run at its initial weights. load: of the frozen teacher's network; needed for weights=frozen."""
    if config.weights == "frozen":
        if load is None:
            raise ValueError("method.teacher.weights=frozen needs the weights of another run; none were given")
        return FrozenTeacher(load)
    if config.weights == "ema":
        return AverageTeacher(policy, config.decay)
    return Teacher(policy)
