"""The games of ALFWorld, where every n-th reset gives an episode that breaks at its first step.

n: environment variable FLAKY. verl's processes import this through VERL_USE_EXTERNAL_MODULES.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

from envs import registry
from envs.alfworld.spec import SPEC as GAMES
from envs.interface import EnvConfig, EnvironmentFailure

_resets = itertools.count()


class Flaky:
    def __init__(self, inner: Any) -> None:
        self.inner, self.broken = inner, False

    def reset(self, task: Any) -> Any:
        self.broken = next(_resets) % int(os.environ["FLAKY"]) == 0
        return self.inner.reset(task)

    def step(self, action: str) -> Any:
        if self.broken:
            raise EnvironmentFailure("the engine broke")
        return self.inner.step(action)

    def close(self) -> None:
        self.inner.close()


def make(config: EnvConfig) -> Flaky:
    return Flaky(GAMES.make(config))


SPEC = dataclasses.replace(GAMES, make=make)
registry.BUILTIN["alfworld"] = "flaky_env:SPEC"
