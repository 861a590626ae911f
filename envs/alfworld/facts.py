"""Facts about the 120 AI2-THOR rooms and about what can hold, heat, cool or clean what.

The table `data/facts.json` holds facts only (receptacle ids and poses, object types per room, containment and
affordance relations, goal kinds per room kind, what the command `help` lists, and a digest of the rules). It is derived
from the `alfworld` package by `python -m envs.alfworld.facts`, so that worlds can be made and played without that
package.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
# ALFRED's split by room: valid_unseen uses exactly these four; test_unseen's rooms occur nowhere in ALFWorld
UNSEEN_ROOMS = (10, 219, 308, 424)
TEST_UNSEEN_ROOMS = (9, 29, 215, 226, 315, 325, 404, 425)
# device that changes an object, by task type: (verb, receptacle type, affordance)
DEVICES = {
    "pick_clean_then_place_in_recep": ("clean", "SinkBasin", "Cleanable"),
    "pick_heat_then_place_in_recep": ("heat", "Microwave", "Heatable"),
    "pick_cool_then_place_in_recep": ("cool", "Fridge", "Coolable"),
}
# where a lamp stands so that one can examine something under it (the package's layouts place no lamps)
LAMP_SURFACES = ("CoffeeTable", "Desk", "DiningTable", "Dresser", "Shelf", "SideTable")

Pose = tuple[int, int, int, int]  # x and z in quarter metres, rotation in quarter turns, camera horizon in degrees


@dataclass(frozen=True)
class Room:
    """number; kind (Kitchen, LivingRoom, Bedroom, Bathroom); receptacle id -> (type, pose); object types present."""

    number: int
    kind: str
    receptacles: dict[str, tuple[str, Pose]]
    object_types: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    rooms: dict[int, Room]
    can_contain: dict[str, tuple[str, ...]]  # receptacle type -> object types
    affordances: dict[str, tuple[str, ...]]  # Cleanable, Heatable, Coolable, Toggleable, Sliceable -> object types
    openable: tuple[str, ...]
    goals_by_room_kind: dict[str, tuple[str, ...]]  # task type -> room kinds
    fixed: tuple[str, ...]  # receptacle types that stay where they are
    movable: tuple[str, ...]  # things that can hold things and be carried
    object_types: tuple[str, ...]
    instructions: dict[str, tuple[str, ...]]  # task type -> the environment's two wordings
    help: str  # the answer to the command `help`
    rules: str  # digest of the package's domain, grammar and goals: `envs.alfworld.layout.Rules.digest`

    def holds(self, receptacle_type: str, object_type: str) -> bool:
        return object_type in self.can_contain.get(receptacle_type, ())


@cache
def facts() -> Facts:
    """The table shipped with the project."""
    raw = json.loads(resources.files("envs.alfworld").joinpath("data/facts.json").read_text(encoding="utf-8"))
    rooms = {
        int(n): Room(
            int(n),
            r["kind"],
            {i: (t, (p[0], p[1], p[2], p[3])) for i, (t, p) in r["receptacles"].items()},
            tuple(r["object_types"]),
        )
        for n, r in raw["rooms"].items()
    }

    def tuples(key: str) -> dict[str, tuple[str, ...]]:
        return {k: tuple(v) for k, v in raw[key].items()}

    return Facts(
        rooms=rooms,
        can_contain=tuples("can_contain"),
        affordances=tuples("affordances"),
        openable=tuple(raw["openable"]),
        goals_by_room_kind=tuples("goals_by_room_kind"),
        fixed=tuple(raw["fixed"]),
        movable=tuple(raw["movable"]),
        object_types=tuple(raw["object_types"]),
        instructions=tuples("instructions"),
        help="\n".join(raw["help"]),
        rules=raw["rules"],
    )


def train_rooms() -> tuple[int, ...]:
    """Rooms that training and `seen` panels may use: all but ALFRED's unseen ones."""
    return tuple(n for n in sorted(facts().rooms) if n not in UNSEEN_ROOMS + TEST_UNSEEN_ROOMS)


def derive() -> dict[str, object]:
    """The table, read again from the installed `alfworld` package."""
    import alfworld
    from alfworld.gen import constants as c
    from alfworld.gen import goal_library

    from envs.alfworld.layout import help_text, installed_rules

    rules = installed_rules()
    layouts = Path(alfworld.__file__).parent / "gen" / "layouts"
    fixed = sorted(set(c.RECEPTACLES) - set(c.MOVABLE_RECEPTACLES))
    kinds = {n: kind for kind, numbers in sorted(c.SCENE_TYPE.items()) for n in numbers}
    rooms = {}
    for n in sorted(kinds):
        poses = json.loads((layouts / f"FloorPlan{n}-openable.json").read_text())
        types = json.loads((layouts / f"FloorPlan{n}-objects.json").read_text())
        receptacles = {}
        for ident in sorted(poses):
            x, z, rotation, horizon = poses[ident]
            kind = ident.split("|")[0]
            kind = {"Sink": "SinkBasin", "Bathtub": "BathtubBasin"}.get(kind, kind)
            if kind in fixed:
                pose = [round(x / 0.25), round(z / 0.25), int(rotation // 90) % 4, int(horizon)]
                receptacles[ident] = [kind, pose]
        rooms[str(n)] = {"kind": kinds[n], "receptacles": receptacles, "object_types": sorted(types)}
    return {
        "rooms": rooms,
        "can_contain": {k: sorted(v) for k, v in sorted(c.VAL_RECEPTACLE_OBJECTS.items())},
        "affordances": {k: sorted(v) for k, v in sorted(c.VAL_ACTION_OBJECTS.items())},
        "openable": sorted(c.OPENABLE_CLASS_SET),
        "goals_by_room_kind": {t: sorted(c.GOALS_VALID[t]) for t in TASK_TYPES},
        "fixed": fixed,
        "movable": sorted(c.MOVABLE_RECEPTACLES_SET),
        "object_types": sorted(c.OBJECTS_SET),
        "instructions": {t: list(goal_library.gdict[t]["templates"]) for t in TASK_TYPES},
        "help": help_text(rules.grammar).split("\n"),
        "rules": rules.digest,
    }


def table_path() -> Path:
    return Path(__file__).parent / "data" / "facts.json"


def render(table: dict[str, object]) -> str:
    """One room or relation per line: small, and readable in a diff."""
    lines = []
    for key in sorted(table):
        value = table[key]
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in value.items())
            lines.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{" + ",\n".join(lines) + "}\n"


if __name__ == "__main__":
    table_path().parent.mkdir(exist_ok=True)
    table_path().write_text(render(derive()), encoding="utf-8")
    print(f"wrote {table_path()}")
