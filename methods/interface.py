"""What a method is: a frozen record of orthogonal knobs, plus functions over tensors.

Methods see tensors and trajectories; they know nothing of Hydra, Slurm, trackers or of any environment.
The engine owns sampling, scoring and the optimiser; the method owns the maths.

Shapes: R rows (one per environment step, or one per episode in a growing context), T tokens (padded on the right),
N trajectories, S environment steps of the whole batch. Log-probs are natural logs at the sampling temperature.
Advantages are per token, [R, T], detached, and 0 outside `response_mask`.
Training steps are numbered from 1: `step` is 1 in the first iteration and `total_steps` in the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # torch stays off the path of --help and of planning
    from torch import Tensor


# ---------------------------------------------------------------------------------------------- configuration
@dataclass
class AdvantageConfig:
    estimator: str = "grpo"  # grpo | gigpo | none
    std: bool = True  # divide by the group's standard deviation
    stats_over: str = "trajectories"  # trajectories | steps: what mean and std are taken over
    pg_coef: float = 1.0  # weight of the base advantage; applied by the method, never again by the engine
    omega: float = 1.0  # gigpo: weight of the step advantage
    gamma: float = 0.95  # gigpo: discount per environment step of the step returns
    anchor: str = "exact"  # gigpo: exact | similar: which observations of a group count as the same state
    similarity: float = 0.9  # gigpo, anchor=similar: least difflib ratio


@dataclass
class SkillConfig:
    source: str = "none"  # none | library | own_trajectory
    router: str = "none"  # which skills a step gets; see methods.validation
    max_step_skills: int = 0  # own_trajectory: most critical steps per trajectory
    max_failure_rate: float = 0.2  # own_trajectory: share of failed analyses in one step above which the run stops
    placement: str = "task"  # task | front: where an episode skill stands in the user message
    top_k: int = 0  # library: most skills of a selection; 0: all that the router finds
    encoder: str | None = None  # router=embedding: folder of a local sentence encoder; None: hashed n-grams


@dataclass
class TeacherConfig:
    """Whose log-probs the teacher's scores are.

    weights  none | old (the rollout policy) | frozen (final weights of another run) | ema (moving average of policies)
    run      frozen: file in sweeps/method/ whose run, equal in everything else, gives the weights
    decay    ema: share of the old average that stays after each training step
    source   frozen: fingerprint of that run; the planner fills it in
    """

    weights: str = "none"
    run: str | None = None
    decay: float = 0.0
    source: str | None = None


@dataclass
class SignalConfig:
    clip: float | None = None  # |teacher - student| per token is clipped here (nats)
    normalize: bool = False  # batch mean/std over the masked tokens


@dataclass
class ScheduleConfig:
    kind: str = "constant"  # constant | linear (1 at step 1, 0 after `length` steps) | window (on in (start, stop])
    start: int = 0
    stop: int | None = None
    length: int | None = None  # None: the planned number of steps


@dataclass
class MethodConfig:
    """Configuration of one row (Hydra group `method`). Comments with unit and source are in sweeps/method/*.yaml."""

    id: str = "grpo"  # name of the row: the YAML's file name
    name: str = "grpo"  # registered module with the maths
    label: str = "GRPO"  # how tables call the row
    trains: bool = True
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    skill: SkillConfig = field(default_factory=SkillConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    signal: SignalConfig = field(default_factory=SignalConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    coef: float = 0.0  # lambda: weight of the teacher's term, times the schedule; 0 is the base method bit for bit
    knobs: dict[str, Any] = field(default_factory=dict)  # the method's own settings: MethodSpec.knobs
    rollout_skills_train: bool = False  # skills in the policy's own prompt while training
    rollout_skills_eval: list[str] = field(default_factory=lambda: ["off"])  # off | on: one evaluation each


# ---------------------------------------------------------------------------------------------- what rollouts give
class Prompt(Protocol):
    """One user message cut where skills may be inserted (structurally: the environments' PromptParts)."""

    @property
    def before(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def after(self) -> str: ...
    @property
    def turn(self) -> str: ...


@dataclass(slots=True)
class Turn:
    """One environment step of a trajectory. Token ids are those sampled, never decoded and encoded again."""

    prompt: Prompt  # user message without any skill of a teacher
    observation: str  # environment text before the action
    prompt_ids: list[int]  # tokens before the response: the whole prompt (per_step) or what this turn added (growing)
    response_ids: list[int]  # sampled tokens, with the end-of-turn token if it was sampled
    old_logprobs: list[float]  # of response_ids under the rollout policy
    action: str = ""
    valid: bool = True  # format
    invalid_reason: str | None = None
    admissible: bool = True  # accepted by the environment
    reward: float = 0.0
    skill: str | None = None  # for records: what a teacher read when it scored this response
    skill_advantage: list[float] = field(default_factory=list)  # for records: see harness.training.notes


@dataclass(slots=True)
class Trajectory:
    """index: position in the batch; group: index of the task among the step's tasks; sample: index within the group."""

    index: int
    group: int
    sample: int
    task_id: str
    task_type: str
    task_text: str
    turns: list[Turn] = field(default_factory=list)
    success: bool = False
    score: float = 0.0
    termination: str = ""  # success | max_steps | done | context_full | infra_failure
    failure: str | None = None  # infrastructure failure: excluded from the loss, counted
    skill: str | None = None  # skill that stood in the policy's own prompt (methods that roll out with skills)

    def transcript(self) -> list[tuple[str, str, bool]]:
        """(observation before the action, action, had an effect) per step."""
        return [(t.observation, t.action, t.valid and t.admissible) for t in self.turns]


@dataclass(frozen=True, slots=True)
class Analysis:
    """Hindsight skills of one trajectory: episode_skill is never empty; step_skills is keyed by existing step index.

    dropped: step skills that the analyzer gave and validation removed (wrong index, empty text, too many)
    """

    episode_skill: str
    step_skills: Mapping[int, str]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class TeacherRequest:
    """Score the responses of `steps` of one trajectory with these skills in the prompt.

    trajectory: `Trajectory.index`;  steps: 0-based, rising
    channel: name under which the scores come back. At most one request of a channel covers a given step.
    step_skill applies to the single step in `steps` (a request with a step skill has exactly one step).
    """

    channel: str
    trajectory: int
    steps: tuple[int, ...]
    episode_skill: str | None = None
    step_skill: str | None = None


@dataclass(slots=True)
class Batch:
    """One update's data.

    response_mask [R, T] bool    policy tokens
    old_logprobs  [R, T] float   under the rollout policy, 0 outside the mask
    token_step    [R, T] long    index of the environment step in 0..S-1, -1 outside the mask
    step_trajectory [S] long     trajectory (0..N-1) of each environment step
    step_number   [S] long       0-based number of the step within its trajectory
    step_invalid  [S] bool       the response broke the format or was not admissible (what the penalty counts)
    group         [N] long       task group of each trajectory
    returns       [N] float      R(tau), before any penalty
    invalid_penalty float        subtracted from a step's score if it was invalid (same unit as returns)
    observations  S texts         what the environment said before each step (anchor states of GiGPO)
    step_reward   [S] float      raw reward of each step, before any penalty (same unit as returns)
    teacher       channel -> [R, T] float, log-probs under the skill prompt; 0 where not scored
    teacher_mask  channel -> [R, T] bool, where that channel was scored
    memo          what methods worked out of this batch and may ask for again; of a copy (dataclasses.replace) empty
    """

    response_mask: Tensor
    old_logprobs: Tensor
    token_step: Tensor
    step_trajectory: Tensor
    step_number: Tensor
    step_invalid: Tensor
    group: Tensor
    returns: Tensor
    invalid_penalty: float = 0.0
    observations: tuple[str, ...] = ()
    step_reward: Tensor | None = None
    teacher: dict[str, Tensor] = field(default_factory=dict)
    teacher_mask: dict[str, Tensor] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


# ---------------------------------------------------------------------------------------------- the method itself
@dataclass(frozen=True, slots=True)
class Validation:
    """One evaluation of weights on the validation panel. success: share of graded episodes, in [0, 1]; tokens: what
    playing took, for the records."""

    success: float
    episodes: int
    tokens: int = 0


@dataclass(frozen=True)
class MethodContext:
    """What the harness hands to a method.

    total_steps: planned training steps;  seed: the run's seed
    analyze: trajectories -> a future of one Analysis each, or None where the analysis failed. The future may be running
        while the engine goes on: ask for its result as late as possible (see methods.skills.analyzer)
    library: trajectory -> text of the library's skill for it, chosen by `skill.router`; never blank
    """

    total_steps: int
    seed: int
    analyze: Callable[[Sequence[Trajectory]], Future[list[Analysis | None]]] | None = None
    library: Callable[[Trajectory], str] | None = None


@dataclass(frozen=True)
class Deviation:
    """One difference between paper, released code and this project; rendered into docs and footnotes."""

    topic: str
    paper: str
    code: str
    ours: str
    source: str


@dataclass(frozen=True)
class MethodSpec:
    """A registered method: how to build it and what it needs.

    needs: capabilities that env, engine or analyzer must offer, e.g. {"env:hindsight", "engine:teacher"}
    version: raised whenever the maths changes; part of the run's fingerprint
    uses_teacher: the teacher's scores are in the gradient. teacher_cancels: released code that scores a teacher whose
        scores cancel out of the gradient; checked as strictly as the opposite, and said in every table
    knobs: dataclass of the method's own settings (`method.knobs`), or None
    validates: it is played on the panel `validation` while training (`measures_teacher` or `wants_validation` may be
        true); the panel is then part of the run's fingerprint
    check: raises ValueError for a configuration that this method cannot honour; needs no torch, so planning calls it
    warn: what to say of a run of this configuration with so many planned training steps, "" if nothing; the plan and
        the start of a command print it
    """

    name: str
    build: Callable[[MethodConfig, MethodContext], Method]
    version: int
    uses_teacher: bool
    teacher_cancels: bool = False
    needs: frozenset[str] = frozenset()
    paper: str = ""
    deviations: tuple[Deviation, ...] = ()
    knobs: type[Any] | None = None
    validates: bool = False
    check: Callable[[MethodConfig], None] | None = None
    warn: Callable[[MethodConfig, int], str] | None = None


class Method:
    """Base of all methods; every hook has a neutral default.

    Order within a step: after_rollout, teacher_requests, advantages, metrics, then aux_loss once per micro-batch, then
    after_validation where one was wanted. Metric names carry no prefix: the engine records them under `method/`.
    """

    def __init__(self, config: MethodConfig, context: MethodContext) -> None:
        self.config = config
        self.context = context

    def after_rollout(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Called once per training step with the finished trajectories. Returns metrics."""
        return {}

    def teacher_requests(self, step: int, trajectories: Sequence[Trajectory]) -> list[TeacherRequest]:
        """What to score under skill prompts before the update. Empty: no teacher forward at all."""
        return []

    def advantages(self, step: int, batch: Batch) -> Tensor:
        """[R, T] detached advantages."""
        raise NotImplementedError

    def aux_loss(self, step: int, batch: Batch, logprobs: Tensor, entropy: Tensor) -> Tensor | None:
        """Extra per-token loss [R, T] (summed over the mask and divided by the token count by the engine), or None."""
        return None

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """Diagnostics of this step, read after `advantages`."""
        return {}

    @property
    def measures_teacher(self) -> bool:
        """Whether the engine must measure the teacher (with skills in its prompt) on the validation panel first."""
        return False

    def teacher_measured(self, result: Validation) -> None:
        """The teacher's result, before the first training step; once per run (a checkpoint keeps what it gave)."""

    def wants_validation(self, step: int) -> bool:
        """Whether the policy is to be played on the validation panel after training step `step`."""
        return False

    def after_validation(self, step: int, result: Validation) -> dict[str, float]:
        """The policy's result after training step `step`. Returns metrics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """JSON; restored by load_state_dict, so that a resumed run equals an unbroken one."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but the checkpoint holds {sorted(state)}")
