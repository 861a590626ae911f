"""Names, laziness, plugins, validation of values, the rows of sweeps/method, and the faithfulness check itself."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import asdict, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from methods_helpers import context, grpo_config, opid_config, row
from omegaconf import OmegaConf

import sweeps
from core import plugins
from methods import grpo, registry
from methods.faithful import UnfaithfulError, check_faithful
from methods.interface import (
    AdvantageConfig,
    Batch,
    Method,
    MethodConfig,
    MethodSpec,
    ScheduleConfig,
    SignalConfig,
    SkillConfig,
    TeacherRequest,
    Validation,
)
from methods.opid import Opid
from methods.schedule import coefficient_scale

ROWS = Path(next(iter(sweeps.__path__))) / "method"
ROW_NAMES = sorted(p.stem for p in ROWS.glob("*.yaml"))


# ------------------------------------------------------------------------------------------------------------ registry
def test_builtin_methods() -> None:
    assert {"gigpo", "grpo", "opid", "rlsd", "skill_grpo", "vanilla"} <= set(registry.names())
    for name in registry.names():
        spec = registry.get(name)
        assert spec.name == name and spec.version >= 1 and spec.paper
        assert spec is registry.get(name)
    assert registry.get("opid").uses_teacher and not registry.get("grpo").uses_teacher
    topics = [d.topic for d in registry.get("opid").deviations]
    assert len(topics) == len(set(topics)) > len(registry.get("grpo").deviations)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"method.name='opidd' is unknown; did you mean 'opid'.*grpo, .*opid, .*vanilla"
    ):
        registry.get("opidd")
    with pytest.raises(ValueError, match=r"method.name='zzzz' is unknown. Known"):
        registry.build(replace(grpo_config(), name="zzzz"), context())


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from methods import registry\n"
        "import methods.faithful, methods.skills.analyzer, methods.skills.injection, methods.skills.routing\n"
        "specs = [registry.get(n) for n in registry.names()]\n"
        "[(s.version, s.uses_teacher, s.needs, s.deviations) for s in specs]\n"
        "from methods.interface import MethodConfig\n"
        "registry.validate(MethodConfig())\n"
        "heavy = {'torch', 'transformers', 'mlflow', 'pandas', 'numpy', 'hydra', 'omegaconf'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


READ_ANEW = plugins.offers.__wrapped__  # without the cache


def offer(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    found = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in points.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found)
    monkeypatch.setattr(plugins, "offers", READ_ANEW)


def test_plugins_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_method")
    module.SPEC = replace(grpo.SPEC, name="mine")  # type: ignore[attr-defined]
    module.OTHER = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_method", module)
    offer(monkeypatch, mine="my_method:SPEC", odd="my_method:OTHER", gone="my_method:NOWHERE", liar="my_method:SPEC")
    assert registry.get("mine") is module.SPEC and "mine" in registry.names()
    with pytest.raises(ValueError, match="is a int, not a MethodSpec"):
        registry.get("odd")
    with pytest.raises(ValueError, match="cannot be loaded"):
        registry.get("gone")
    with pytest.raises(ValueError, match="calls itself 'mine'"):
        registry.get("liar")


def test_plugins_cannot_take_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, grpo="elsewhere:SPEC")
    assert "grpo" in registry.names() and registry.get("opid").name == "opid"
    with pytest.raises(ValueError, match=r"'grpo' is offered by elsewhere:SPEC of .* and by methods.grpo:SPEC of this"):
        registry.get("grpo")


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def test_a_method_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    write(tmp_path, "own_one", "from dataclasses import replace\nfrom methods import grpo\n"
          "SPEC = replace(grpo.SPEC, name='one', version=7)\nNUMBER = 3\n")  # fmt: skip
    spec = registry.get("own_one:SPEC")
    assert spec.version == 7 and registry.get("own_one:SPEC") is spec
    assert registry.validate(replace(grpo_config(), name="own_one:SPEC")) is spec
    assert sys.path == before
    with pytest.raises(ValueError, match=r"attribute of own_one .*='SPECS' is unknown; did you mean 'SPEC'"):
        registry.get("own_one:SPECS")
    with pytest.raises(ValueError, match=r"NUMBER of own_one .* is a int, not a MethodSpec; MethodSpecs there: SPEC"):
        registry.get("own_one:NUMBER")


def test_installed_modules_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "colorsys", "raise RuntimeError('hidden')")
    with pytest.raises(ValueError, match="attribute of colorsys"):
        registry.get("colorsys:SPEC")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("own_gone:SPEC", None, r"there is no module 'own_gone' in the working directory \(.*the file own_gone.py"),
        ("own_gone.part:SPEC", None, "there is no module 'own_gone'"),
        ("own_deep:SPEC", "import not_there_at_all", "own_deep itself imports not_there_at_all"),
        ("own_bad:SPEC", "1 / 0", "importing own_bad raised ZeroDivisionError: division by zero"),
        ("own_odd:SPEC", "def", "importing own_odd raised SyntaxError"),
        ("own.py:", None, "must be a registered name or a path package.module:ATTRIBUTE"),
        (":SPEC", None, "must be a registered name or a path"),
        ("../own:SPEC", None, "must be a registered name or a path"),
    ],
)
def test_paths_that_lead_nowhere(
    name: str, text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        write(tmp_path, name.partition(":")[0], text)
    before = list(sys.path)
    with pytest.raises(ValueError, match=message):
        registry.get(name)
    assert sys.path == before


def test_requirements() -> None:
    assert registry.requirements(grpo_config(), "rules") == frozenset()
    assert registry.requirements(opid_config(), "rules") == {"engine:teacher", "env:hindsight"}
    assert registry.requirements(row("vanilla_skill"), "rules") == {"env:library"}
    with pytest.raises(ValueError, match="did you mean 'rules'"):
        registry.requirements(opid_config(), "rule")


# ---------------------------------------------------------------------------------------------------------- validation
def skill(**changes: Any) -> dict[str, Any]:
    return {"skill": replace(opid_config().skill, **changes)}


def teacher(**changes: Any) -> dict[str, Any]:
    return {"teacher": replace(opid_config().teacher, **changes)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"advantage": grpo_config(estimator="grp").advantage},
            "method.advantage.estimator='grp'.*did you mean 'grpo'",
        ),
        (
            {"advantage": grpo_config(stats_over="step").advantage},
            "stats_over='step'.*did you mean 'steps'.*row 'opid'",
        ),
        ({"advantage": grpo_config(pg_coef=-1.0).advantage}, "method.advantage.pg_coef=-1.0 must be"),
        (skill(source="libary"), "method.skill.source='libary'.*did you mean 'library'"),
        (skill(router="critical"), "method.skill.router='critical'.*did you mean 'critical_first'"),
        (skill(router="task_type"), "does not fit method.skill.source='own_trajectory'"),
        (skill(max_step_skills=-1), "max_step_skills=-1 must not be negative"),
        (skill(max_step_skills=0), "allows none.*episode_only"),
        (skill(max_failure_rate=1.5), "max_failure_rate=1.5 must be a share"),
        (skill(source="none", router="none"), "opid takes skills from the policy's own"),
        ({"signal": SignalConfig(clip=0.0)}, "method.signal.clip=0.0 must be a positive number of nats"),
        ({"coef": -0.1}, "method.coef=-0.1 must be"),
        ({"coef": float("nan")}, "method.coef=nan must be"),
        ({"knobs": {"weight_episod": 1.0}}, "method.knobs key='weight_episod'.*did you mean 'weight_episode'"),
        ({"knobs": {"weight_step": -1.0}}, "method.knobs.weight_step=-1.0 must not be negative"),
        (teacher(weights="ema", decay=0.5), "opid's teacher is the old policy"),
        (teacher(weights="oldest"), "method.teacher.weights='oldest'.*did you mean 'old'"),
        (teacher(weights="frozen"), "method.teacher.run=None does not fit method.teacher.weights=frozen"),
        (teacher(run="grpo"), "method.teacher.run=grpo does not fit method.teacher.weights=old"),
        (teacher(decay=0.5), "method.teacher.decay=0.5 is read by method.teacher.weights=ema only.*they are old"),
        (teacher(weights="ema", decay=0.0), "method.teacher.decay=0.0 must be above 0 and below 1"),
        (teacher(weights="ema", decay=1.0), "method.teacher.decay=1.0 must be above 0 and below 1"),
        (skill(placement="middle"), "method.skill.placement='middle'"),
        (skill(top_k=-1), "method.skill.top_k=-1 must not be negative"),
        ({"advantage": AdvantageConfig(omega=-1.0)}, "method.advantage.omega=-1.0 must be"),
        ({"advantage": AdvantageConfig(gamma=1.5)}, "method.advantage.gamma=1.5 must be between"),
        ({"advantage": AdvantageConfig(similarity=-0.1)}, "method.advantage.similarity=-0.1 must be between"),
        ({"advantage": AdvantageConfig(anchor="near")}, "method.advantage.anchor='near'"),
        ({"schedule": ScheduleConfig("liner")}, "method.schedule.kind='liner'.*did you mean 'linear'"),
        ({"schedule": ScheduleConfig("linear", length=0)}, "method.schedule.length=0"),
        ({"schedule": ScheduleConfig("window", start=-1)}, "method.schedule.start=-1"),
        ({"schedule": ScheduleConfig("window", start=5, stop=5)}, "stop=5 must be larger than method.schedule.start=5"),
        ({"schedule": ScheduleConfig("linear", stop=9)}, "schedule.stop=9 is read by method.schedule.kind=window only"),
        ({"schedule": ScheduleConfig("linear", start=2)}, "schedule.start=2 is read.*the kind is linear; set it to 0"),
        ({"schedule": ScheduleConfig(length=9)}, "length=9 is read by .*kind=linear only.*is constant; set it to null"),
        ({"schedule": ScheduleConfig("window", 1, 3, 9)}, "schedule.length=9 is read.*the kind is window"),
        ({"rollout_skills_eval": []}, "must name off, on or both"),
        ({"rollout_skills_eval": ["off", "off"]}, "each once"),
        ({"rollout_skills_eval": ["of"]}, "did you mean 'off'"),
        ({"rollout_skills_eval": ["on"]}, "rollout_skills_eval puts skills into the policy's own prompt"),
        ({"rollout_skills_train": True}, "rollout_skills_train puts skills into the policy's own prompt"),
        ({"trains": False}, "row 'opid' uses opid, which trains"),
    ],
)
def test_each_bad_value_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.validate(replace(opid_config(), **changes))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(grpo_config(), trains=False), "uses grpo, which trains"),
        (replace(grpo_config(), coef=0.1), "grpo has no teacher"),
        (replace(grpo_config(), skill=opid_config().skill), "grpo analyses nothing"),
        (replace(grpo_config(), skill=SkillConfig("library", "task_type")), "uses it nowhere"),
        (grpo_config(estimator="gigpo"), "use method.name=gigpo"),
        (grpo_config(estimator="none"), "grpo learns from outcome rewards alone: nothing would be learnt"),
        (grpo_config(pg_coef=0.0), r"pg_coef=0\.0, but grpo learns from outcome rewards alone"),
        (replace(row("gigpo"), advantage=AdvantageConfig("gigpo", pg_coef=0.0)), "gigpo learns from outcome rewards"),
        (replace(row("skill_grpo"), advantage=AdvantageConfig(pg_coef=0.0)), "skill_grpo learns from outcome rewards"),
        (replace(grpo_config(), name="gigpo"), "uses gigpo but sets method.advantage.estimator='grpo'"),
        (replace(row("gigpo"), coef=0.1), "gigpo has no teacher"),
        (replace(row("gigpo"), trains=False), "uses gigpo, which trains"),
        (replace(row("skill_grpo"), rollout_skills_train=False), "rollout_skills_train=false, which is GRPO"),
        (replace(row("skill_grpo"), advantage=AdvantageConfig("gigpo")), "uses skill_grpo but sets"),
        (replace(row("skill_grpo"), coef=0.1), "skill_grpo has no teacher"),
        (replace(row("rlsd"), coef=1.5), "method.coef=1.5 must be at most 1"),
        (replace(row("rlsd"), knobs={"eps": 1.0}), "method.knobs.eps=1.0 must be above 0 and below 1"),
        (replace(row("rlsd"), advantage=AdvantageConfig("none")), "rlsd has nothing to scale"),
        (replace(row("rlsd"), advantage=AdvantageConfig(pg_coef=0.0)), "rlsd has nothing to scale"),
        (replace(grpo_config(), name="vanilla"), "uses vanilla, which never trains"),
        (replace(grpo_config(), name="vanilla", trains=False, coef=0.1), "neither a skill term"),
        (replace(row("vanilla"), **teacher(weights="old")), "neither a skill term"),
        (replace(opid_config(coef=0), name="vanilla", trains=False, knobs={}), "neither a skill term"),
    ],
)
def test_keys_that_a_method_would_ignore_are_refused(config: MethodConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.validate(config)


# ------------------------------------------------------------------------------------------------------------ schedule
def test_schedules() -> None:
    def scales(config: ScheduleConfig, total: int = 4) -> list[float]:
        return [coefficient_scale(config, k, total) for k in range(1, 7)]

    assert scales(ScheduleConfig()) == [1.0] * 6
    assert scales(ScheduleConfig("linear")) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert scales(ScheduleConfig("linear", length=2)) == [1.0, 0.5, 0.0, 0.0, 0.0, 0.0]
    assert scales(ScheduleConfig("window", start=1, stop=3)) == [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert scales(ScheduleConfig("window", start=4)) == [0.0] * 4 + [1.0] * 2
    with pytest.raises(ValueError, match="numbered from 1"):
        coefficient_scale(ScheduleConfig(), 0, 4)
    with pytest.raises(ValueError, match=r"method.schedule.kind='ramp' is unknown"):
        coefficient_scale(ScheduleConfig("ramp"), 1, 4)


# ---------------------------------------------------------------------------------------------------------------- rows
def test_rows_exist() -> None:
    assert {row(name).name for name in ROW_NAMES} == set(registry.names())  # each method has a row, each row a method


@pytest.mark.parametrize("name", ROW_NAMES)
def test_rows_are_valid_complete_and_commented(name: str) -> None:
    config = row(name)
    assert config.id == name
    spec = registry.validate(config)
    check_faithful(spec, config)
    text = (ROWS / f"{name}.yaml").read_text()
    given = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(given, dict)
    if name == "grpo":  # the file that all others start from writes every key down
        assert flat(given).keys() == flat(asdict(MethodConfig())).keys()
    assert text.startswith("# ")
    for line in text.splitlines():
        if not line.startswith(("#", "defaults:")) and not line.rstrip().endswith(":"):
            assert "  # " in line, f"{name}.yaml: no comment in {line!r}"


def flat(tree: dict[Any, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return out


def difference(first: str, second: str) -> set[str]:
    a, b = flat(asdict(row(first))), flat(asdict(row(second)))
    return {key for key in a | b if a.get(key, ...) != b.get(key, ...)}


@pytest.mark.parametrize(
    ("base", "name", "keys"),
    [
        ("opid", "opid_no_episode", {"knobs.weight_episode"}),
        ("opid", "opid_no_step", {"knobs.weight_step"}),
        ("opid", "opid_additive", {"skill.router"}),
        ("opid", "opid_random", {"skill.router"}),
        ("opid", "opid_library", {"skill.source", "skill.router"}),
        ("vanilla", "vanilla_skill", {"skill.source", "skill.router", "rollout_skills_eval"}),
        ("gigpo", "gigpo_no_std", {"advantage.std"}),
        ("grpo", "gigpo", {"name", "advantage.estimator"}),
        (
            "grpo",
            "skill_grpo",
            {"name", "skill.source", "skill.router", "rollout_skills_train", "rollout_skills_eval"},
        ),
        (
            "grpo",
            "rlsd",
            {"name", "skill.source", "skill.router", "teacher.weights", "schedule.kind", "coef", "knobs", "knobs.eps"},
        ),
    ],
)
def test_rows_differ_only_where_declared(base: str, name: str, keys: set[str]) -> None:
    assert difference(base, name) == {"id", "label"} | keys


def test_students_without_skills_and_one_advantage_for_all() -> None:
    for name in ROW_NAMES:
        config = row(name)
        assert config.rollout_skills_train == (config.name == "skill_grpo")
        if config.trains and config.name != "skill_grpo":
            assert config.rollout_skills_eval == ["off"]
        if config.trains and config.advantage.estimator == "grpo" and not config.name.startswith("opsd"):
            assert config.advantage == row("grpo").advantage


def test_vanilla_refuses_to_train() -> None:
    method = registry.build(row("vanilla"), context())
    with pytest.raises(RuntimeError, match=r"vanilla .* must not be trained"):
        method.advantages(1, Batch(*[torch.zeros(1)] * 8))


# -------------------------------------------------------------------------------------------------------- faithfulness
class Deaf(Opid):
    """Scores the teacher and throws the scores away."""

    def advantages(self, step: int, batch: Batch) -> torch.Tensor:
        return grpo.base_advantage(self.config.advantage, batch)


class Sigmoid(Deaf):
    """Uses the teacher in an auxiliary loss whose gradient it cannot reach (GRPO+OPSD as released)."""

    def aux_loss(self, step: int, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return 0.5 * (batch.teacher["episode"] - logprobs)


class Auxiliary(Deaf):
    """Uses the teacher in an auxiliary loss, properly."""

    def aux_loss(self, step: int, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return (logprobs - batch.teacher["episode"]).detach() * logprobs


class Crooked(Deaf):
    """An auxiliary loss of the wrong shape."""

    def aux_loss(self, step: int, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return logprobs.sum()


class Boundless(Deaf):
    def aux_loss(self, step: int, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return logprobs / 0.0


class Leaky(Opid):
    """Writes an advantage where there is no policy token."""

    def advantages(self, step: int, batch: Batch) -> torch.Tensor:
        return super().advantages(step, batch) + 1.0


class Counting(Deaf):
    """Hears no teacher, but gives another advantage whenever it is asked, as a running normaliser would."""

    calls = 0

    def advantages(self, step: int, batch: Batch) -> torch.Tensor:
        self.calls += 1
        return super().advantages(step, batch) / self.calls


class Restless(Opid):
    """Its gradients differ whatever the teacher says."""

    def advantages(self, step: int, batch: Batch) -> torch.Tensor:
        return super().advantages(step, batch) * (1 + torch.rand(()))


class HalfDeaf(Opid):
    """Asks for two channels and hears one."""

    def advantages(self, step: int, batch: Batch) -> torch.Tensor:
        return super().advantages(
            step, replace(batch, teacher={c: v for c, v in batch.teacher.items() if c == "episode"})
        )


class Nan(grpo.Grpo):
    """No teacher, and a loss that is no number."""

    def aux_loss(self, step: int, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return logprobs * float("nan")


class Steep(grpo.Grpo):
    """A finite loss with a gradient that is not."""

    def aux_loss(self, step: int, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return (logprobs - logprobs.detach()).sqrt()


class Endless(Opid):
    def advantages(self, step: int, batch: Batch) -> torch.Tensor:
        return super().advantages(step, batch) / 0.0


class Narrow(Opid):
    def advantages(self, step: int, batch: Batch) -> torch.Tensor:
        return super().advantages(step, batch)[:, 0]


class Attached(Opid):
    def advantages(self, step: int, batch: Batch) -> torch.Tensor:
        return super().advantages(step, batch) * torch.ones(1, requires_grad=True)


class Sneaky(Method):
    """Says that it has no teacher and asks for one."""

    def teacher_requests(self, step: int, trajectories: Any) -> list[TeacherRequest]:
        return [TeacherRequest("episode", 0, (0,), episode_skill="x")]

    def advantages(self, step: int, batch: Batch) -> torch.Tensor:
        return torch.zeros_like(batch.old_logprobs)


class Measured(Opid):
    """Needs the teacher's result before anything else."""

    result: Validation | None = None

    @property
    def measures_teacher(self) -> bool:
        return True

    def teacher_measured(self, result: Validation) -> None:
        self.result = result

    def teacher_requests(self, step: int, trajectories: Any) -> list[TeacherRequest]:
        assert self.result is not None and self.result.success > 0
        return super().teacher_requests(step, trajectories)


def spec_of(kind: type[Method], uses_teacher: bool = True, cancels: bool = False) -> MethodSpec:
    return MethodSpec(name="test", build=kind, version=1, uses_teacher=uses_teacher, teacher_cancels=cancels)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Deaf, "changes no gradient"),
        (Counting, "changes no gradient"),
        (Restless, "two gradients for the same data and seed"),
        (HalfDeaf, "scores of channel 'step' changes no gradient"),
        (Sigmoid, "changes no gradient"),
        (Crooked, r"auxiliary loss of Crooked must be \[R, T\].*shape \(\)"),
        (Boundless, "finite inside response_mask"),
        (Leaky, "not 0 outside response_mask"),
        (Endless, "not finite"),
        (Narrow, r"have shape \(16,\)"),
        (Attached, "carry a gradient"),
    ],
)
def test_unfaithful_methods_are_refused(kind: type[Method], message: str) -> None:
    with pytest.raises(UnfaithfulError, match=message):
        check_faithful(spec_of(kind), opid_config())


def test_the_loss_of_methods_without_a_teacher_is_checked_too() -> None:
    def shapeless(self: Method, step: int, batch: Batch, logprobs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return logprobs.sum()

    crooked = type("Bent", (grpo.Grpo,), {"aux_loss": shapeless})
    for kind, message in ((Nan, "finite inside response_mask"), (crooked, r"must be \[R, T\]"), (Steep, "not finite")):
        with pytest.raises(UnfaithfulError, match=message):
            check_faithful(spec_of(kind, uses_teacher=False), grpo_config())


def test_false_declarations_are_refused() -> None:
    with pytest.raises(UnfaithfulError, match="declares uses_teacher=False"):
        check_faithful(spec_of(Sneaky, uses_teacher=False), grpo_config())
    with pytest.raises(UnfaithfulError, match="does not train"):
        check_faithful(spec_of(Opid), replace(opid_config(), trains=False))
    with pytest.raises(UnfaithfulError, match="asks for no teacher score in 20 steps"):
        check_faithful(spec_of(Opid), opid_config(coef=0.0))


@pytest.mark.parametrize("uses_teacher", [True, False])
def test_a_teacher_that_cancels_must_really_cancel(uses_teacher: bool) -> None:
    check_faithful(spec_of(Sigmoid, uses_teacher, cancels=True), opid_config())
    with pytest.raises(UnfaithfulError, match=r"declares that they cancel \(teacher_cancels\)"):
        check_faithful(spec_of(Auxiliary, uses_teacher, cancels=True), opid_config("episode_only"))
    with pytest.raises(UnfaithfulError, match="declares teacher_cancels, but asks for no teacher score"):
        check_faithful(spec_of(Sigmoid, uses_teacher, cancels=True), opid_config(coef=0.0))
    with pytest.raises(UnfaithfulError, match="does not train"):
        check_faithful(spec_of(Sigmoid, uses_teacher, cancels=True), replace(opid_config(), trains=False))


@pytest.mark.parametrize("router", ["critical_first", "episode_only", "step_only", "additive", "random"])
def test_faithful_methods_pass(router: str) -> None:
    check_faithful(registry.get("opid"), opid_config(router))
    check_faithful(registry.get("opid"), opid_config(router, coef=0.001, clip=2.0, normalize=True))


def test_other_faithful_methods_pass() -> None:
    check_faithful(registry.get("grpo"), grpo_config())
    check_faithful(spec_of(Auxiliary), opid_config("episode_only"))
    check_faithful(spec_of(Measured), opid_config())
    late = opid_config(schedule=ScheduleConfig("window", start=12))
    check_faithful(registry.get("opid"), late)
