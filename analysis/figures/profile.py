"""Performance profiles and interquartile means over runs and task types, for rows with three seeds or more.

A score is one run's success on one task type (of one environment), never a single episode. Bounds draw whole runs of
each environment with replacement: the types of one run are not independent of each other (Agarwal et al. 2021,
arXiv:2108.13264, draw runs per task, where each task has runs of its own).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.aggregates import APART, first_panel, scores_by_type
from analysis.figures import bands
from analysis.figures.sources import Array, Sources
from analysis.figures.style import SMALL, Drawn, Look, finish, grid, looks, per_cent, sheet, slug
from analysis.text import listed, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIN_SEEDS = 3
TOGETHER = 5  # rows in one figure
RESAMPLES = 2000
THRESHOLDS = np.linspace(0.0, 1.0, 101)


@dataclass(frozen=True)
class Scores:
    """One row. line: of its first environment; place: there; tables: scores [S, K] of each environment."""

    line: int
    place: str
    tables: tuple[Array, ...]

    @property
    def seeds(self) -> int:
        """Fewest of any environment."""
        return min(len(table) for table in self.tables)

    @property
    def flat(self) -> Array:
        return np.concatenate([table.ravel() for table in self.tables])


def draw(sources: Sources) -> Iterator[Drawn]:
    """One figure per backbone, fraction, scale and protocol, panel, and group of rows."""
    lines = sources.records.lines
    found: dict[tuple[object, ...], list[int]] = {}
    for index, line in enumerate(lines):
        if not line.stage:
            found.setdefault((line.backbone, line.fraction, line.scale, line.protocol), []).append(index)
    for chosen in found.values():
        parts = sources.about(lines[chosen[0]])[1:]
        for panels in _panels(sources, chosen):
            where = "_".join(dict.fromkeys(panels.values()))
            name = slug("profile", *parts, where)
            rows, left_out = _rows(sources, chosen, panels)
            if not rows:
                why = f"no row has {MIN_SEEDS} complete seeds with usable evaluations of every task type"
                yield Drawn(name, None, f"{why} ({listed(left_out)})" if left_out else why)
                continue
            by_line = {row.line: row for row in rows}
            groups = bands.chunks(sources, list(by_line), TOGETHER)
            for position, group in enumerate(groups, 1):
                part = f" ({position} of {len(groups)})" if len(groups) > 1 else ""
                on = listed([f"{env} {panel}" for env, panel in panels.items()], 9)
                title = sources.title(f"performance profile on {on}{part}", " · ".join(parts))
                shown = [by_line[line] for line in group]
                yield _figure(sources, slug(name, position if part else ""), title, shown, left_out, panels)


def _panels(sources: Sources, lines: Sequence[int]) -> list[dict[str, str]]:
    """Environment -> panel: once for what a row is trained for, once for each panel that stands apart, where it is."""
    known: dict[str, set[str]] = {}
    for line in lines:
        places = sources.measurements.places[line]
        known.setdefault(sources.records.lines[line].env, set()).update(p.rpartition("/")[0] for p in places)
    ordered = sorted(known.items())
    plain = {env: first for env, panels in ordered if (first := first_panel(panels))}
    far = ({env: apart for env, panels in ordered if apart in panels} for apart in APART)
    return [panels for panels in (plain, *far) if panels]


def _rows(sources: Sources, lines: Sequence[int], panels: dict[str, str]) -> tuple[list[Scores], list[str]]:
    """Rows that can be shown, and why others are not. A row that is evaluated without skills is taken so."""
    of_row: dict[str, dict[str, int]] = {}
    for line in lines:
        here = sources.records.lines[line]
        of_row.setdefault(here.row, {})[here.env] = line
    rows, left_out, partial = [], [], list[str]()
    for by_env in of_row.values():
        first = next(iter(by_env.values()))
        tables, places, dropped = [], [], list[int]()
        for env, panel in panels.items():
            places.append(_place(sources, by_env.get(env), panel))
            evaluation = sources.measurements.found.get((by_env.get(env, -1), places[-1]))
            if evaluation is not None:
                table, without = scores_by_type(evaluation)
                tables.append(table)
                dropped += without
        label = sources.label(first, places[0])
        if len(tables) < len(panels):
            left_out.append(f"{label}: no usable evaluation")
        elif (seeds := min(len(table) for table in tables)) < MIN_SEEDS:
            left_out.append(f"{label}: {seeds} {'seed' if seeds == 1 else 'seeds'}")
        else:
            rows.append(Scores(by_env[next(iter(panels))], places[0], tuple(tables)))
        if dropped and len(tables) == len(panels):
            partial.append(f"{label} seed {listed(dict.fromkeys(dropped))}")
    # Said of rows that are shown and of those that have too few seeds for it.
    return rows, [*left_out, *(f"{who}: nothing graded in a task type" for who in partial)]


def _place(sources: Sources, line: int | None, panel: str) -> str:
    places = sources.measurements.places[line] if line is not None else ()
    return next((p for p in (f"{panel}/off", f"{panel}/on") if p in places), f"{panel}/off")


# ------------------------------------------------------------------------------------------- numbers
def interquartile_mean(values: Array) -> Array:
    """Of each row of [B, N]: the mean without the lowest and the highest quarter (floor(N / 4) values each: of fewer
    than four values, the plain mean)."""
    cut = values.shape[1] // 4
    return np.asarray(np.sort(values, axis=1)[:, cut : values.shape[1] - cut].mean(axis=1))


def profile(values: Array, thresholds: Array) -> Array:
    """Of each row of [B, N]: share of scores above each threshold [B, T]."""
    # A share such as 17/20 may be a rounding above the threshold that it equals.
    return np.stack([(values > limit + 1e-9).mean(axis=1) for limit in thresholds], axis=1)


def resampled(tables: Sequence[Array], resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """[resamples, N]: all scores of each resample; runs are drawn whole, within their environment."""
    rng = np.random.default_rng([seed, resamples])
    parts = []
    for table in tables:
        drawn = rng.integers(0, len(table), size=(resamples, len(table)))
        parts.append(table[drawn].reshape(resamples, -1))
    return np.concatenate(parts, axis=1)


# ------------------------------------------------------------------------------------------- figure
def _figure(
    sources: Sources, name: str, title: str, rows: Sequence[Scores], left_out: Sequence[str], panels: dict[str, str]
) -> Drawn:
    figure = sheet(2.9)
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    reference = sources.reference_of([row.line for row in rows])
    available = looks() if reference is not None else looks()[1:]
    labels = [sources.label(row.line, row.place) for row in rows]
    handles = []
    for height, (row, look) in enumerate(zip(rows, available, strict=False)):
        handles.append(bands.handle(look, f"{labels[height]} ({row.seeds} seeds)"))
        _row(left, right, height, row, look)
    left.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="threshold τ, success of a run on a type, %")
    left.set_ylabel("share of runs × types above τ, %")
    right.set(ylim=(len(rows) - 0.4, -0.6), xlabel="interquartile mean, %")
    right.set_yticks(range(len(rows)), labels)
    right.tick_params(axis="y", length=0)
    grid(left, "both")
    grid(right, "x")
    per_cent(left, "both")
    per_cent(right, "x")
    types = ", ".join(f"{table.shape[1]} of {env}" for env, table in zip(panels, rows[0].tables, strict=True))
    few = min(row.seeds for row in rows)
    notes = [
        f"A score is one run's success on one task type ({types}). Bands and whiskers: 95 % percentiles of {RESAMPLES} "
        "resamples of whole runs; a band holds at each threshold by itself. They rest on "
        f"{few} {'runs' if few == max(row.seeds for row in rows) else 'runs or more'} a row"
        f"{', which makes them too narrow: read them as the least uncertainty' if few < 10 else ''}.",
        f"Not shown, because {MIN_SEEDS} seeds with a score in every task type are needed: {'; '.join(left_out)}."
        if left_out
        else "",
        *sources.legend_notes(labels),
        *sources.troubles([row.line for row in rows], [row.place for row in rows]),
    ]
    return finish(figure, title, notes, name, handles, columns=3)


def _row(left: Axes, right: Axes, height: int, row: Scores, look: Look) -> None:
    drawn = resampled(row.tables)
    style: dict[str, Any] = {**look.line, "markeredgewidth": 0}
    shares = profile(row.flat[None], THRESHOLDS)[0]
    lo, hi = np.quantile(profile(drawn, THRESHOLDS), [0.025, 0.975], axis=0)
    left.plot(THRESHOLDS, shares, markevery=(3 * height, 20), drawstyle="steps-post", zorder=3, **style)
    left.fill_between(THRESHOLDS, lo, hi, color=look.color, alpha=0.12, linewidth=0, step="post", zorder=2)
    value = float(interquartile_mean(row.flat[None])[0])
    low, high = (float(x) for x in np.quantile(interquartile_mean(drawn), [0.025, 0.975]))
    if not math.isclose(low, high):
        right.plot([low, high], [height] * 2, **{**style, "marker": "|", "markersize": 7, "markeredgewidth": 1.2})
    right.plot(value, height, zorder=3, **{**style, "markersize": 5.5, "linestyle": ""})
    right.text(1.04, height, number(value, "%"), transform=right.get_yaxis_transform(), va="center", fontsize=SMALL)
