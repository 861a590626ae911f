"""ALFWorld's rules as a state machine in plain Python.

Plays generated worlds and game files (read by `problem`) and gives the observations, command lists and outcomes of the
packages' engine; a test replays games through both. It needs nothing compiled and translates no PDDL.

Names: the engine numbers the entities of a type from the highest id down, in the order of their lower-case PDDL ids,
and lists everything in that order, so numbers in an observation run downwards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache

from envs.alfworld.facts import DEVICES, facts
from envs.alfworld.worlds import LAMPS, World, mangle

NOTHING = "Nothing happens."
_MIDDLE = "You are in the middle of a room. Looking quickly around you,"


@dataclass(frozen=True)
class Goal:
    """What wins. target None: hold the object where a lit lamp of type `toggle` stands."""

    object: str  # lower-case types
    target: str | None
    toggle: str | None
    state: str | None  # clean | hot | cool
    count: int


@dataclass
class Scene:
    """The initial state. Ids are lower-case PDDL names."""

    receptacle_type: dict[str, str]
    object_type: dict[str, str]
    location: dict[str, str]  # receptacle -> location
    start: str
    where: dict[str, str]  # object -> receptacle
    can_contain: set[tuple[str, str]]  # (receptacle type, object type), of object types that are there
    openable: set[str]
    opened: set[str]
    properties: dict[str, set[str]]  # each of PROPERTIES -> objects
    object_location: dict[str, str]
    goal: Goal
    instruction: str  # without the final period


PROPERTIES = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isreceptacleobject")


def goal_of_task(task_type: str, obj: str, target: str, toggle: str) -> Goal:
    """What wins a task of this type. target, toggle: "" where the task has none."""
    verb = DEVICES.get(task_type, ("", "", ""))[0]
    state = {"clean": "clean", "heat": "hot", "cool": "cool"}.get(verb)
    count = 2 if task_type == "pick_two_obj_and_place" else 1
    return Goal(obj.lower(), target.lower() or None, toggle.lower() or None, state, count)


@cache
def _properties_of(kind: str) -> tuple[str, ...]:
    """Of objects of this type, each one of PROPERTIES."""
    table = facts()
    has = {affordance.lower() for affordance, kinds in table.affordances.items() if kind in kinds}
    if kind not in LAMPS:
        has.add("pickupable")
    if kind in table.movable:
        has.add("isreceptacleobject")
    return tuple(name for name in PROPERTIES if name in has)


def scene_of_world(world: World) -> Scene:
    """The scene of a generated world, without going through PDDL."""
    table = facts()
    ids = {i: mangle(i).lower() for i in [*world.receptacles, *world.objects]}
    location = {ids[i]: str(pose) for i, (_, pose) in world.receptacles.items()}
    where = {ids[i]: ids[r] for i, (_, r) in world.objects.items()}
    kinds = {k for k, _ in world.receptacles.values()}
    present = {k: k.lower() for k, _ in world.objects.values()}
    properties: dict[str, set[str]] = {p: set() for p in PROPERTIES}
    for i, (kind, _) in world.objects.items():
        for name in _properties_of(kind):
            properties[name].add(ids[i])
    return Scene(
        receptacle_type={ids[i]: k.lower() for i, (k, _) in world.receptacles.items()},
        object_type={ids[i]: k.lower() for i, (k, _) in world.objects.items()},
        location=location,
        start=str(world.start),
        where=where,
        can_contain={(k.lower(), present[t]) for k in kinds for t in present.keys() & table.can_contain.get(k, ())},
        openable={ids[i] for i, (k, _) in world.receptacles.items() if k in table.openable},
        opened=set(),
        properties=properties,
        object_location={o: location[r] for o, r in where.items()},
        goal=goal_of_task(world.spec.task_type, world.spec.object, world.spec.target, world.spec.toggle),
        instruction=world.instruction,
    )


def display_names(scene: Scene) -> dict[str, str]:
    """id -> name in the text, e.g. `cabinet 3`."""

    def kind(ident: str) -> str:
        return ident.split("_bar_", 1)[0] + ("basin" if "basin" in ident else "")

    ids = sorted([*scene.receptacle_type, *scene.object_type])
    left = Counter(kind(i) for i in ids)
    names = {}
    for i in ids:
        names[i] = f"{kind(i)} {left[kind(i)]}"
        left[kind(i)] -= 1
    return names


def listing(names: list[str]) -> str:
    """`nothing`, `a mug 1`, `a mug 1, and a pan 2`."""
    if not names:
        return "nothing"
    items = [f"a {n}" for n in names]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + ", and " + items[-1]


class Game:
    """One episode's state. `step` returns the observation and whether the command was admissible."""

    def __init__(self, scene: Scene, help_text: str = "") -> None:
        self.scene = scene
        self.help_text = help_text
        self.names = display_names(scene)
        self.ids = {n: i for i, n in self.names.items()}
        self.order = sorted(scene.receptacle_type)
        self.here: dict[str, list[str]] = defaultdict(list)  # location -> receptacles, in the engine's order
        for r in self.order:
            self.here[scene.location[r]].append(r)
        self.reset()

    def reset(self) -> str:
        s = self.scene
        self.at = s.start
        self.where = dict(s.where)
        self.contents: dict[str, list[str]] = {r: [] for r in s.receptacle_type}
        for o in sorted(self.where):
            self.contents[self.where[o]].append(o)
        self.object_location = dict(s.object_location)
        self.opened = set(s.opened)
        self.held: str | None = None
        self.flags: dict[str, set[str]] = defaultdict(set)  # clean, hot, cool, toggled, sliced -> objects
        self.taken_from: set[tuple[str, str]] = set()
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{self._intro()}\n\nYour task is to: {s.instruction}."

    # ------------------------------------------------------------------ text
    def _names(self, ids: list[str]) -> list[str]:
        return [self.names[i] for i in ids]

    def _intro(self) -> str:
        """The room at large; an agent that starts before a receptacle is told about that one instead."""
        if self.here.get(self.at):
            return self._look()
        return f"{_MIDDLE} you see {listing(self._names(self.order))}."

    def _look(self) -> str:
        near = self.here.get(self.at, [])
        if not near:
            return f"{_MIDDLE} you see nothing."  # the command looks at the agent's own place only
        facing = self._names(near)
        where = facing[0] if len(facing) == 1 else ", ".join(facing[:-1]) + ", and " + facing[-1]
        floor = [
            o
            for o in sorted(self.object_location)
            if self.object_location[o] == self.at
            for r in near
            if (o, r) in self.taken_from and self.where.get(o) != r
        ]
        return f"You are facing the {where}. Next to it, you see {listing(self._names(floor))}."

    def _examine_receptacle(self, r: str) -> str:
        name = self.names[r]
        if r in self.scene.openable:
            if r not in self.opened:
                return f"The {name} is closed."
            return f"The {name} is open. In it, you see {listing(self._names(self.contents[r]))}."
        return f"On the {name}, you see {listing(self._names(self.contents[r]))}."

    def _examine_object(self, o: str) -> str:
        name, is_ = self.names[o], {k for k, v in self.flags.items() if o in v}
        if o in self.scene.properties["isreceptacleobject"]:
            return f"This is a normal {name}. In it, you see nothing."
        clean, sliced = "clean" in is_, "sliced" in is_
        heat = "hot" if "hot" in is_ else "cool" if "cool" in is_ else ""
        if sliced and (clean or heat):
            return f"This is a {heat + ' and clean' if heat and clean else heat or 'clean'} sliced {name}."
        if clean and heat:
            return f"This is a {heat} and clean {name}."
        if heat == "hot":
            return f"This is a hot {name}."
        if clean:
            return f"This is a clean {name}."
        if heat:
            return f"This is a cold {name}."
        if o in self.scene.properties["toggleable"] and "toggled" in is_:
            return f"This {name} is on."
        if sliced:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    # ------------------------------------------------------------------ what can be done
    def _reachable(self, r: str) -> bool:
        return r not in self.scene.openable or r in self.opened

    def actions(self) -> dict[str, tuple[str, ...]]:
        """admissible command -> (verb, ids)."""
        s, names, held = self.scene, self.names, self.held
        out: dict[str, tuple[str, ...]] = {"look": ("look",), "inventory": ("inventory",), "help": ("help",)}
        for r in self.order:
            if s.location[r] != self.at:
                out[f"go to {names[r]}"] = ("go", r)
        for r in self.here.get(self.at, ()):
            out[f"examine {names[r]}"] = ("examine_receptacle", r)
            if r in s.openable:
                verb = "close" if r in self.opened else "open"
                out[f"{verb} {names[r]}"] = (verb, r)
            for o in self.contents[r]:
                if o in s.properties["toggleable"]:
                    out[f"use {names[o]}"] = ("use", o)
            if self._reachable(r):
                for o in self.contents[r] if held is None else ():
                    if o in s.properties["pickupable"]:
                        out[f"take {names[o]} from {names[r]}"] = ("take", o, r)
                if held is not None and (s.receptacle_type[r], s.object_type[held]) in s.can_contain:
                    out[f"move {names[held]} to {names[r]}"] = ("move", held, r)
            if held is not None:
                for verb, device, affordance in DEVICES.values():
                    if s.receptacle_type[r] == device.lower() and held in s.properties[affordance.lower()]:
                        out[f"{verb} {names[held]} with {names[r]}"] = (verb, held, r)
        if held is not None:
            # The domain means to allow examining what is seen too, but a comma in its parameter list keeps the engine
            # from ever matching that clause.
            out[f"examine {names[held]}"] = ("examine_object", held)
            if s.object_type[held] in ("knife", "butterknife"):
                for o, place in sorted(self.object_location.items()):
                    if place == self.at and o in s.properties["sliceable"]:
                        out[f"slice {names[o]} with {names[held]}"] = ("slice", o, held)
        return out

    def admissible(self) -> list[str]:
        return sorted(self.actions())

    def step(self, command: str) -> tuple[str, bool]:
        found = self.actions().get(command.strip())
        if found is None:
            return NOTHING, False
        return self._apply(*found), True

    def _apply(self, verb: str, *ids: str) -> str:
        names = self.names
        if verb == "look":
            return self._look()
        if verb == "inventory":
            return (
                f"You are carrying: {listing([names[self.held]])}." if self.held else "You are not carrying anything."
            )
        if verb == "help":
            return self.help_text
        first = ids[0]
        if verb == "go":
            self.at = self.scene.location[first]
            return f"You arrive at {names[first]}. {self._examine_receptacle(first)}"
        if verb == "examine_receptacle":
            return self._examine_receptacle(first)
        if verb == "examine_object":
            return self._examine_object(first)
        if verb == "open":
            self.opened.add(first)
            return f"You open the {names[first]}. {self._examine_receptacle(first)}"
        if verb == "close":
            self.opened.discard(first)
            return f"You close the {names[first]}."
        if verb == "use":
            self.flags["toggled"].add(first)
            return f"You turn on the {names[first]}."
        second = ids[1]
        if verb == "take":
            self.held = first
            self.contents[second].remove(first)
            del self.where[first]
            self.object_location.pop(first, None)
            self.taken_from.add((first, second))
            return f"You pick up the {names[first]} from the {names[second]}."
        if verb == "move":
            self.held = None
            self.where[first] = second
            self.contents[second] = sorted([*self.contents[second], first])
            self.object_location[first] = self.at
            return f"You move the {names[first]} to the {names[second]}."
        if verb == "slice":
            self.flags["sliced"].add(first)
            return f"You sliced the {names[first]} with the {names[second]}."
        state, undone = {"clean": ("clean", ""), "heat": ("hot", "cool"), "cool": ("cool", "hot")}[verb]
        self.flags[state].add(first)
        self.flags[undone].discard(first)
        return f"You {verb} the {names[first]} using the {names[second]}."

    def won(self) -> bool:
        s, goal = self.scene, self.scene.goal
        if goal.target is None:
            lit = any(
                s.object_type[o] == goal.toggle and s.location[self.where[o]] == self.at
                for o in self.flags["toggled"]
                if o in self.where
            )
            return lit and self.held is not None and s.object_type[self.held] == goal.object
        for r, things in self.contents.items():
            if s.receptacle_type[r] != goal.target:
                continue
            good = [
                o for o in things if s.object_type[o] == goal.object and (not goal.state or o in self.flags[goal.state])
            ]
            if len(good) >= goal.count:
                return True
        return False
