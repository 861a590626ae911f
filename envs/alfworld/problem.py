"""ALFWorld's game files as scenes of the native engine, or the reason why one is none.

The first state and what wins are read from the PDDL problem, which the content hash covers; that `traj_data.json` says
the same is checked. What the native engine does not model (an object in two receptacles or inside another object,
things that are clean or lit from the start, goals of another form) is refused by name, never dropped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from envs.alfworld.native import PROPERTIES, Goal, Scene, goal_of_task
from envs.interface import EnvironmentFailure

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")
# an entity has one of each
_SINGLE = ("receptacletype", "objecttype", "receptacleatlocation", "objectatlocation", "inreceptacle")
# predicate -> how many arguments
_MODELLED = {
    **dict.fromkeys((*_SINGLE, "atlocation", "cancontain"), 2),
    **dict.fromkeys(("openable", "opened", *PROPERTIES), 1),
}
# No precondition, no condition of an effect and no text of the domain and grammar of alfworld 0.4.2 asks for these.
_INERT = frozenset(
    [
        "wasinreceptacle",
        "checked",
        "examined",
        "full",
        "moveable",
        "ison",
        "isreceptacleobjectfull",
        "holdsanyreceptacleobject",
    ]
)
_NUMBERS = ("distance", "total-cost", "totalcost")  # what walking costs, of planners
_STATES = {"isclean": "clean", "ishot": "hot", "iscool": "cool"}
# What follows from the rest of the goal: lamps can be toggled, what is clean could be cleaned, ...
_IMPLIED = ("toggleable", "cleanable", "heatable", "coolable", "receptacleatlocation", "atlocation")


def scene_of_game(
    problem: str, task_type: str, params: Mapping[str, str], instruction: str, file: str = "the game"
) -> Scene:
    """The scene of a game file. params: `pddl_params` of traj_data.json; instruction: without the final period.

    Raises EnvironmentFailure naming `file` and the fact that cannot be played.
    """
    text = _COMMENT.sub("", problem).lower()
    found = _facts(_section(text, ":init", file), file)
    goal = _goal(_section(text, ":goal", file), file)
    told = goal_of_task(task_type, params["object_target"], params["parent_target"], params["toggle_target"])
    if goal != told:
        raise EnvironmentFailure(
            f"{file} is won by {goal}, and the traj_data.json beside it tells of {told}: one of them belongs to "
            "another game"
        )
    single = {name: _single(name, found[name], file) for name in _SINGLE}
    scene = Scene(
        receptacle_type={r: _kind(t) for r, t in single["receptacletype"].items()},
        object_type={o: _kind(t) for o, t in single["objecttype"].items()},
        location=single["receptacleatlocation"],
        start=found["atlocation"][0][1] if found["atlocation"] else "",
        where=single["inreceptacle"],
        can_contain={(_kind(r), _kind(o)) for r, o in found["cancontain"]},
        openable={r for (r,) in found["openable"]},
        opened={r for (r,) in found["opened"]},
        properties={p: {o for (o,) in found[p]} for p in PROPERTIES},
        object_location=single["objectatlocation"],
        goal=goal,
        instruction=instruction,
    )
    _check(scene, file)
    return scene


def _unplayable(file: str, what: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"{file} {what}, which env.engine=native does not play: use env.engine=textworld")


def _section(text: str, name: str, file: str) -> list[Any]:
    """What follows the section's name, as nested lists of words."""
    at = text.find(f"({name}")
    stack: list[list[Any]] = []
    for match in _TOKEN.finditer(text, max(at, 0)) if at >= 0 else ():
        token = match.group()
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) == 1:
            return stack[0][1:]
        else:
            stack[-2].append(stack.pop())
    raise EnvironmentFailure(f"{file} has no complete section ({name} ...) in its PDDL problem")


def _facts(init: Iterable[Any], file: str) -> dict[str, list[list[str]]]:
    """Predicate -> arguments of each fact that the engine models."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for fact in init:
        head = fact[0] if isinstance(fact, list) and fact else ""
        if head == "=" and isinstance(fact[1], list) and fact[1][0] in _NUMBERS:
            continue
        if head in _INERT:
            continue
        words = isinstance(fact, list) and all(isinstance(part, str) for part in fact)
        if not words or _MODELLED.get(head) != len(fact) - 1:
            raise _unplayable(file, f"begins with the fact {_spelt(fact)}")
        found[head].append(fact[1:])
    return found


def _single(name: str, facts: Iterable[list[str]], file: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for one, other in facts:
        if found.setdefault(one, other) != other:
            raise _unplayable(file, f"begins with both ({name} {one} {found[one]}) and ({name} {one} {other})")
    return found


def _check(scene: Scene, file: str) -> None:
    """Everything that is somewhere is something, and every receptacle is somewhere."""
    if not scene.start:
        raise _unplayable(file, "does not say where the agent is")
    for what, names in (
        ("a receptacle without a place", scene.receptacle_type.keys() - scene.location.keys()),
        ("a receptacle without a type", scene.location.keys() - scene.receptacle_type.keys()),
        ("a receptacle without a type", set(scene.where.values()) - scene.receptacle_type.keys()),
        ("an object without a type", scene.where.keys() - scene.object_type.keys()),
    ):
        if names:
            raise _unplayable(file, f"has {what} ({min(names)})")


def _goal(section: list[Any], file: str) -> Goal:
    """What wins: objects of a type, in a state perhaps, in a receptacle of a type, or one held beside a lit lamp."""
    wanted: dict[str, list[list[str]]] = defaultdict(list)
    for name, *arguments in _literals(section, file):
        wanted[name].append(arguments)
    types = _single("objecttype", wanted["objecttype"], file)
    targets = {_kind(kind) for _, kind in wanted["receptacletype"]}
    lit, held = {v for (v,) in wanted["istoggled"]}, {v for _, v in wanted["holds"]}
    inside = {o for o, _ in wanted["inreceptacle"]} - lit
    states = {state: {v for (v,) in wanted[name]} for name, state in _STATES.items() if wanted[name]}
    kinds = {_kind(types.get(v, "")) for v in held | inside}
    lamps = {_kind(types.get(v, "")) for v in lit}
    if len(kinds) == 1 and len(held) == len(lit) == 1 and not (inside or targets or states):
        return Goal(kinds.pop(), None, lamps.pop(), None, 1)
    one_state = len(states) <= 1 and all(those == inside for those in states.values())
    if len(kinds) == len(targets) == 1 and one_state and not (held or lit):
        return Goal(kinds.pop(), targets.pop(), None, next(iter(states), None), len(inside))
    raise _unplayable(file, f"has the goal {_spelt(section)}")


def _literals(parts: Iterable[Any], file: str) -> Iterable[list[str]]:
    for part in parts:
        head = part[0] if isinstance(part, list) and part else ""
        if head in ("and", "exists"):
            yield from _literals(part[2:] if head == "exists" else part[1:], file)
        elif head == "not" and len(part) == 2 and part[1][0] == "=":
            continue  # two objects, not the same twice
        elif head in (*_STATES, "objecttype", "receptacletype", "inreceptacle", "holds", "istoggled"):
            yield part
        elif head not in _IMPLIED:
            raise _unplayable(file, f"asks for {_spelt(part)} in its goal")


def _kind(type_name: str) -> str:
    return type_name.removesuffix("type")


def _spelt(tree: Any) -> str:
    return tree if isinstance(tree, str) else f"({' '.join(map(_spelt, tree))})"
