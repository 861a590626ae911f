"""RetireOPD (arXiv:2609.20784): a teacher that leaves for good once the student no longer gains from it.

Equation numbers are those of its second version (v2; where they were seen: docs/equations.md).

1. Teacher, eq. (1): a run of GRPO with skills in its prompt (row skill_grpo, `teacher.run`), then frozen. SR_T: its
   success with skills, which the harness measures on the panel `validation` before the student's first step.
2. Student, which sees no skill, eq. (5): L = L_GRPO + lambda * L_OPD, as in methods/opd.py.
3. Retirement, decided at the end of each window of W training steps; window m has the steps (m-1)W+1 .. mW:

    Delta_t      = log pi_T(y_t) - log pi_old(y_t)                     nats, [R, T], eq. (4)
    K_n          = -(mean of Delta_t over the tokens of step n)        nats, eq. (6) left; which mean: see the forms
    K_m          = mean of K_n over the steps of window m              nats, eq. (6) right
    SR_m         = the student's success on the panel `validation` after step mW
    progress_m   = (K_m - K_{m-1}) / K_m               form `paper`, eq. (7) left; invalid if |K_m| <= 1e-8
                 = (K_{m-1} - K_m) / K_{m-1}           form `code`; invalid if |K_{m-1}| <= 1e-8
    competence_m = (SR_m + SR_{m-1}) / (2 SR_T)        eq. (7) right

   The teacher retires, eq. (8), at the first m >= 2 with competence_m >= 0.9 and an exhausted progress.

   The two forms (method.knobs.progress_form; rows retire_opd and retire_opd_released) differ in three things. The mean
   of K_n is over the scored tokens of each trajectory and then over trajectories in the paper's, over all scored tokens
   of the step in the code's. The paper divides by the window itself, the code by the window before. Exhausted is
   progress_m >= 0 in the paper's form, which takes K with the sign of Delta (the ratio does not see the sign), and
   progress_m <= 0 in the code's. Both thresholds are knobs. From step mW + 1 on lambda is 0 and no teacher is asked:
   pure GRPO to the end.

At the edges: a trajectory without scored tokens has no part in K_n. An invalid progress (also for want of scored
tokens) never retires; with SR_T = 0 competence is undefined and never retires either, which the metric
competence_undefined says. An ablation switches a criterion off (use_progress, use_competence), or retires after the
fixed step `stop_step` whatever the criteria say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.knobs import read_knobs
from core.names import require_known
from methods import grpo, opd, teacher
from methods.auxiliary import check_auxiliary
from methods.interface import Batch, Deviation, MethodConfig, MethodContext, MethodSpec, Validation
from methods.signal import EPISODE, masked_mean, skill_shift

if TYPE_CHECKING:
    from torch import Tensor

FORMS = ("paper", "code")
SMALLEST = 1e-8  # nats; a smaller |K| cannot be divided by (released code)
ROUNDING = 1e-9  # competence is made of shares of episodes: 0.72 / 0.8 has to count as 0.9

DEVIATIONS = (
    Deviation(
        topic="progress criterion",
        paper="(K_m - K_{m-1}) / K_m >= delta, K with the sign of Delta, delta = 0",
        code="(K_{m-1} - K_m) / K_{m-1} <= threshold, K with the opposite sign, threshold = 0",
        ours="row retire_opd as the paper, row retire_opd_released as the code (method.knobs.progress_form). For the "
        "same K_n the same rule at 0 while K keeps its sign; elsewhere sign and denominator of the threshold differ",
        source="arXiv:2609.20784; ZJU-REAL/SDAR with RetireOPD, retire_opd.py",
    ),
    Deviation(
        topic="validation",
        paper="128 episodes every 5 steps",
        code="the same; windows close at validations; the teacher's success comes from its own training record",
        ours="a panel `validation` that shares no task with training or evaluation, played at the end of each window "
        "until retirement; the teacher is measured on the same panel, with the skills and their place in the prompt of "
        "its own run",
        source="arXiv:2609.20784; ZJU-REAL/SDAR with RetireOPD, retire_opd.py and launch scripts",
    ),
    Deviation(
        topic="when the gap is taken",
        paper="per trajectory of a step, then over its trajectories",
        code="masked token mean over the batch of a step",
        ours="each as its progress criterion is written (method.knobs.progress_form); of all scored tokens of a step, "
        "under the rollout policy, before the update",
        source="arXiv:2609.20784; ZJU-REAL/SDAR with RetireOPD, retire_opd.py",
    ),
    Deviation(
        topic="a teacher that never succeeds",
        paper="undefined (division by SR_T = 0)",
        code="not known to us",
        ours="competence is undefined and never retires; a metric says so",
        source="arXiv:2609.20784",
    ),
    opd.LOSS,
    opd.WEIGHT,
    opd.TEACHER,
    *teacher.DEVIATIONS[:2],
    opd.REFERENCE,
    *grpo.DEVIATIONS,
)


@dataclass(frozen=True)
class Knobs:
    """window: W, training steps;  progress_form: paper | code, for K_n too;  progress_threshold: least (paper) or
    largest (code) progress that counts as exhausted, no unit
    competence_threshold: least share of the teacher's success
    use_progress, use_competence: whether a criterion counts;  stop_step: retire after this training step, criteria or
    not; null: by the criteria"""

    window: int = 5
    progress_form: str = "paper"
    progress_threshold: float = 0.0
    competence_threshold: float = 0.9
    use_progress: bool = True
    use_competence: bool = True
    stop_step: int | None = None


@dataclass(frozen=True)
class Window:
    """gap: K_m in nats, None if nothing was scored;  success: SR_m, in [0, 1]."""

    gap: float | None
    success: float


class Retirement:
    """The rule of stage 3 and its memory. It decides once; nothing here can un-retire a teacher."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.teacher_success: float | None = None  # SR_T
        self.pending: dict[int, float] = {}  # step -> K_n of the open window
        self.windows: list[Window] = []
        self.retired_at: int | None = None  # last training step with a teacher

    @property
    def adaptive(self) -> bool:
        """Whether the criteria decide; else a fixed step does."""
        return self.knobs.stop_step is None

    def retired(self, step: int) -> bool:
        """Whether training step `step` is done without a teacher."""
        last = self.retired_at if self.adaptive else self.knobs.stop_step
        return last is not None and step > last

    def observe(self, step: int, gap: float) -> None:
        """K_n of training step n. A step that is done again (resumed) replaces itself."""
        self.pending[step] = gap

    def close(self, step: int, success: float) -> dict[str, float]:
        """End of a window: `step` is its last, `success` the student's there. Returns metrics. Raises RuntimeError for
        any other step, and without a measured teacher."""
        if self.teacher_success is None:
            raise RuntimeError("the teacher was not measured before training, so the student cannot be compared to it")
        number = len(self.windows) + 1
        if step != number * self.knobs.window:
            raise RuntimeError(
                f"validation after step {step}, but window {number} of {self.knobs.window} steps ends after step "
                f"{number * self.knobs.window}"
            )
        gaps = [gap for _, gap in sorted(self.pending.items())]
        self.windows.append(Window(sum(gaps) / len(gaps) if gaps else None, success))
        self.pending = {}
        found = {"window": float(number), "validation_success": success}
        if self.windows[-1].gap is not None:
            found["window_gap"] = self.windows[-1].gap
        if number >= 2:
            progress, competence = self.progress(), self.competence()
            found |= {"progress_invalid": float(progress is None), "competence_undefined": float(competence is None)}
            if progress is not None:
                found["progress"] = progress
            if competence is not None:
                found["competence"] = competence
            if self.exhausted(progress) and self.competent(competence):
                self.retired_at = step
        return found | {"retired": float(self.retired_at is not None)}

    def progress(self) -> float | None:
        """Of the last window, no unit; None if it is invalid."""
        before, now = self.windows[-2].gap, self.windows[-1].gap
        if before is None or now is None:
            return None
        change, base = (before - now, before) if self.knobs.progress_form == "code" else (now - before, now)
        return None if abs(base) <= SMALLEST else change / base

    def competence(self) -> float | None:
        """Of the last two windows, relative to the teacher, no unit; None if the teacher never succeeds."""
        if not self.teacher_success:
            return None
        return (self.windows[-1].success + self.windows[-2].success) / (2 * self.teacher_success)

    def exhausted(self, progress: float | None) -> bool:
        if not self.knobs.use_progress:
            return True
        if progress is None:
            return False
        limit = self.knobs.progress_threshold
        return progress <= limit if self.knobs.progress_form == "code" else progress >= limit

    def competent(self, competence: float | None) -> bool:
        if not self.knobs.use_competence:
            return True
        return competence is not None and competence >= self.knobs.competence_threshold - ROUNDING

    def state(self) -> dict[str, Any]:
        """JSON."""
        return {
            "knobs": dataclasses.asdict(self.knobs),
            "teacher_success": self.teacher_success,
            "pending": [[step, gap] for step, gap in sorted(self.pending.items())],
            "windows": [[window.gap, window.success] for window in self.windows],
            "retired_at": self.retired_at,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave. Raises ValueError for a state of other knobs, or of no such method."""
        wanted = self.state()
        if sorted(state) != sorted(wanted):
            raise ValueError(
                f"the checkpoint's method state holds {sorted(state)}, but RetireOPD's holds {sorted(wanted)}"
            )
        for name, value in wanted["knobs"].items():
            if state["knobs"].get(name) != value:
                raise ValueError(
                    f"method.knobs.{name}={value}, but the checkpoint was written with {state['knobs'].get(name)}: its "
                    "windows do not fit; start a run of its own, or set the value back"
                )
        self.teacher_success, self.retired_at = state["teacher_success"], state["retired_at"]
        self.pending = {int(step): float(gap) for step, gap in state["pending"]}
        self.windows = [Window(gap, success) for gap, success in state["windows"]]


class RetireOpd(opd.Opd):
    """GRPO+OPD until the teacher retires, GRPO from then on."""

    def __init__(self, config: MethodConfig, context: MethodContext) -> None:
        super().__init__(config, context)
        self.retirement = Retirement(read_knobs(Knobs, config.knobs, "method.knobs"))

    def coefficient(self, step: int) -> float:
        """lambda at training step `step`; 0 for good after retirement, so that no score is asked for."""
        return 0.0 if self.retirement.retired(step) else super().coefficient(step)

    def advantages(self, step: int, batch: Batch) -> Tensor:
        """The base advantage; the step's gap is noted on the way, because here the whole batch is known."""
        gap = self.gap(batch)
        if self.retirement.adaptive and not self.retirement.retired(step) and gap is not None:
            self.retirement.observe(step, gap)
        return super().advantages(step, batch)

    def gap(self, batch: Batch) -> float | None:
        """K_n of a step's batch in nats, by the configured form; None if nothing was scored."""
        shift, scored = skill_shift(batch, EPISODE)
        if not bool(scored.any()):
            return None
        if self.retirement.knobs.progress_form == "code":
            return -masked_mean(shift, scored)
        return -mean_of_trajectories(shift, scored, batch)

    def metrics(self, step: int, batch: Batch) -> dict[str, float]:
        """Those of OPD; retired: 1 from the last step with a teacher on (`after_validation` has the last word); gap:
        K_n in nats, if anything was scored; teacher_success: SR_T, once measured; can_retire: 0 if no step of this run
        is late enough (see `warn`)."""
        possible = first_retirement(self.retirement.knobs) < self.context.total_steps
        found = {
            **super().metrics(step, batch),
            "retired": float(self.retirement.retired(step + 1)),
            "can_retire": float(possible),
        }
        gap = self.gap(batch)
        if gap is not None:
            found["gap"] = gap
        if self.retirement.teacher_success is not None:
            found["teacher_success"] = self.retirement.teacher_success
        return found

    @property
    def measures_teacher(self) -> bool:
        return self.retirement.adaptive

    def teacher_measured(self, result: Validation) -> None:
        self.retirement.teacher_success = _success(result)

    def wants_validation(self, step: int) -> bool:
        """At the end of each window until the teacher has retired; never with a fixed step."""
        still = self.retirement.adaptive and self.retirement.retired_at is None
        return still and step % self.retirement.knobs.window == 0

    def after_validation(self, step: int, result: Validation) -> dict[str, float]:
        """window: m; window_gap: K_m in nats; validation_success: SR_m; retired: 1 if the teacher is gone from the next
        step on. From window 2 on also progress and competence, or progress_invalid / competence_undefined: 1."""
        return self.retirement.close(step, _success(result))

    def state_dict(self) -> dict[str, Any]:
        return self.retirement.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.retirement.load(state)


def mean_of_trajectories(values: Tensor, mask: Tensor, batch: Batch) -> float:
    """Mean over trajectories of the mean of `values` [R, T] over a trajectory's true entries of `mask` [R, T], which
    must be policy tokens; trajectories without any are left out, and one at least must have some."""
    chosen = mask.bool()
    trajectory = batch.step_trajectory[batch.token_step[chosen]]  # of each chosen token
    sums = values.new_zeros(len(batch.group)).double().index_add_(0, trajectory, values[chosen].double())
    counts = trajectory.bincount(minlength=len(batch.group))
    played = counts > 0
    return float((sums[played] / counts[played]).mean())


def _success(result: Validation) -> float:
    if not (0 <= result.success <= 1 and result.episodes > 0):
        raise ValueError(
            f"a validation gave success={result.success} of {result.episodes} episodes; it must be a share of at least "
            "one graded episode"
        )
    return float(result.success)


def check(config: MethodConfig) -> None:
    """Raise ValueError for a configuration that RetireOPD cannot honour."""
    check_auxiliary(config, opd.WEIGHTS, policy_gradient=True)
    row, knobs = f"(row {config.id!r})", read_knobs(Knobs, config.knobs, "method.knobs")
    require_known("method.knobs.progress_form", knobs.progress_form, FORMS, row)
    if config.schedule.kind != "constant":
        raise ValueError(
            f"method.schedule.kind={config.schedule.kind!r}, but RetireOPD's weight is constant until the teacher "
            f"retires; set constant, or use method=grpo_opd {row}"
        )
    if knobs.window < 1:
        raise ValueError(f"method.knobs.window={knobs.window} must be at least 1 training step {row}")
    if knobs.competence_threshold < 0:
        raise ValueError(f"method.knobs.competence_threshold={knobs.competence_threshold} must not be negative {row}")
    if knobs.stop_step is not None and knobs.stop_step < 1:
        raise ValueError(f"method.knobs.stop_step={knobs.stop_step} must be at least 1 training step, or null {row}")
    if knobs.stop_step is None and not (knobs.use_progress or knobs.use_competence):
        raise ValueError(
            "method.knobs.use_progress=false and use_competence=false leave no rule for retirement; switch one on, set "
            f"method.knobs.stop_step, or use method=grpo_opd, whose teacher never retires {row}"
        )


def first_retirement(knobs: Knobs) -> int:
    """The earliest training step after which the teacher can leave."""
    return 2 * knobs.window if knobs.stop_step is None else knobs.stop_step


def warn(config: MethodConfig, total_steps: int) -> str:
    """That the teacher cannot leave before the last step, so that the row trains as grpo_opd; "" if it can."""
    knobs = read_knobs(Knobs, config.knobs, "method.knobs")
    first = first_retirement(knobs)
    if first < total_steps:
        return ""
    rule = f"stop_step={knobs.stop_step}" if knobs.stop_step is not None else f"window={knobs.window}, two of them"
    return (
        f"row {config.id!r} cannot retire its teacher: the first chance is after training step {first} "
        f"(method.knobs.{rule}), and {total_steps} are planned; it trains as method=grpo_opd would. Plan more steps or "
        "lower the knob"
    )


SPEC = MethodSpec(
    name="retire_opd",
    build=RetireOpd,
    version=3,
    uses_teacher=True,
    needs=frozenset({"engine:teacher", "engine:aux_loss"}),
    paper="arXiv:2609.20784",
    deviations=DEVIATIONS,
    knobs=Knobs,
    validates=True,
    check=check,
    warn=warn,
)
