"""What may be wrong with records, each found without averaging over it.

Two kinds of consequence: `mixed` (the runs of one line are not replicates of one experiment) and `invalid` (an
evaluation contradicts itself) take the place of the numbers; everything else is printed beside them.
Only complete runs are checked: the others are not in any number, and their state is shown.
Each check first looks at all episodes at once and goes into detail only where something is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.clocks import Clock, clash
from analysis.code import code_warnings
from analysis.collect import DataWarning, grouped
from analysis.retirement import retirement_warnings
from analysis.spools import METRICS
from analysis.text import listed

if TYPE_CHECKING:
    from analysis.collect import Records

MIXED, INVALID = "mixed", "invalid"
# What all episodes of one table cell must share; also what two lines must share to be compared.
PROTOCOL = ("panel_hash", "data_version", "prompt_protocol", "context", "temperature", "selection")
IN_WORDS = {
    "panel_hash": "panel hash",
    "data_version": "data version",
    "prompt_protocol": "prompt protocol",
    "context": "context layout",
    "temperature": "evaluation temperature",
    "selection": "checkpoint selection rule",
}


def check(records: Records) -> tuple[DataWarning, ...]:
    """All warnings about these records, in a fixed order."""
    done = records.episodes[records.episodes["complete"].to_numpy(dtype=bool)]
    return (
        *_seeds_planned_twice(records),
        *_complete_without_episodes(records, done),
        *_protocol_within_lines(records, done),
        *_bad_episodes(records, done),
        *_counts(records, done),
        *_tasks_differ(records, done),
        *_protocol_between_lines(records, done),
        *code_warnings(records),
        *_curves(records),
        *_clocks(records),
        *_excluded_in_training(records),
        *retirement_warnings(records),
    )


def name_of(records: Records, line: int) -> str:
    """Row id, with its setting where the row has several lines."""
    here = records.lines[line]
    name = f"{here.row} (teacher)" if here.stage else here.row
    return name if here.row in records.rows_alone else f"{name} ({here.backbone}, {here.env}, {here.fraction:g})"


def _short(name: str, value: Any) -> str:
    return str(value)[:8] if name == "panel_hash" else str(value)


def _cells(rows: pd.DataFrame) -> tuple[int, ...]:
    return tuple(sorted(int(i) for i in rows["cell"].unique()))


# ---------------------------------------------------------------------------------------------- planned and present
def _seeds_planned_twice(records: Records) -> Iterator[DataWarning]:
    twice = records.cells[records.cells.duplicated(["line", "seed"], keep=False)]
    for line, group in grouped(twice, "line"):
        text = f"seed {listed(sorted(group['seed'].unique()))} is planned more than once, so its runs are no replicates"
        cells = tuple(int(i) for i in group.index)
        yield DataWarning("seed_planned_twice", f"{name_of(records, int(line))}: {text}", cells, refuses=MIXED)


def _complete_without_episodes(records: Records, done: pd.DataFrame) -> Iterator[DataWarning]:
    """A complete run without any record, or without one of the evaluations that it owes."""
    have: dict[int, set[str]] = {}
    for number, place in done[["cell", "place"]].drop_duplicates().astype(object).itertuples(index=False):
        have.setdefault(int(number), set()).add(place)
    cells = records.cells[records.cells["complete"].to_numpy(dtype=bool)]
    for number, line, seed, declared, evaluations in zip(
        cells.index, cells["line"], cells["seed"], cells["declared"], cells["evaluations"], strict=True
    ):
        for place in sorted({*declared, *evaluations} - have.get(int(number), set())) or (
            [] if int(number) in have else [""]
        ):
            text = f"complete, but without usable episode records{f' of {place}' if place else ''}; not counted"
            message = f"{name_of(records, int(line))}, seed {seed}: {text}"
            yield DataWarning("no_episodes", message, (int(number),), place)


# ---------------------------------------------------------------------------------------------- one table cell
def _protocol_within_lines(records: Records, done: pd.DataFrame) -> Iterator[DataWarning]:
    groups = done.groupby(["line", "place"], observed=True, sort=True)
    for column in PROTOCOL:
        distinct = groups[column].nunique()
        for line, place in distinct.index[distinct.to_numpy() > 1]:
            rows = done[(done["line"] == line) & (done["place"] == place)]
            parts = [
                f"{_short(column, value)} (seed {listed(sorted(rows.loc[rows[column] == value, 'seed'].unique()))})"
                for value in sorted(rows[column].dropna().unique())
            ]
            message = f"{name_of(records, line)} on {place}: more than one {IN_WORDS[column]}: {', '.join(parts)}"
            yield DataWarning(f"mixed_{column}", message, _cells(rows), place, MIXED)


def _bad_episodes(records: Records, done: pd.DataFrame) -> Iterator[DataWarning]:
    """Episodes that are wrong by themselves: undeclared protocol, another run's, duplicated, NaN, other checkpoint."""
    of_cell = done["cell"].to_numpy(dtype=np.int64)
    graded = done["failure"].isna()
    last_step = records.cells["last_step"].to_numpy(dtype=float)[of_cell] if len(done) else np.empty(0)
    fingerprint = records.cells["fingerprint"].to_numpy()[of_cell]
    key = ["cell", "place", "task_id", "repeat"]
    tests = (
        (
            "undeclared",
            done[[*PROTOCOL, "checkpoint_step"]].isna().any(axis=1),
            "{n} episodes do not say their panel hash, protocol, selection rule or checkpoint",
        ),
        ("foreign_run", done["run"].astype(object).to_numpy() != fingerprint, "{n} episodes belong to another run"),
        (
            "duplicated",
            done.duplicated(key, keep=False),
            "duplicated: {n} records share panel, skills, task and repeat",
        ),
        (
            "nan_score",
            graded & done[["success", "score", "length"]].isna().any(axis=1),
            "success, score or length is NaN in {n} graded episodes",
        ),
        (
            "not_the_last_checkpoint",
            (done["selection"] == "last") & (done["checkpoint_step"].to_numpy(dtype=float) != last_step),
            "selection is “last”, but {n} episodes were played by another checkpoint than the last step's",
        ),
    )
    for code, found, text in tests:
        wrong = done[np.asarray(found, dtype=bool)]
        for (line, place), rows in grouped(wrong, ["line", "place"]):
            who = f"{name_of(records, line)} on {place}, seed {listed(sorted(rows['seed'].unique()))}"
            yield DataWarning(code, f"{who}: {text.format(n=len(rows))}", _cells(rows), place, INVALID)


def _counts(records: Records, done: pd.DataFrame) -> Iterator[DataWarning]:
    """Each task exactly once per repeat; requested = graded + excluded, as declared; exclusions with their bounds."""
    keys = ["cell", "place"]
    failed = done["failure"].notna()
    won = done["success"].where(~failed, 0.0).fillna(0.0)
    frame = done[[*keys, "task_id", "repeat"]].assign(failed=failed.astype(int), won=won)
    by_place = frame.groupby(keys, observed=True, sort=True)
    summary = by_place.agg(n=("failed", "size"), excluded=("failed", "sum"), won=("won", "sum"))
    summary["repeats"] = by_place["repeat"].nunique()
    distinct = frame.drop_duplicates([*keys, "task_id", "repeat"])
    plays = distinct.groupby([*keys, "task_id"], observed=True).size().rename("plays").reset_index()
    plays["repeats"] = summary["repeats"].reindex(pd.MultiIndex.from_frame(plays[keys])).to_numpy()
    uneven = plays[plays["plays"] != plays["repeats"]].groupby(keys, observed=True)["task_id"].agg(list).to_dict()
    lines, seeds = records.cells["line"].tolist(), records.cells["seed"].tolist()
    evaluations = records.cells["evaluations"].tolist()
    for (cell, place), n, excluded, wins, repeats in summary.itertuples():
        who = f"{name_of(records, lines[cell])} on {place}, seed {seeds[cell]}"
        if tasks := uneven.get((cell, place)):
            text = f"{len(tasks)} tasks not played exactly {_times(repeats)} ({listed(tasks)})"
            yield DataWarning("not_exactly_once", f"{who}: {text}", (int(cell),), place, INVALID)
        graded = n - excluded
        said = evaluations[cell].get(place, {})
        declared = tuple(said.get(k, "nothing") for k in ("requested", "graded", "excluded"))
        if declared != (n, graded, excluded):
            text = (
                f"the run declares {declared[0]} requested, {declared[1]} graded, {declared[2]} excluded; "
                f"its records hold {graded} graded and {excluded} excluded episodes"
            )
            yield DataWarning("incomplete_evaluation", f"{who}: {text}", (int(cell),), place, INVALID)
        if excluded:
            text = (
                f"{excluded} of {n} episodes excluded (infrastructure failures); over all attempted episodes micro "
                f"success would be between {wins / n:.1%} and {(wins + excluded) / n:.1%}"
            )
            yield DataWarning("excluded", f"{who}: {text}", (int(cell),), place)


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


# ---------------------------------------------------------------------------------------------- between runs
def _tasks_differ(records: Records, done: pd.DataFrame) -> Iterator[DataWarning]:
    """Under one panel hash every complete run must hold the same tasks."""
    everything = done.groupby("panel_hash", observed=True)["task_id"].nunique()
    held = done.groupby(["panel_hash", "line", "cell", "place"], observed=True, sort=True)["task_id"].nunique()
    expected = everything.reindex(held.index.get_level_values("panel_hash")).to_numpy()
    short: list[tuple[Any, int]] = list(held[held.to_numpy() != expected].items())
    for (panel_hash, line, cell, place), count in short:
        text = f"played {count} of the {everything[panel_hash]} tasks of panel {panel_hash[:8]}"
        message = f"{name_of(records, line)} on {place}, seed {records.cells.loc[cell, 'seed']}: {text}"
        yield DataWarning("tasks_differ", message, (int(cell),), place, INVALID)


def _protocol_between_lines(records: Records, done: pd.DataFrame) -> Iterator[DataWarning]:
    """Lines of one environment and place that were not measured alike: each stands, but they are not compared."""
    done = done[~np.asarray([line.stage for line in records.lines], dtype=bool)[done["line"].to_numpy(dtype=np.int64)]]
    env = np.asarray([line.env for line in records.lines], dtype=object)[done["line"].to_numpy(dtype=np.int64)]
    for (name, place), group in grouped(done, [env, "place"]):
        for column in PROTOCOL:
            values = sorted(group[column].dropna().unique())
            if len(values) < 2:
                continue
            parts = []
            for value in values:
                lines = sorted(group.loc[group[column] == value, "line"].unique())
                parts.append(f"{_short(column, value)}: {listed(name_of(records, int(i)) for i in lines)}")
            message = f"{name}, {place}: rows differ in {IN_WORDS[column]} and are not compared ({'; '.join(parts)})"
            yield DataWarning(f"lines_differ_in_{column}", message, _cells(group), place)


def _curves(records: Records) -> Iterator[DataWarning]:
    """Training curves that cannot be averaged: steps that are missing, NaN, or a time that decreases."""
    wanted = [METRICS.index("train/success"), METRICS.index("time/cpu_total_s")]
    cells = records.cells[records.cells["complete"].to_numpy(dtype=bool)]
    for number, line, seed, planned in zip(
        cells.index, cells["line"], cells["seed"], cells["planned_steps"], strict=True
    ):
        if not planned:
            continue
        steps, values = records.spools[number].steps, records.spools[number].values[:, wanted]
        code, text = "", ""
        if steps.tolist() != list(range(1, int(planned) + 1)):
            code, text = "curve_gap", f"training metrics of {len(steps)} of {planned} steps"
        elif not np.isfinite(values).all():
            code, text = "nan_curve", "train/success or time/cpu_total_s is NaN or infinite"
        elif (np.diff(values[:, 1], prepend=0.0) < 0).any() or values[-1, 1] <= 0:
            code, text = "cpu_decreases", "time/cpu_total_s decreases or stays zero"
        if code:
            message = f"{name_of(records, int(line))}, seed {seed}: {text}; its learning curve is left out"
            yield DataWarning(code, message, (int(number),), "train")


def _clocks(records: Records) -> Iterator[DataWarning]:
    """Lines of one setting whose seconds are not of one kind: they stand, but are not compared by them."""
    by_setting: dict[tuple[object, ...], dict[Clock | None, dict[str, None]]] = {}
    cells = records.cells
    for number in cells.index[cells["complete"].to_numpy(dtype=bool)]:
        line = records.lines[int(cells["line"].iloc[number])]
        if records.spools[number].steps.size:
            of_clock = by_setting.setdefault(line.setting, {}).setdefault(records.spools[number].clock, {})
            of_clock[name_of(records, int(cells["line"].iloc[number]))] = None
    for found in by_setting.values():
        if text := clash(found):
            ordered = sorted(found.items(), key=lambda item: (item[0] is None, item[0] or Clock()))
            parts = [f"{clock or 'not known'}: {listed(rows)}" for clock, rows in ordered]
            # About no cell in particular: scores stand, and so does each row's own cost.
            yield DataWarning("clocks_differ", f"{text}; seconds are not compared ({'; '.join(parts)})", ())


def _excluded_in_training(records: Records) -> Iterator[DataWarning]:
    """Training rollouts that broke for want of their environment: fewer episodes are behind the updates."""
    column = METRICS.index("train/excluded")
    cells = records.cells
    of_line: dict[int, list[tuple[int, float, float]]] = {}
    for number in cells.index[cells["complete"].to_numpy(dtype=bool)]:
        shares = records.spools[number].values[:, column]
        if (shares > 0).any():
            found = (int(number), float(np.nanmean(shares)), float(np.nanmax(shares)))
            of_line.setdefault(int(cells["line"].iloc[number]), []).append(found)
    for line, runs in sorted(of_line.items()):
        told = [f"seed {cells['seed'].iloc[i]}: {mean:.1%}, in one step {most:.1%}" for i, mean, most in runs]
        text = f"training episodes left out of updates because their environment broke: {listed(told)}"
        which = tuple(i for i, _, _ in runs)
        yield DataWarning("excluded_in_training", f"{name_of(records, line)}: {text}", which)
