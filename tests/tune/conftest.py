from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tune_helpers import HERE, MINI, Asking

from harness.compose import Composer, composer

sys.path.append(str(HERE.parent / "launch"))  # the fake cluster


@pytest.fixture(scope="session")
def hydra(tmp_path_factory: pytest.TempPathFactory) -> Composer:
    """Composes each request once for all tests; knows the sweep `mini`."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "sweep").mkdir()
    (folder / "sweep" / "mini.yaml").write_text(MINI)
    return composer(str(folder))


@pytest.fixture
def asking(hydra: Composer) -> Callable[..., Asking]:
    """Arguments -> a planned search."""

    def make(*arguments: str) -> Asking:
        return Asking(hydra, *(arguments or ("method=opid",)))

    return make


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs are stand-ins; returns the file that tells what ran."""
    told = tmp_path / "told.txt"
    told.touch()
    monkeypatch.setenv("FAKE_TRIALS", str(told))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr("harness.prepare.prepare", lambda config, progress: None)
    return told
