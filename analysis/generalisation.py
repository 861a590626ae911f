"""The same checkpoints on other panels: seen minus unseen, and seen minus task types that were held out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from analysis import stats
from analysis.cells import Cell, Metric, Status, measured
from analysis.checks import IN_WORDS
from analysis.collect import Records
from analysis.compare import paired, with_holm
from analysis.evaluations import Evaluation, Measurements, refused

SEEN = "seen"
OTHERS = ("unseen", "held_out")
SHARED = ("prompt_protocol", "context", "temperature", "selection")  # what two panels of one checkpoint must share


def gap_cells(records: Records, measurements: Measurements) -> list[Cell]:
    """Micro success on seen tasks minus that on others, per seed, of every line that is evaluated on both.

    A positive gap is what is lost on the other tasks. The panels hold other tasks: only the seed pairs them.
    """
    return with_holm(list(_gaps(records, measurements)))


def _gaps(records: Records, measurements: Measurements) -> Iterator[Cell]:
    for line, places in measurements.places.items():
        here = records.lines[line]
        for place in places:
            panel, _, skills = place.rpartition("/")
            for other in OTHERS:
                far = f"{other}/{skills}"
                if panel != SEEN or far not in places:
                    continue
                states = [refused(measurements.refusals, line, each) for each in (place, far)]
                status = next((state for state in states if state), None)
                cell = Cell(
                    line=here,
                    place=place,
                    metric=Metric.GAP,
                    column=other,
                    unit="points",
                    interval=None,
                    status=status or Status.MISSING,
                    n_planned=measurements.planned[line],
                    reference=f"{here.row} on {other}",
                    note=f"records are {status.value}" if status else "no complete run with both",
                )
                mine, theirs = measurements.found.get((line, place)), measurements.found.get((line, far))
                yield cell if mine is None or theirs is None else _filled(cell, mine, theirs)


def _filled(cell: Cell, mine: Evaluation, theirs: Evaluation) -> Cell:
    assert cell.line is not None
    unlike = [IN_WORDS[name] for name in SHARED if mine.protocol[name] != theirs.protocol[name]]
    if unlike:
        note = f"the panels were played with another {', '.join(unlike)}"
        return replace(cell, status=Status.NOT_APPLICABLE, note=note)
    values = [
        dict(zip(e.seeds.tolist(), stats.average_by_seed(e.success, e.types, macro=False), strict=True))
        for e in (mine, theirs)
    ]
    seeds = sorted(set(values[0]) & set(values[1]))
    by_seed = np.array([values[0][seed] - values[1][seed] for seed in seeds])
    if not seeds:
        return replace(cell, status=Status.NOT_APPLICABLE, note="no seed has both")
    if not np.isfinite(by_seed).all():
        return replace(cell, status=Status.INVALID, note="nothing graded on one panel in some seed")
    return replace(
        cell,
        status=measured(cell.line),
        n_tasks=mine.tasks.size + theirs.tasks.size,
        n_episodes=int(mine.plays.sum() + theirs.plays.sum()),
        note="",
        **paired(by_seed, None),
    )
