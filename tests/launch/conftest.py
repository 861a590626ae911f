from __future__ import annotations

from pathlib import Path

import pytest
from fake_slurm import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    """Clients of a cluster without accounting and without jobs."""
    return FakeSlurm(tmp_path / "slurm clients")
