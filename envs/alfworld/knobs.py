"""ALFWorld's own settings (`env.knobs`). Light: planning reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

from core.knobs import read_knobs
from core.names import require_known
from envs.alfworld.facts import TASK_TYPES
from envs.interface import EnvConfig

HELD_OUT = "held_out"  # the panel of the types that are held out


@dataclass(frozen=True)
class Knobs:
    """ALFWorld's own settings; sweeps/env/alfworld.yaml explains each."""

    held_out_types: list[str] = field(default_factory=list)


def held_out_types(config: EnvConfig) -> frozenset[str]:
    """The task types that are left out of every panel but `held_out`.

    Raises ValueError for a type that does not exist, one that is named twice, and all six.
    """
    named = read_knobs(Knobs, config.knobs, "env.knobs").held_out_types
    for kind in named:
        require_known("env.knobs.held_out_types", kind, TASK_TYPES)
    if len(set(named)) != len(named):
        raise ValueError(f"env.knobs.held_out_types={named} names a type twice")
    if len(named) == len(TASK_TYPES):
        raise ValueError(f"env.knobs.held_out_types={named} leaves no type to train on; leave out at least one")
    return frozenset(named)


def types_of(config: EnvConfig, panel: str) -> tuple[str, ...]:
    """The task types of a panel, in the order of TASK_TYPES. ValueError for the panel `held_out` without any."""
    held = held_out_types(config)
    if panel == HELD_OUT and not held:
        raise ValueError(
            f"the panel {HELD_OUT!r} holds the task types that training leaves out, and env.knobs.held_out_types=[] "
            f"leaves out none; name one of {', '.join(TASK_TYPES)}, or do not ask for this panel"
        )
    return tuple(kind for kind in TASK_TYPES if (kind in held) == (panel == HELD_OUT))
