"""Everything that can be proved before a GPU hour is spent.

`preflight` looks at all of it, with a training step of each method; `check` at what costs nothing, and is asked again
right before anything is submitted. Neither starts a run, and neither imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.plan import Plan, missing, states
from harness.preflight.findings import OK, PROBLEM, WARNING, Finding, ProbeCache, Scope
from harness.stages import Cell


@dataclass(frozen=True)
class Preflight:
    """findings: in the order in which they were made; cells: how many runs they are about."""

    findings: tuple[Finding, ...]
    cells: int

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.status == PROBLEM)

    @property
    def ready(self) -> bool:
        """Whether nothing that was looked at stands in the way."""
        return not self.problems


def paid(plan: Plan, cells: Iterable[Cell] | None = None) -> bool:
    """Whether running these cells (None: those that are missing) is paid for: by the hour, or by the question."""
    from harness.preflight.money import priced

    todo = list(missing(plan, states(plan)) if cells is None else cells)
    return bool(todo) and (plan.command.launcher.name == "slurm" or any(priced(cell.config) for cell in todo))


def check(plan: Plan, say: Callable[[str], None] = lambda text: None) -> list[Finding]:
    """What can be looked at in a second or two: scheduler, budget, disk, keys, and whether weights are there."""
    from harness.preflight import cluster, data, money, tracker

    scope = scope_of(plan, say)
    parts = (
        money.budget(scope),
        cluster.slurm(scope, rehearse=False),
        data.weights(scope, hashed=False),
        money.analyzer_cost(scope),
        money.disk(scope),
        tracker.tracking(scope, ask_server=False),
    )
    return [finding for part in parts for finding in part]


def preflight(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Preflight:
    """All checks, the cheap ones first. say: told what is being done."""
    from harness.preflight import cluster, data, endpoint, money, steps, tracker

    scope = scope_of(plan, say)
    parts = (
        money.budget(scope),
        cluster.slurm(scope),
        data.weights(scope),
        money.analyzer_cost(scope),
        money.disk(scope),
        tracker.tracking(scope),
        endpoint.endpoints(scope),
        data.panels(scope),
        steps.steps(scope),
    )
    return Preflight(tuple(finding for part in parts for finding in part), len(scope.todo))


def scope_of(plan: Plan, say: Callable[[str], None]) -> Scope:
    """The cells that are missing; all that are selected where none is."""
    todo = tuple(missing(plan, states(plan))) or plan.selected
    return Scope(plan, todo, ProbeCache(plan.out / "cache" / "preflight"), say)


__all__ = ["OK", "PROBLEM", "WARNING", "Finding", "Preflight", "check", "paid", "preflight"]
