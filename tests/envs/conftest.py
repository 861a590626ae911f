"""A small generated world, made once for all tests of the data and of the engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envs.alfworld import generated
from envs.alfworld.manifest import Manifest
from envs.interface import EnvConfig


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache with space")


@pytest.fixture(scope="session")
def config(cache: Path) -> EnvConfig:
    """One game per type and panel; the native engine, so that nothing is translated ahead."""
    return EnvConfig(engine="native", cache=str(cache), train_per_type=1, eval_per_type=1, max_steps=50)


@pytest.fixture(scope="session")
def world(config: EnvConfig) -> tuple[Path, Manifest]:
    """(data root, manifest)."""
    pytest.importorskip("alfworld")
    return generated.ensure(config)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home folder, and none of the variables that would spare it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ALFWORLD_DATA", "HARNESS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
