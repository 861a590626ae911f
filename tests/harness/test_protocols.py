"""Protocols: values of papers and of released code laid over cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import cli
from harness.compose import Composer, composer
from harness.config import CommandConfig
from harness.errors import ConfigError
from harness.plan import Plan, states
from harness.protocols import Protocols, apply
from harness.report import plan_text

PlanOf = Callable[..., Plan]
Write = Callable[[str, str], None]

LAB = """# test
envs:
  alfworld: {training.kl_coef: 0.01, env.max_steps: 30, method.advantage.std: true, training.betas: [0.9, 0.999]}
methods:
  grpo:
    any: {training.entropy_coef: 0.5}
  opid:
    any: {method.coef: 0.001, method.knobs.weight_step: 3, method.skill.router: critical_first, training.lr: 1}
    alfworld: {env.max_steps: 20}
"""


@pytest.fixture
def lab(write: Write) -> None:
    write("protocol/lab", LAB)


def values(config_dir: Path, method: str, env: str = "alfworld", name: str = "lab") -> dict[str, object]:
    return dict(Protocols(composer(str(config_dir))).values(name, method, env))


def problem_of(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_methods_come_over_environments(lab: None, config_dir: Path) -> None:
    env = {"training.kl_coef": 0.01, "env.max_steps": 30, "method.advantage.std": True, "training.betas": [0.9, 0.999]}
    assert values(config_dir, "grpo") == {**env, "training.entropy_coef": 0.5}
    own = {"method.coef": 0.001, "method.knobs.weight_step": 3, "method.skill.router": "critical_first"}
    assert values(config_dir, "opid") == {**env, **own, "training.lr": 1.0, "env.max_steps": 20}
    assert isinstance(values(config_dir, "opid")["training.lr"], float)
    assert values(config_dir, "grpo", name="fair") == {}


def test_who_inherits_takes_the_nearest_entry_but_keeps_what_it_sets(lab: None, config_dir: Path, write: Write) -> None:
    assert values(config_dir, "sdar")["training.entropy_coef"] == 0.5  # of grpo
    opid = values(config_dir, "opid")
    without = {k: v for k, v in opid.items() if k != "method.skill.router"}
    assert values(config_dir, "opid_random") == without  # its router makes it what it is
    assert values(config_dir, "opid_no_step") == {k: v for k, v in opid.items() if k != "method.knobs.weight_step"}
    write("method/mine", "# test\ndefaults: [opid_random, _self_]\nid: mine\n")
    assert values(config_dir, "mine") == without
    assert "method.advantage.std" not in values(config_dir, "gigpo_no_std")  # said by the environment for all methods
    write("env/far", "# test\ndefaults: [alfworld, _self_]\nmax_steps: 99\n")
    assert "env.max_steps" not in values(config_dir, "grpo", "far")
    assert values(config_dir, "opid", "far")["env.max_steps"] == 20


def test_precedence(lab: None, plan_of: PlanOf, write: Write) -> None:
    rows = """
rows:
  - {method: grpo}
  - {method: opid, base: grpo, delta: [method, training.lr], set: {training.lr: 0.25}}
axes: {env: [alfworld], backbone: [tiny-s]}
set: {protocol: lab, training.entropy_coef: 0.125, scale: test}
"""
    write("sweep/t", rows)
    grpo, opid = (c.config for c in plan_of("sweep=t", "env.max_steps=7").cells)
    assert (grpo.training.kl_coef, grpo.protocol, grpo.scale) == (0.01, "lab", "test")
    assert grpo.training.entropy_coef == 0.125 and opid.training.lr == 0.25
    assert grpo.env.max_steps == opid.env.max_steps == 7
    assert (opid.method.coef, opid.method.knobs) == (0.001, {"weight_episode": 1.0, "weight_step": 3.0})
    assert plan_of("sweep=t", "protocol=fair").cells[0].config.training.kl_coef == 0.0


def test_what_the_protocol_decides_may_differ_from_the_base_and_is_told(
    lab: None, plan_of: PlanOf, write: Write
) -> None:
    write("sweep/t", "rows:\n  - {method: grpo}\n  - {method: opid, base: grpo, delta: [method]}\n"
          "axes: {env: [alfworld], backbone: [tiny-s]}\n")  # fmt: skip
    plan = plan_of("sweep=t", "protocol=lab")
    grpo, opid = plan.cells
    assert plan.title == "t (protocol=lab)"
    assert opid.changed["training.lr"] == (3e-4, 1.0) and opid.changed["training.entropy_coef"] == (0.5, 0.0)
    assert {"training.lr", "method.coef", "method.knobs.weight_step"} <= set(opid.preset)
    assert (grpo.expected_seconds, opid.expected_seconds) == (None, None)  # measured with the scale's own settings
    lines = plan_text(plan, states(plan)).splitlines()
    told = {line.split()[0]: line for line in lines if "->" in line}
    assert "protocol: lab" in lines
    assert {k for k, line in told.items() if line.endswith("from protocol")} == {
        "env.max_steps", "method.coef", "method.knobs.weight_step", "method.skill.router", "training.entropy_coef",
        "training.lr",
    }  # fmt: skip
    problem = problem_of(lambda: plan_of("sweep=t", "protocol=lab", "training.lr=-1"))
    assert "training.lr=-1.0 (command line)" in problem


@pytest.mark.parametrize("protocol", ["fair", "paper", "code"])
def test_a_rows_own_difference_is_refused_under_every_protocol(protocol: str, plan_of: PlanOf, write: Write) -> None:
    """Also where the protocol says something of the same key in the base."""
    rows = """
rows:
  - {method: grpo}
  - {id: opid, method: opid, base: grpo, delta: [method]}
  - {id: other, label: Other, method: opid, base: opid, delta: [method.skill.router],
     set: {method.skill.router: additive%s}}
axes: {env: [alfworld], backbone: [tiny-s]}
set: {backbone.max_positions: 3000, training.max_prompt_tokens: 2048}
"""
    write("sweep/t", rows % "")
    plan_of("sweep=t", f"protocol={protocol}")
    for key, own in {"training.lr": 1.0e-4, "training.kl_coef": 0.5, "env.history": 9, "method.coef": 0.7}.items():
        write("sweep/t", rows % f", {key}: {own}")
        problem = problem_of(lambda: plan_of("sweep=t", f"protocol={protocol}"))
        assert problem.startswith(f"{key}=") and "does not declare" in problem, problem
    write("method/mine", "# test\ndefaults: [opid, _self_]\nid: mine\nlabel: Mine\nadvantage:\n  std: false\n")
    text = (rows % "").replace("method: opid, base: opid", "method: mine, base: opid")
    write("sweep/t", text)
    problem = problem_of(lambda: plan_of("sweep=t", f"protocol={protocol}"))
    assert "method.advantage.std=false" in problem and "does not declare" in problem


def test_errors_name_the_file(lab: None, plan_of: PlanOf, write: Write) -> None:
    write("protocol/bad", "# test\nmethods: {opid: {any: {training.lr: -1, method.knobs.weight_stp: 1}}}\n")
    problem = problem_of(lambda: plan_of("method=opid", "protocol=bad"))
    assert "training.lr=-1.0 (" in problem and "conf/protocol/bad.yaml): must be" in problem
    write("protocol/bad", "# test\nmethods: {opid: {any: {method.knobs.weight_stp: 1}}}\n")
    problem = problem_of(lambda: plan_of("method=opid", "protocol=bad"))
    assert "method.knobs.weight_stp=1 (" in problem and "bad.yaml): is no knob of method 'opid'" in problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("envs: {alfworld: {training.lrr: 1}}", ["training.lrr=1", "envs.alfworld", "did you mean training.lr?"]),
        ("envs: {alfworld: {training.lr: much}}", ["training.lr=much", "must be a number"]),
        ("envs: {alfworld: {training: {lr: 1}}}", ["training={lr: 1}", "is a section"]),
        ("envs: {alfworld: {method.knobs: {a: 1}}}", ["method.knobs=", "is a section"]),
        ("envs: {alfworld: {runtime.device: cuda}}", ["runtime.device=cuda", "not for a protocol to decide"]),
        ("envs: {alfworld: {seed: 1}}", ["seed=1", "not for a protocol to decide"]),
        ("envs: {alfworld: {method.name: grpo}}", ["method.name=grpo", "not for a protocol to decide"]),
        ("envs: {alfwrld: {training.lr: 1}}", ["envs.alfwrld", "did you mean 'alfworld'?"]),
        ("envs: 3", ["envs=3", "must be a mapping"]),
        ("methods: {opdi: {any: {training.lr: 1}}}", ["methods.opdi", "did you mean"]),
        ("methods: {opid: {training.lr: 1}}", ["methods.opid.training.lr", "any"]),
        ("method: {opid: {any: {training.lr: 1}}}", ["method (", "did you mean 'methods'?"]),
    ],
)
def test_mistakes_in_a_file_are_named(config_dir: Path, write: Write, text: str, said: list[str]) -> None:
    write("protocol/bad", f"# test\n{text}\n")
    problem = problem_of(lambda: values(config_dir, "grpo", name="bad"))
    assert f"{config_dir}/protocol/bad.yaml" in problem and all(word in problem for word in said), problem


def test_an_unknown_protocol_is_named(lab: None, plan_of: PlanOf, write: Write) -> None:
    assert problem_of(lambda: plan_of("protocol=lba")) == (
        "protocol=lba (command line): did you mean 'lab'? available: code, fair, lab, paper"
    )


def test_laid_over_or_composed_it_is_the_same(lab: None, hydra: Composer, plan_of: PlanOf, write: Write) -> None:
    """Cells whose keys refer to others are composed by Hydra with the values; all others are put together."""
    write("method/free", "# test\ndefaults: [opid, _self_]\nid: free\n")
    write("method/bound", "# test\ndefaults: [opid, _self_]\nid: bound\nsignal:\n  clip: ${training.kl_coef}\n")
    free, bound = (plan_of(f"method={name}", "protocol=lab").cells[0] for name in ("free", "bound"))
    assert bound.config.method.signal.clip == 0.01 and free.config.method.signal.clip == 2.0
    assert bound.config.training == free.config.training and bound.preset == free.preset
    section = plan_of("method=opid", "protocol=lab", "training={lr: 0.5, steps: 2}").cells[0]
    assert (section.config.training.lr, section.config.training.kl_coef) == (0.5, 0.01)
    assert "training.lr" not in section.preset and "training.kl_coef" in section.preset


def test_apply_reaches_knobs_and_leaves_its_argument() -> None:
    config = CommandConfig()
    changed = apply(config, {"method.knobs.beta": 3.0, "training.lr": 1.0})
    assert (changed.method.knobs, changed.training.lr) == ({"beta": 3.0}, 1.0)
    assert config == CommandConfig()


def test_cfg_shows_the_composed_values(lab: None, config_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--config-dir={config_dir}", "--cfg", "job", "method=opid", "protocol=lab", "training.lr=0.5"]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "protocol: lab" in shown and "kl_coef: 0.01" in shown and "coef: 0.001" in shown and "lr: 0.5" in shown
    assert cli.main([f"--config-dir={config_dir}", "--cfg", "job", "protocol=lba"]) == 2


def test_a_teacher_has_the_protocols_values_for_its_method(lab: None, plan_of: PlanOf, write: Write) -> None:
    student, teacher = plan_of("method=retire_opd", "protocol=lab").cells
    assert student.requires == (teacher.fingerprint,)
    assert teacher.config.training.entropy_coef == 0.5 and teacher.config.protocol == "lab"
