"""Panels of games generated from a seed. They need no files: a task's location says how to draw its world again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from envs.alfworld import worlds
from envs.alfworld.expert import walkthrough
from envs.alfworld.facts import facts
from envs.alfworld.knobs import HELD_OUT, types_of
from envs.alfworld.manifest import FOLDERS, LAYOUT, NAME, SPLITS, VALIDATION, Manifest
from envs.alfworld.native import Scene, scene_of_world
from envs.cache import cache_root
from envs.interface import EnvConfig, EnvironmentFailure, Task
from envs.panels import assert_disjoint, build_panel, digest

if TYPE_CHECKING:
    from envs.alfworld.layout import Rules

# Raised whenever a panel of the same settings would hold other games, or an equal world have another content hash.
CONTENT_VERSION = 1


def data_version(config: EnvConfig) -> str:
    """Names the generated games by what they are drawn from, however many of them a panel takes."""
    parts = {
        "generator": worlds.GENERATOR_VERSION,
        "content": CONTENT_VERSION,
        "rules": facts().rules,
        "world_seed": config.world_seed,
    }
    return f"generated-{digest(json.dumps(parts, sort_keys=True))[:16]}"


# ------------------------------------------------------------------------------------------------------------- panels
@dataclass(frozen=True)
class Recipe:
    """All that decides which worlds a panel has.

    per_type: worlds of each task type; taken: those of a type that `seen` takes before `validation` does, else 0
    """

    panel: str
    seed: int
    per_type: int
    taken: int
    types: tuple[str, ...]

    def worlds(self) -> list[worlds.World]:
        """Drawn anew. ValueError if the tasks kept for evaluation are too few for `validation`."""
        if self.panel == VALIDATION:
            found = worlds.draw_validation(self.per_type, self.taken, self.seed)
        else:
            found = worlds.draw("seen" if self.panel == HELD_OUT else self.panel, self.per_type, self.seed)
        return [world for world in found if world.spec.task_type in self.types]


def recipe_of(config: EnvConfig, panel: str) -> Recipe:
    """Raises ValueError for an empty panel. `held_out` has the worlds that `seen` would have of the types held out."""
    names = {"train": ("train_per_type",), VALIDATION: ("validation_per_type", "eval_per_type")}
    sizes = {name: int(getattr(config, name)) for name in names.get(panel, ("eval_per_type",))}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"env.{name}={size} makes an empty panel {panel!r}; give at least 1")
    per_type, taken = [*sizes.values(), 0][:2]
    return Recipe(panel, config.world_seed, per_type, taken, types_of(config, panel))


def panel_identity(config: EnvConfig, panel: str) -> str:
    """What determines the panel, without drawing it. ValueError for an empty one."""
    recipe = recipe_of(config, panel)
    size = f"{recipe.per_type}+{recipe.taken}" if recipe.taken else f"{recipe.per_type}"
    return f"{data_version(config)}/{panel}/{size}/{','.join(recipe.types)}"


def tasks_of(config: EnvConfig, panel: str) -> tuple[Task, ...]:
    """The games of a panel, ready to be played by the configured engine.

    Raises ValueError for an empty panel, for a game without a solution, and for engine=textworld without its packages.
    """
    found = _tasks(recipe_of(config, panel))
    if config.engine == "textworld":
        from envs.alfworld.ahead import ensure_translations

        ensure_translations(config, found)
    return found


@lru_cache(maxsize=32)
def _tasks(recipe: Recipe) -> tuple[Task, ...]:
    """Drawn once per process."""
    found = []
    for world in recipe.worlds():
        walkthrough(world)  # one that cannot be won is an error here, not an episode that every policy fails
        found.append(task_of(world, recipe.panel))
    return tuple(found)


def task_of(world: worlds.World, panel: str) -> Task:
    """The task of a world. Equal worlds have an equal id but for the split, and an equal content hash."""
    spec = world.spec
    slots = {"object": spec.object, "target": spec.target, "lamp": spec.toggle}
    return Task(
        id=f"{FOLDERS[panel]}/{world.folder}",
        type=spec.task_type,
        content_hash=content_hash(scene_of_world(world)),
        slots={name: value.lower() for name, value in slots.items() if value},
        location=world.location,
    )


def content_hash(scene: Scene) -> str:
    """sha256 over what defines a generated game: the rules, and everything that its first state says."""
    state = dict(vars(scene))
    for name in ("can_contain", "openable", "opened"):
        state[name] = sorted(state[name])
    state["properties"] = {name: sorted(objects) for name, objects in scene.properties.items()}
    state["goal"] = vars(scene.goal)
    return digest(f"world {CONTENT_VERSION}", facts().rules, json.dumps(state, sort_keys=True))


# --------------------------------------------------------------------------------------------------------------- play
def scene_at(location: str, content: str) -> tuple[worlds.World, Scene]:
    """The world of a task's location, and its first state.

    Raises EnvironmentFailure if it is not the one that the panel promised (another version of this code drew that).
    """
    try:
        world = worlds.at_location(location)
        scene = scene_of_world(world)
    except (ValueError, LookupError) as error:
        raise EnvironmentFailure(f"no world can be drawn at {location!r}: {error}") from error
    found = content_hash(scene)
    if found != content:
        raise EnvironmentFailure(
            f"the world at {location!r} has changed since the panel was made: its content hash is {found[:12]}, the "
            f"panel has {content[:12]}; another version of this code made the panel"
        )
    return world, scene


# -------------------------------------------------------------------------------------------------------- game files
def write_games(config: EnvConfig, root: Path, rules: Rules | None = None) -> Manifest:
    """Writes the panels train, seen and unseen below `root` in the official layout, with a manifest.

    rules: domain, grammar and goals of the files; None: those of the alfworld package. Raises ValueError without it,
    PanelError if an evaluation game were also a training game.
    """
    from envs.alfworld import layout, official
    from envs.alfworld.translation import home_for_packages

    if rules is None:
        layout.require_package()
        home_for_packages(cache_root(config) / "alfworld-package")
        rules = layout.package_rules()
    panels = {}
    for panel in SPLITS:
        written = recipe_of(config, panel).worlds()
        for world in written:
            layout.write(world, root / LAYOUT / FOLDERS[panel], walkthrough(world), rules)
        collected = official.collect(root, panel)
        if len(collected.entries) != len(written):
            raise ValueError(f"{len(written)} games were written for panel {panel!r} but {collected.excuses()}")
        panels[panel] = tuple(collected.entries)
    contents = [entry.content_hash for panel in sorted(panels) for entry in panels[panel]]
    manifest = Manifest(f"generated-files-{digest(data_version(config), *contents)[:16]}", panels)
    built = {p: build_panel("alfworld", manifest.version, p, [e.task() for e in panels[p]]) for p in panels}
    assert_disjoint(built["train"], built["seen"], built["unseen"])
    manifest.write(root / NAME)
    return manifest
