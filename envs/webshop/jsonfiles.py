"""JSON files of any size: a whole file as one value, or a long array element by element."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CHUNK = 1 << 22  # characters read at a time


def read_json(path: Path) -> Any:
    """Raises ValueError naming a file that is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file: {error}") from error


def read_array(path: Path, chunk: int = _CHUNK) -> Iterator[Any]:
    """Elements of a file that holds one array, a few megabytes in memory at a time (WebShop's catalogue has gigabytes).

    chunk: characters read at a time. Raises ValueError naming a file that is no JSON array, or is cut short.
    """
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8") as file:
        text = ""
        start, first = "[", True
        while True:
            text = text.lstrip()
            if start and text.startswith(start):
                text, start = text[1:].lstrip(), ""
            if not start and first and text.startswith("]"):
                return
            rest = ""
            if not start:
                try:
                    element, end = decoder.raw_decode(text)
                    rest = text[end:].lstrip()
                except ValueError:
                    pass  # most likely cut off in the middle: more is read below, and without more it is an error
            # only what follows an element tells that it was whole: a number may go on in the next chunk
            if rest[:1] in (",", "]") and rest:
                yield element
                if rest[0] == "]":
                    return
                text, first = rest[1:], False
                continue
            more = file.read(chunk)
            if not more:
                raise ValueError(f"{path} is no JSON array, or is cut short: it ends with {text[-40:]!r}")
            text += more
