"""Episodes whose environment broke: they are left out, and a result may not stand on what little is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from envs.interface import EnvironmentFailure
from methods.interface import Trajectory


def reasons(played: Sequence[Trajectory]) -> dict[str, int]:
    """Why episodes were left out -> how many; empty if none was."""
    return dict(Counter(t.failure for t in played if t.failure is not None))


def unbroken(played: Sequence[Trajectory], limit: float, what: str) -> list[Trajectory]:
    """The episodes that count, in order. limit: share of all that may be broken, in [0, 1]; what: was played.

    Raises EnvironmentFailure with the first reason if more are broken, or all.
    """
    kept = [t for t in played if t.failure is None]
    broken = [t for t in played if t.failure is not None]
    first = f"the first: task {broken[0].task_id}: {broken[0].failure}" if broken else ""
    if not kept:
        raise EnvironmentFailure(f"{what}: no episode could be played; {first or 'there was none'}")
    if len(broken) > limit * len(played):
        raise EnvironmentFailure(
            f"{what}: {len(broken)} of {len(played)} episodes failed, more than the share of {limit} that "
            f"training.max_failed_episodes allows; {first}"
        )
    return kept
