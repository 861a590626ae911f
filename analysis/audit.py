"""What the cells of published tables say about each other: arithmetic on printed numbers, nothing else.

Printed values are per cent with one decimal, so a cell v stands for any share within 0.05 points of v. Every function
here takes printed numbers and tries all counts that could have been rounded to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from analysis.cells import Metric
from analysis.published import PAPER, TYPES, average_kind, published_numbers

EPISODES = 128  # per evaluation on ALFWorld, Tables 1 to 3 and 7
UNSEEN_EPISODES = 134  # Table 8
ROUNDED = 0.05 + 1e-9
DATA_SETS = ("NQ", "TriviaQA", "PopQA", "HotpotQA", "2WikiMultiHopQA", "MuSiQue", "Bamboogle")
QUESTIONS, BATCH = 51_713, 512  # rows of the search test set, and of one validation batch
BAMBOOGLE = 125


def counts(value: float, n: int) -> tuple[int, ...]:
    """Every k whose share of n is printed as `value` per cent."""
    near = round(value * n / 100)
    return tuple(k for k in range(max(0, near - 1), min(n, near + 1) + 1) if abs(100 * k / n - value) <= ROUNDED)


def is_count(value: float, n: int) -> bool:
    """Whether k / n can be printed as `value` for some k."""
    return bool(counts(value, n))


def macro(cells: Sequence[float]) -> float:
    """Unweighted mean of printed cells; off by at most 0.05 from that of the numbers behind them."""
    return sum(cells) / len(cells)


@lru_cache(maxsize=256)
def totals(cells: tuple[float, ...], episodes: int) -> frozenset[int]:
    """Every number of successes that fits the cells, whatever the number of games of each type (at least one)."""
    reached = {(0, 0)}
    for value in cells:
        options = [(n, k) for n in range(1, episodes + 1) for k in counts(value, n)]
        reached = {(games + n, won + k) for games, won in reached for n, k in options if games + n <= episodes}
    return frozenset(won for games, won in reached if games == episodes)


def can_share_games(rows: Iterable[Sequence[float]], episodes: int) -> bool:
    """Whether one choice of games per type could have given the cells of all these rows (their averages aside)."""
    reached = {0}
    for column in zip(*rows, strict=True):
        options = [n for n in range(1, episodes + 1) if all(is_count(value, n) for value in column)]
        reached = {games + n for games in reached for n in options if games + n <= episodes}
    return episodes in reached


# ---------------------------------------------------------------------------------------------- ALFWorld
@dataclass(frozen=True, slots=True)
class AlfworldRow:
    """One printed row. cells: by TYPES; average: column Avg; imported: the file's remark that another paper has it."""

    table: str
    method: str
    backbone: str
    cells: tuple[float, ...]
    average: float
    imported: bool

    @property
    def episodes(self) -> int:
        return UNSEEN_EPISODES if self.table == "Table 8" else EPISODES

    @property
    def kind(self) -> Metric:
        """What its average is: the macro mean of its cells, or else an episode mean."""
        return average_kind(self.cells, self.average)

    @property
    def fits_episodes(self) -> bool:
        """Whether its average is a whole number of episodes."""
        return is_count(self.average, self.episodes)

    @property
    def micro(self) -> tuple[float, float] | None:
        """Least and largest episode mean in per cent that fit the printed cells; None if no choice of games does."""
        found = totals(self.cells, self.episodes)
        return (100 * min(found) / self.episodes, 100 * max(found) / self.episodes) if found else None

    @property
    def cut_off(self) -> int | None:
        """The number of episodes whose share gives the average when digits are cut off instead of rounded, if any."""
        k = math.ceil(round(self.average * self.episodes / 100, 9))
        return k if 0 <= 100 * k / self.episodes - self.average < 0.1 - 1e-9 else None


def _printed(**wanted: str) -> list[Mapping[str, str]]:
    """Cells of the paper's tables, never derived ones."""
    return [
        n
        for n in published_numbers()
        if n["paper"] == PAPER
        and n["table"].startswith("Table")
        and n["provenance"] == "published"
        and all(n[key] == value for key, value in wanted.items())
    ]


def alfworld(table: str) -> list[AlfworldRow]:
    """The rows of a table with all six types and an average, in its order."""
    by_row: dict[tuple[str, str], dict[str, Mapping[str, str]]] = {}
    for n in _printed(table=table, env="ALFWorld", metric="success_rate"):
        by_row.setdefault((n["method"], n["backbone"]), {})[n["column"].removeprefix("unseen:")] = n
    return [
        AlfworldRow(
            table,
            method,
            backbone,
            tuple(float(columns[t]["value"]) for t in TYPES),
            float(columns["Avg"]["value"]),
            any("imported" in n["note"] for n in columns.values()),
        )
        for (method, backbone), columns in by_row.items()
        if {*TYPES, "Avg"} <= columns.keys() and not method.startswith("delta")
    ]


# ---------------------------------------------------------------------------------------------- search
@dataclass(frozen=True, slots=True)
class SearchRow:
    """One printed row: cells by DATA_SETS, and the column Avg."""

    method: str
    backbone: str
    cells: tuple[float, ...]
    average: float

    @property
    def bamboogle(self) -> float:
        return self.cells[-1]

    @property
    def batch_mean(self) -> tuple[int, int] | None:
        """(right among the first 124, right in the last batch of one), if (x/124 + b)/2 is printed so; else None."""
        rest = BAMBOOGLE - QUESTIONS % BATCH
        for last in (1, 0):
            for x in range(rest + 1):
                if abs(100 * (x / rest + last) / 2 - self.bamboogle) <= ROUNDED:
                    return x, last
        return None

    @property
    def pooled(self) -> float:
        """Bamboogle over its 125 questions, per cent."""
        found = self.batch_mean
        if found is None or is_count(self.bamboogle, BAMBOOGLE):
            return self.bamboogle
        return 100 * sum(found) / BAMBOOGLE

    @property
    def pooled_average(self) -> float:
        """Mean of the seven data sets with Bamboogle pooled."""
        return macro((*self.cells[:-1], self.pooled))


def search() -> list[SearchRow]:
    """The rows of Table 1 with all seven data sets and an average, in its order."""
    by_row: dict[tuple[str, str], dict[str, float]] = {}
    for n in _printed(table="Table 1", env="Search-QA"):
        by_row.setdefault((n["method"], n["backbone"]), {})[n["column"]] = float(n["value"])
    return [
        SearchRow(method, backbone, tuple(columns[name] for name in DATA_SETS), columns["Avg"])
        for (method, backbone), columns in by_row.items()
        if {*DATA_SETS, "Avg"} <= columns.keys()
    ]


# ---------------------------------------------------------------------------------------------- between papers
@dataclass(frozen=True, slots=True)
class Shared:
    """One number that two papers print for the same method, backbone and environment."""

    method: str
    backbone: str
    what: str
    value: float
    first: str
    second: str


def shared_between_papers() -> list[Shared]:
    """Averages (and successes on WebShop) that are equal to the last digit in two papers, in the file's order."""
    found: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
    for n in published_numbers():
        average = n["column"] == "Avg" if n["env"] == "ALFWorld" else n["env"] == "WebShop"
        if not (average and n["metric"] == "success_rate" and n["provenance"].startswith("published")):
            continue
        if not (n["table"].startswith("Table 1") or n["table"] == "main"):
            continue
        key = (_METHOD.get(n["method"], n["method"]), n["backbone"], n["env"])
        found.setdefault(key, []).append((f"{n['paper']}, {n['table']}", float(n["value"])))
    return [
        Shared(method, backbone, env, value, first, second)
        for (method, backbone, env), entries in found.items()
        for i, (first, value) in enumerate(entries)
        for second, other in entries[i + 1 :]
        if first != second and value == other
    ]


_METHOD = {"GiGPO w/ std": "GiGPO"}


def fractions() -> list[tuple[str, str, float]]:
    """Table 7: method, share of the data as printed, average; without the differences."""
    return [
        (n["method"], n["column"], float(n["value"]))
        for n in _printed(table="Table 7")
        if not n["method"].startswith("delta")
    ]
