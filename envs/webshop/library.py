"""The workflow of a task in one line, in the closed vocabulary of small models."""

from __future__ import annotations

from collections.abc import Sequence

from envs.interface import Task
from envs.webshop.goals import NO_BOUND, Goal
from envs.webshop.reading import tens


def slots_of(goal: Goal) -> dict[str, str]:
    """What a task is about, as texts: product, attributes, options and bound."""
    slots = {
        "product": goal.query,
        "attributes": "; ".join(goal.attributes),
        "options": "; ".join(value for _, value in goal.options),
    }
    if goal.price_upper < NO_BOUND:
        slots["bound"] = f"{goal.price_upper:.2f}"
    return slots


def workflow(query: str, values: Sequence[str], bound: float | None) -> str:
    """Steps in order, e.g. `search slim fit polo shirt, click item under price 4, click navy, click buy now`."""
    limit = f" under price {tens(bound)}" if bound is not None else ""
    choices = [f"click {value}" for value in values]
    return ", ".join([f"search {query}", f"click item{limit}", *choices, "click buy now"])


def skill_for(task: Task) -> str:
    """The workflow of a task. KeyError names a task whose slots are missing."""
    try:
        slots = task.slots
        values = [value for value in slots["options"].split("; ") if value]
        query = " ".join([*(a for a in slots["attributes"].split("; ") if a), slots["product"], *values])
        bound = float(slots["bound"]) if "bound" in slots else None
        return workflow(query, values, bound)
    except KeyError as error:
        raise KeyError(f"task {task.id}: slot {error} is missing, so no workflow can be written for it") from error
