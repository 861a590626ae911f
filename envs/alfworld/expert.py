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
    """command: what to do next. decisive: what was seen leaves no choice (a search step is not decisive)."""

    command: str
    decisive: bool


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
            device = self._nearest(seen, aim.device)
            if device is None:
                return None
            if device in seen.here:
                return Decision(f"{aim.verb} {held} with {device}", True)
            return self._approach(seen, device, True)
        if not aim.target:
            return self._light(seen)
        target = self._nearest(seen, aim.target)
        if target is None:
            return None
        return self._approach(seen, target, True, contents=False) or Decision(f"move {held} to {target}", True)

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

    def _nearest(self, seen: Tracker, wanted: str) -> str | None:
        """Where the agent is if that is one, else the lowest-numbered receptacle of the type."""
        found = [r for r in seen.receptacles if kind(r) == wanted]
        near = [r for r in found if r in seen.here]
        return min(near or found, key=lambda r: int(r.rsplit(" ", 1)[1]), default=None)

    def _approach(self, seen: Tracker, place: str, decisive: bool, contents: bool = True) -> Decision | None:
        """Go there and open it; None when the agent stands before it, open (and, with `contents`, looked into)."""
        if place not in seen.here:
            return Decision(f"go to {place}", decisive)
        unknown = place not in seen.visited and place not in seen.closed
        if place in seen.closed or (unknown and kind(place) in _OPENABLE and f"open {place}" not in seen.failed):
            return Decision(f"open {place}", decisive)
        if contents and unknown:
            return Decision(f"examine {place}", decisive)
        return None

    def _fetch(self, seen: Tracker) -> Decision | None:
        aim = self.aim
        known = sorted(
            o
            for o, r in seen.where.items()
            if kind(o) == aim.object and (kind(r) != aim.target or self._unready(seen, o))
        )
        near = [o for o in known if seen.where[o] in seen.here]
        if known:
            thing = (near or known)[0]
            place = seen.where[thing]
            return self._approach(seen, place, True, contents=False) or Decision(f"take {thing} from {place}", True)
        places = frozenset(r for r, held in _CAN_HOLD.items() if aim.object in held and r != aim.target)
        return self._search(seen, places)

    def _unready(self, seen: Tracker, thing: str) -> bool:
        """Already in place, but not yet cleaned, heated or cooled."""
        return bool(self.aim.verb) and not self.naive and (thing, self.aim.verb) not in seen.done

    def _light(self, seen: Tracker) -> Decision | None:
        lamps = sorted(o for o in seen.where if kind(o) == self.aim.lamp)
        if not lamps:
            return self._search(seen, _LAMP_PLACES)
        place = seen.where[lamps[0]]
        return self._approach(seen, place, True, contents=False) or Decision(f"use {lamps[0]}", True)

    def _put_away(self, seen: Tracker, held: str) -> Decision | None:
        """A wrong object in hand: put it down where the agent is, or at the nearest place that can hold it."""
        fits = [r for r in seen.receptacles if kind(held) in _CAN_HOLD.get(kind(r), ())]
        near = [r for r in fits if r in seen.here]
        if not fits:
            return None
        place = (near or fits)[0]
        return self._approach(seen, place, True, contents=False) or Decision(f"move {held} to {place}", True)

    def _search(self, seen: Tracker, places: frozenset[str]) -> Decision | None:
        here = [r for r in sorted(seen.here) if r not in seen.visited and kind(r) in places]
        left = [r for r in seen.receptacles if r not in seen.visited]
        candidates = here or [r for r in left if kind(r) in places] or left
        if not candidates:
            return None
        weights = [_CLOSED_WEIGHT if kind(r) in _OPENABLE else _SURFACE_WEIGHT for r in candidates]
        place = candidates[0] if here else self.rng.choices(candidates, weights)[0]
        return self._approach(seen, place, False)


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
