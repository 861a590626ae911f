"""What an environment is: tasks, observations, prompts and the registered spec of each environment.

Environments see text only. They know nothing of methods, tensors, Hydra or trackers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from core.skills import SkillLibrary


class EnvironmentFailure(RuntimeError):  # noqa: N818 - an outcome of an episode, counted as such
    """The environment itself broke (engine crash, dead worker, missing file).

    Never a policy failure: the episode is retried once, then excluded and counted with its reason.
    """


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a panel.

    id            stable name, unique within the environment and data version
    type          task type, one of the spec's `task_types`
    content_hash  sha256 (hex) of everything that defines the task; equal content has an equal hash whatever its id
    slots         what the instruction is about, e.g. {"object": "mug", "target": "shelf"}
    location      where the environment finds it (path below the data root); opaque to everybody else
    """

    id: str
    type: str
    content_hash: str
    slots: Mapping[str, str] = field(default_factory=dict)
    location: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """text: what the environment says; task: the instruction; admissible: commands it would accept, sorted."""

    text: str
    task: str
    admissible: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """reward: of this step (1.0 on success, else 0.0 in ALFWorld); score: graded result in [0, 1];
    admissible: whether the action was one the environment accepts in that state; truncated: the episode is over for no
    other reason than that no further action is allowed."""

    observation: Observation
    reward: float
    done: bool
    success: bool
    score: float
    admissible: bool
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """action: what is sent to the environment; valid: the response obeyed the format; reason: why not."""

    action: str
    valid: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PromptParts:
    """One user message, cut where skills may be inserted. The message is the four parts joined, nothing added."""

    before: str = ""
    task: str = ""
    after: str = ""
    turn: str = ""

    @property
    def text(self) -> str:
        return self.before + self.task + self.after + self.turn


class Environment(Protocol):
    """One environment instance. Deterministic given (task, actions). Raises EnvironmentFailure when it breaks.

    A class may have `prepare(environments, actions)`, which a pool calls before it steps them: for what is cheaper to
    fetch for all at once. Results must not depend on it.
    """

    def reset(self, task: Task) -> Observation: ...

    def step(self, action: str) -> StepResult: ...

    def close(self) -> None: ...


class Prompter(Protocol):
    """Turns observations into user messages and responses into actions."""

    @property
    def protocol(self) -> str:
        """Short name that travels with every number, e.g. `compact/bare`."""
        ...

    def opening(self, first: Observation) -> PromptParts:
        """First user message of an episode (both context layouts)."""
        ...

    def follow_up(self, current: Observation) -> PromptParts:
        """Later user message of a growing context."""
        ...

    def per_step(
        self, first: Observation, history: Sequence[tuple[str, str]], current: Observation, step: int
    ) -> PromptParts:
        """Whole user message of step `step` (0-based, > 0) with the last `history` (observation, action) pairs."""
        ...

    def parse(self, response: str) -> ParsedAction: ...


@dataclass(frozen=True, slots=True)
class Panel:
    """Ordered tasks. hash: over (env, data version, split, every content hash in order)."""

    name: str
    data_version: str
    tasks: tuple[Task, ...]
    hash: str


@dataclass
class EnvConfig:
    """Configuration of one environment (Hydra group `env`). Comments with unit and source are in sweeps/env/*.yaml."""

    name: str = "alfworld"
    engine: str = "native"  # native | textworld
    data: str | None = None  # folder of the official data; None: generated tasks
    cache: str | None = None  # where what is made once is kept (catalogues, translations); None: the user cache folder
    world_seed: int = 0
    train_per_type: int = 20
    eval_per_type: int = 20
    max_steps: int = 20
    history: int = 5
    prompt: str = "compact"  # compact | full
    response: str = "bare"  # bare | tagged
    validation_per_type: int = 4  # tasks per type of the panel `validation`, which no run trains on or is judged by
    knobs: dict[str, Any] = field(default_factory=dict)  # the environment's own settings: EnvSpec.knobs


# (task text, [(observation before the action, action, action had an effect), ...], success, max step skills)
#   -> (episode skill, {step index: step skill})
Hindsight = Callable[[str, Sequence[tuple[str, str, bool]], bool, int], tuple[str, dict[int, str]]]


@dataclass(frozen=True, slots=True)
class DemoTurn:
    """One step of a demonstration. imitate: whether to learn the action (a mistake is shown for context only)."""

    prompt: PromptParts
    action: str
    imitate: bool
    step_skill: str | None = None


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A scripted episode in a growing context, with the skill its prompt should carry, if any."""

    turns: tuple[DemoTurn, ...]
    episode_skill: str | None = None


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The closed vocabulary of an environment's text, for word-level tokenizers of small embedded models.

    words: single words;  phrases: word groups that are one token;  entities: type -> highest number (`mug 1`..`mug 6`)
    dropped: words that carry nothing and get no token
    """

    words: tuple[str, ...]
    phrases: tuple[str, ...]
    entities: Mapping[str, int]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class EnvSpec:
    """A registered environment.

    capabilities: any of {"hindsight", "library", "expert", "admissible"}
    load_panel(config, name): the panel; raises FileNotFoundError naming each missing task
    make(config): a new Environment; must be importable in a worker process
    prompter(config): the Prompter
    hindsight(config): rule-based analysis of a finished trajectory, or None
    workflow(config): task -> one line of skill in the closed vocabulary of the small models (compact prompts), or None
    library(config): skills written by hand, of the whole environment (see core.skills), or None
    knobs: dataclass of the environment's own settings (`env.knobs`), or None
    lexicon(config), demonstrations(config): for embedded backbones, or None; demonstrations(config)(seed, index) is
        deterministic and draws from train tasks only
    judged_by: panels that an evaluation plays unless the configuration names others
    metadata, known to the harness:
        knob_identity(knobs): those of the knobs that can change a result; without it all can
        knob_versions(config): versions and digests of code and data that only some values of knobs bring in
        sources(config): name -> digest (None: unknown) of what is read from elsewhere, asked for when a run begins and
            when it is resumed, where it must be the same
        play_version, prompts_version, rules_version (hindsight and library): raised whenever the same input would
            give other output; part of a run's fingerprint
        clone_tokens: how many training tokens an embedded backbone needs at most, if fewer than its own recipe says
    """

    name: str
    task_types: tuple[str, ...]
    panels: tuple[str, ...]
    capabilities: frozenset[str]
    load_panel: Callable[[EnvConfig, str], Panel]
    make: Callable[[EnvConfig], Environment]
    prompter: Callable[[EnvConfig], Prompter]
    hindsight: Callable[[EnvConfig], Hindsight] | None = None
    workflow: Callable[[EnvConfig], Callable[[Task], str]] | None = None
    library: Callable[[EnvConfig], SkillLibrary] | None = None
    knobs: type[Any] | None = None
    lexicon: Callable[[EnvConfig], Lexicon] | None = None
    demonstrations: Callable[[EnvConfig], Callable[[int, int], Demonstration]] | None = None
    judged_by: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
