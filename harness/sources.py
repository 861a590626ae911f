"""What a run's environment reads from elsewhere (a retriever's corpus) must be the same in all its attempts.

While planning nobody can ask a server what it holds, so that it cannot be part of a run's fingerprint; and a file may
be replaced between two attempts. The environment says what it found (`metadata["sources"]`), the run's records keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from harness import registry
from harness.config import RunConfig
from harness.record import RunDirectory

EVENT = "environment_sources"


class SourceError(RuntimeError):
    """An attempt found something else than the attempts before it."""

    failure_class = "config"


def check_sources(run: RunDirectory, config: RunConfig) -> None:
    """Record what the environment finds. Raises SourceError if an earlier attempt found something else, and whatever
    the environment raises if there is nothing to be found."""
    tell = registry.env_spec(config.env.name).metadata.get("sources")
    if tell is None:
        return
    found = cast("Callable[..., Mapping[str, str | None]]", tell)(config.env)
    before: dict[str, str | None] = {}
    for event in run.spool.read():
        if event["kind"] == "event" and event["name"] == EVENT:
            before.update(event["data"])
    if changed := [key for key, told in before.items() if told is not None and found.get(key, told) != told]:
        listed = "; ".join(f"{key}: {before[key]} then, {found[key] or 'nobody tells'} now" for key in changed)
        raise SourceError(
            f"the environment {config.env.name!r} does not read what it read when this run began ({listed}): restore "
            "it, or delete the run's folder to begin again"
        )
    if any(key not in before or before[key] != told for key, told in found.items()):
        run.spool.event(EVENT, **found)
