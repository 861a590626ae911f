"""What an agent can know: the goal read from the instruction, and the world as seen so far.

Built from text alone, so that the expert and the hindsight analysis know no more than the policy was shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from envs.alfworld.facts import DEVICES, facts
from envs.alfworld.native import NOTHING

_ENTITY = re.compile(r"\b([a-z]+) (\d+)\b")


def kind(name: str) -> str:
    """`mug 1` -> `mug`."""
    return name.rsplit(" ", 1)[0]


def entities(text: str) -> list[str]:
    """Every `type number` in the text, in order."""
    return [f"{a} {b}" for a, b in _ENTITY.findall(text.lower())]


@dataclass(frozen=True)
class Aim:
    """The goal as the instruction states it, lower-case types. target "" for examining under `lamp`."""

    task_type: str
    object: str
    target: str
    lamp: str

    @property
    def verb(self) -> str:
        """clean | heat | cool | "" """
        return DEVICES.get(self.task_type, ("", "", ""))[0]

    @property
    def device(self) -> str:
        """Receptacle type that does it, lower-case, or ""."""
        return DEVICES.get(self.task_type, ("", "", ""))[1].lower()

    @property
    def count(self) -> int:
        return 2 if self.task_type == "pick_two_obj_and_place" else 1


def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    out = []
    for task_type, wordings in facts().instructions.items():
        for wording in wordings:
            text = re.escape(wording).replace(r"\{", "{").replace(r"\}", "}")
            for slot in ("obj", "recep", "toggle"):
                text = text.replace("{" + slot + "}", f"(?P<{slot}>[a-z]+)")
            out.append((task_type, re.compile(f"^{text}$")))
    # a wording without a slot for its adjective must not swallow one that has it: longest literal first
    return sorted(out, key=lambda p: -len(p[1].pattern))


_PATTERNS = _patterns()


def read_instruction(text: str) -> Aim:
    """The goal of an instruction in the environment's own wording. ValueError for any other sentence."""
    sentence = text.strip().rstrip(".").lower()
    for task_type, pattern in _PATTERNS:
        match = pattern.match(sentence)
        if match:
            slots = match.groupdict()
            return Aim(task_type, slots["obj"], slots.get("recep") or "", slots.get("toggle") or "")
    raise ValueError(f"instruction {text!r} is in none of the environment's wordings: goal unknown")


@dataclass
class Tracker:
    """The world as seen so far. Names as in the text.

    receptacles  all of the room, from the first observation
    at           the receptacle last gone to, None in the middle of the room
    here         receptacles known to stand where the agent is
    closed       known to be closed;  visited: contents have been seen
    where        object -> receptacle, as last seen
    held         object in hand;  done: (object, verb) processed;  lit: lamps switched on
    """

    receptacles: list[str] = field(default_factory=list)
    at: str | None = None
    here: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    visited: set[str] = field(default_factory=set)
    where: dict[str, str] = field(default_factory=dict)
    held: str | None = None
    done: set[tuple[str, str]] = field(default_factory=set)
    lit: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)  # commands that had no effect since the last move

    def begin(self, first: str) -> None:
        """first: the first observation."""
        seen = first.split("you see", 1)[-1].split("Your task")[0]
        self.receptacles = entities(seen)

    def update(self, action: str, observation: str) -> None:
        """action: as sent; observation: the environment's answer to it."""
        if observation.strip() == NOTHING:
            self.failed.add(action)
            words = action.split(" to ", 1)
            if action.startswith("go to ") and len(words) == 2 and words[1] in self.receptacles and self.at:
                self.here.add(words[1])  # refused because one is there already: receptacles can share a place
            return
        text, words = observation.lower(), action.split()
        verb = words[0] if words else ""
        if verb == "go":
            self.at = " ".join(words[2:])
            self.here = {self.at}
            self.failed.clear()
            self._look_into(self.at, text)
        elif verb in ("open", "examine") and " ".join(words[1:]) in self.receptacles:
            self.here.add(" ".join(words[1:]))
            self._look_into(" ".join(words[1:]), text)
        elif verb == "close":
            self.closed.add(" ".join(words[1:]))
        elif verb == "take":
            self.held = " ".join(words[1:3])
            self.where.pop(self.held, None)
        elif verb == "move":
            thing, place = " ".join(words[1:3]), " ".join(words[4:])
            self.held = None
            self.where[thing] = place
        elif verb in ("clean", "heat", "cool"):
            self.done.add((" ".join(words[1:3]), verb))
        elif verb == "use":
            self.lit.add(" ".join(words[1:]))

    def _look_into(self, place: str, text: str) -> None:
        if "is closed" in text:
            self.closed.add(place)
            return
        self.closed.discard(place)
        self.visited.add(place)
        for thing in [t for t, p in self.where.items() if p == place]:
            del self.where[thing]
        if "you see" in text:
            for thing in entities(text.split("you see", 1)[1]):
                self.where[thing] = place
