"""Skills written by hand, one workflow per task type, filled with what the task is about."""

from __future__ import annotations

from envs.alfworld.hindsight import workflow
from envs.alfworld.tracker import Aim
from envs.interface import Task


def skill_for(task: Task) -> str:
    """The workflow of the task's type. KeyError names a task whose slots are missing."""
    try:
        slots = task.slots
        return workflow(Aim(task.type, slots["object"], slots.get("target", ""), slots.get("lamp", "")))
    except KeyError as error:
        raise KeyError(f"task {task.id}: slot {error} is missing, so no library skill can be written for it") from error
