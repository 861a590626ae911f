from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envs.alfworld.knobs import Knobs
from envs.interface import EnvConfig, EnvSpec
from harness import registry
from harness.commandline import parse
from harness.compose import Composer, composer
from harness.plan import Plan, build_plan


def _unused(*_: object) -> object:
    raise AssertionError("planning must not make or load anything of an environment")


def stand_in_spec(*capabilities: str) -> EnvSpec:
    return EnvSpec(
        name="alfworld",
        task_types=("pick",),
        panels=("train", "seen", "unseen", "validation"),
        judged_by=("seen", "unseen"),
        capabilities=frozenset(capabilities),
        load_panel=_unused,  # type: ignore[arg-type]
        make=_unused,  # type: ignore[arg-type]
        prompter=_unused,  # type: ignore[arg-type]
        knobs=Knobs,
        metadata={"engines": ("native", "textworld")},
    )


@pytest.fixture
def stand_in_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that can be planned for and nothing else."""
    spec = stand_in_spec("hindsight", "library", "expert", "admissible")

    def identity(config: EnvConfig, panel: str) -> str:
        return f"{config.engine}/{config.world_seed}/{panel}"

    real = registry.env_spec
    monkeypatch.setattr(registry, "env_spec", lambda name: spec if name == spec.name else real(name))
    monkeypatch.setattr(registry, "panel_identity", identity)
    monkeypatch.setattr(registry, "backbone_identity", lambda backbone, env: "weights")


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    """An empty folder for configuration files of a test's own."""
    folder = tmp_path / "conf"
    folder.mkdir()
    return folder


@pytest.fixture
def hydra(config_dir: Path) -> Composer:
    return composer(str(config_dir))


@pytest.fixture(scope="session")
def package_hydra() -> Composer:
    """Composes the package's own files, each combination once for all tests."""
    return composer()


@pytest.fixture
def plan_of(config_dir: Path, package_hydra: Composer, stand_in_env: None) -> Callable[..., Plan]:
    """Arguments of a command line -> Plan, with the files of `config_dir` known."""

    def make(*arguments: str) -> Plan:
        made = composer(str(config_dir)) if any(config_dir.iterdir()) else package_hydra
        return build_plan(made, parse(arguments, made.groups()))

    return make


@pytest.fixture
def write(config_dir: Path) -> Callable[[str, str], None]:
    """Write a configuration file, `group/name` and its text."""

    def put(name: str, text: str) -> None:
        path = config_dir / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    return put
