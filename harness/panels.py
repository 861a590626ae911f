"""Which task panels a run touches: the planner names them, preparation makes them, the run loads them."""

from __future__ import annotations

from harness import registry
from harness.config import RunConfig

TRAIN, VALIDATION = "train", "validation"


def used_panels(config: RunConfig) -> list[str]:
    """Names, each once: `train` if the run trains, `validation` if its policy is played on that panel while it trains
    (its method asks for that, or evaluation.validate_every), and those it is evaluated on."""
    asked = config.evaluation.validate_every > 0 or registry.method_spec(config.method.name).validates
    validates = config.method.trains and asked
    before = [*([TRAIN] if config.method.trains else []), *([VALIDATION] if validates else [])]
    return list(dict.fromkeys([*before, *config.evaluation.panels]))
