"""Configuration folders of installed packages: entry points of the group `harness.configs` name packages with YAML.

    [project.entry-points."harness.configs"]
    ext = "ext_package.conf"          # ext_package/conf/__init__.py, ext_package/conf/method/ext.yaml, ...

Such a folder stands on the search path of every command and of any Hydra application (hydra_plugins), after the
project's own: a file of the same name does not replace one of the project's. Nothing of a package is imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from core.plugins import Offer, offers
from harness.errors import suggest

GROUP = "harness.configs"


@dataclass(frozen=True)
class ConfigFolder:
    """offer: the entry point; path: the folder, None if it cannot be used; problem: why."""

    offer: Offer
    path: Path | None
    problem: str = ""

    @property
    def provider(self) -> str:
        """How Hydra's search path names it."""
        return f"{GROUP}: {self.offer.name} of {self.offer.package}"

    def files(self, group: str) -> dict[str, Path]:
        """Name -> file of one configuration group, sorted."""
        folder = None if self.path is None else self.path / group
        if folder is None or not folder.is_dir():
            return {}
        return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


@cache
def folders() -> tuple[ConfigFolder, ...]:
    """Every folder that is offered, usable or not, in the order of the entry points' names. Read once per process."""
    return tuple(_folder(offer) for several in offers(GROUP).values() for offer in several)


def _folder(offer: Offer) -> ConfigFolder:
    first, *rest = offer.value.split(".")
    try:
        spec = importlib.util.find_spec(first)  # of a top-level package: nothing is imported
    except (ImportError, ValueError) as error:
        return ConfigFolder(offer, None, f"{type(error).__name__}: {error}")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [path for place in places if (path := Path(place, *rest)).is_dir()]
    if not found:
        return ConfigFolder(offer, None, f"there is no package {offer.value}")
    path = found[0].absolute()
    if not (path / "__init__.py").is_file():
        return ConfigFolder(offer, None, f"{path} has no __init__.py: it is no package")
    if not any(path.rglob("*.yaml")):
        return ConfigFolder(offer, None, f"{path} holds no .yaml file; is it in the package's package-data?")
    return ConfigFolder(offer, path)


def lost() -> list[str]:
    """What is offered and cannot be used, in words."""
    return [f"{folder.offer} cannot be used: {folder.problem}" for folder in folders() if folder.path is None]


def available_files(name: str, known: Iterable[str]) -> str:
    """What to do about a configuration file that does not exist: the nearest name, what there is, and what packages
    offer that cannot be used, which may be what was meant."""
    return "; ".join([suggest(name, known, "available"), *lost()])


def shadowed(known: Mapping[str, Sequence[str]]) -> list[str]:
    """Files that another of the same name hides. known: group -> names of the project's own files."""
    taken = {(group, name): "this project" for group, names in known.items() for name in names}
    found = []
    for folder in folders():
        for group in known:
            for name in folder.files(group):
                owner = taken.setdefault((group, name), folder.offer.package)
                if owner != folder.offer.package:
                    found.append(f"{group}/{name} of {folder.offer.package} is hidden by that of {owner}; rename it")
    return found
