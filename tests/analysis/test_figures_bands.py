"""Numbers that figures work out themselves: blocks of steps, slices of time, bands, profiles, gaps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis import stats
from analysis.figures import bands, profile, seen_unseen, style
from analysis.figures.sources import SERIES, SPENT, SUCCESS, Run, Sources, interval_note


def run(values: list[float], cpu: list[float] | None = None, steps: list[int] | None = None) -> Run:
    table = np.full((len(values), len(SERIES)), math.nan)
    table[:, SERIES.index(SUCCESS)] = values
    if cpu is not None:
        table[:, SERIES.index(SPENT)] = cpu
    return Run(0, 0, 0, np.array(steps or range(1, len(values) + 1)), table, "")


def test_blocks_are_means_of_what_was_recorded_in_them() -> None:
    x, y = bands.by_steps(run([1, 2, 3, math.nan, 5]), SUCCESS, 2)
    assert x.tolist() == [1.5, 3.5, 5.0]
    assert y.tolist() == [1.5, 3.0, 5.0]


def test_a_block_without_a_value_is_a_gap_and_missing_steps_stay_where_they_are() -> None:
    x, y = bands.by_steps(run([1, 2, 8], steps=[1, 2, 7]), SUCCESS, 2)
    assert x.tolist() == [1.5, 3.5, 5.5, 7.0]
    assert y.tolist()[0] == 1.5 and np.isnan(y[1:3]).all() and y[3] == 8


@pytest.mark.parametrize(("steps", "size"), [(1, 1), (15, 1), (16, 2), (60, 4), (1000, 67)])
def test_a_curve_has_no_more_points_than_can_be_read(steps: int, size: int) -> None:
    assert bands.block_size([run([0.0] * steps)]) == size
    assert math.ceil(steps / size) <= bands.POINTS


def test_slices_of_cpu_time_weigh_steps_by_what_they_cost() -> None:
    one = run([0.0, 1.0, 0.5], cpu=[1.0, 4.0, 6.0])
    _, y = bands.by_time(one, SUCCESS, np.array([0.0, 2.0, 4.0, 6.0]))
    assert y.tolist() == [0.5, 1.0, 0.5]
    assert np.mean(y) == pytest.approx(stats.area_by_cost([0.0, 1.0, 0.5], [1.0, 4.0, 6.0], 6.0))


def test_a_slice_that_is_not_paid_for_is_not_extrapolated() -> None:
    _, y = bands.by_time(run([1.0], cpu=[3.0]), SUCCESS, np.array([0.0, 2.0, 4.0]))
    assert y[0] == 1.0 and math.isnan(y[1])


def test_cpu_edges_end_where_the_cheapest_run_ends() -> None:
    edges = bands.edges_of([run([0, 0], cpu=[1, 8]), run([0, 0, 0], cpu=[1, 2, 6])])
    assert edges is not None and edges.tolist() == [0.0, 3.0, 6.0]
    assert bands.edges_of([run([0, 0])]) is None
    assert bands.edges_of([]) is None


def test_a_band_is_the_t_interval_of_every_point() -> None:
    values = [np.array([0.2, 0.5]), np.array([0.4, 0.5]), np.array([0.3, 0.8])]
    made = bands.band([np.arange(2.0)] * 3, values, share=False)
    assert made is not None and made.n == 3
    for point in range(2):
        column = [each[point] for each in values]
        lo, hi = scipy_stats.t.interval(0.95, 2, np.mean(column), scipy_stats.sem(column))
        assert (made.mean[point], made.lo[point], made.hi[point]) == pytest.approx((np.mean(column), lo, hi))


def test_a_band_of_shares_stays_within_them_and_one_seed_has_none() -> None:
    made = bands.band([np.zeros(1)] * 2, [np.array([0.0]), np.array([1.0])], share=True)
    assert made is not None and (made.lo[0], made.hi[0]) == (0.0, 1.0)
    alone = bands.band([np.zeros(1)], [np.array([0.4])], share=True)
    assert alone is not None and alone.mean[0] == 0.4 and math.isnan(alone.lo[0])


def test_a_point_that_one_run_lacks_is_a_gap() -> None:
    made = bands.band([np.zeros(2)] * 2, [np.array([0.1, math.nan]), np.array([0.3, 0.5])], share=True)
    assert made is not None and made.mean[0] == pytest.approx(0.2) and math.isnan(made.mean[1])


# ------------------------------------------------------------------------------------------- profiles
def test_interquartile_mean_agrees_with_a_trimmed_mean_and_with_the_statistics() -> None:
    scores = np.random.default_rng(0).random((3, 6))
    mine = profile.interquartile_mean(scores.reshape(1, -1))[0]
    assert mine == pytest.approx(scipy_stats.trim_mean(scores.ravel(), 0.25))


def test_profile_is_the_share_above_and_equal_is_not_above() -> None:
    scores = np.array([[0.0, 0.5, 0.85, 1.0]])
    found = profile.profile(scores, np.array([0.0, 0.5, 0.85, 0.9, 1.0]))[0]
    assert found.tolist() == [0.75, 0.5, 0.25, 0.25, 0.0]
    assert profile.profile(np.array([[17 / 20]]), np.linspace(0, 1, 101))[0][85] == 0


def test_runs_are_drawn_whole() -> None:
    """Types of one run stay together: sums of a resample are sums of whole rows."""
    table = np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]])
    drawn = profile.resampled([table], resamples=50).reshape(50, 3, 2)
    assert (drawn[:, :, 0] == drawn[:, :, 1]).all()
    assert profile.resampled([table, table], resamples=5).shape == (5, 12)
    assert (profile.resampled([table]) == profile.resampled([table])).all()


def test_profile_needs_three_seeds_and_says_so(make_sweep: Any) -> None:
    sweep = make_sweep(seeds=(0, 1))
    (drawn, *_) = profile.draw(Sources.read(sweep.out, sweep.name))
    assert drawn.figure is None and "no row has 3 complete seeds" in drawn.reason and "GRPO: 2 seeds" in drawn.reason


# ------------------------------------------------------------------------------------------- gaps and words
def test_gaps_are_paired_by_seed(sweep: Any) -> None:
    def won(share: float) -> Any:
        return lambda rows: [
            {**row, "success": i % 30 < 30 * (share if row["panel"] == "seen" else share / 2)}
            for i, row in enumerate(rows)
        ]

    for seed, share in ((0, 0.2), (1, 0.4), (2, 0.8)):
        sweep.edit_episodes("grpo", seed, won(share))
    sources = Sources.read(sweep.out, sweep.name)
    line = next(i for i, line in enumerate(sources.records.lines) if line.row == "grpo")
    (gap,) = seen_unseen.gaps(sources, line)
    assert (gap.seen - gap.other).tolist() == pytest.approx([0.1, 0.2, 0.4])
    assert gap.interval.value == pytest.approx(0.7 / 3) and gap.interval.kind == stats.T_OVER_SEEDS


def test_a_seed_with_one_panel_only_is_in_no_gap(sweep: Any) -> None:
    sweep.write_state("grpo", 1, state="failed")
    sources = Sources.read(sweep.out, sweep.name)
    line = next(i for i, line in enumerate(sources.records.lines) if line.row == "grpo")
    (gap,) = seen_unseen.gaps(sources, line)
    assert gap.seen.size == 2


def test_notes_say_what_an_interval_rests_on() -> None:
    three = interval_note([3, 3, 2], "Bands")
    assert "3 seeds: t = 4.30, 2 df" in three.replace("\u00a0", " ")
    assert "no permutation test" in three and "0.25 paired, 0.1 unpaired" in three
    assert "no permutation test" not in interval_note([8], "Bands")
    assert "one seed" in interval_note([1], "Bands")
    assert interval_note([], "Bands") == "No complete run is behind this figure."


def test_looks_differ_by_more_than_their_colour() -> None:
    found = style.looks()
    assert len({look.marker for look in found}) == len({look.dashes for look in found}) == len(found)


def test_offsets_are_even_and_names_of_files_plain() -> None:
    assert style.spread(1, 0.2) == [0.0]
    assert style.spread(3, 0.2) == pytest.approx([-0.2, 0.0, 0.2])
    assert style.slug("overall", "alfworld", "25% of data", "") == "overall-alfworld-25__of_data"
