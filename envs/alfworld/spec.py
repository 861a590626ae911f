"""ALFWorld as a registered environment. Engines, prompts and rules are imported when they are used."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from envs.alfworld.demos import DEMONSTRATIONS_VERSION
from envs.alfworld.facts import TASK_TYPES
from envs.alfworld.knobs import HELD_OUT, Knobs, held_out_types, types_of
from envs.alfworld.worlds import GENERATOR_VERSION
from envs.cache import cache_root
from envs.interface import Demonstration, EnvConfig, Environment, EnvSpec, Hindsight, Lexicon, Panel, Prompter, Task
from envs.panels import build_panel

if TYPE_CHECKING:
    from core.skills import SkillLibrary
    from envs.alfworld.manifest import Entry

NAME = "alfworld"
PANELS = ("train", "seen", "unseen", "validation", HELD_OUT)
ENGINES = ("native", "textworld")
# Raised whenever the same input would give other output; part of the fingerprint of runs that use them.
PLAY_VERSION = 1  # what a game answers to commands, and how an episode is scored
PROMPTS_VERSION = 1  # user messages and how responses are read
RULES_VERSION = 2  # hindsight and library skills, with the tracker and the expert behind them


def data_root(config: EnvConfig) -> Path | None:
    """The user's data folder, which the locations of its games are relative to; None for generated games."""
    return Path(config.data).expanduser() if config.data else None


def load_panel(config: EnvConfig, name: str) -> Panel:
    """One of PANELS: of the user's data if `env.data` is set, else of generated games; `validation`: see validation.py.

    Raises ValueError for an unknown panel, engine or task type, for an empty panel, and if the configured engine's
    packages are missing; FileNotFoundError naming each missing game.
    """
    _check(config, name)
    root = data_root(config)
    if root is None:
        from envs.alfworld import generated

        return build_panel(NAME, generated.data_version(config), name, generated.tasks_of(config, name))
    version, entries = _entries(config, root, name)
    return build_panel(NAME, version, name, [entry.task() for entry in entries])


def _entries(config: EnvConfig, root: Path, name: str) -> tuple[str, list[Entry]]:
    from envs.alfworld import official, validation

    split = {"validation": "train", HELD_OUT: "seen"}.get(name, name)
    version, found = official.panel_entries(root, split, cache_root(config))
    if name == "validation":
        found = validation.carved_entries(config, found)
    elif name == "train":
        found = validation.carve(found, config.validation_per_type)[0]
    kinds = types_of(config, name)
    return version, [entry for entry in found if entry.type in kinds]


def panel_identity(config: EnvConfig, name: str) -> str:
    """What determines the panel: the hash of the user's games, or what generated games are drawn from.

    Raises as `load_panel` does, but for what only drawing the games would show.
    """
    _check(config, name)
    if config.data:
        held = tuple(sorted(held_out_types(config)))
        return _user_panel_hash(str(data_root(config)), str(cache_root(config)), config.validation_per_type, held, name)
    from envs.alfworld import generated

    return f"{NAME}/{generated.panel_identity(config, name)}"


@lru_cache(maxsize=64)
def _user_panel_hash(data: str, cache: str, validation_per_type: int, held_out: tuple[str, ...], name: str) -> str:
    """Planning asks once per cell: thousands of files are looked at once per process."""
    knobs = {"held_out_types": list(held_out)}
    config = EnvConfig(data=data, cache=cache, validation_per_type=validation_per_type, knobs=knobs)
    return load_panel(config, name).hash


def make(config: EnvConfig) -> Environment:
    """An environment with the configured engine. Raises ValueError for an unknown engine."""
    _check(config)
    if config.engine == "native":
        from envs.alfworld.native_engine import NativeAlfworld

        return NativeAlfworld(data_root(config), config.max_steps)
    try:
        from envs.alfworld.textworld_engine import TextworldAlfworld
    except ImportError as error:
        raise ValueError(
            f"env.engine='textworld' needs packages that are not installed ({error}); "
            "install agentic-rl-harness[alfworld] or set env.engine=native"
        ) from error
    return TextworldAlfworld(data_root(config), config.max_steps, cache_root(config))


def walkthrough(config: EnvConfig, task: Task) -> list[str]:
    """A solution of the task. Raises EnvironmentFailure if its game file is missing or changed."""
    from envs.alfworld import expert, generated, worlds
    from envs.alfworld.episode import read_checked

    if worlds.is_location(task.location):
        return expert.walkthrough(generated.scene_at(task.location, task.content_hash)[0])
    return list(read_checked(data_root(config), task).get("walkthrough") or [])


def _check(config: EnvConfig, panel: str | None = None) -> None:
    """ValueError for an engine, a panel or a task type that does not exist, and for a panel that has no types."""
    if config.engine not in ENGINES:
        raise ValueError(f"env.engine={config.engine!r} is not one of {', '.join(ENGINES)}")
    if panel is None:
        held_out_types(config)
    elif panel not in PANELS:
        raise ValueError(f"{NAME} has no panel {panel!r}; it has {', '.join(PANELS)}")
    else:
        types_of(config, panel)


def _prompter(config: EnvConfig) -> Prompter:
    from envs.alfworld.prompts import make_prompter

    return make_prompter(config)


def _hindsight(config: EnvConfig) -> Hindsight:
    from envs.alfworld.hindsight import hindsight

    return hindsight


def _workflow(config: EnvConfig) -> Callable[[Task], str]:
    from envs.alfworld.library import skill_for

    return skill_for


def _library(config: EnvConfig) -> SkillLibrary:
    from envs.alfworld.skills import library

    return library(config)


def _lexicon(config: EnvConfig) -> Lexicon:
    from envs.alfworld.lexicon import lexicon

    return lexicon()


def _demonstrations(config: EnvConfig) -> Callable[[int, int], Demonstration]:
    from envs.alfworld.demos import demonstration

    return demonstration


SPEC = EnvSpec(
    name=NAME,
    task_types=TASK_TYPES,
    panels=PANELS,
    judged_by=("seen", "unseen"),
    capabilities=frozenset({"hindsight", "library", "expert", "admissible"}),
    load_panel=load_panel,
    make=make,
    prompter=_prompter,
    hindsight=_hindsight,
    workflow=_workflow,
    library=_library,
    knobs=Knobs,
    lexicon=_lexicon,
    demonstrations=_demonstrations,
    metadata={
        "panel_identity": panel_identity,
        "walkthrough": walkthrough,
        "engines": ENGINES,
        "play_version": PLAY_VERSION,
        "prompts_version": PROMPTS_VERSION,
        "rules_version": RULES_VERSION,
        "demonstrations_version": f"{DEMONSTRATIONS_VERSION}.{GENERATOR_VERSION}",
    },
)
