"""What figures are made from: the tables' numbers, the per-seed values behind them, and metrics of training steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from analysis import stats
from analysis.clocks import Clock
from analysis.collect import Records, collect
from analysis.curves import PLACE
from analysis.evaluations import Measurements, refused
from analysis.footnotes import CANCELS, CANCELS_TEXT
from analysis.notes import title
from analysis.plan import Line, load_plan
from analysis.spools import entry
from analysis.tables import make_tables
from analysis.tableset import Tables, starred
from analysis.text import listed

SUCCESS, LENGTH, INVALID, SPENT = "train/success", "train/length", "train/invalid", "time/cpu_total_s"
CRITICAL, OUTCOME, SKILL = "method/critical_steps", "method/advantage_abs", "method/skill_abs"
STEP_PART = "method/step_advantage_abs"  # GiGPO's second part
GAP, WINDOW_GAP, WEIGHT = "method/gap", "method/window_gap", "method/coef"
VALIDATION = "validation/success"
SERIES = (SUCCESS, LENGTH, INVALID, SPENT, CRITICAL, OUTCOME, SKILL, STEP_PART, GAP, WINDOW_GAP, WEIGHT, VALIDATION)
_COLUMN = {name: number for number, name in enumerate(SERIES)}
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """Training metrics of one planned run.

    steps [N] rising; values [N, SERIES], NaN: not recorded; why_not: why it is in no mean, empty if it is
    """

    cell: int
    line: int
    seed: int
    steps: NDArray[np.int64]
    values: Array
    why_not: str

    def series(self, name: str) -> Array:
        return self.values[:, _COLUMN[name]]

    def has(self, *names: str) -> bool:
        """Whether any of these metrics was ever recorded."""
        return bool(np.isfinite(self.values[:, [_COLUMN[name] for name in names]]).any())


@dataclass(frozen=True)
class Sources:
    """tables: every number of the tables; measurements: seeds and tasks behind them; run_dirs: of each planned cell."""

    tables: Tables
    measurements: Measurements
    run_dirs: tuple[Path, ...]

    @classmethod
    def read(cls, out: Path, sweep: str, tables: Tables | None = None) -> Sources:
        """tables: of this sweep, if they were made already: records are then not read again.

        Raises ConfigError if there is no usable plan.
        """
        tables = tables or make_tables(collect(out, sweep))
        folders = tuple(out / cell["run_dir"] for cell in load_plan(out, sweep)["cells"])
        return cls(tables, Measurements.of(tables.records), folders)

    @property
    def records(self) -> Records:
        return self.tables.records

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Every planned run that recorded a training step, in plan order, teachers included."""
        records = self.records
        left_out = {i: w.code for w in records.warnings if w.place == PLACE for i in w.cells}
        complete, lines, seeds = (records.cells[name].tolist() for name in ("complete", "line", "seed"))
        found = []
        for number, folder in enumerate(self.run_dirs):
            steps, values = _read(folder / "spool.jsonl")
            if not steps.size:
                continue
            why = ""
            if not complete[number]:
                why = state_text(records, number)
            elif status := refused(self.measurements.refusals, lines[number], PLACE):
                why = status.value
            elif number in left_out:
                why = left_out[number]
            found.append(Run(number, int(lines[number]), int(seeds[number]), steps, values, why))
        return tuple(found)

    @cached_property
    def _by_line(self) -> dict[int, list[Run]]:
        found: dict[int, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: (run.seed, run.cell)):
            found.setdefault(run.line, []).append(run)
        return found

    def runs_of(self, line: int) -> list[Run]:
        """By seed."""
        return self._by_line.get(line, [])

    @cached_property
    def settings(self) -> list[tuple[Line, list[int]]]:
        """One line of each setting, and all its lines (no teachers) in the order of the plan."""
        found: dict[tuple[object, ...], list[int]] = {}
        for number, line in enumerate(self.records.lines):
            if not line.stage:
                found.setdefault(line.setting, []).append(number)
        return [(self.records.lines[numbers[0]], numbers) for numbers in found.values()]

    def reference_of(self, lines: Sequence[int]) -> int | None:
        """The line that others are compared with, among `lines`."""
        return next((i for i in lines if self.records.lines[i].row == self.tables.reference), None)

    def clocks_of(self, lines: Iterable[int]) -> list[Clock | None]:
        """What the seconds of these lines are; of lines without any record nothing."""
        known = self.tables.clocks
        return [known[line] for line in (self.records.lines[i] for i in lines) if line in known]

    # -------------------------------------------------------------------------------------- words
    def about(self, line: Line) -> list[str]:
        """What tells settings apart in this sweep: parts of file names and titles. The environment always."""
        parts = [line.env]
        for name, text in (
            ("backbone", line.backbone),
            ("fraction", line.share),
            ("scale", f"scale {line.scale}"),
            ("protocol", f"protocol {line.protocol}"),
        ):
            if name in self.records.varying:
                parts.append(text)
        return parts

    def title(self, what: str, setting: str = "") -> str:
        """Two lines: what is shown, and what the sweep is worth."""
        return f"{f'{setting}: ' if setting else ''}{what}\n{title(self.records)}"

    def label(self, number: int, place: str = "") -> str:
        """A row's name as in the tables; one that has the tables' stars and daggers."""
        line = self.records.lines[number]
        mark = f" {CANCELS}" if CANCELS in self.tables.footnotes.marks.get(line, "") else ""
        skills = " [skills]" if place.endswith("/on") else ""
        return f"{line.label}{starred(self.tables, line, place)}{skills}{mark}"

    def legend_notes(self, labels: Iterable[str]) -> list[str]:
        """Explains the marks of those labels."""
        labels = list(labels)
        found = []
        if any("[skills]" in label for label in labels):
            found.append("[skills]: evaluated with skills in its prompt; *: this row was also evaluated without.")
        if any(label.endswith(CANCELS) for label in labels):
            found.append(CANCELS_TEXT)
        return found

    def troubles(self, lines: Iterable[int], places: Sequence[str] = ()) -> list[str]:
        """Runs that are not complete, and warnings, about these lines; places: of the warnings, empty for all."""
        wanted = set(lines)
        records = self.records
        of_cell = records.cells["line"].to_numpy()
        several = len({records.lines[line].setting for line in wanted}) > 1
        seeds: dict[tuple[str, str], list[int]] = {}
        here = np.isin(of_cell, sorted(wanted)) & ~records.cells["complete"].to_numpy(dtype=bool)
        for i in np.flatnonzero(here).tolist():
            line = records.lines[int(of_cell[i])]
            where = f" ({', '.join(self.about(line))})" if several else ""
            key = (f"{line.label}{where}", state_text(records, i))
            seeds.setdefault(key, []).append(int(records.cells["seed"].iloc[i]))
        states = [f"{label} seed {listed(each)}: {state}" for (label, state), each in seeds.items()]
        warnings = [
            warning.message
            for warning in sorted(records.warnings, key=lambda w: not w.refuses)
            if any(int(of_cell[i]) in wanted for i in warning.cells)
            and (not places or not warning.place or warning.place in places)
        ]
        notes = [f"Not complete, in no mean and no interval: {'; '.join(_short(states, 8))}."] if states else []
        return notes + ([f"Warnings: {'; '.join(_short(warnings))}."] if warnings else [])


def state_text(records: Records, number: int) -> str:
    """`failed at step 7 of 12 (disk)`"""
    cell = records.cells.iloc[number]
    planned = int(cell["planned_steps"] or 0)
    where = f" at step {int(cell['last_step'])} of {planned}" if planned else ""
    why = f" ({cell['failure_class']})" if cell["failure_class"] else ""
    return f"{cell['state']}{where}{why}"


def _short(messages: Sequence[str], limit: int = 4, letters: int = 220) -> list[str]:
    shown = [text if len(text) <= letters else f"{text[: letters - 1]}…" for text in messages[:limit]]
    return shown + ([f"and {len(messages) - limit} more in the tables"] if len(messages) > limit else [])


def interval_note(counts: Iterable[int], what: str) -> str:
    """What an interval over so few seeds rests on. counts: seeds behind each number; what: `Whiskers`, `Bands`."""
    known = sorted({n for n in counts if n})
    if not known:
        return "No complete run is behind this figure."
    if known[-1] == 1:
        return f"{what}: none over seeds, because there is one seed."
    quantiles = ", ".join(f"{n} seeds: t\u00a0=\u00a0{stats.t_quantile(n - 1):.2f}, {n - 1} df" for n in known if n > 1)
    text = f"{what}: 95 % t interval of the mean over training seeds ({quantiles}), not over episodes."
    if known[0] == 1:
        text += " Rows with one seed have no such interval."
    n = known[-1]
    paired, unpaired = stats.smallest_sign_flip_p(n), stats.smallest_permutation_p(n, n)
    if min(paired, unpaired) > 0.05:
        text += (
            f" {n} seeds estimate the spread poorly, and no permutation test over them can reach p\u00a0=\u00a00.05 "
            f"(smallest: {paired:.3g} paired, {unpaired:.3g} unpaired)."
        )
    return text


def _read(path: Path) -> tuple[NDArray[np.int64], Array]:
    """SERIES of training steps. A line that cannot be read is left out: the tables' warnings name it."""
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    found: dict[int, dict[int, float]] = {}
    for step, values in _metrics(data):
        known = {_COLUMN[name]: _number(value) for name, value in values.items() if name in _COLUMN}
        if step >= 1 and known:
            found.setdefault(step, {}).update(known)
    table = np.full((len(found), len(SERIES)), np.nan)
    order = sorted(found)
    for row, step in enumerate(order):
        table[row, list(found[step])] = list(found[step].values())
    return np.array(order, dtype=np.int64), table


def _metrics(data: bytes) -> Iterator[tuple[int, dict[str, object]]]:
    for raw in data.split(b"\n")[:-1]:
        if b'"metrics"' in raw and (record := entry(raw)) is not None and record["kind"] == "metrics":
            yield record["step"], record["values"]


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
    return number if math.isfinite(number) else math.nan
