"""Records -> evaluations (seeds x tasks of one line at one place), and their success, length and validity cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.cells import ALL, Cell, Metric, Status, bounds_over_planned, measured, ordered_types
from analysis.checks import PROTOCOL
from analysis.collect import Records, grouped
from analysis.plan import Line


@dataclass(frozen=True)
class Evaluation:
    """The complete runs of one line at one place.

    seeds [S]; tasks [T] (ids, sorted); types [T]; success [S, T]: mean over repeats, NaN where no repeat was graded
    score [S, T]: as success, of the graded result in [0, 1]
    plays [S, T]: graded episodes; length, malformed, inadmissible [S]: see Metric; protocol: shared by all episodes
    """

    seeds: NDArray[np.int64]
    tasks: NDArray[np.str_]
    types: NDArray[np.object_]
    success: NDArray[np.float64]
    score: NDArray[np.float64]
    plays: NDArray[np.int64]
    length: NDArray[np.float64]
    malformed: NDArray[np.float64]
    inadmissible: NDArray[np.float64]
    protocol: Mapping[str, str]


def refusal(records: Records) -> dict[tuple[int, str], Status]:
    """(line, place) -> status that takes the place of its numbers; place empty: everywhere. `invalid` wins."""
    found: dict[tuple[int, str], Status] = {}
    lines = records.cells["line"].to_numpy()
    for warning in records.warnings:
        if not warning.refuses:
            continue
        for line in sorted({int(lines[i]) for i in warning.cells}):
            key = (line, warning.place)
            found[key] = max(found.get(key, Status.MIXED), Status(warning.refuses), key=lambda s: s == Status.INVALID)
    return found


def refused(refusals: Mapping[tuple[int, str], Status], line: int, place: str) -> Status | None:
    return refusals.get((line, place)) or refusals.get((line, ""))


def _protocol(values: Sequence[object]) -> dict[str, str]:
    """PROTOCOL -> text."""
    return {k: f"{v:g}" if isinstance(v, float) else str(v) for k, v in zip(PROTOCOL, values, strict=True)}


def evaluations(records: Records, refusals: Mapping[tuple[int, str], Status]) -> dict[tuple[int, str], Evaluation]:
    """Every evaluation of complete runs that no warning refuses, keyed by (line, place)."""
    done = records.episodes[records.episodes["complete"].to_numpy(dtype=bool)]
    graded = done[done["failure"].isna()]
    keys = ["line", "place"]
    per_seed = graded.groupby([*keys, "seed"], observed=True, sort=True).agg(
        episodes=("length", "size"),
        steps=("length", "sum"),
        malformed=("malformed", "sum"),
        inadmissible=("inadmissible", "sum"),
    )
    by_task = graded.groupby([*keys, "seed", "task_id", "task_type"], observed=True, sort=True)
    per_task = by_task.agg(mean=("success", "mean"), size=("success", "size"), score=("score", "mean")).reset_index()
    shared = done.drop_duplicates(keys)[[*keys, *PROTOCOL]].astype(object)
    protocols = {(row[0], row[1]): _protocol(row[2:]) for row in shared.itertuples(index=False)}
    seed_groups = dict(grouped(per_seed.reset_index(), keys))
    found: dict[tuple[int, str], Evaluation] = {}
    for (line, place), rows in grouped(per_task, keys):
        key = (int(line), str(place))
        if refused(refusals, *key):
            continue
        by_seed = seed_groups[line, place]
        seeds, row = np.unique(rows["seed"].to_numpy(dtype=np.int64), return_inverse=True)
        ids = rows["task_id"].astype(object).to_numpy()
        tasks, at, column = np.unique(ids.astype(str), return_index=True, return_inverse=True)
        success = np.full((seeds.size, tasks.size), np.nan)
        success[row, column] = rows["mean"].to_numpy(dtype=float)
        score = np.full(success.shape, np.nan)
        score[row, column] = rows["score"].to_numpy(dtype=float)
        plays = np.zeros(success.shape, dtype=np.int64)
        plays[row, column] = rows["size"].to_numpy(dtype=np.int64)
        steps = by_seed["steps"].to_numpy(dtype=float)
        per_step = np.where(steps > 0, steps, np.nan)
        found[key] = Evaluation(
            seeds,
            tasks,
            rows["task_type"].astype(object).to_numpy()[at],
            success,
            score,
            plays,
            steps / by_seed["episodes"].to_numpy(),
            by_seed["malformed"].to_numpy(dtype=float) / per_step,
            by_seed["inadmissible"].to_numpy(dtype=float) / per_step,
            protocols[line, place],
        )
    return found


@dataclass(frozen=True)
class Measurements:
    """What success and difference cells are made from, worked out once.

    refusals: see `refusal`; found: usable evaluations by (line, place); places, planned (seeds): of each line
    scored: environments whose graded results are not 0 and 1 alone
    """

    refusals: Mapping[tuple[int, str], Status]
    found: Mapping[tuple[int, str], Evaluation]
    places: Mapping[int, tuple[str, ...]]
    planned: Mapping[int, int]
    scored: frozenset[str]

    @classmethod
    def of(cls, records: Records) -> Measurements:
        refusals = refusal(records)
        planned = {int(line): int(n) for line, n in records.cells["line"].value_counts().items()}  # type: ignore[call-overload]
        return cls(refusals, evaluations(records, refusals), places(records), planned, _scored(records))


def _scored(records: Records) -> frozenset[str]:
    """Environments with a graded episode whose score is neither 0 nor 1."""
    score = records.episodes["score"].to_numpy(dtype=float)
    between = records.episodes["failure"].isna().to_numpy() & np.isfinite(score) & (score != 0) & (score != 1)
    lines = np.unique(records.episodes["line"].to_numpy(dtype=np.int64)[between])
    return frozenset(records.lines[int(line)].env for line in lines)


def places(records: Records) -> dict[int, tuple[str, ...]]:
    """Line of the table -> its places. One of which nothing is known yet gets the sweep's plain places, to be seen."""
    known: dict[int, set[str]] = {line: set() for line in range(len(records.lines))}
    seen = records.episodes[["line", "place"]].drop_duplicates().astype(object)
    for line, place in seen.itertuples(index=False):
        known[int(line)].add(str(place))
    for line, declared, counted in zip(
        records.cells["line"], records.cells["declared"], records.cells["evaluations"], strict=True
    ):
        known[int(line)].update(declared, counted)
    everything = set().union(*known.values())
    plain = {place for place in everything if place.endswith("/off")} or everything
    return {line: tuple(sorted(found or plain)) for line, found in known.items() if not records.lines[line].stage}


def success_cells(records: Records, measurements: Measurements) -> Iterator[Cell]:
    """Per line and place: success by task type, micro, macro, mean episode length, malformed and refused shares."""
    m = measurements
    by_place: dict[tuple[str, str], set[str]] = {}
    for (line, place), evaluation in m.found.items():
        by_place.setdefault((records.lines[line].env, place), set()).update(evaluation.types)
    for line, its_places in m.places.items():
        here = records.lines[line]
        for place in its_places:
            types = ordered_types(sorted(by_place.get((here.env, place), set())))
            status = refused(m.refusals, line, place)
            averages = [(Metric.MICRO, "%"), (Metric.MACRO, "%")]
            averages += [(Metric.SCORE, "score")] if here.env in m.scored else []
            found = m.found.get((line, place))
            yield from _line_at_place(here, place, types, averages, found, status, m.planned[line])


def _line_at_place(
    line: Line,
    place: str,
    types: Sequence[str],
    averages: Sequence[tuple[Metric, str]],
    e: Evaluation | None,
    status: Status | None,
    planned: int,
) -> Iterator[Cell]:
    wanted = [(Metric.SUCCESS, t, "%") for t in types]
    wanted += [(metric, ALL, unit) for metric, unit in averages]
    wanted += [(Metric.LENGTH, ALL, "steps")]
    wanted += [(Metric.MALFORMED, ALL, "%"), (Metric.INADMISSIBLE, ALL, "%")]
    for metric, column, unit in wanted:
        cell = Cell(
            line=line,
            place=place,
            metric=metric,
            column=column,
            unit=unit,
            interval=None,
            status=status or Status.MISSING,
            n_planned=planned,
        )
        yield cell if e is None else _filled(cell, e)


def _filled(cell: Cell, e: Evaluation) -> Cell:
    assert cell.line is not None
    seeds, effective = _values(e, cell.metric, cell.column)
    chosen = e.types == cell.column if cell.metric == Metric.SUCCESS else np.full(e.types.shape, True)
    episodes = int(e.plays[:, chosen].sum())
    filled = replace(cell, n_tasks=int(chosen.sum()), n_episodes=episodes, protocol=e.protocol)
    bad = [int(s) for s in e.seeds[~np.isfinite(seeds)]]
    if bad:
        return replace(filled, status=Status.INVALID, note=f"nothing graded in seed {', '.join(map(str, bad))}")
    filled = replace(filled, status=measured(cell.line), interval=_interval(cell.metric, seeds, effective))
    ends = bounds_over_planned(filled)
    return replace(filled, note=f"over all planned seeds between {ends[0]:.1%} and {ends[1]:.1%}") if ends else filled


def _values(e: Evaluation, metric: Metric, column: str) -> tuple[NDArray[np.float64], float]:
    """Seed-level values [S], and how many independent tasks each is worth."""
    n = float(e.tasks.size)
    if metric == Metric.SUCCESS:
        chosen = e.types == column
        return stats.average_by_seed(e.success[:, chosen], e.types[chosen], macro=False), float(chosen.sum())
    if metric == Metric.MICRO:
        return stats.average_by_seed(e.success, e.types, macro=False), n
    if metric == Metric.SCORE:
        return stats.average_by_seed(e.score, e.types, macro=False), n
    if metric == Metric.MACRO:
        _, counts = np.unique(e.types.astype(str), return_counts=True)
        return stats.average_by_seed(e.success, e.types, macro=True), stats.effective_n(counts.tolist())
    others = {Metric.LENGTH: e.length, Metric.MALFORMED: e.malformed, Metric.INADMISSIBLE: e.inadmissible}
    return others[metric], n


def _interval(metric: Metric, seeds: NDArray[np.float64], n: float) -> stats.Interval:
    if metric in (Metric.SUCCESS, Metric.MICRO, Metric.MACRO):
        return stats.rate_interval(seeds, n)
    if metric == Metric.SCORE:
        return stats.bounded_t_interval(seeds)  # no share of draws, so with one seed there is no interval
    return stats.t_interval(seeds)  # steps are not independent draws: with one seed there is no interval
