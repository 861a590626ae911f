"""Puts the configuration folders of installed packages on the search path, and reads ours by rules of our own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.search_path_plugin import SearchPathPlugin

SWEEPS = "sweeps"


class HarnessConfigSource(FileConfigSource):
    """`harness://sweeps`, or `harness://FOLDER` of a package that adds to it.

    The folder `protocol` is no configuration group: `protocol=paper` is a value, whose file is laid over composed cells
    (harness.protocols). Whoever reads these folders needs the schema, which is registered here.
    """

    hidden = "protocol"

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        if self.path == SWEEPS:
            self.path = str(_sweeps() or SWEEPS)
            from harness.compose import register_schema

            register_schema()

    @staticmethod
    def scheme() -> str:
        return "harness"

    def is_group(self, config_path: str) -> bool:
        return config_path != self.hidden and super().is_group(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if not Path(self.path, config_path).is_dir():
            return []
        found: list[str] = super().list(config_path, results_filter)
        return found


class HarnessSearchPath(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from harness.configs import folders

        for element in search_path.get_path():
            if element.path == f"pkg://{SWEEPS}" and _sweeps() is not None:
                element.path = f"harness://{SWEEPS}"
        for folder in folders():
            if folder.path is not None:
                search_path.append(provider=folder.provider, path=f"harness://{folder.path}")


def _sweeps() -> Path | None:
    """The folder `sweeps` that stands beside the package `harness`; None if another package of that name is found."""
    ours, found = (importlib.util.find_spec(name) for name in ("harness", SWEEPS))
    if ours is None or found is None or not ours.origin or not found.origin:
        return None
    beside = Path(ours.origin).parent.with_name(SWEEPS)
    return beside if Path(found.origin).parent == beside else None
