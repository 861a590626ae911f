"""A small generated world in files, made once for all tests of the data and of the engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_in_rules import STAND_IN

from envs.alfworld import generated
from envs.alfworld.manifest import Manifest
from envs.interface import EnvConfig


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache with space")


@pytest.fixture(scope="session")
def config(cache: Path) -> EnvConfig:
    """One game per type and panel."""
    return EnvConfig(cache=str(cache), train_per_type=1, eval_per_type=1, max_steps=50)


@pytest.fixture(scope="session")
def world(config: EnvConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """(data root, manifest) of games in the official layout, written without the packages."""
    root = tmp_path_factory.mktemp("written games")
    return root, generated.write_games(config, root, STAND_IN)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home folder, and none of the variables that would spare it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ALFWORLD_DATA", "HARNESS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
