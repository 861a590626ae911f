"""What one number of a table is: its metric, its interval, where it comes from, and what it may be called."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from analysis import stats
from analysis.plan import Line

ALL = "all"  # column of a cell that is not about one task type


class Metric(StrEnum):
    """What a number is. A name means one thing: score, success, micro and macro never share one."""

    SUCCESS = "success"
    """Share of graded episodes of one task type that reached the goal."""
    MICRO = "success_micro"
    """Mean of success over tasks."""
    MACRO = "success_macro"
    """Unweighted mean over task types of their mean success."""
    SCORE = "score"
    """Mean over tasks of the graded result, of environments where it is more than solved or not; no rate."""
    LENGTH = "episode_length"
    """Environment steps per graded episode."""
    MALFORMED = "malformed_share"
    """Share of environment steps whose response broke the format."""
    INADMISSIBLE = "inadmissible_share"
    """Share of environment steps whose action the environment refused, malformed ones among them."""
    DIFFERENCE_MICRO = "difference_micro"
    """Micro success minus the reference row's, paired by seed and task."""
    DIFFERENCE_MACRO = "difference_macro"
    """Macro success minus the reference row's, paired by seed and task."""
    TRAIN_FIRST = "train_success_first"
    """Mean success of training rollouts over the first steps."""
    TRAIN_LAST = "train_success_last"
    """Mean success of training rollouts over the last steps."""
    AREA_STEPS = "area_equal_steps"
    """Mean success of training rollouts over equally many steps."""
    AREA_TIME = "area_equal_time"
    """Mean success of training rollouts over equally many seconds of one clock, weighted by the time each step took."""
    DIFFERENCE_AREA_STEPS = "difference_area_equal_steps"
    """Area over equal steps minus the reference row's, paired by seed."""
    DIFFERENCE_AREA_TIME = "difference_area_equal_time"
    """Area over equal time minus the reference row's, paired by seed."""
    TIME = "time_total"
    """Seconds of training, from start to the last step; the unit says of which clock."""
    TIME_WITH_TEACHER = "time_total_with_teacher"
    """Seconds of training plus those of the runs whose weights it needs, all of one clock."""
    GPU_HOURS = "gpu_hours"
    """Wall hours of training times the GPUs held meanwhile."""
    GPU_HOURS_WITH_TEACHER = "gpu_hours_with_teacher"
    """GPU hours of training plus those of the runs whose weights it needs."""
    COST_STEP = "cost_per_step"
    """Mean per training step of what `column` names."""
    COST_RATIO = "time_per_step_ratio"
    """Seconds per training step over the reference row's in the same seed, of one clock."""
    GAP = "gap_of_panels"
    """Micro success on the panel of seen tasks minus that on the panel that `column` names, paired by seed."""
    AREA_FRACTIONS = "area_over_fractions"
    """Micro success over the fractions of the training tasks or steps: area under the curve over their range."""
    DIFFERENCE_AREA_FRACTIONS = "difference_area_over_fractions"
    """Area over fractions minus the reference row's, paired by seed."""
    IQM = "interquartile_mean"
    """Mean of the middle half of all runs x task types (of all environments where `column` says so); of fewer than four
    scores, their mean."""
    IMPROVEMENT = "probability_of_improvement"
    """Probability that a run beats one of the reference row, mean over task types, ties half."""
    DETECTABLE = "detectable_difference"
    """Smallest micro difference to the reference row that a paired t test over these seeds finds in four of five."""
    RETIREMENT = "retirement"
    """One seed's number about its teacher: `column` names it and the seed."""


class Status(StrEnum):
    """Where a number comes from, or why there is none."""

    MEASURED = "measured here"
    SMALLER = "measured here – smaller scale"
    QUOTED = "quoted"
    IMPORTED = "imported"
    DERIVED = "derived"
    MISSING = "missing"
    MIXED = "mixed"
    INVALID = "invalid"
    NOT_APPLICABLE = "not applicable"


MEASURED = (Status.MEASURED, Status.SMALLER)
OTHERS = (Status.QUOTED, Status.IMPORTED, Status.DERIVED)
RECORDS = "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number of a table with everything a reader needs to judge it.

    line: None for numbers of other people; place: `<panel>/<skills>`, `train`, or empty
    unit: %, points, score, steps, CPU s, wall s, GPU h, tokens (interval in shares for %, points and score)
    n_planned: seeds planned; the seeds behind the number are interval.n
    source: `records` for numbers measured here, otherwise a citation with its table
    reference: row that a difference is taken to; p_*: of the difference, NaN without a test
    significant: both intervals of the difference exclude zero (see compare.py)
    """

    line: Line | None
    place: str
    metric: Metric
    column: str
    unit: str
    interval: stats.Interval | None
    status: Status
    source: str = RECORDS
    n_planned: int = 0
    n_tasks: int = 0
    n_episodes: int = 0
    protocol: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""
    second: stats.Interval | None = None
    p_t: float = math.nan
    p_holm: float = math.nan
    p_exact: float = math.nan
    p_smallest: float = math.nan
    significant: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.status in MEASURED and (self.source != RECORDS or self.line is None):
            raise ValueError(f"a number from {self.source!r} may not be shown as {self.status.value!r}")
        if self.status in OTHERS and not ("Table" in self.source and ":" in self.source):
            raise ValueError(f"a {self.status.value} number needs a citation with its table, got {self.source!r}")
        if (self.interval is None) == (self.status in MEASURED or self.status in OTHERS):
            raise ValueError(f"{self.metric}: status {self.status.value!r} does not fit interval {self.interval}")

    @property
    def n_seeds(self) -> int:
        return self.interval.n if self.interval is not None else 0


def measured(line: Line) -> Status:
    """Numbers of any scale but the papers' own are labelled as such."""
    return Status.MEASURED if line.scale == "paper" else Status.SMALLER


# The official names begin like this; the short names are the papers'. Other environments keep their own.
_SHORT_TYPES = (
    ("pick_and_place", "Pick"),
    ("look_at_obj", "Look"),
    ("pick_clean", "Clean"),
    ("pick_heat", "Heat"),
    ("pick_cool", "Cool"),
    ("pick_two", "Pick2"),
)


def short_type(task_type: str) -> str:
    """`pick_cool_then_place_in_recep` -> `Cool`; unknown names stay as they are."""
    return next((short for start, short in _SHORT_TYPES if task_type.startswith(start)), task_type)


def ordered_types(task_types: Sequence[str]) -> list[str]:
    """The papers' order, then by name."""
    known = [start for start, _ in _SHORT_TYPES]
    rank = {t: next((i for i, start in enumerate(known) if t.startswith(start)), len(known)) for t in task_types}
    return sorted(set(task_types), key=lambda t: (rank[t], t))


def bounds_over_planned(cell: Cell) -> tuple[float, float] | None:
    """Mean success over all planned seeds if the missing ones had solved nothing, or everything; None if none misses.

    A seed that failed may have failed because of what it would have scored.
    """
    if cell.metric not in (Metric.MICRO, Metric.MACRO) or cell.interval is None or cell.n_seeds >= cell.n_planned:
        return None
    known = cell.interval.value * cell.n_seeds
    return known / cell.n_planned, (known + cell.n_planned - cell.n_seeds) / cell.n_planned
