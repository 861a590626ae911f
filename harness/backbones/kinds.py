"""Kinds of backbones that installed packages add: entry points of the group `harness.backbones`.

A kind says what decides the weights and makes a transformers folder with them (config, safetensors, tokenizer with a
chat template); from there on it is like any local folder. `backbone.kind=NAME` chooses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.plugins import Specs
from envs.interface import EnvConfig
from harness.config import BackboneConfig

ENTRY_POINT_GROUP = "harness.backbones"
BUILTIN = ("embedded", "hub")


@dataclass(frozen=True)
class BackboneKind:
    """name: of the entry point.

    identity(backbone, env): everything that decides the weights, as a short text; part of a run's fingerprint, so it
        must be cheap, and other weights must have another identity. Raises ValueError for settings it cannot honour
    ensure(backbone, env): the folder, made if it is missing; several processes may ask at once
    """

    name: str
    identity: Callable[[BackboneConfig, EnvConfig], str]
    ensure: Callable[[BackboneConfig, EnvConfig], Path]


_SPECS: Specs[BackboneKind] = Specs("backbone kind", "backbone.kind", ENTRY_POINT_GROUP, {}, lambda: BackboneKind)


def names() -> tuple[str, ...]:
    """The kinds that `backbone.kind` may name, sorted."""
    return tuple(sorted({*BUILTIN, *_SPECS.names()}))


def get(name: str) -> BackboneKind:
    """A kind that a package adds. Raises ValueError, see core.plugins.Specs."""
    return _SPECS.get(name, f"Built in: {', '.join(BUILTIN)}; a package adds kinds by entry points {ENTRY_POINT_GROUP}")
