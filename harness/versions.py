"""Versions of the code that decides a run's numbers: what a fingerprint knows of code, as against configuration.

Each is a constant beside the code that it speaks for, raised by hand when that code would give other numbers.
tests/harness/code_pins.py says which files stand behind each constant, and a test fails when one of them changes, so
that raising it is a decision and not an oversight.
"""

from __future__ import annotations

from harness import registry
from harness.config import RunConfig


def versions(config: RunConfig) -> dict[str, int | str | None]:
    """What can change this run's result -> its version. Code that the run does not use is left out.

    None for an environment whose spec names no version. A skill library stands for itself: by a digest of its texts.
    """
    from harness.training import ENGINE_VERSION
    from methods.skills import analyzer
    from methods.skills.injection import INJECTION_VERSION
    from methods.skills.library import SELECTION_VERSION

    spec = registry.env_spec(config.env.name)
    env = spec.metadata
    found: dict[str, int | str | None] = {
        "engine": ENGINE_VERSION,
        "method": registry.method_spec(config.method.name).version,
        "env.play": env.get("play_version"),
        "env.prompts": env.get("prompts_version"),
    }
    if config.engine == "verl":
        from harness.training.verl import VERL_VERSION

        found["engine.verl"] = VERL_VERSION
    if config.engine == "vllm":
        from harness.training import VLLM_VERSION

        found["engine.vllm"] = VLLM_VERSION
    further = env.get("knob_versions")  # of code that only some values of knobs bring in
    if further is not None:
        found.update(further(config.env))
    if config.method.skill.source != "none":
        found["env.rules"] = env.get("rules_version")
        found["injection"] = INJECTION_VERSION
    if config.method.skill.source == "library":
        found["selection"] = SELECTION_VERSION
        found["env.library"] = spec.library(config.env).digest if spec.library is not None else None
    if config.method.skill.source == "own_trajectory":
        found["analyzer"] = analyzer.identity(config.analyzer)
    return found
