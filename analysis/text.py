"""How numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from analysis import stats
from analysis.cells import Cell, Status

EVALUATION_ONLY = (stats.EVALUATION_ONE_SEED, stats.EVALUATION_EQUAL_SEEDS)
INSTEAD = {Status.MISSING: "–", Status.NOT_APPLICABLE: "n/a", Status.MIXED: "mixed", Status.INVALID: "invalid"}


def number(value: float, unit: str, signed: bool = False) -> str:
    """A number in its unit: shares as per cent and scores from 0 to 100 with one decimal, tokens in thousands."""
    if unit in ("%", "points", "score"):
        text = f"{100 * value:{'+' if signed else ''}.1f}"
    elif unit == "tokens":
        text = f"{value / 1000:,.1f}k" if value else "0"
    elif unit == "count":
        text = f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    elif unit == "GPU h":
        text = f"{value:,.2f}"
    elif unit == "ratio":
        text = f"{value:.2f}"
    elif unit in ("nats", "share", "weight", "money"):
        text = f"{value:.4g}"
    else:
        text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")


def bounded(cell: Cell, interval: stats.Interval | None) -> str:
    """`45.6 [40.1, 51.1]`, with ᵉ where the interval is evaluation-only; an en dash where there is no number."""
    if interval is None:
        return INSTEAD.get(cell.status, "–")
    signed = cell.unit == "points"
    value = number(interval.value, cell.unit, signed)
    if math.isnan(interval.lo):
        return value
    middle = "–" if interval.kind == stats.RANGE else ", "
    ends = middle.join(number(x, cell.unit, signed) for x in (interval.lo, interval.hi))
    return f"{value} [{ends}]{'ᵉ' if interval.kind in EVALUATION_ONLY else ''}"


def half_width(cell: Cell) -> str:
    """`45.6 ±5.5`: the distance to the farther bound."""
    if cell.interval is None or math.isnan(cell.interval.lo):
        return bounded(cell, cell.interval)
    mark = "ᵉ" if cell.interval.kind in EVALUATION_ONLY else ""
    return f"{number(cell.interval.value, cell.unit)} ±{number(cell.interval.half_width, cell.unit)}{mark}"


def listed(values: Iterable[Any], limit: int = 4) -> str:
    """`a, b, c, d and 3 more`"""
    texts = [str(v) for v in values]
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "")


def p_value(p: float) -> str:
    if math.isnan(p):
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"
