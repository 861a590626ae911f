"""Errors about names: what was given, what exists, and which existing name is nearest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(what: str, value: object, known: Iterable[str], hint: str = "") -> str:
    """One sentence saying that `value` is no known `what`, with the nearest known name if one is close."""
    options = sorted(known)
    text = f"{what}={value!r} is unknown"
    near = difflib.get_close_matches(str(value), options, n=1, cutoff=0.5)
    text += f"; did you mean {near[0]!r}?" if near else "."
    text += f" Known: {', '.join(options) if options else 'none'}."
    return f"{text} {hint}" if hint else text


def require_known(what: str, value: object, known: Iterable[str], hint: str = "") -> None:
    """Raise ValueError unless `value` is one of `known`."""
    options = tuple(known)
    if value not in options:
        raise ValueError(unknown_name(what, value, options, hint))
