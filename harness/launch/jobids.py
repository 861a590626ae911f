"""Slurm's ways to write job ids: `123`, `123_4`, and arrays `123_[4-9%2]`, `123_[1,3,5-7]`, `123_[0-12:4]`.

Syntax: squeue(1) and sacct(1), "job arrays". Elements that wait are listed together, a list too long to print ends in
`...`; `%n` is the number of elements that may run at a time; `123+1` is a part of a heterogeneous job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_ID = re.compile(r"(?P<base>\d+(?:\+\d+)?)(?:_(?P<elements>\d+|\*|\[[^\]]*(?:\]|$)))?")
_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
MOST_ELEMENTS = 4_000_001  # MaxArraySize is at most this: slurm.conf(5)


@dataclass(frozen=True, slots=True)
class Expression:
    """What one written id stands for.

    base: the job that everything belongs to, `123`. ids: single jobs, `123` or `123_4`. partial: more elements may be
    meant than the scheduler wrote down.
    """

    base: str
    ids: tuple[str, ...]
    partial: bool = False


def expand(text: str) -> Expression | None:
    """Read a job id or array expression; None for anything else, such as a step (`123.batch`)."""
    found = _ID.fullmatch(text.strip())
    if found is None:
        return None
    base, elements = found["base"], found["elements"]
    if elements is None:
        return Expression(base, (base,))
    if elements == "*":
        return Expression(base, (), partial=True)
    if not elements.startswith("["):
        return Expression(base, (f"{base}_{int(elements)}",))
    body, _, _ = elements.strip("[]").partition("%")
    numbers: list[int] = []
    partial = not elements.endswith("]") or not body
    # Without its bracket the list was cut off somewhere, perhaps within its last number.
    for part in body.split(",")[: None if elements.endswith("]") else -1]:
        single = _PART.fullmatch(part.strip())
        if single is None:
            # `73,7...`: what was cut off is not guessed at.
            partial = True
            continue
        first, last, step = (int(single[1]), int(single[2] or single[1]), int(single[3] or 1))
        if step < 1 or last - first >= MOST_ELEMENTS:
            return None
        numbers.extend(range(first, last + 1, step))
    return Expression(base, tuple(f"{base}_{number}" for number in numbers), partial)


def base_of(job_id: str) -> str:
    """`123` of `123`, `123_4` and `123_[4-9]`. Raises ValueError for what is no job id."""
    found = _ID.fullmatch(job_id.strip())
    if found is None:
        raise ValueError(f"{job_id!r} is not a Slurm job id such as 123 or 123_4")
    return found["base"]


def bases(ids: Iterable[str]) -> list[str]:
    """The jobs that the ids belong to, each once, in ascending order."""
    return sorted({base_of(job_id) for job_id in ids}, key=lambda base: (len(base), base))


def chunks(items: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of at most `size`, so that no command line gets too long."""
    listed = list(items)
    for start in range(0, len(listed), size):
        yield listed[start : start + size]
