"""Aggregates over task types and environments, and what the seeds can find at all; of rows with three seeds or more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from analysis import stats
from analysis.cells import ALL, Cell, Metric, measured, ordered_types
from analysis.collect import Records
from analysis.compare import reference_lines
from analysis.evaluations import Evaluation, Measurements
from analysis.text import listed

EVERYWHERE = "all environments"
APART = ("unseen", "held_out")  # panels that stand by themselves: a row's first panel is none of them


def aggregate_cells(records: Records, measurements: Measurements, reference: str) -> Iterator[Cell]:
    """Per line and place, and per row over all environments: IQM, probability of improvement; detectable difference."""
    references = reference_lines(records.lines, reference)
    for (line, place), mine in sorted(measurements.found.items(), key=lambda item: item[0]):
        here = records.lines[line]
        scores, left_out = type_scores([mine])
        if here.stage or scores is None:
            continue
        cell = replace(_cell(records, measurements, line, place, ALL), note=left_out)
        yield replace(cell, interval=stats.iqm_of_runs(scores), n_tasks=mine.tasks.size, protocol=mine.protocol)
        theirs = measurements.found.get((references.get(here.setting, -1), place))
        if here.row == reference or theirs is None or not _alike(mine, theirs):
            continue
        yield from _improvement(cell, scores, type_scores([theirs])[0], reference)
        if (least := _detectable(mine, theirs)) is not None:
            yield replace(cell, metric=Metric.DETECTABLE, unit="points", reference=reference, interval=least)
    yield from _everywhere(records, measurements, reference)


def _cell(records: Records, measurements: Measurements, line: int, place: str, column: str) -> Cell:
    here = records.lines[line]
    nothing = stats.Interval(0.0, np.nan, np.nan, stats.NO_INTERVAL, 0)
    return Cell(
        line=here,
        place=place,
        metric=Metric.IQM,
        column=column,
        unit="%",
        interval=nothing,
        status=measured(here),
        n_planned=measurements.planned[line],
    )


def _improvement(
    cell: Cell, mine: Sequence[stats.Array], theirs: Sequence[stats.Array] | None, reference: str
) -> Iterator[Cell]:
    if theirs is not None and [a.shape[1] for a in mine] == [b.shape[1] for b in theirs]:
        interval = stats.improvement_of_runs(mine, theirs)
        yield replace(cell, metric=Metric.IMPROVEMENT, reference=reference, interval=interval)


def type_scores(evaluations: Sequence[Evaluation]) -> tuple[list[stats.Array] | None, str]:
    """Success [runs, task types] of each evaluation (None: fewer than three runs in one), and which are left out.

    A run with nothing graded in some task type has no score there, and is in none of these numbers.
    """
    tables, without = [], []
    for e in evaluations:
        table, seeds = scores_by_type(e)
        tables.append(table)
        without += seeds
    told = f"without seed {listed(dict.fromkeys(without))}: nothing graded in a task type" if without else ""
    return (tables if all(len(table) >= stats.MIN_RUNS for table in tables) else None), told


def scores_by_type(e: Evaluation) -> tuple[stats.Array, list[int]]:
    """Success [runs, task types] of the runs that have a score in every type, and the seeds of the others."""
    columns = [e.types == kind for kind in ordered_types(sorted(set(e.types.tolist())))]
    by_type = [stats.average_by_seed(e.success[:, c], e.types[c], macro=False) for c in columns]
    table = np.stack(by_type, axis=1)
    whole = np.isfinite(table).all(axis=1)
    return table[whole], e.seeds[~whole].tolist()


def _alike(mine: Evaluation, theirs: Evaluation) -> bool:
    return mine.protocol == theirs.protocol and set(mine.types.tolist()) == set(theirs.types.tolist())


@lru_cache(maxsize=64)
def _detectable_per_sd(seeds: int) -> float:
    """Detectable differences are proportional to the standard deviation: the integral is solved once."""
    return stats.minimum_detectable_effect(1.0, seeds, paired=True)


def _detectable(mine: Evaluation, theirs: Evaluation) -> stats.Interval | None:
    """From the spread of the paired differences of the seeds; None where they do not vary or are too few."""
    a, b = (
        dict(zip(e.seeds.tolist(), stats.average_by_seed(e.success, e.types, macro=False), strict=True))
        for e in (mine, theirs)
    )
    by_seed = np.array([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])
    if by_seed.size < stats.MIN_RUNS or not np.isfinite(by_seed).all():
        return None
    spread = float(by_seed.std(ddof=1))
    if spread < stats.MIN_SPREAD:
        return None
    return stats.Interval(spread * _detectable_per_sd(by_seed.size), np.nan, np.nan, stats.NO_INTERVAL, by_seed.size)


def _everywhere(records: Records, measurements: Measurements, reference: str) -> Iterator[Cell]:
    """Rows of several environments: on the first panel of each, without skills where there is such an evaluation.

    A row is compared only where the reference was evaluated on the same panels, with skills in the same prompts.
    """
    rows: dict[tuple[object, ...], dict[str, dict[str, int]]] = {}
    for number, line in enumerate(records.lines):
        if not line.stage:
            setting = (line.backbone, line.fraction, line.scale, line.protocol)
            rows.setdefault(setting, {}).setdefault(line.row, {})[line.env] = number
    for of_row in rows.values():
        wanted = {env for by_env in of_row.values() for env in by_env}
        if len(wanted) < 2:
            continue
        found = {}
        for row, by_env in of_row.items():
            places = {env: _first(measurements.places.get(line, ())) for env, line in sorted(by_env.items())}
            evaluations = {env: measurements.found.get((by_env[env], place)) for env, place in places.items()}
            known = [e for e in evaluations.values() if e is not None]
            scores, left_out = type_scores(known)
            if len(known) == len(wanted) and scores is not None:
                told = "; ".join(part for part in (_where(places), left_out) if part)
                found[row] = (by_env[min(by_env)], places, known, scores, told)
        for row, (number, places, known, scores, told) in found.items():
            cell = replace(_cell(records, measurements, number, places[min(places)], EVERYWHERE), note=told)
            tasks = sum(e.tasks.size for e in known)
            yield replace(cell, interval=stats.iqm_of_runs(scores), n_tasks=tasks)
            if row != reference and reference in found:
                _, there, others, theirs, _ = found[reference]
                if places == there and all(_alike(a, b) for a, b in zip(known, others, strict=True)):
                    yield from _improvement(cell, scores, theirs, reference)


def _where(places: Mapping[str, str]) -> str:
    """`alfworld: seen, skills off; webshop: test, skills off`"""
    return "; ".join(f"{env}: {place.replace('/', ', skills ')}" for env, place in places.items())


def _first(places: Iterable[str]) -> str:
    """The place that stands for a row: its first panel, without skills where there is such an evaluation."""
    ranked = sorted(places, key=lambda p: (p.rpartition("/")[0] in APART, not p.endswith("/off"), p))
    return ranked[0] if ranked else ""


def first_panel(panels: Iterable[str]) -> str:
    """The panel that a row is trained for; empty if there is none: APART ones stand by themselves."""
    return min((panel for panel in panels if panel not in APART), default="")
