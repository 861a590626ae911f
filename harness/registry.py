"""What exists and what it can do: methods, environments, engines, launchers. Specs only; nothing heavy is imported.

Methods and environments keep their own registries (they know nothing of the harness); this module asks them, and adds
what the harness itself offers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.interface import EnvConfig, EnvSpec
    from harness.config import BackboneConfig, RunConfig
    from methods.interface import MethodSpec

# engine -> what it can do for a method. `teacher`: log-probs of the same tokens under another prompt; `aux_loss`: a
# loss term of the method's own.
ENGINES: Mapping[str, frozenset[str]] = {
    "local": frozenset({"teacher", "aux_loss"}),
    "verl": frozenset({"teacher", "aux_loss"}),
    "vllm": frozenset(),  # plays panels with a policy that is there; trains nothing
}
CONTEXTS = ("growing", "per_step")
LAUNCHERS = ("local", "slurm")


def method_spec(name: str) -> MethodSpec:
    """Raises ValueError with the nearest name."""
    from methods import registry

    return registry.get(name)


def env_spec(name: str) -> EnvSpec:
    """Raises ValueError with the nearest name."""
    from envs import registry

    return registry.get(name)


def method_knobs(name: str) -> type[Any] | None:
    """The dataclass of a method's own settings; None if it has none, or if there is no such method."""
    try:
        return method_spec(name).knobs
    except ValueError:
        return None


def env_knobs(name: str) -> type[Any] | None:
    """The dataclass of an environment's own settings; None if it has none, or if there is no such environment."""
    try:
        return env_spec(name).knobs
    except ValueError:
        return None


def judged_by(name: str) -> list[str]:
    """Panels that the environment is judged by; none for one that does not exist, which validation reports."""
    try:
        return list(env_spec(name).judged_by)
    except ValueError:
        return []


def panel_identity(config: EnvConfig, panel: str) -> str:
    """What determines the tasks of a panel, without making them. Raises FileNotFoundError for missing data."""
    from envs import panels

    return panels.panel_identity(config, panel)


def backbone_identity(backbone: BackboneConfig, env: EnvConfig) -> str:
    """What determines the weights of the initial policy, without making or loading them."""
    from harness import backbones

    return backbones.identity(backbone, env)


def unknown_backbone_kind(kind: str) -> str | None:
    """None if there is such a kind of backbone, else what is wrong, with the nearest name or the broken package."""
    from harness.backbones import kinds

    if kind in kinds.BUILTIN:
        return None
    try:
        kinds.get(kind)
    except ValueError as error:
        return str(error)
    return None


def offered(config: RunConfig) -> frozenset[str]:
    """Capabilities that a cell's environment and engine offer, as `env:...` and `engine:...`."""
    env = {f"env:{c}" for c in env_spec(config.env.name).capabilities}
    engine = {f"engine:{c}" for c in ENGINES.get(config.engine, frozenset())}
    return frozenset(env | engine)


def missing_capabilities(config: RunConfig) -> list[tuple[str, str]]:
    """(capability, which part of the configuration lacks it) for everything the method needs and nobody offers."""
    from methods import registry

    needs = registry.requirements(config.method, config.analyzer.name)
    holders = {"env": f"env={config.env.name}", "engine": f"engine={config.engine}"}
    return [
        (need, holders.get(need.partition(":")[0], f"analyzer={config.analyzer.name}"))
        for need in sorted(needs - offered(config))
    ]


def known_analyzer(name: str) -> str | None:
    """None if the analyzer exists, else what is wrong, with the nearest name."""
    from methods.skills import analyzer

    try:
        analyzer.get(name)
    except ValueError as error:
        return str(error)
    return None


def unfit_analyzer(config: RunConfig) -> str | None:
    """None if the analyzer can honour its settings, else what is wrong with them."""
    from methods.skills import analyzer

    try:
        analyzer.check(config.analyzer)
    except ValueError as error:
        return str(error)
    return None


__all__ = [
    "CONTEXTS",
    "ENGINES",
    "LAUNCHERS",
    "backbone_identity",
    "env_knobs",
    "env_spec",
    "known_analyzer",
    "method_knobs",
    "method_spec",
    "missing_capabilities",
    "offered",
    "panel_identity",
    "unfit_analyzer",
    "unknown_backbone_kind",
]
