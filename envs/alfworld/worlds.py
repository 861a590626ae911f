"""Generated ALFWorld games: real rooms and receptacles, objects placed from a seed.

A world is drawn from facts alone (`facts.py`) and can be drawn again from its location, so no file holds it.
`GENERATOR_VERSION` is raised whenever the same seed would give another world.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from envs.alfworld.facts import DEVICES, LAMP_SURFACES, TASK_TYPES, UNSEEN_ROOMS, Pose, Room, facts, train_rooms

GENERATOR_VERSION = 1
LOOK = "look_at_obj_in_light"  # the one task type with a lamp instead of a target
_LOCATION = "world:"

# Receptacle types that a room is known to have but whose pose the layouts leave out, and how many a room usually has.
_UNPLACED = {
    "CoffeeMachine": 1,
    "GarbageCan": 1,
    "HandTowelHolder": 2,
    "LaundryHamper": 1,
    "StoveBurner": 4,
    "Toaster": 1,
    "Toilet": 1,
    "ToiletPaperHanger": 1,
    "TowelHolder": 1,
}
LAMPS = ("DeskLamp", "FloorLamp")
# In ALFRED's plans things stand on surfaces far more often than behind doors (Pan: 102 on stove and counter, 5 in
# cabinets).
_SURFACE_WEIGHT, _CLOSED_WEIGHT = 6, 1
_COPIES, _COPY_WEIGHTS = (1, 2, 3), (6, 3, 2)  # 1.7 copies of a type on average, as in ALFRED's rooms
_SEEN_SHARE = 4  # one in four task specifications of the train rooms is kept for the `seen` panel


@dataclass(frozen=True, order=True)
class Spec:
    """What is asked for: task type, object type, target receptacle type ("" for look), lamp type ("" but for look)."""

    task_type: str
    object: str
    target: str
    toggle: str

    @property
    def key(self) -> str:
        return f"{self.task_type}-{self.object}-None-{self.target or self.toggle}"

    @classmethod
    def of_key(cls, key: str) -> Spec:
        """The specification that has this key. ValueError for anything else."""
        task_type, thing, none, place = key.split("-")
        if none != "None" or task_type not in TASK_TYPES:
            raise ValueError(f"{key!r} is no key of a task")
        return cls(task_type, thing, "", place) if task_type == LOOK else cls(task_type, thing, place, "")


@dataclass(frozen=True)
class World:
    """A room with everything in its place, and a task in it. Ids are AI2-THOR's: `Type|+x|+y|+z`.

    seed: what `build` drew it from; "" for a world that was made in another way
    """

    room: int
    spec: Spec
    receptacles: dict[str, tuple[str, Pose]]  # id -> (type, pose)
    objects: dict[str, tuple[str, str]]  # id -> (type, receptacle id)
    start: Pose
    instruction: str
    seed: str = ""

    @property
    def trial(self) -> str:
        text = json.dumps([self.room, self.spec.key, self.instruction, sorted(self.objects.items()), self.start])
        return f"trial_T{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def folder(self) -> str:
        """Folder below the split, as in the official data."""
        return f"{self.spec.key}-{self.room}/{self.trial}"

    @property
    def location(self) -> str:
        """What `at_location` makes the world of. ValueError for a world that no seed gives."""
        if not self.seed:
            raise ValueError(f"{self.folder} was not drawn from a seed, so it has no location")
        return f"{_LOCATION}{self.spec.key}-{self.room}:{self.seed}"


def _coordinate(value: float) -> str:
    return ("-" if value < 0 else "+") + f"{abs(value):05.2f}"


@cache
def room_receptacles(number: int) -> dict[str, tuple[str, Pose]]:
    """The room's receptacles, with stand-in poses (fixed per room) for those that the layouts do not place."""
    room = facts().rooms[number]
    placed = dict(room.receptacles)
    rng = random.Random(f"stand-ins|{number}")
    xs = [pose[0] * 0.25 for _, pose in placed.values()]
    zs = [pose[1] * 0.25 for _, pose in placed.values()]
    present = {kind for kind, _ in placed.values()}
    for kind, count in sorted(_UNPLACED.items()):
        if kind in room.object_types and kind not in present:
            for _ in range(count):
                x, z = rng.uniform(min(xs), max(xs)), rng.uniform(min(zs), max(zs))
                ident = f"{kind}|{_coordinate(x)}|{_coordinate(rng.uniform(0.1, 1.2))}|{_coordinate(z)}"
                placed[ident] = (kind, (round(x / 0.25), round(z / 0.25), rng.randrange(4), 30))
    return placed


@cache
def _places(number: int, object_type: str) -> tuple[str, ...]:
    """Receptacles of the room that can hold the type, sorted."""
    table = facts()
    return tuple(i for i, (kind, _) in sorted(room_receptacles(number).items()) if table.holds(kind, object_type))


def _portable(room: Room) -> list[str]:
    table = facts()
    return [
        t
        for t in room.object_types
        if t in table.object_types and t not in table.fixed and t not in LAMPS and _places(room.number, t)
    ]


@cache
def specs(number: int) -> tuple[Spec, ...]:
    """Every task that the room can pose, sorted."""
    table, room = facts(), facts().rooms[number]
    kinds = {kind for kind, _ in room_receptacles(number).values()}
    found = []
    for task_type in TASK_TYPES:
        if room.kind not in table.goals_by_room_kind[task_type]:
            continue
        if task_type == LOOK:
            if "DeskLamp" in room.object_types and kinds & set(LAMP_SURFACES):
                found += [Spec(task_type, o, "", "DeskLamp") for o in _portable(room)]
            continue
        _, device, affordance = DEVICES.get(task_type, ("", "", ""))
        if device and device not in kinds:
            continue
        for o in _portable(room):
            if device and (o not in table.affordances[affordance] or not table.holds(device, o)):
                continue
            for target in sorted(kinds):
                sources = [i for i in _places(number, o) if room_receptacles(number)[i][0] != target]
                if table.holds(target, o) and sources:
                    found.append(Spec(task_type, o, target, ""))
    return tuple(sorted(found))


def build(number: int, spec: Spec, seed: str) -> World:
    """The world of one (room, task, seed). The target object never starts in a target receptacle."""
    table, room = facts(), facts().rooms[number]
    receptacles = room_receptacles(number)
    rng = random.Random(f"world|{GENERATOR_VERSION}|{number}|{spec.key}|{seed}")
    objects: dict[str, tuple[str, str]] = {}

    def put(object_type: str, where: str) -> None:
        x, y, z = (float(v) for v in where.split("|")[1:4])
        while True:
            jitter = (rng.uniform(-0.4, 0.4), rng.uniform(0, 0.15), rng.uniform(-0.4, 0.4))
            ident = "|".join([object_type, *(_coordinate(a + b) for a, b in zip((x, y, z), jitter, strict=True))])
            if ident not in objects:
                objects[ident] = (object_type, where)
                return

    for object_type in _portable(room):
        places = list(_places(number, object_type))
        if object_type == spec.object and spec.target:
            places = [i for i in places if receptacles[i][0] != spec.target]
        weights = [_CLOSED_WEIGHT if receptacles[i][0] in table.openable else _SURFACE_WEIGHT for i in places]
        copies = rng.choices(_COPIES, _COPY_WEIGHTS)[0]
        if object_type == spec.object and spec.task_type == "pick_two_obj_and_place":
            copies = max(2, copies)
        for where in rng.choices(places, weights, k=copies):
            put(object_type, where)
    surfaces = [i for i, (kind, _) in sorted(receptacles.items()) if kind in LAMP_SURFACES]
    if "DeskLamp" in room.object_types and surfaces:
        put("DeskLamp", rng.choice(surfaces))
    poses = {pose for _, pose in receptacles.values()}
    xs, zs = [p[0] for p in poses], [p[1] for p in poses]
    start = (rng.randint(min(xs), max(xs)), rng.randint(min(zs), max(zs)), rng.randrange(4), 30)
    while start in poses:  # an episode starts in the middle of the room, facing nothing
        start = (start[0] + 1, *start[1:])
    wording = rng.choice(table.instructions[spec.task_type])
    instruction = wording.format(obj=spec.object.lower(), recep=spec.target.lower(), toggle=spec.toggle.lower())
    return World(number, spec, receptacles, objects, start, instruction, seed)


def is_location(location: str) -> bool:
    """Whether it is the location of a generated world; all others are paths of game files."""
    return location.startswith(_LOCATION)


def at_location(location: str) -> World:
    """The world of a location. ValueError for a text that no world has as its location.

    Whether the room can pose the task is not asked (that takes longer than drawing the world): compare content hashes.
    """
    task, _, seed = location.removeprefix(_LOCATION).partition(":")
    try:
        key, number = task.rsplit("-", 1)
        room, spec = int(number), Spec.of_key(key)
    except ValueError:
        room, spec = -1, None
    if spec is None or not seed or not is_location(location) or room not in facts().rooms:
        raise ValueError(f"{location!r} is no location of a generated world")
    return build(room, spec, seed)


def _kept_for_seen(number: int, spec: Spec) -> bool:
    digest = hashlib.sha256(f"seen|{number}|{spec.key}".encode()).digest()
    return digest[0] % _SEEN_SHARE == 0


@cache
def pool(split: str) -> dict[str, list[tuple[int, Spec]]]:
    """task type -> every (room, spec) of the split. train and seen share rooms but no spec; unseen shares no room."""
    if split not in ("train", "seen", "unseen"):
        raise ValueError(f"split={split!r} is not one of train, seen, unseen")
    rooms: Iterable[int] = UNSEEN_ROOMS if split == "unseen" else train_rooms()
    by_type: dict[str, list[tuple[int, Spec]]] = {t: [] for t in TASK_TYPES}
    for number in rooms:
        for spec in specs(number):
            if split == "unseen" or _kept_for_seen(number, spec) == (split == "seen"):
                by_type[spec.task_type].append((number, spec))
    return by_type


def draw(split: str, per_type: int, seed: int) -> list[World]:
    """`per_type` worlds of each type, of different (room, spec) while there are any; a prefix of a longer draw."""
    worlds = []
    for task_type, candidates in pool(split).items():
        order = list(candidates)
        random.Random(f"panel|{GENERATOR_VERSION}|{seed}|{split}|{task_type}").shuffle(order)
        for k in range(per_type):
            number, spec = order[k % len(order)]
            worlds.append(build(number, spec, f"{seed}|{split}|{k}"))
    return worlds


def draw_validation(per_type: int, eval_per_type: int, seed: int) -> list[World]:
    """`per_type` worlds of each type whose (room, spec) is in none of the other panels.

    They come from what is kept for `seen` and is not among its `eval_per_type` worlds of that type, so train has none
    of them whatever its size. Raises ValueError if `seen` leaves nothing.
    """
    taken = {(world.room, world.spec) for world in draw("seen", eval_per_type, seed)}
    worlds = []
    for task_type, candidates in pool("seen").items():
        order = [pair for pair in candidates if pair not in taken]
        if len(order) < per_type:
            raise ValueError(
                f"env.eval_per_type={eval_per_type} leaves {len(order)} of {len(candidates)} tasks of type {task_type} "
                f"for the panel `validation`, env.validation_per_type={per_type} wants more; lower one of them"
            )
        random.Random(f"panel|{GENERATOR_VERSION}|{seed}|validation|{task_type}").shuffle(order)
        worlds += [build(*pair, f"{seed}|validation|{k}") for k, pair in enumerate(order[:per_type])]
    return worlds


def mangle(ident: str) -> str:
    """AI2-THOR id -> PDDL name, in the spelling of the official files."""
    return ident.translate(_MANGLED)


_MANGLED = str.maketrans({"-": "_minus_", "|": "_bar_", "+": "_plus_", ".": "_dot_", ",": "_comma_"})
