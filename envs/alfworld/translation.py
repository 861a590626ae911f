"""PDDL translated once per game: what Fast Downward's Python translator makes of a domain and a problem, kept on disk.

Translating takes about 0.3 s, reading a kept translation milliseconds. The file holds data only (compressed JSON).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.cache import file_lock, write_atomically
from envs.interface import EnvironmentFailure
from envs.panels import digest

log = logging.getLogger(__name__)

FORMAT = 1  # raised whenever the stored form changes
_LOCK_FILES = 16  # translations are locked in this many groups
_translator = threading.Lock()  # the translator works through sys.argv, sys.stdout and module-level options


@dataclass(frozen=True)
class Translation:
    """sas: the planning task in Fast Downward's format, with nothing pruned

    parameters: action name -> [(variable, type)]; types: [(name, supertypes)]; objects: [(name, type)]
    init: [(predicate, arguments)]; fluents: predicates that some action changes
    """

    sas: str
    parameters: dict[str, list[tuple[str, str]]]
    types: list[tuple[str, list[str]]]
    objects: list[tuple[str, str]]
    init: list[tuple[str, list[str]]]
    fluents: frozenset[str]

    def pack(self) -> bytes:
        fields = {
            "format": FORMAT,
            "sas": self.sas,
            "parameters": self.parameters,
            "types": self.types,
            "objects": self.objects,
            "init": self.init,
            "fluents": sorted(self.fluents),
        }
        return zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), 6)

    @classmethod
    def unpack(cls, data: bytes) -> Translation:
        """Raises ValueError for anything that `pack` did not write."""
        try:
            raw = json.loads(zlib.decompress(data))
            if raw["format"] != FORMAT:
                raise ValueError(f"format {raw['format']} is not {FORMAT}")
            return cls(
                raw["sas"],
                {action: [(p, t) for p, t in pairs] for action, pairs in raw["parameters"].items()},
                [(name, list(supertypes)) for name, supertypes in raw["types"]],
                [(name, kind) for name, kind in raw["objects"]],
                [(predicate, list(arguments)) for predicate, arguments in raw["init"]],
                frozenset(raw["fluents"]),
            )
        except (zlib.error, UnicodeDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"not a translation: {type(error).__name__}: {error}") from error


class Translations:
    """Translations of one cache folder, `<folder>/<first two digits>/<sha256 of domain and problem>.sas.zz`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, domain: str, problem: str) -> Path:
        key = digest(f"translation {FORMAT}", domain, problem)
        return self.folder / key[:2] / f"{key}.sas.zz"

    def get(self, domain: str, problem: str) -> Translation:
        """From disk, or translated now and kept. Two processes that miss together translate once.

        A folder that cannot be written to costs time, not correctness. Raises EnvironmentFailure for PDDL that cannot
        be translated.
        """
        path = self.path(domain, problem)
        kept = self._read(path)
        if kept is not None:
            return kept
        try:
            with file_lock(self.folder / f"lock-{int(path.name[:4], 16) % _LOCK_FILES:02d}"):
                kept = self._read(path)
                if kept is not None:
                    return kept
                made = translate(domain, problem)
                write_atomically(path, made.pack())
                return made
        except OSError as error:
            log.warning("translations cannot be kept in %s (%s); translating again each time", self.folder, error)
            return translate(domain, problem)

    def _read(self, path: Path) -> Translation | None:
        try:
            return Translation.unpack(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("kept translation %s is unreadable (%s); translating again", path, error)
            return None


def translate(domain: str, problem: str) -> Translation:
    """Run the translator. Leaves sys.argv and sys.stdout as they were. Raises EnvironmentFailure if it gives up."""
    from fast_downward import pddl2sas
    from fast_downward.translate import pddl

    with _translator:
        argv, stdout = sys.argv, sys.stdout
        try:
            task, sas = pddl2sas(domain, problem, verbose=False, optimize=False)
        except (SystemExit, Exception) as error:  # the translator calls sys.exit on malformed PDDL
            raise EnvironmentFailure(f"the PDDL problem cannot be translated: {error}") from error
        finally:
            sys.argv, sys.stdout = argv, stdout
    init = []
    for fact in task.init:
        if isinstance(fact, pddl.Atom) and fact.predicate != "=":
            init.append((fact.predicate, list(fact.args)))
        elif isinstance(fact, pddl.Assign) and fact.fluent.symbol != "total-cost":
            name = str(fact.expression.value)
            if not name.isdigit():  # distances are numbers and no facts
                init.append((name, list(fact.fluent.args)))
    return Translation(
        sas=sas,
        parameters={a.name: [(p.name.strip("?"), p.type_name) for p in a.parameters] for a in task.actions},
        types=[(t.name, list(t.supertype_names)) for t in task.types],
        objects=[(o.name, o.type_name) for o in task.objects],
        init=sorted(init),  # the translator keeps them in a set, whose order changes from process to process
        fluents=frozenset(_predicates(task.actions)),
    )


def _predicates(actions: Iterable[Any]) -> Iterable[str]:
    for action in actions:
        for effect in action.effects:
            yield effect.literal.predicate


def home_for_packages(folder: Path) -> None:
    """Point the alfworld package at `folder`, unless the user has chosen one: importing it makes a folder there."""
    if "ALFWORLD_DATA" not in os.environ:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["ALFWORLD_DATA"] = str(folder)
