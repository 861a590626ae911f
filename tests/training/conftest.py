"""The tiny environment, registered for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tiny_env
import torch

from envs import registry


@pytest.fixture(scope="session", autouse=True)
def registered() -> Iterator[None]:
    """For the whole session: runs that tests share are made before the first test begins."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BUILTIN, "tiny", "tiny_env:SPEC")
        yield


@pytest.fixture(autouse=True)
def working() -> Iterator[None]:
    """No environment fails unless a test says so."""
    tiny_env.FAILURES.clear()
    yield
    tiny_env.FAILURES.clear()
