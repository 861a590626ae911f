"""Which store and experiment a command copies records to. Imports no tracker."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from harness.config import TrackingConfig
from harness.redaction import redact

VARIABLE = "MLFLOW_TRACKING_URI"


@dataclass(frozen=True)
class Target:
    """uri: `sqlite:///<file>` or a server's; it may hold a password: show `shown`. experiment: one per sweep.
    origin: who says so."""

    uri: str = field(repr=False)
    experiment: str
    origin: str

    @property
    def shown(self) -> str:
        return redact(self.uri)


def target_of(tracking: TrackingConfig, out: Path, sweep: str) -> Target | None:
    """None where tracking is off. out: the command's output folder, for the default store `<out>/mlflow.db`.

    An address with a password belongs into the environment (MLFLOW_TRACKING_URI): a run's configuration is recorded.
    """
    if not tracking.enabled:
        return None
    experiment = tracking.experiment or sweep
    if tracking.uri:
        return Target(tracking.uri, experiment, "tracking.uri")
    if given := os.environ.get(VARIABLE):
        return Target(given, experiment, f"${VARIABLE}")
    return Target(f"sqlite:///{out / 'mlflow.db'}", experiment, "default")
