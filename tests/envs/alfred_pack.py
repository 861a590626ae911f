"""Worlds rebuilt from a pack of ALFRED task specifications (MIT, (c) 2019 ALFRED), which is no part of the project.

A pack is gzipped JSON, one list per trial: [split letter, folder, trial, random seed, start pose,
[[type, x, y, z], ...], plan, human descriptions]. Real rooms, real tasks, real places of objects; which receptacle
holds an object is inferred from where it lies. So these are reconstructions and not the official games: they serve to
compare engines, nothing else.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

from envs.alfworld.facts import facts
from envs.alfworld.worlds import LAMP_SURFACES, Spec, World, _coordinate, room_receptacles


def rebuilt(pack: Path, count: int, seed: int) -> Iterator[World]:
    """Up to `count` worlds, drawn from all trials of the pack whose objects our rooms can place."""
    trials = json.loads(gzip.decompress(pack.read_bytes()))
    random.Random(seed).shuffle(trials)
    made = 0
    for trial in trials:
        if made == count:
            return
        world = _world(trial)
        if world is not None:
            made += 1
            yield world


def _world(trial: list) -> World | None:
    _, folder, name, _, start, poses, *_ = trial
    task_type, thing, _, place, room_text = folder.split("-")
    number = int(room_text)
    table = facts()
    receptacles = room_receptacles(number)
    look = task_type == "look_at_obj_in_light"
    spec = Spec(task_type, thing, "" if look else place, place if look else "")
    objects: dict[str, tuple[str, str]] = {}
    lamps = 0
    for kind, *position in poses:
        lamp = kind == spec.toggle
        where = _nearest(receptacles, kind, position, lamp)
        if (kind not in table.object_types and not lamp) or where is None:
            continue
        if not look and kind == spec.object and receptacles[where][0] == spec.target:
            continue  # a copy that would solve the task at the start
        lamps += lamp
        objects["|".join([kind, *(_coordinate(v) for v in position)])] = (kind, where)
    if look and not lamps:  # the lamp is fixed to its surface and not among the poses
        surface = next((i for i, (kind, _) in sorted(receptacles.items()) if kind in LAMP_SURFACES), None)
        if surface is None:
            return None
        objects["|".join([spec.toggle, *surface.split("|")[1:4]])] = (spec.toggle, surface)
    wanted = 2 if task_type == "pick_two_obj_and_place" else 1
    if sum(kind == spec.object for kind, _ in objects.values()) < wanted:
        return None
    pose = (round(start[0] / 0.25), round(start[1] / 0.25), int(start[2]) // 90, int(start[3]))
    wordings = table.instructions[task_type]
    wording = wordings[sum(name.encode()) % len(wordings)]
    instruction = wording.format(obj=thing.lower(), recep=spec.target.lower(), toggle=spec.toggle.lower())
    return World(number, spec, receptacles, objects, pose, instruction)


def _nearest(receptacles: dict, kind: str, position: list[float], lamp: bool) -> str | None:
    table = facts()
    holding = [
        (math.dist(position, [float(v) for v in ident.split("|")[1:4]]), ident)
        for ident, (receptacle, _) in receptacles.items()
        if (receptacle in LAMP_SURFACES if lamp else table.holds(receptacle, kind))
    ]
    return min(holding)[1] if holding else None
