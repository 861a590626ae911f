"""What a trial is worth, read from the records of its runs.

A search may look at the panel `validation`, which no table is made of, and at costs. A panel that tables are judged by
is refused: settings chosen on it would make its numbers say how well they were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import Problem, suggest
from harness.panels import TRAIN, VALIDATION
from harness.spool import Spool

DIRECTIONS = ("max", "min")
SUCCESS = f"{VALIDATION}/success"


@dataclass(frozen=True)
class Objective:
    name: str
    direction: str  # max | min

    @property
    def optuna(self) -> str:
        return "maximize" if self.direction == "max" else "minimize"


@dataclass(frozen=True)
class Measured:
    """What one run gave. values: objective -> number; episodes: graded ones of the panel `validation`."""

    values: Mapping[str, float]
    episodes: int


@dataclass(frozen=True)
class Training:
    """steps: (training step, its metrics), in order; usage: the events `analyzer_usage`, undone and failed steps
    included."""

    steps: Sequence[tuple[int, Mapping[str, float]]]
    usage: Sequence[Mapping[str, Any]]

    def sum(self, *names: str) -> float:
        return float(sum(values.get(name, 0.0) for _, values in self.steps for name in names))

    def analyzer(self, field: str, metric: str) -> float:
        """All that was spent; a step of an earlier version, without an event, is known by its metric."""
        told = {event["step"] for event in self.usage}
        untold = sum(values.get(metric, 0.0) for step, values in self.steps if step not in told)
        return float(sum(float(event[field]) for event in self.usage) + untold)


# name -> (records of training) -> number. Costs are those of training.
COSTS: Mapping[str, Callable[[Training], float]] = {
    "cost/cpu_seconds": lambda t: max((values.get("time/cpu_total_s", 0.0) for _, values in t.steps), default=0.0),
    "cost/tokens": lambda t: t.sum("tokens/rollout", "tokens/teacher", "tokens/update", "tokens/reference"),
    "cost/analyzer_calls": lambda t: t.analyzer("calls", "cost/analyzer_calls"),
    "cost/analyzer_money": lambda t: t.analyzer("cost", "cost/analyzer_money"),
}
EPISODES = {SUCCESS: "success", f"{VALIDATION}/score": "score", f"{VALIDATION}/length": "length"}
KNOWN = (*EPISODES, *COSTS)


def objectives_of(given: Mapping[str, str], panels: Sequence[str], origin: str) -> list[Problem]:
    """Everything wrong with `tune.objectives`. panels: those that the environment has."""
    problems: list[Problem] = []
    if not given:
        problems.append(Problem("sweep.tune.objectives", "{}", origin, f"name at least one, such as {SUCCESS}: max"))
    for name, direction in given.items():
        key = f"sweep.tune.objectives.{name}"
        panel = name.partition("/")[0]
        if name not in KNOWN and panel in panels and panel not in (VALIDATION, TRAIN):
            problems.append(Problem(key, str(direction), origin, judged(panel)))
        elif name not in KNOWN:
            problems.append(Problem(key, str(direction), origin, suggest(name, KNOWN, "objectives")))
        elif direction not in DIRECTIONS:
            problems.append(Problem(key, str(direction), origin, suggest(str(direction), DIRECTIONS, "use")))
    return problems


def judged(panel: str) -> str:
    """Why a search must not see a panel."""
    return (
        f"{panel} is a panel that tables are judged by: settings chosen on it would score well there because they were "
        f"chosen there, and its numbers would mean nothing; search on the panel {VALIDATION}"
    )


def measured(run: Path, skills: str, names: Sequence[str]) -> Measured:
    """What the complete run in a folder gave. skills: which of its evaluations counts (off | on).

    Raises ValueError if a number is missing or not finite.
    """
    rows = _episodes(run / "episodes.parquet", skills)
    training = Training(_metrics(run), _usage(run))
    values: dict[str, float] = {}
    for name in names:
        if name in COSTS:
            values[name] = COSTS[name](training)
        else:
            column = [float(row[EPISODES[name]]) for row in rows]
            values[name] = sum(column) / len(column) if column else math.nan
        if not math.isfinite(values[name]):
            raise ValueError(f"{name} of {run} is {values[name]}: no episode of the panel {VALIDATION} was graded")
    return Measured(values, len(rows))


def _episodes(path: Path, skills: str) -> list[dict[str, Any]]:
    """Graded episodes of the panel `validation`."""
    import pyarrow.parquet as pq

    columns = ["panel", "skills", "failure", "success", "score", "length"]
    rows: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist() if path.exists() else []
    return [r for r in rows if (r["panel"], r["skills"]) == (VALIDATION, skills) and r["failure"] is None]


def _metrics(run: Path) -> list[tuple[int, Mapping[str, float]]]:
    """(training step, its metrics) in order; the last word on a step counts."""
    found: dict[int, dict[str, float]] = {}
    for entry in Spool(run / "spool.jsonl").read():
        if entry["kind"] == "metrics":
            found.setdefault(int(entry["step"]), {}).update({k: float(v) for k, v in entry["values"].items()})
    return sorted(found.items())


def _usage(run: Path) -> list[Mapping[str, Any]]:
    """What the analyzer spent, step by step, whatever became of the step."""
    entries = Spool(run / "spool.jsonl").read()
    return [e["data"] for e in entries if e["kind"] == "event" and e["name"] == "analyzer_usage"]


def looks(run: Path) -> list[tuple[int, float]]:
    """(training step, success on the panel `validation`) of every look on the way (evaluation.validate_every)."""
    return [(step, values[SUCCESS]) for step, values in _metrics(run) if SUCCESS in values]
