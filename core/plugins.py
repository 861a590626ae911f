"""What installed packages offer through entry points: found by name, imported when asked for.

A package that cannot be imported, or that offers something else than it should, is an error of whoever asks for it,
with the package's name; it never takes anything else away, and never goes missing in silence.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from core.names import unknown_name

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Offer:
    """One entry point. value: `package.module:ATTRIBUTE`, or a package; package: who offers it, `name version`."""

    name: str
    value: str
    package: str
    group: str

    def __str__(self) -> str:
        return f"{self.value} of {self.package} (entry point {self.name} of {self.group})"


@cache
def offers(group: str) -> Mapping[str, tuple[Offer, ...]]:
    """Name -> what is offered under it, sorted; read once per process. Imports nothing."""
    found: dict[str, set[Offer]] = {}
    for point in entry_points(group=group):
        dist = point.dist
        package = "an unnamed package" if dist is None else f"{dist.metadata['Name']} {dist.version}"
        found.setdefault(point.name, set()).add(Offer(point.name, point.value, package, group))
    return {name: tuple(sorted(found[name])) for name in sorted(found)}


class Specs(Generic[T]):
    """Specs by name: the project's own and those of installed packages.

    what: `method`, for errors; key: the configuration key that names one; group: of the entry points; builtin: name ->
    `module:ATTRIBUTE`; kind: imports and returns the class of a spec, which must have a `name`
    """

    def __init__(
        self, what: str, key: str, group: str, builtin: Mapping[str, str], kind: Callable[[], type[T]]
    ) -> None:
        self.what, self.key, self.group, self.builtin, self._kind = what, key, group, builtin, kind
        self._loaded: dict[tuple[str, str], T] = {}

    def names(self) -> tuple[str, ...]:
        """Every name, sorted, whether or not what it stands for can be loaded."""
        return tuple(sorted({*self.builtin, *offers(self.group)}))

    def get(self, name: str, hint: str = "") -> T:
        """The spec of a name. Raises ValueError: with the nearest name if there is none; naming the packages if one is
        broken or two offer the same name."""
        offered = offers(self.group).get(name, ())
        paths = {offer.value: str(offer) for offer in offered}
        if name in self.builtin:
            paths[self.builtin[name]] = f"{self.builtin[name]} of this project"
        if not paths:
            also = hint or f"An installed package adds one through the entry-point group {self.group!r}"
            raise ValueError(unknown_name(self.key, name, self.names(), f"{also}."))
        if len(paths) > 1:
            raise ValueError(
                f"the {self.what} name {name!r} is offered by {' and by '.join(sorted(paths.values()))}; rename or "
                "uninstall one of them"
            )
        ((path, shown),) = paths.items()
        if (name, path) not in self._loaded:
            self._loaded[name, path] = self._load(name, path, shown)
        return self._loaded[name, path]

    def _load(self, name: str, path: str, shown: str) -> T:
        module, _, attribute = path.partition(":")
        start = f"{self.what} {name!r} is {shown}, which"
        try:
            spec: Any = importlib.import_module(module)
            for part in (attribute or "SPEC").split("."):
                spec = getattr(spec, part)
        except Exception as error:  # whatever the package's own code raises
            raise ValueError(f"{start} cannot be loaded: {type(error).__name__}: {error}") from error
        kind = self._kind()
        if not isinstance(spec, kind):
            article = "an" if kind.__name__[0] in "AEIOU" else "a"
            raise ValueError(f"{start} is a {type(spec).__name__}, not {article} {kind.__name__}")
        if (own := getattr(spec, "name", name)) != name:
            raise ValueError(f"{start} calls itself {own!r}")
        return spec
