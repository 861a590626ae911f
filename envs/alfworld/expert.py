"""Scripted experts.

`Expert` searches honestly: it knows what the policy was shown, which places can hold what, and what to do with it.
`walkthrough` knows where everything is; it writes the solution of a generated game.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from envs.alfworld.facts import LAMP_SURFACES, facts
from envs.alfworld.native import Game, scene_of_world
from envs.alfworld.tracker import Aim, Tracker, kind, read_instruction
from envs.alfworld.worlds import World

_OPENABLE = frozenset(t.lower() for t in facts().openable)
_CAN_HOLD = {r.lower(): frozenset(o.lower() for o in v) for r, v in facts().can_contain.items()}
_LAMP_PLACES = frozenset(t.lower() for t in LAMP_SURFACES)
# Search order: surfaces before closed places, as things mostly stand on surfaces.
_SURFACE_WEIGHT, _CLOSED_WEIGHT = 6.0, 1.0


@dataclass(frozen=True)
class Decision:
    """command: what to do next. decisive: what was seen says what to do (a search step is not decisive).
    acceptable: every command that is as good, this one included."""

    command: str
    decisive: bool
    acceptable: frozenset[str]


class Expert:
    """Decides from a Tracker and an Aim. naive: does not know that cleaning, heating and cooling need a device."""

    def __init__(self, aim: Aim, rng: random.Random, naive: bool = False) -> None:
        self.aim, self.rng, self.naive = aim, rng, naive

    def finished(self, seen: Tracker) -> bool:
        """Whether the expert believes that the goal is reached."""
        if not self.aim.target:
            return seen.held is not None and kind(seen.held) == self.aim.object and bool(seen.lit)
        return len(self._placed(seen)) >= self.aim.count

    def decide(self, seen: Tracker) -> Decision | None:
        """The next command, or None when finished or out of places to search."""
        if self.finished(seen):
            return None
        held, aim = seen.held, self.aim
        if held is not None and kind(held) != aim.object:
            return self._put_away(seen, held)
        if held is None:
            return self._fetch(seen)
        if aim.device and not self.naive and (held, aim.verb) not in seen.done:
            devices = [(r, f"{aim.verb} {held} with {r}") for r in self._of_kind(seen, aim.device)]
            return self._one_of(seen, devices, shut=True)
        if not aim.target:
            return self._light(seen)
        return self._one_of(seen, [(r, f"move {held} to {r}") for r in self._of_kind(seen, aim.target)])

    # ------------------------------------------------------------------ parts
    def _placed(self, seen: Tracker) -> list[str]:
        aim = self.aim
        return [
            o
            for o, r in seen.where.items()
            if kind(o) == aim.object
            and kind(r) == aim.target
            and (not aim.verb or self.naive or (o, aim.verb) in seen.done)
        ]

    @staticmethod
    def _of_kind(seen: Tracker, wanted: str) -> list[str]:
        """Receptacles of the type, by number."""
        return sorted((r for r in seen.receptacles if kind(r) == wanted), key=lambda r: int(r.rsplit(" ", 1)[1]))

    def _one_of(self, seen: Tracker, options: list[tuple[str, str]], shut: bool = False) -> Decision | None:
        """Any of (place, command to give there): those where the agent is, if any; None without options.

        shut: the place need not be open.
        """
        near = [(place, command) for place, command in options if place in seen.here]
        steps = [
            command if shut and near else self._approach(seen, place, contents=False) or command
            for place, command in near or options
        ]
        return Decision(steps[0], True, frozenset(steps)) if steps else None

    @staticmethod
    def _approach(seen: Tracker, place: str, contents: bool = True) -> str | None:
        """Go there and open it; None when the agent stands before it, open (and, with `contents`, looked into)."""
        if place not in seen.here:
            return f"go to {place}"
        unknown = place not in seen.visited and place not in seen.closed
        if place in seen.closed or (unknown and kind(place) in _OPENABLE and f"open {place}" not in seen.failed):
            return f"open {place}"
        if contents and unknown:
            return f"examine {place}"
        return None

    def _fetch(self, seen: Tracker) -> Decision | None:
        aim = self.aim
        known = sorted(
            o
            for o, r in seen.where.items()
            if kind(o) == aim.object and (kind(r) != aim.target or self._unready(seen, o))
        )
        if known:
            return self._one_of(seen, [(seen.where[o], f"take {o} from {seen.where[o]}") for o in known])
        places = frozenset(r for r, held in _CAN_HOLD.items() if aim.object in held and r != aim.target)
        return self._search(seen, places)

    def _unready(self, seen: Tracker, thing: str) -> bool:
        """Already in place, but not yet cleaned, heated or cooled."""
        return bool(self.aim.verb) and not self.naive and (thing, self.aim.verb) not in seen.done

    def _light(self, seen: Tracker) -> Decision | None:
        lamps = sorted(o for o in seen.where if kind(o) == self.aim.lamp)
        if not lamps:
            return self._search(seen, _LAMP_PLACES)
        return self._one_of(seen, [(seen.where[lamp], f"use {lamp}") for lamp in lamps])

    def _put_away(self, seen: Tracker, held: str) -> Decision | None:
        """A wrong object in hand: put it down where the agent is, or at the nearest place that can hold it."""
        fits = [r for r in seen.receptacles if kind(held) in _CAN_HOLD.get(kind(r), ())]
        return self._one_of(seen, [(r, f"move {held} to {r}") for r in fits])

    def _search(self, seen: Tracker, places: frozenset[str]) -> Decision | None:
        here = [r for r in sorted(seen.here) if r not in seen.visited and kind(r) in places]
        left = [r for r in seen.receptacles if r not in seen.visited]
        candidates = here or [r for r in left if kind(r) in places] or left
        if not candidates:
            return None
        weights = [_CLOSED_WEIGHT if kind(r) in _OPENABLE else _SURFACE_WEIGHT for r in candidates]
        place = candidates[0] if here else self.rng.choices(candidates, weights)[0]
        steps = {r: self._approach(seen, r) for r in candidates}
        chosen = steps[place]
        if chosen is None:  # looked into already: nothing is left to find there
            return None
        return Decision(chosen, False, frozenset(s for s in steps.values() if s is not None))


def walkthrough(world: World) -> list[str]:
    """Shortest-style solution of a generated world, checked against the rules. ValueError if it does not win."""
    game = Game(scene_of_world(world))
    aim = read_instruction(world.instruction)
    seen = Tracker()
    seen.begin(game.reset())
    reveal(seen, game)
    expert = Expert(aim, random.Random(0))
    commands: list[str] = []
    while not game.won() and len(commands) < 50:
        decision = expert.decide(seen)
        if decision is None:
            break
        command = decision.command
        observation, admissible = game.step(command)
        seen.update(command, observation)
        if admissible:
            commands.append(command)
    if not game.won():
        raise ValueError(f"no solution found for {world.folder}: {commands}")
    return commands


def reveal(seen: Tracker, game: Game) -> None:
    """Tells the tracker where everything is, and what is closed."""
    seen.where = {game.names[o]: game.names[r] for o, r in game.scene.where.items()}
    seen.closed = {game.names[r] for r in game.scene.openable}
