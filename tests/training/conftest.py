"""The tiny environment, registered for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tiny_env
import torch

from envs import registry


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.set_num_threads(1)
    monkeypatch.setitem(registry.BUILTIN, "tiny", "tiny_env:SPEC")
    tiny_env.FAILURES.clear()
    yield
    tiny_env.FAILURES.clear()
