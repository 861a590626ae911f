from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Stand-ins for runs are those of the harness's own tests.
sys.path.append(str(Path(__file__).resolve().parents[1] / "harness"))


@pytest.fixture(autouse=True)
def few_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away is noticed at once, and none of the machine's own is used."""
    from harness import tracking

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracking.quiet()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
