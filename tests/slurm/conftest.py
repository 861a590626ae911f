from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_cluster import Cluster, laboratory


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes with two fake GPUs each, and accounting. Shared by all tests of a process."""
    with laboratory() as made:
        yield made


@pytest.fixture(scope="session")
def cluster_without_accounting() -> Iterator[Cluster]:
    """Four nodes, and no sacct."""
    with laboratory("--without-accounting") as made:
        yield made
