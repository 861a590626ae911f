"""Frozen teachers: cells that must be complete before others start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.plan import Plan, missing, states, write_plan
from harness.report import cell_label, plan_text, status_text, waiting
from harness.stages import Cell
from harness.states import COMPLETE, FAILED, PENDING, RunState

PlanOf = Callable[..., Plan]
Write = Callable[[str, str], None]

STUDENT = "# test\ndefaults: [grpo_opd, _self_]\nid: {name}\nteacher: {{run: {run}}}\n"
SWEEP = """
rows:
  - {method: grpo_opd}
  - {method: retire_opd}
axes: {env: [alfworld], backbone: [tiny-s], fraction: [0.5, 1.0], seed: [0, 1]}
"""


def problem_of(plan_of: PlanOf, *arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(*arguments)
    return str(caught.value)


def by_row(plan: Plan) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in plan.cells:
        found.setdefault(cell.row.id, []).append(cell)
    return found


def test_a_single_run_brings_its_teacher(plan_of: PlanOf) -> None:
    plan = plan_of("method=retire_opd", "seed=3", "fraction=0.5", "training.steps=7")
    student, teacher = plan.cells
    assert (student.row.id, student.stage, student.requires) == ("retire_opd", False, (teacher.fingerprint,))
    assert (teacher.row.id, teacher.stage, teacher.requires) == ("skill_grpo", True, ())
    assert student.config.method.teacher.source == teacher.fingerprint
    # Equal in everything but the method.
    for part in ("env", "backbone", "training", "evaluation", "seed", "fraction", "protocol"):
        assert getattr(student.config, part) == getattr(teacher.config, part)
    (alone,) = plan_of("method=skill_grpo", "seed=3", "fraction=0.5", "training.steps=7").cells
    assert (alone.fingerprint, alone.stage) == (teacher.fingerprint, False)


def test_what_is_set_in_the_students_method_is_not_the_teachers(plan_of: PlanOf) -> None:
    (_, teacher) = plan_of("method=retire_opd").cells
    student, same = plan_of("method=retire_opd", "method.coef=0.125", "method.knobs.window=3").cells
    assert student.config.method.coef == 0.125 and student.config.method.knobs["window"] == 3
    assert same.fingerprint == teacher.fingerprint
    varied = plan_of("method=retire_opd", "method.coef=0.1,0.2").cells
    assert [c.stage for c in varied] == [False, False, True] and varied[-1].fingerprint == teacher.fingerprint
    lrs = plan_of("method=retire_opd", "training.lr=0.1,0.2").cells
    assert len({c.fingerprint for c in lrs if c.stage}) == 2
    assert {c.row.id for c in lrs if c.stage} == {"skill_grpo/training.lr=0.1", "skill_grpo/training.lr=0.2"}


def test_students_share_their_teacher(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", SWEEP)
    plan = plan_of("sweep=t")
    rows = by_row(plan)
    assert len(rows["skill_grpo"]) == 4 and all(c.stage for c in rows["skill_grpo"])
    for name in ("grpo_opd", "retire_opd"):
        for cell in rows[name]:
            (teacher,) = [c for c in rows["skill_grpo"] if c.fingerprint in cell.requires]
            assert (teacher.config.seed, teacher.config.fraction) == (cell.config.seed, cell.config.fraction)


def test_a_row_of_the_table_is_the_teacher_if_it_is_the_same(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", SWEEP.replace("rows:", "rows:\n  - {method: skill_grpo}") + "set: {training.steps: 9}\n")
    plan = plan_of("sweep=t")
    assert not any(c.stage for c in plan.cells)
    narrow = plan_of("sweep=t", "method=retire_opd", "seed=1", "fraction=1.0")
    assert [c.row.id for c in narrow.selected] == ["skill_grpo", "retire_opd"]
    # Another setting makes it another run: the row stays, the teacher is beside it.
    write("sweep/t", SWEEP.replace("rows:", "rows:\n  - {method: skill_grpo, set: {training.steps: 5}}"))
    plan = plan_of("sweep=t")
    assert {c.row.id for c in plan.cells if c.stage} == {"skill_grpo for grpo_opd"}
    assert len([c for c in plan.cells if c.stage]) == 4


def test_what_a_sweep_sets_for_all_rows_holds_for_teachers(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", SWEEP + "set: {method.advantage.std: false, method.teacher.run: grpo}\n")
    teachers = [c for c in plan_of("sweep=t").cells if c.stage]
    assert {(c.config.method.name, c.config.method.advantage.std) for c in teachers} == {("grpo", False)}


def test_teachers_of_teachers(plan_of: PlanOf, write: Write) -> None:
    write("method/second", STUDENT.format(name="second", run="grpo_opd"))
    student, *stages = plan_of("method=second").cells
    known = {c.row.id: c for c in stages}
    assert student.requires == (known["grpo_opd"].fingerprint,)
    assert known["grpo_opd"].requires == (known["skill_grpo"].fingerprint,)
    assert all(c.selected for c in stages)


@pytest.mark.parametrize(
    ("files", "method", "said"),
    [
        ({"a": "b", "b": "a"}, "a", "teachers go round in a circle: a -> b -> a -> b"),
        ({"a": "a"}, "a", "teachers go round in a circle: a -> a -> a"),
        ({"a": "skill_grop"}, "a", "conf/method/a.yaml): row 'a': did you mean 'skill_grpo'?"),
        ({"a": "vanilla"}, "a", "does not train, so that its run leaves no weights"),
    ],
)
def test_teachers_that_cannot_be(plan_of: PlanOf, write: Write, files: dict[str, str], method: str, said: str) -> None:
    for name, run in files.items():
        write(f"method/{name}", STUDENT.format(name=name, run=run))
    assert said in problem_of(plan_of, f"method={method}")


def test_the_source_is_the_planners(plan_of: PlanOf) -> None:
    problem = problem_of(plan_of, "method=retire_opd", "method.teacher.source=abc")
    assert "method.teacher.source=abc (command line)" in problem
    assert "is filled in by the planner" in problem


def test_a_teacher_with_bad_values_is_refused(plan_of: PlanOf, write: Write) -> None:
    write("method/bad", "# test\ndefaults: [skill_grpo, _self_]\nid: bad\nskill: {router: keywrod}\n")
    write("method/student", STUDENT.format(name="student", run="bad"))
    problem = problem_of(plan_of, "method=student")
    assert "keywrod" in problem and "row 'bad'" in problem


def test_another_teacher_is_a_difference_that_must_be_declared(plan_of: PlanOf, write: Write) -> None:
    rows = """
rows:
  - {method: grpo_opd}
  - {method: grpo_opd, id: other, label: Other, base: grpo_opd, delta: [DELTA], set: {method.teacher.run: grpo}}
axes: {env: [alfworld], backbone: [tiny-s]}
"""
    write("sweep/t", rows.replace("[DELTA]", "[]"))
    problem = problem_of(plan_of, "sweep=t")
    assert "method.teacher.run=grpo" in problem and "(skill_grpo there)" in problem
    write("sweep/t", rows.replace("DELTA", "method.teacher.run"))
    plan = plan_of("sweep=t")
    assert plan.cells[1].changed == {"method.teacher.run": ("skill_grpo", "grpo")}
    assert "method.teacher.run  skill_grpo -> grpo" in plan_text(plan, states(plan))
    # The same teacher under other settings is no difference of its own.
    write("sweep/t", rows.replace("DELTA", "training.lr").replace("method.teacher.run: grpo", "training.lr: 0.5"))
    assert set(plan_of("sweep=t").cells[1].changed) == {"training.lr"}


def test_texts_and_records_show_what_waits_for_what(plan_of: PlanOf, tmp_path: Path) -> None:
    plan = plan_of("method=retire_opd", f"out={tmp_path}")
    student, teacher = plan.cells
    text = plan_text(plan, states(plan))
    assert "2 cells, 2 pending, 1 only as a teacher of others" in text
    assert "skill_grpo (teacher)" in text and text.splitlines()[3].endswith("skill_grpo")
    hours = sum(cell.expected_seconds or 0 for cell in plan.cells) / 3600
    assert hours > 0 and f"2 to run; expected CPU time: {hours:.2f} hours\n" in f"{text}\n"
    assert cell_label(plan, teacher) == "Skill-GRPO (teacher) seed 0"
    content = json.loads(write_plan(plan, states(plan)).read_text())
    assert [row["id"] for row in content["rows"]] == ["retire_opd"]
    assert [(c["row"], c["stage"], c["requires"]) for c in content["cells"]] == [
        ("retire_opd", False, [teacher.fingerprint]),
        ("skill_grpo", True, []),
    ]
    failed = RunState(state=FAILED, error="boom", failure_class="crash")
    shown = status_text(plan, {student.fingerprint: RunState(), teacher.fingerprint: failed})
    assert f"waits for its teacher, Skill-GRPO (teacher) seed 0 ({teacher.fingerprint}): failed" in shown
    assert not waiting(plan, {student.fingerprint: PENDING, teacher.fingerprint: COMPLETE})


def test_a_teacher_is_run_only_for_those_that_lack_it(plan_of: PlanOf) -> None:
    plan = plan_of("method=retire_opd")
    student, teacher = (c.fingerprint for c in plan.cells)

    def todo(**state_of: str) -> list[str]:
        return [c.row.id for c in missing(plan, {student: state_of["student"], teacher: state_of["teacher"]})]

    assert todo(student=PENDING, teacher=PENDING) == ["retire_opd", "skill_grpo"]
    assert todo(student=FAILED, teacher=COMPLETE) == ["retire_opd"]
    assert todo(student=COMPLETE, teacher=PENDING) == []


def test_only_methods_that_are_validated_use_the_panel(plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import registry
    from harness.stages import used_panels

    (student, teacher) = plan_of("method=retire_opd").cells
    assert used_panels(student.config) == ["train", "validation", "seen", "unseen"]
    assert used_panels(teacher.config) == ["train", "seen", "unseen"]
    before = registry.panel_identity
    monkeypatch.setattr(
        registry,
        "panel_identity",
        lambda config, panel: "other" if panel == "validation" else before(config, panel),
    )
    (other, same) = plan_of("method=retire_opd").cells
    assert other.fingerprint != student.fingerprint and same.fingerprint == teacher.fingerprint
    problem = problem_of(plan_of, "method=retire_opd", "evaluation.panels=[validation]")
    assert "evaluation.panels=validation (command line)" in problem and "judge it by seen, unseen" in problem
