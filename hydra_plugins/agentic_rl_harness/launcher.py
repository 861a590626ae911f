"""hydra/launcher=harness_local | harness_slurm: jobs become runs of the harness, each composed and validated once."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class HarnessLocalConf:
    _target_: str = "hydra_plugins.agentic_rl_harness.launcher.HarnessLocalLauncher"
    workers: int | None = None  # runs at a time; None: what the configuration's launcher.workers says


@dataclass
class HarnessSlurmConf:
    _target_: str = "hydra_plugins.agentic_rl_harness.launcher.HarnessSlurmLauncher"
    wait: bool | None = None  # stay until every run has an outcome; None: what the configuration's `wait` says


_STORE = ConfigStore.instance()
_STORE.store(group="hydra/launcher", name="harness_local", node=HarnessLocalConf, provider="harness")
_STORE.store(group="hydra/launcher", name="harness_slurm", node=HarnessSlurmConf, provider="harness")


class HarnessLauncher(Launcher):
    """Makes run directories and has them executed by processes or Slurm jobs of their own, which read nothing else.

    The application's own function is not called: what executes a run is the harness.
    """

    harness_launcher = ""  # file of the configuration group `launcher`

    def __init__(self, **settings: Any) -> None:
        self.settings = {key: value for key, value in settings.items() if value is not None}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config

    @abstractmethod
    def arguments(self) -> list[str]:
        """Overrides that choose this launcher in a command of the harness, with its settings."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from harness.hydra_jobs import launch

        jobs: Sequence[JobReturn] = launch(self.hydra_context.config_loader, self.config, self, job_overrides)
        return jobs


class HarnessLocalLauncher(HarnessLauncher):
    harness_launcher = "local"

    def arguments(self) -> list[str]:
        workers = self.settings.get("workers")
        return ["launcher=local", *([f"launcher.workers={workers}"] if workers is not None else [])]


class HarnessSlurmLauncher(HarnessLauncher):
    harness_launcher = "slurm"

    def arguments(self) -> list[str]:
        wait = self.settings.get("wait")
        return ["launcher=slurm", *([f"wait={str(wait).lower()}"] if wait is not None else [])]
