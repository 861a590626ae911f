"""WebShop as a registered environment. Engine, prompts and rules are imported when they are used."""

from __future__ import annotations

from collections.abc import Callable

from core.skills import SkillLibrary
from envs.interface import Demonstration, EnvConfig, Environment, EnvSpec, Hindsight, Lexicon, Panel, Prompter, Task
from envs.panels import build_panel
from envs.webshop import versions
from envs.webshop.knobs import Knobs

NAME = "webshop"
TASK_TYPES = ("beauty", "electronics", "fashion", "garden", "grocery")
PANELS = ("train", "validation", "test")


def load_panel(config: EnvConfig, name: str) -> Panel:
    """The panel `train`, `validation` or `test`: of WebShop's files if `env.data` is set, else of generated goals.

    The catalogue is made on the first call. Raises ValueError for an unknown panel or knob, FileNotFoundError naming
    each missing file.
    """
    from envs.webshop.data import tasks_of

    version, tasks = tasks_of(config, name)
    return build_panel(NAME, version, name, tasks)


def panel_identity(config: EnvConfig, name: str) -> str:
    """What determines the panel: the content of the user's files, or what a catalogue is generated from."""
    from envs.webshop.sources import data_version

    size = ""
    if config.data is None:
        per_type = {
            "train": config.train_per_type,
            "validation": config.validation_per_type,
            "test": config.eval_per_type,
        }
        size = f"/{per_type[name]}"
    return f"{NAME}/{data_version(config)}/{name}{size}"


def make(config: EnvConfig) -> Environment:
    """An environment on the configured catalogue, which the process opens once. ValueError for a wrong knob,
    envs.search.rankers.RankerMissingError for an engine that is not installed."""
    from envs.webshop.data import store_of
    from envs.webshop.environment import WebshopEnvironment
    from envs.webshop.knobs import knobs_of

    knobs, store = knobs_of(config), store_of(config)
    if knobs.ranker != "own":
        store.index.search("", 1)  # an engine that is not installed is told here, not at the first search of an episode
    return WebshopEnvironment(
        store,
        config.max_steps,
        knobs.text,
        knobs.strict_options,
        knobs.attributes_page,
        short_names=config.prompt == "compact",
    )


def _knob_versions(config: EnvConfig) -> dict[str, int]:
    from envs.search.names import version_of
    from envs.webshop.knobs import knobs_of

    return version_of(knobs_of(config).ranker)


def walkthrough(config: EnvConfig, task: Task) -> list[str]:
    """Actions that solve the task, found by one who knows what the shopper is meant to buy.

    Raises ValueError if the product cannot be found by its title.
    """
    from envs.webshop.data import store_of
    from envs.webshop.oracle import actions_for

    return actions_for(store_of(config), int(task.location))


def _prompter(config: EnvConfig) -> Prompter:
    from envs.webshop.prompts import make_prompter

    return make_prompter(config)


def _hindsight(config: EnvConfig) -> Hindsight:
    from envs.webshop.hindsight import make_hindsight

    return make_hindsight(compact=config.prompt == "compact")


def _workflow(config: EnvConfig) -> Callable[[Task], str]:
    from envs.webshop.library import skill_for

    return skill_for


def _library(config: EnvConfig) -> SkillLibrary:
    from envs.webshop.skills import library

    return library(config)


def _lexicon(config: EnvConfig) -> Lexicon:
    from envs.webshop.lexicon import lexicon

    return lexicon()


def _demonstrations(config: EnvConfig) -> Callable[[int, int], Demonstration]:
    from envs.webshop.demos import make_demonstrations

    return make_demonstrations(config)


SPEC = EnvSpec(
    name=NAME,
    task_types=TASK_TYPES,
    panels=PANELS,
    judged_by=("test",),
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
        "engines": ("native",),
        "knob_versions": _knob_versions,
        "play_version": versions.PLAY_VERSION,
        "prompts_version": versions.PROMPTS_VERSION,
        "rules_version": versions.RULES_VERSION,
        "clone_tokens": 8_000_000,  # enough to read pages and skills; more would leave nothing to explore
        "demonstrations_version": f"{versions.DEMONSTRATIONS_VERSION}.{versions.GENERATOR_VERSION}",
    },
)
