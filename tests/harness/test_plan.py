from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.commandline import parse
from harness.compose import Composer
from harness.errors import ConfigError
from harness.fingerprint import identity
from harness.plan import Plan, build_plan, states, write_plan
from harness.record import RunDirectory
from harness.report import cell_label, plan_text
from harness.stages import measured

PlanOf = Callable[..., Plan]
Write = Callable[[str, str], None]

ROWS = """
title: Test
rows:
  - {method: grpo}
  - {method: opid, base: grpo, delta: [method]}
axes: {env: [alfworld], backbone: [tiny-s], fraction: [1.0], seed: [0, 1]}
"""


def problem_of(plan_of: PlanOf, *arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(*arguments)
    return str(caught.value)


def test_main_table(plan_of: PlanOf) -> None:
    plan = plan_of("sweep=main_table")
    rows = [row.id for row in plan.sweep.rows]
    assert {"vanilla", "vanilla_skill", "grpo", "gigpo", "skill_grpo", "opsd", "rlsd", "sdar", "opid"} <= set(rows)
    environments = ("alfworld", "webshop", "search_qa")
    expected = [(r, e, s) for r in rows for e in environments for s in (0, 1, 2)]
    assert [(c.row.id, c.config.env.name, c.config.seed) for c in plan.cells] == expected
    assert len({c.fingerprint for c in plan.cells}) == len(expected)
    assert {row.kind for row in plan.sweep.rows if row.id == "vanilla_skill"} == {"control"}
    assert all(c.selected for c in plan.cells)
    # One setting for every row of an environment: nothing but the method differs between them.
    for environment in environments:
        common = [
            {k: v for k, v in identity(c.config).items() if not k.startswith(("method.", "seed"))}
            for c in plan.cells
            if c.config.env.name == environment
        ]
        assert all(c == common[0] for c in common)


def test_quick_has_every_method_once_and_is_short(plan_of: PlanOf) -> None:
    from methods import registry

    plan = plan_of("sweep=quick")
    assert len(plan.cells) == len({c.row.id for c in plan.cells})
    assert {c.config.method.name for c in plan.cells} == set(registry.BUILTIN)
    assert {(c.config.training.steps, c.config.scale, c.config.seed) for c in plan.cells} == {(3, "test", 0)}


def test_another_analyzer_makes_other_runs_only_of_rows_that_have_one(plan_of: PlanOf) -> None:
    one, other = (
        plan_of("sweep=ablation", "seed=0", *given) for given in ((), ("analyzer=openai", "analyzer.model=m"))
    )
    assert len(one.cells) == len(other.cells)
    for before, now in zip(one.cells, other.cells, strict=True):
        analysed = now.config.method.skill.source == "own_trajectory"
        assert (before.fingerprint != now.fingerprint) == analysed, now.row.id
        assert before.changed == now.changed  # no row is told apart from its base by what only one of them uses


def test_a_run_that_cannot_do_what_its_method_is_about_is_warned_of(plan_of: PlanOf) -> None:
    plan = plan_of("method=retire_opd", "training.steps=10", "seed=0,1")
    assert plan_text(plan, states(plan)).count("warning: row 'retire_opd' cannot retire its teacher") == 1
    for other in (plan_of("method=retire_opd"), plan_of("sweep=quick"), plan_of("sweep=retirement")):
        assert "warning" not in plan_text(other, states(other))


@pytest.mark.parametrize("sweep", ["ablation", "retirement"])
def test_rows_of_ablations_declare_every_key_and_no_section_of_many(plan_of: PlanOf, sweep: str) -> None:
    plan = plan_of(f"sweep={sweep}", "seed=0")
    assert not any(cell.stage for cell in plan.cells)  # the teacher is a row
    based = [cell for cell in plan.cells if cell.row.base not in (None, "grpo") and cell.selected]
    assert len(based) >= 4
    for cell in based:
        assert cell.changed and "method" not in cell.row.delta, cell.row.id
    text = plan_text(plan, states(plan))
    for words in {
        "ablation": ("opid_no_step against opid", "method.knobs.weight_step  1.0 -> 0.0", "gap -> soft_or"),
        "retirement": ("use_progress  true -> false", "null -> skill_grpo", "method.knobs.stop_step  null -> "),
    }[sweep]:
        assert words in text


def test_a_run_without_sweep(plan_of: PlanOf) -> None:
    plan = plan_of("method=opid", "env=alfworld", "backbone=tiny-s", "seed=3", "fraction=0.5")
    (cell,) = plan.cells
    assert (cell.config.method.id, cell.config.seed, cell.config.fraction) == ("opid", 3, 0.5)
    assert plan.results == plan.out / "results" / "single"
    (default,) = plan_of().cells
    assert (default.config.method.id, default.config.backbone.name) == ("grpo", "tiny-s")


def test_a_cell_of_a_sweep_and_a_single_run_of_the_same_settings_share_their_run(plan_of: PlanOf) -> None:
    (single,) = plan_of("method=opid", "seed=1").cells
    assert single.fingerprint in {c.fingerprint for c in plan_of("sweep=main_table").cells}


def test_selection_keeps_the_sweep_whole(plan_of: PlanOf) -> None:
    whole = plan_of("sweep=main_table")
    narrow = plan_of("sweep=main_table", "method=grpo", "seed=1,2")
    assert [(c.row.id, c.config.seed) for c in narrow.selected] == [("grpo", 1), ("grpo", 2)] * 3
    assert [c.fingerprint for c in narrow.cells] == [c.fingerprint for c in whole.cells]


def test_overrides_apply_to_every_cell_and_are_told(plan_of: PlanOf) -> None:
    plan = plan_of("sweep=main_table", "training.steps=7", "sweep.axes.seed=[5]")
    assert {c.config.training.steps for c in plan.cells} == {7}
    assert {c.config.seed for c in plan.cells} == {5}
    assert plan.title == "Main table (training.steps=7, sweep.axes.seed=[5])"


def test_what_cannot_change_a_result_is_not_told_in_the_title(plan_of: PlanOf) -> None:
    assert plan_of("sweep=main_table", "out=/tmp/x", "workers=2", "tracking=none").title == "Main table"


def test_settings_of_a_sweep_hold_for_the_command_too(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", ROWS + "set: {tracking: none, training.steps: 9}\n")
    plan = plan_of("sweep=t", "training.lr=0.5")
    assert not plan.command.tracking.enabled
    assert {(c.config.training.steps, c.config.training.lr) for c in plan.cells} == {(9, 0.5)}
    assert {c.config.training.steps for c in plan_of("sweep=t", "training.steps=2").cells} == {2}


def test_rows_are_named_in_their_runs(plan_of: PlanOf, write: Write) -> None:
    write(
        "sweep/t",
        ROWS.replace("axes:", "  - {method: grpo, id: short, label: Short, set: {training.steps: 2}}\naxes:"),
    )
    cells = {c.row.id: c for c in plan_of("sweep=t").cells}
    assert (cells["short"].config.method.id, cells["short"].config.method.label) == ("short", "Short")
    varied = plan_of("sweep=t", "method=short", "training.lr=0.1,0.2").selected
    assert {c.config.method.label for c in varied} == {"Short (training.lr=0.1)", "Short (training.lr=0.2)"}


# -------------------------------------------------------------------------------------------------------------- checks
def test_an_undeclared_difference_from_the_base_is_refused(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", ROWS.replace("delta: [method]}", "delta: [method], set: {training.lr: 0.5}}"))
    problem = problem_of(plan_of, "sweep=t")
    assert "training.lr=0.5" in problem and "conf/sweep/t.yaml, row opid" in problem
    assert "(0.0003 there)" in problem and "[method] does not declare" in problem


def test_every_undeclared_difference_is_printed(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", ROWS.replace("delta: [method]", "delta: [method.name, method.skill]"))
    problem = problem_of(plan_of, "sweep=t")
    assert {
        line.split(" ")[1].partition("=")[0] if line.startswith("error") else line.partition("=")[0]
        for line in problem.splitlines()
    } == {
        "method.coef",
        "method.knobs.weight_episode",
        "method.knobs.weight_step",
        "method.schedule.kind",
        "method.signal.clip",
        "method.teacher.weights",
    }


def test_a_declared_difference_that_is_none_is_refused(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", ROWS.replace("delta: [method]", "delta: [method, training.lr]"))
    assert "declares this difference from 'grpo', but there is none" in problem_of(plan_of, "sweep=t")


def test_two_rows_with_one_experiment_are_refused(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", ROWS.replace("axes:", "  - {method: grpo, id: again, label: Another name}\naxes:"))
    assert "rows 'grpo' and 'again' are the same experiment" in problem_of(plan_of, "sweep=t")


def test_only_selected_cells_must_be_valid(plan_of: PlanOf) -> None:
    assert "training.group_size=1" in problem_of(plan_of, "sweep=main_table", "training.group_size=1")
    assert plan_of("sweep=main_table", "training.group_size=1", "method=vanilla").selected


def test_bad_fractions_and_seeds(plan_of: PlanOf, write: Write) -> None:
    assert "fraction=-0.5 (command line): must be above 0 and at most 1" in problem_of(plan_of, "fraction=-0.5")
    assert "seed=-1 (command line)" in problem_of(plan_of, "seed=0,-1")
    write("sweep/t", ROWS.replace("fraction: [1.0]", "fraction: [1.0, 1.5]"))
    problem = problem_of(plan_of, "sweep=t")
    assert problem.startswith("fraction=1.5 (") and "conf/sweep/t.yaml): must be above 0" in problem


def test_a_key_of_sweeps_needs_a_sweep(plan_of: PlanOf) -> None:
    assert "only with sweep=NAME" in problem_of(plan_of, "sweep.title=x")


def test_unknown_keys_in_a_sweep_file(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", ROWS.replace("{method: grpo}", "{method: grpo, lable: x}"))
    problem = problem_of(plan_of, "sweep=t")
    assert problem.startswith("sweep.rows[0].lable=x (") and "conf/sweep/t.yaml): there is no such key" in problem
    assert "did you mean label?" in problem


def test_what_typed_settings_of_a_sweep_get_wrong_is_no_files_fault(plan_of: PlanOf) -> None:
    for argument, said in (
        ("sweep.name=../x", "sweep.name=../x (command line): names a folder"),
        ("sweep.rows=[]", "sweep.rows=[] (command line): a sweep needs at least one row"),
        ("sweep.axes.seed=[]", "sweep.axes.seed=[] (command line): name at least one seed"),
        ("sweep.axes.env=[alfwrld]", "(command line, sweep.axes.env): did you mean 'alfworld'?"),
    ):
        assert said in problem_of(plan_of, "sweep=main_table", argument)
    table = "by_env={alfworld:{training.stps: 3}}"
    told = "by_env.alfworld: training.stps=3 (command line): there is no such key; did you mean training.steps?"
    assert problem_of(plan_of, "method=grpo", table) == told


@pytest.mark.parametrize(("name", "group"), [("method/mine", "method"), ("env/mine", "env")])
def test_a_file_that_says_not_whose_code_it_is(plan_of: PlanOf, write: Write, name: str, group: str) -> None:
    """It would run as what the schema begins with, under a name of its own."""
    write(name, "# test\n" + ("label: Mine\nadvantage: {std: false}\n" if group == "method" else "max_steps: 9\n"))
    problem = problem_of(plan_of, f"{group}=mine")
    assert problem.startswith(f"{group}.name (") and f"conf/{name}.yaml): is set neither here" in problem
    code = {"method": "grpo", "env": "alfworld"}[group]
    assert plan_of(f"{group}=mine", f"{group}.name={code}").selected
    write(f"{group}/child", f"# test\ndefaults: [mine, _self_]\nname: {code}\n")
    assert plan_of(f"{group}=child").selected


def test_two_rows_with_one_label(plan_of: PlanOf, write: Write) -> None:
    write("method/mine", "# test\ndefaults: [grpo, _self_]\nadvantage: {std: false}\n")
    problem = problem_of(plan_of, "method=grpo,mine")
    assert "method.label=GRPO (" in problem and "rows 'grpo' and 'mine' would both be called so" in problem
    write(
        "sweep/t", "rows: [{method: grpo}, {method: mine, label: Mine}]\naxes: {env: [alfworld], backbone: [tiny-s]}\n"
    )
    assert dict(plan_of("sweep=t").labels) == {"grpo": "GRPO", "mine": "Mine"}
    write("method/mine", "# test\ndefaults: [grpo, _self_]\nlabel: GRPO, raw\nadvantage: {std: false}\n")
    assert plan_of("method=grpo,mine").labels["mine"] == "GRPO, raw"


def test_missing_data_stop_the_plan(plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import registry

    def missing(*_: object) -> str:
        raise FileNotFoundError("game 7 is missing in /data")

    monkeypatch.setattr(registry, "panel_identity", missing)
    assert "game 7 is missing" in problem_of(plan_of, "method=grpo")


# --------------------------------------------------------------------------------------------------------- composition
def _write_groups(write: Write, methods: int) -> None:
    rows = []
    for i in range(methods):
        write(
            f"method/m{i}",
            f"# test\ndefaults: [grpo, _self_]\nid: m{i}\nlabel: M{i}\nadvantage: {{pg_coef: {i + 1}.0}}\n",
        )
        rows.append(f"  - {{method: m{i}}}")
    for i in range(3):
        write(f"env/e{i}", f"# test\ndefaults: [alfworld, _self_]\nmax_steps: {20 + i}\n")
        write(f"backbone/b{i}", f"# test\ndefaults: [tiny-s, _self_]\nname: b{i}\nclone_seed: {i}\n")
    axes = "axes: {env: [e0, e1, e2], backbone: [b0, b1, b2], seed: [0, 1]}"
    write("sweep/t", "\n".join(["rows:", *rows, axes, ""]))


def _plan(hydra: Composer, *arguments: str) -> Plan:
    return build_plan(hydra, parse(arguments, hydra.groups()))


def test_combinations_put_together_equal_those_composed(
    hydra: Composer, write: Write, stand_in_env: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_groups(write, 3)
    plan = _plan(hydra, "sweep=t", "scale=test")
    cheap = hydra.compositions
    assert len(plan.cells) == 3 * 3 * 3 * 2
    assert cheap <= 2 + 1 + 2 + 2 + 2
    monkeypatch.setattr(Composer, "is_plain", lambda self, overrides: False)
    composed = _plan(hydra, "sweep=t", "scale=test")
    assert hydra.compositions > cheap + 9
    assert [c.fingerprint for c in composed.cells] == [c.fingerprint for c in plan.cells]
    assert [c.config for c in composed.cells] == [c.config for c in plan.cells]


@pytest.mark.parametrize(
    "text",
    [
        "# @package _global_\nmethod: {id: m1, name: grpo, advantage: {pg_coef: 2.0}}\ntraining: {lr: 0.5}\n",
        "# test\ndefaults: [opid, _self_]\nid: m1\nadvantage: {pg_coef: 2.0}\ncoef: ${backbone.clone_seed}\n",
    ],
)
def test_files_that_reach_beyond_their_section_are_composed_in_full(
    hydra: Composer, write: Write, stand_in_env: None, text: str
) -> None:
    _write_groups(write, 2)
    write("method/m1", text.replace("id: m1", "id: m1, label: M1" if "{id" in text else "id: m1\nlabel: M1"))
    plan = _plan(hydra, "sweep=t")
    direct = {
        (c.row.id, c.point.env, c.point.backbone): _plan(
            hydra, f"method={c.row.id}", f"env={c.point.env}", f"backbone={c.point.backbone}"
        ).cells[0]
        for c in plan.cells
        if c.point.seed == 0
    }
    for cell in (c for c in plan.cells if c.point.seed == 0):
        assert cell.fingerprint == direct[cell.row.id, cell.point.env, cell.point.backbone].fingerprint


# ------------------------------------------------------------------------------------------------------------- records
def test_plan_json(plan_of: PlanOf, tmp_path: Path) -> None:
    plan = plan_of("sweep=quick", "method=opid_random", f"out={tmp_path}")
    first = plan.cells[0]
    RunDirectory.create(plan.runs, first.config, first.fingerprint)
    path = write_plan(plan, states(plan))
    assert path == tmp_path / "results" / "quick" / "plan.json"
    content = json.loads(path.read_text())
    assert {k: content[k] for k in ("version", "sweep", "title", "scale")} == {
        "version": 2,
        "sweep": "quick",
        "title": "Quick check",
        "scale": "test",
    }
    rows = {row["id"]: row for row in content["rows"]}
    assert [row["id"] for row in content["rows"]] == [row.id for row in plan.sweep.rows]
    assert rows["opid_random"] == {
        "id": "opid_random",
        "label": "OPID, random skills",
        "kind": "control",
        "base": "opid",
        "delta": ["method.skill.router"],
        "uses_teacher": True,
        "teacher_cancels": False,
    }
    assert not rows["grpo"]["uses_teacher"]
    cells = {(cell["row"], cell["seed"]): cell for cell in content["cells"]}
    (mine,) = [c for c in plan.cells if (c.row.id, c.config.seed) == ("opid_random", 0)]
    assert cells["opid_random", 0] == {
        "fingerprint": mine.fingerprint,
        "row": "opid_random",
        "label": "OPID, random skills",
        "method": "opid",
        "backbone": "tiny-s",
        "embedded": True,
        "analyzer": "rules",
        "env": "alfworld",
        "fraction": 1.0,
        "fraction_of": "tasks",
        "seed": 0,
        "scale": "test",
        "protocol": "fair",
        "trains": True,
        "delta": ["method.skill.router"],
        "base": "opid",
        "changed": {"method.skill.router": ["critical_first", "random"]},
        "preset": [],
        "requires": [],
        "stage": False,
        "selected": True,
        "state": "pending",
        "run_dir": f"runs/{mine.fingerprint}",
    }
    assert cells["retire_opd", 0]["requires"] == [cells["skill_grpo", 0]["fingerprint"]]
    assert not content["cells"][0]["selected"]
    assert {cell["row"] for cell in content["cells"] if not cell["trains"]} == {"vanilla", "vanilla_skill"}


def test_a_cancelled_teacher_is_said(plan_of: PlanOf, tmp_path: Path) -> None:
    plan = plan_of("sweep=ablation", f"out={tmp_path}")
    content = json.loads(write_plan(plan, states(plan)).read_text())
    assert {row["id"] for row in content["rows"] if row["teacher_cancels"]} == {"sdar_entropy", "grpo_opsd_released"}


def test_expected_cost(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", ROWS)
    costs = ("+expected_seconds.grpo=3600", "+expected_seconds={opid/tiny-m: 7200}")  # of the method, or on a backbone
    plan = plan_of("sweep=t", "backbone=tiny-m", "sweep.axes.backbone=[tiny-m]", *costs, "seed=0")
    text = plan_text(plan, states(plan))
    assert "2 to run; expected CPU time: 3.00 hours" in text
    assert "2 cells, 2 pending (2 more in the sweep, not selected)" in text
    assert "opid against grpo" in text and "method.coef                   0.0 -> 0.25" in text
    unmeasured = plan_of("sweep=t", "sweep.axes.backbone=[tiny-m]")
    assert "unknown" in plan_text(unmeasured, states(unmeasured))


@pytest.mark.parametrize("sweep", ["main_table", "ablation", "retirement", "ood", "sample_efficiency", "quick"])
def test_every_cell_of_the_shipped_sweeps_knows_its_cost(plan_of: PlanOf, sweep: str) -> None:
    """No exception at present: a row that nobody has measured would be listed here, its cost being unknown."""
    never_measured: set[str] = set()
    panels = ["evaluation.panels=[seen,unseen]"] if sweep == "ood" else []  # the stand-in has no held-out types
    for scale in ["local", *(["test"] if sweep == "quick" else [])]:
        cells = plan_of(f"sweep={sweep}", f"scale={scale}", *panels).cells
        assert {cell.row.id for cell in cells if not cell.expected_seconds} == never_measured


def test_measured_costs_name_what_exists(package_hydra: Composer) -> None:
    groups = package_hydra.groups()
    for scale in ("local", "test"):
        config, _ = package_hydra.config([f"scale={scale}"])
        for key in config.expected_seconds:
            for name, group in zip(key.split("/"), ("method", "backbone", "env"), strict=False):
                assert name in groups[group], key


def test_the_most_specific_measured_cost_counts() -> None:
    times = {"grpo": 1.0, "grpo/tiny-s": 2.0, "grpo/tiny-s/webshop": 3.0, "opid/tiny-s/webshop": 4.0}
    assert [measured(times, "grpo", "tiny-s", env) for env in ("webshop", "alfworld")] == [3.0, 2.0]
    assert measured(times, "grpo", "tiny-m", "webshop") == 1.0
    assert measured(times, "opid", "tiny-s", "alfworld") is None


def test_a_table_of_changed_settings_leaves_the_sweeps_own_alone(plan_of: PlanOf, tmp_path: Path) -> None:
    plain = plan_of("sweep=main_table", f"out={tmp_path}")
    changed = plan_of("sweep=main_table", "training.lr=1e-4", f"out={tmp_path}")
    assert plain.results == tmp_path / "results" / "main_table"
    assert changed.results == tmp_path / "results" / "main_table+training.lr-0.0001"
    assert plan_of("sweep=main_table", "seed=1", f"out={tmp_path}").results == plain.results
    named = plan_of("sweep=main_table", "training.lr=1e-4", "sweep.name=slow", f"out={tmp_path}")
    assert named.results == tmp_path / "results" / "slow" and named.title == "Main table (training.lr=0.0001)"
    content = json.loads(write_plan(changed, states(changed)).read_text())
    assert content["sweep"] == "main_table+training.lr-0.0001"


def test_labels_say_what_differs(plan_of: PlanOf, write: Write) -> None:
    write("sweep/t", ROWS.replace("fraction: [1.0]", "fraction: [0.2, 1.0]"))
    plan = plan_of("sweep=t")
    assert cell_label(plan, plan.cells[0]) == "GRPO fraction 0.2 seed 0"


def test_paths_of_data_are_absolute_and_a_home_is_found(
    plan_of: PlanOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "games").mkdir()
    (cell,) = plan_of("env.data=games", "env.cache=kept").cells
    assert (cell.config.env.data, cell.config.env.cache) == (str(tmp_path / "games"), str(tmp_path / "kept"))
