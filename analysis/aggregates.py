"""Aggregates over task types and environments, and what the seeds can find at all; of rows with three seeds or more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from analysis import stats
from analysis.cells import ALL, Cell, Metric, measured, ordered_types
from analysis.collect import Records
from analysis.compare import reference_lines
from analysis.evaluations import Evaluation, Measurements

EVERYWHERE = "all environments"
APART = ("unseen", "held_out")  # panels that stand by themselves: a row's first panel is none of them


def aggregate_cells(records: Records, measurements: Measurements, reference: str) -> Iterator[Cell]:
    """Per line and place, and per row over all environments: IQM, probability of improvement; detectable difference."""
    references = reference_lines(records.lines, reference)
    for (line, place), mine in sorted(measurements.found.items(), key=lambda item: item[0]):
        here = records.lines[line]
        if here.stage or (scores := type_scores([mine])) is None:
            continue
        cell = _cell(records, measurements, line, place, ALL)
        yield replace(cell, interval=stats.iqm_of_runs(scores), n_tasks=mine.tasks.size, protocol=mine.protocol)
        theirs = measurements.found.get((references.get(here.setting, -1), place))
        if here.row == reference or theirs is None or not _alike(mine, theirs):
            continue
        yield from _improvement(cell, scores, type_scores([theirs]), reference)
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


def type_scores(evaluations: Sequence[Evaluation]) -> list[stats.Array] | None:
    """Success [runs, task types] of each evaluation; None with fewer than three runs in one of them."""
    tables = []
    for e in evaluations:
        columns = [e.types == kind for kind in ordered_types(sorted(set(e.types.tolist())))]
        by_type = [stats.average_by_seed(e.success[:, c], e.types[c], macro=False) for c in columns]
        table = np.stack(by_type, axis=1)
        tables.append(table[np.isfinite(table).all(axis=1)])
    return tables if all(len(table) >= stats.MIN_RUNS for table in tables) else None


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
    """Rows of several environments: on the first panel of each, without skills where there is such an evaluation."""
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
            if len(known) == len(wanted) and (scores := type_scores(known)) is not None:
                found[row] = (by_env[min(by_env)], places[min(places)], known, scores)
        for row, (number, place, known, scores) in found.items():
            cell = _cell(records, measurements, number, place, EVERYWHERE)
            tasks = sum(e.tasks.size for e in known)
            yield replace(cell, interval=stats.iqm_of_runs(scores), n_tasks=tasks)
            if row != reference and reference in found:
                _, _, others, theirs = found[reference]
                if all(_alike(a, b) for a, b in zip(known, others, strict=True)):
                    yield from _improvement(cell, scores, theirs, reference)


def _first(places: Sequence[str]) -> str:
    ranked = sorted(places, key=lambda p: (p.rpartition("/")[0] in APART, not p.endswith("/off"), p))
    return ranked[0] if ranked else ""
