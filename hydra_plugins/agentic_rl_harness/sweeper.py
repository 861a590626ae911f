"""hydra/sweeper=harness: the arguments of a multirun are a command of the harness."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class HarnessSweeperConf:
    _target_: str = "hydra_plugins.agentic_rl_harness.sweeper.HarnessSweeper"
    params: dict[str, str] = field(default_factory=dict)  # arguments kept in a file; those of the command line win


ConfigStore.instance().store(group="hydra/sweeper", name="harness", node=HarnessSweeperConf, provider="harness")


class HarnessSweeper(Sweeper):
    """Plans cells as `python -m harness` does, and gives them to the launcher: all at once to one of the harness's, as
    lists of overrides to any other."""

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        self.params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: Sequence[str]) -> Any:
        from harness.hydra_jobs import sweep

        kept = [f"{key}={value}" for key, value in self.params.items()]
        return sweep(self.hydra_context.config_loader, self.config, self.launcher, [*kept, *arguments])
