"""The verdict of the gate (harness.backbones.gate) on an embedded backbone, measured once and kept in the cache.

Asked for before anything starts, if a selected row learns from skills or has them in its prompt. Light: the
measurement, which needs torch, is imported when there is none yet.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs import registry
from envs.cache import cache_root, write_atomically
from envs.interface import EnvConfig
from harness import backbones
from harness.config import BackboneConfig

GATE_VERSION = 2  # raised whenever the measurement changes
PER_TYPE = 20  # train tasks of each type: 6 CPU seconds for tiny-s
MIN_GAIN = 0.2  # success with the skill in the prompt minus without
MIN_AUC = 0.6  # of the (critical-first) skill advantage of an action, sensible against other actions
ONE_SIDED_95 = 1.645  # standard errors


@dataclass(frozen=True)
class GateResult:
    """success_plain, success_skill: over `episodes` each, at temperature 1. auc: over `good` and `bad` actions.

    gain_error, auc_error: standard errors over tasks. auc_episode: with episode skills alone; told, not judged.
    """

    success_plain: float
    success_skill: float
    auc: float
    episodes: int
    good: int
    bad: int
    gain_error: float = 0.0
    auc_error: float = 0.0
    auc_episode: float = float("nan")

    @property
    def gain(self) -> float:
        return self.success_skill - self.success_plain

    @property
    def passed(self) -> bool:
        """Both estimates are above what is wanted."""
        return self.gain > MIN_GAIN and self.auc > MIN_AUC

    @property
    def failed(self) -> bool:
        """One is below it, and not by chance: so is the upper end of its one-sided 95 % interval."""
        highest_gain = self.gain + ONE_SIDED_95 * self.gain_error
        highest_auc = self.auc + ONE_SIDED_95 * self.auc_error
        return not (highest_gain > MIN_GAIN and highest_auc > MIN_AUC)  # NaN fails

    def __str__(self) -> str:
        verdict = "passes" if self.passed else "FAILS" if self.failed else "is at the limit, neither passes nor fails"
        return (
            f"{verdict}: success {self.success_plain:.3f} without and {self.success_skill:.3f} with the skill in the "
            f"prompt (gain {self.gain:+.3f} ± {self.gain_error:.3f}, wanted > {MIN_GAIN}); AUC of the skill advantage "
            f"{self.auc:.3f} ± {self.auc_error:.3f} over {self.good} sensible and {self.bad} other actions (wanted > "
            f"{MIN_AUC}; {self.auc_episode:.3f} under episode skills alone); {self.episodes} episodes each, ± standard "
            "errors"
        )


class UnfitError(backbones.BackboneError):
    """A policy from which nothing can be learned about skills; the message says what was measured."""


def require_fit(backbone: BackboneConfig, env: EnvConfig, progress: Callable[[str], None]) -> GateResult | None:
    """Raise UnfitError if the (made) embedded backbone fails the gate beyond chance. Returns the verdict.

    None, with a message to progress, where there is nothing to measure with: a hub model, or an environment without
    skill library, rules of hindsight or a native engine.
    """
    spec = registry.get(env.name)
    why_not = ""
    if backbone.kind != "embedded":
        why_not = "it is no embedded model; whether it can read skills is for you to know"
    elif spec.workflow is None or spec.hindsight is None or "native" not in spec.metadata.get("engines", ()):
        why_not = f"env.name={env.name} has no workflow skills, hindsight or native engine"
    if why_not:
        progress(f"backbone: {backbone.name} is not gated: {why_not}")
        return None
    note = cache_root(env) / "backbones" / "gate" / f"{_key(backbone, _environment(env))}.json"
    result = _read(note)
    fresh = result is None
    if result is None:
        progress(f"backbone: does {backbone.name} learn from skills? (once)")
        result = measure(backbone, env)
        write_atomically(note, json.dumps(dataclasses.asdict(result)).encode())
    if result.failed:
        raise UnfitError(
            f"it {result}. Rows that use skills would measure nothing with it: choose another backbone, or "
            "select rows without skills"
        )
    if fresh or not result.passed:
        progress(f"backbone: {backbone.name} {result}")
    return result


def _environment(env: EnvConfig) -> EnvConfig:
    """Where the gate plays: games of its own, whatever data and scale the runs have, without translating any."""
    return dataclasses.replace(
        env, engine="native", data=None, world_seed=0, train_per_type=PER_TYPE, eval_per_type=1, validation_per_type=1
    )


def _key(backbone: BackboneConfig, env: EnvConfig) -> str:
    """Hash of everything that the verdict depends on."""
    from envs.panels import panel_identity
    from harness.training import ENGINE_VERSION
    from methods.skills.injection import INJECTION_VERSION

    versions = {k: v for k, v in registry.get(env.name).metadata.items() if k.endswith("_version")}
    about: dict[str, Any] = {
        "gate": GATE_VERSION,
        "engine": ENGINE_VERSION,
        "injection": INJECTION_VERSION,
        "env": dataclasses.asdict(dataclasses.replace(env, cache=None)),
        "versions": versions,
        "panel": panel_identity(env, "train"),
        "weights": backbones.weights_digest(backbone, env),
        "dtype": backbone.dtype,
        "max_positions": backbone.max_positions,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def _read(note: Path) -> GateResult | None:
    try:
        return GateResult(**json.loads(note.read_bytes()))
    except (OSError, ValueError, TypeError):  # not there, or of another version
        return None


def measure(backbone: BackboneConfig, env: EnvConfig) -> GateResult:
    """The gate on games of its own. Makes them, and the backbone, if they are missing."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from harness.backbones.gate import check

    disable_progress_bar()  # of loading weights
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the verdict must not depend on how many cores there are
    try:
        return check(backbone, _environment(env))
    finally:
        torch.set_num_threads(threads)
