"""Generated worlds as games of the `alfworld` package: its domain, grammar and goals around our own initial states.

Only the reference engine (`env.engine=textworld`) and `python -m envs.alfworld generate` need this, and with it the
package. What the package says is not copied into the project; a digest of it is (`facts.json`), so that a package with
other rules than `native.py` plays is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from envs.alfworld.episode import lines_of
from envs.alfworld.facts import TASK_TYPES, Pose, facts
from envs.alfworld.worlds import LAMPS, World, mangle
from envs.panels import digest

_HELP = re.compile(r'"help\.feedback": \[\s*\{\s*"rhs": ("(?:[^"\\]|\\.)*")')
_STAND_IN = "UNKNOWN GOAL"  # where the package's grammar wants the instruction


@dataclass(frozen=True)
class Rules:
    """domain: PDDL; grammar: of the texts, with a stand-in for the instruction; goals: task type -> PDDL template."""

    domain: str
    grammar: str
    goals: Mapping[str, str]

    @property
    def digest(self) -> str:
        """16 hex digits over all of it but white space at line ends and empty lines."""
        texts = [self.domain, self.grammar, *(f"{kind}\n{self.goals[kind]}" for kind in sorted(self.goals))]
        return digest(*("\n".join(lines_of(text)) for text in texts))[:16]


def help_text(grammar: str) -> str:
    """What a grammar answers to the command `help`; "" if it has no such rule."""
    found = _HELP.search(grammar)
    return str(json.loads(found.group(1))) if found else ""


def installed_rules() -> Rules:
    """Of the installed package, whatever they are. ValueError if there is none."""
    require_package()
    from alfworld.gen import goal_library
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    goals = {kind: str(goal_library.gdict[kind]["pddl"]) for kind in TASK_TYPES}
    return Rules(Path(ALFRED_PDDL_PATH).read_text("utf-8"), Path(ALFRED_TWL2_PATH).read_text("utf-8"), goals)


def require_package() -> str:
    """The version of the alfworld package. ValueError if it is not installed."""
    try:
        return version("alfworld")
    except PackageNotFoundError as error:
        raise ValueError(
            "this needs the packages alfworld and textworld (env.engine=textworld, and writing game files); install "
            "agentic-rl-harness[alfworld], or play with env.engine=native, which needs neither"
        ) from error


@cache
def package_rules() -> Rules:
    """Of the installed package. ValueError without it, or if its rules are not those that `native.py` plays."""
    rules = installed_rules()
    if rules.digest != facts().rules:
        raise ValueError(
            f"alfworld {require_package()} has other rules (digest {rules.digest}) than the ones that "
            f"env.engine=native plays (digest {facts().rules}): results of the two engines would not be comparable; "
            "install alfworld 0.4.2"
        )
    return rules


def game_of(world: World, rules: Rules) -> dict[str, Any]:
    """The content of a game file, with no walkthrough yet."""
    return {
        "pddl_domain": rules.domain,
        "grammar": rules.grammar.replace(_STAND_IN, world.instruction),
        "pddl_problem": problem(world, rules.goals[world.spec.task_type]),
    }


def problem(world: World, goal: str) -> str:
    """The PDDL problem of a world. goal: template of the package, with `#` for ` - `."""
    table, spec = facts(), world.spec

    def loc(pose: Pose) -> str:
        return mangle("loc|{}|{}|{}|{}".format(*pose))

    rec, obj = sorted(world.receptacles.items()), sorted(world.objects.items())
    locations = sorted({loc(pose) for _, (_, pose) in rec} | {loc(world.start)})
    object_types = sorted(set(table.object_types) - set(table.fixed))
    present = sorted({kind for _, (kind, _) in obj})
    lines = [f"(define (problem plan_{world.trial})", "(:domain alfred)", "(:objects", "agent1 - agent"]
    lines += [f"{t} - object" for t in object_types]
    lines += [f"{t}Type - otype" for t in object_types] + [f"{t}Type - rtype" for t in table.fixed]
    lines += [f"{mangle(i)} - object" for i, _ in obj] + [f"{mangle(i)} - receptacle" for i, _ in rec]
    lines += [f"{x} - location" for x in locations] + [")", "(:init"]
    lines += [f"(receptacleType {mangle(i)} {kind}Type)" for i, (kind, _) in rec]
    lines += [f"(objectType {mangle(i)} {kind}Type)" for i, (kind, _) in obj]
    for kind in sorted({k for _, (k, _) in rec}):
        lines += [f"(canContain {kind}Type {t}Type)" for t in present if table.holds(kind, t)]
    lines += [f"(pickupable {mangle(i)})" for i, (kind, _) in obj if kind not in LAMPS]
    lines += [f"(isReceptacleObject {mangle(i)})" for i, (kind, _) in obj if kind in table.movable]
    lines += [f"(openable {mangle(i)})" for i, (kind, _) in rec if kind in table.openable]
    lines += [f"(atLocation agent1 {loc(world.start)})"]
    for affordance, kinds in sorted(table.affordances.items()):
        lines += [f"({affordance.lower()} {mangle(i)})" for i, (kind, _) in obj if kind in kinds]
    lines += [f"(inReceptacle {mangle(i)} {mangle(where)})" for i, (_, where) in obj]
    lines += [f"(receptacleAtLocation {mangle(i)} {loc(pose)})" for i, (_, pose) in rec]
    lines += [f"(objectAtLocation {mangle(i)} {loc(world.receptacles[where][1])})" for i, (_, where) in obj]
    lines += [")"]
    filled = goal.format(obj=spec.object, recep=spec.target, toggle=spec.toggle, mrecep="")
    return "\n".join(lines) + "\n" + filled.replace("#", "-")


def write(world: World, split_folder: Path, walkthrough: list[str], rules: Rules) -> Path:
    """Writes traj_data.json, initial_state.pddl and game.tw-pddl below `split_folder`; returns the game file."""
    spec = world.spec
    game = game_of(world, rules) | {"solvable": True, "walkthrough": walkthrough}
    trajectory = {
        "task_id": world.trial,
        "task_type": spec.task_type,
        "scene": {"floor_plan": f"FloorPlan{world.room}", "scene_num": world.room},
        "pddl_params": {
            "object_target": spec.object,
            "parent_target": spec.target,
            "mrecep_target": "",
            "toggle_target": spec.toggle,
            "object_sliced": False,
        },
        "turk_annotations": {"anns": [{"task_desc": world.instruction}]},
    }
    folder = split_folder / world.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "traj_data.json").write_text(json.dumps(trajectory), "utf-8")
    (folder / "initial_state.pddl").write_text(game["pddl_problem"], "utf-8")
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(game), "utf-8")
    return path
