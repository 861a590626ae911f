"""Validation while training: on a panel of its own, without a trace in the training, repeatable."""

from __future__ import annotations

import json

import pytest
import tiny_env
import torch
from safetensors.torch import load_file
from tiny_env import FAILURES
from training_helpers import method_of_file, run_config, run_directory, save_backbone

import harness.run
from envs.interface import EnvironmentFailure
from envs.panels import PanelError
from harness import backbones, evaluation
from harness.fingerprint import identity
from harness.prepare import prepare
from harness.run import execute
from harness.training import checkpoint
from harness.training.clocks import Clock

TEACHER = "aaaaaaaaaaaaaaaa"
STEPS = 4


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return save_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="module")
def root(tmp_path_factory, backbone):
    """A folder of runs with a finished teacher."""
    folder = tmp_path_factory.mktemp("runs")
    execute(run_directory(folder, run_config(method_of_file("skill_grpo"), steps=2), backbone, TEACHER), never)
    return folder


@pytest.fixture
def make(root, backbone, request):
    def make(name="retire_opd", number=0, **knobs):
        method = method_of_file(name)
        method.teacher.source = TEACHER
        if name == "retire_opd":
            # Every step is a window, and no student is ever good enough.
            method.knobs |= {"window": 1, "competence_threshold": 1000.0, **knobs}
        config = run_config(method, steps=STEPS)
        config.evaluation.panels = ["seen"]
        unique = f"{abs(hash((request.node.name, name, number))):016x}"[:16]
        return run_directory(root, config, backbone, unique)

    return make


def never():
    return False


def metrics(run):
    return [e["values"] for e in run.spool.read() if e["kind"] == "metrics"]


def events(run, name):
    return [e["data"] for e in run.spool.read() if e["kind"] == "event" and e["name"] == name]


def weights(run, name=checkpoint.MODEL):
    return load_file(checkpoint.step_path(run.checkpoints_dir, STEPS) / name)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def steady(values):
    kept = {k: v for k, v in values.items() if k.startswith(("train/", "tokens/", "rollout/"))}
    return {k: v for k, v in kept.items() if k != "tokens/validation"}


def test_training_is_the_same_whether_it_is_validated_or_not(make):
    validated, plain = make("retire_opd"), make("grpo_opd")
    execute(validated, never), execute(plain, never)
    assert same(weights(validated), weights(plain))
    assert [steady(v) for v in metrics(validated)] == [steady(v) for v in metrics(plain)]
    assert all(v["validation/episodes"] == 6 and v["time/validation_s"] > 0 for v in metrics(validated))
    assert all("validation/success" not in v for v in metrics(plain))
    assert not events(plain, "teacher_measured") and not events(validated, "retired")


def test_what_validations_took_is_recorded_and_the_first_step_bears_the_teachers(make, monkeypatch):
    run, plain = make("retire_opd", number=3), make("grpo_opd", number=3)
    seconds = iter(range(10**6))
    monkeypatch.setattr(Clock, "lap", lambda self: float(next(seconds) >= 0))  # every lap takes a second
    execute(run, never), execute(plain, never)
    [teacher] = events(run, "teacher_measured")
    spent, laps = zip(*((v["tokens/validation"], v["time/validation_s"]) for v in metrics(run)), strict=True)
    assert spent[0] > teacher["tokens"] > 0 and all(tokens > 0 for tokens in spent)
    assert laps == (2.0, *[1.0] * (STEPS - 1))
    totals = [v["time/cpu_total_s"] for v in metrics(run)]
    others = [v["time/cpu_total_s"] for v in metrics(plain)]
    assert [one - other for one, other in zip(totals, others, strict=True)] == [1.0] * STEPS
    assert [v["tokens/validation"] for v in metrics(plain)] == [0] * STEPS


def test_the_teacher_is_measured_once_with_its_own_weights_and_skills(make, monkeypatch):
    run, played = make(), []
    original = evaluation.play_panel

    def play(sampler, panel, **given):
        played.append((sampler.network, panel.name, given["skill_of"]))
        return original(sampler, panel, **given)

    monkeypatch.setattr(harness.run, "play_panel", play)
    execute(run, never)
    teacher = load_file(checkpoint.step_path(run.path.parent / TEACHER / "checkpoints", 2) / checkpoint.MODEL)
    (network, panel, skill_of), *others = played
    assert panel == "validation"
    assert all(torch.equal(network.model.state_dict()[name], tensor) for name, tensor in teacher.items())
    task = tiny_env.load_panel(run.load_config().env, "validation").tasks[0]
    assert skill_of(task, "say") == tiny_env.workflow(run.load_config().env)(task)
    assert [(name, skill) for _, name, skill in others] == [("validation", None)] * STEPS + [("seen", None)]
    assert all(student is not network for student, _, _ in others)
    [event] = events(run, "teacher_measured")
    state = json.loads((checkpoint.step_path(run.checkpoints_dir, STEPS) / checkpoint.STATE).read_text())
    assert state["method"]["teacher_success"] == event["success"]


def test_the_teacher_is_measured_with_the_skills_that_it_learned_to_read(make, monkeypatch):
    """Its own run showed them after the task, chosen by type; the student's teacher prompt has them elsewhere."""
    run, played = make(), []
    config = run.load_config()
    config.method.skill.placement, config.method.skill.router = "front", "random"
    run = run_directory(run.path.parent, config, config.backbone.path, "bbbbbbbbbbbbbbbb")
    original = evaluation.play_panel

    def play(sampler, panel, **given):
        played.append((sampler.settings.placement, given["skill_of"]))
        return original(sampler, panel, **given)

    monkeypatch.setattr(harness.run, "play_panel", play)
    execute(run, never)
    task = tiny_env.load_panel(config.env, "validation").tasks[0]
    assert played[0][0] == "task" and played[0][1](task, "say") == tiny_env.workflow(config.env)(task)
    assert {placement for placement, _ in played[1:]} == {"front"}  # the run's own, though it shows no skill


@pytest.mark.parametrize("fatal", [1, 3])
def test_a_crash_before_the_checkpoint_repeats_what_was_lost(make, monkeypatch, fatal):
    run, unbroken = make(number=1), make(number=2)
    execute(unbroken, never)
    original = harness.run.Session._save

    def dying(self, trainer, step, saved):
        if step >= fatal:
            raise MemoryError("killed")
        return original(self, trainer, step, saved)

    with monkeypatch.context() as patch:
        patch.setattr(harness.run.Session, "_save", dying)
        with pytest.raises(MemoryError):
            execute(run, never)
    execute(run, never)
    assert same(weights(run), weights(unbroken))
    kept = ("train/", "validation/", "method/")
    one, other = ([{k: v for k, v in m.items() if k.startswith(kept)} for m in metrics(r)] for r in (run, unbroken))
    assert one == other
    assert events(run, "teacher_measured") == events(unbroken, "teacher_measured") and len(one) == STEPS


def test_broken_episodes_do_not_count(make):
    run = make()
    FAILURES["validation-0", "reset"] = 2  # of the teacher's measurement
    FAILURES["validation-1", "reset"] = 4  # of that, and of the first validation of the policy
    execute(run, never)
    assert events(run, "teacher_measured")[0]["episodes"] == 4
    assert [v["validation/episodes"] for v in metrics(run)] == [5, 6, 6, 6]
    first, second = "reset of validation-0 broke", "reset of validation-1 broke"
    assert events(run, "episodes_excluded") == [
        {"panel": "validation", "weights": "teacher", "reasons": {first: 1, second: 1}},
        {"panel": "validation", "weights": "policy", "reasons": {second: 1}},
    ]


@pytest.mark.parametrize("broken", [6, 4])
def test_a_panel_that_can_hardly_be_played_stops_the_run(make, broken):
    """Whether the teacher has done its part must not hang on the few episodes that are left."""
    for number in range(broken):
        FAILURES[f"validation-{number}", "reset"] = 10**6
    told = "no episode could be played" if broken == 6 else r"4 of 6 episodes failed.*training\.max_failed_episodes"
    run = make(number=broken)
    with pytest.raises(EnvironmentFailure, match=f"panel validation: {told}"):
        execute(run, never)
    assert sum(events(run, "episodes_excluded")[0]["reasons"].values()) == broken
    assert not events(run, "teacher_measured")


def test_a_student_that_can_hardly_be_validated_is_not_judged(make, monkeypatch):
    run = make(number=7)
    measured = harness.run.Session._measure_teacher

    def then_broken(self, trainer):
        measured(self, trainer)
        FAILURES.update({(f"validation-{number}", "reset"): 10**6 for number in range(4)})

    monkeypatch.setattr(harness.run.Session, "_measure_teacher", then_broken)
    with pytest.raises(EnvironmentFailure, match="panel validation: 4 of 6 episodes failed"):
        execute(run, never)
    assert events(run, "teacher_measured") and not metrics(run)


def test_regular_looks_leave_no_trace_in_training_and_stop_before_the_last_step(root, backbone):
    """evaluation.validate_every: for every method, and with the panel itself as the one that is evaluated."""
    runs = []
    for number, every in enumerate((0, 1, 2)):
        config = run_config(method_of_file("grpo"), steps=STEPS)
        config.evaluation.panels = ["validation"]
        config.evaluation.validate_every = every
        runs.append(run_directory(root, config, backbone, f"{number:08x}10017aaa"))
        execute(runs[-1], never)
    plain, each, second = runs
    assert same(weights(plain), weights(each)) and same(weights(plain), weights(second))
    assert [steady(v) for v in metrics(plain)] == [steady(v) for v in metrics(each)]
    looked = [[k for k, v in enumerate(metrics(run), start=1) if "validation/success" in v] for run in runs]
    assert looked == [[], [1, 2, 3], [2]]
    assert metrics(each)[1]["validation/success"] == metrics(second)[1]["validation/success"]
    assert plain.state().evaluations["validation/off"]["graded"] == 6
    assert len({fingerprint_of(run) for run in runs}) == 3


def fingerprint_of(run):
    return str(identity(run.load_config()))


def test_regular_looks_do_not_move_a_method_that_is_validated_by_itself(make, root, backbone):
    method = method_of_file("retire_opd")
    method.teacher.source = TEACHER
    method.knobs |= {"window": 2, "competence_threshold": 1000.0}
    found = []
    for number, every in enumerate((0, 1)):
        config = run_config(method, steps=STEPS)
        config.evaluation.panels = ["seen"]
        config.evaluation.validate_every = every
        run = run_directory(root, config, backbone, f"{number:08x}20017aaa")
        execute(run, never)
        found.append([{k: v for k, v in values.items() if k.startswith("method/")} for values in metrics(run)])
    assert found[0] == found[1]


@pytest.mark.parametrize("other", ["train", "seen"])
def test_validation_tasks_are_neither_trained_on_nor_judged_by(make, monkeypatch, other):
    original = tiny_env.make_task
    there = {task.location: n for n, task in enumerate(tiny_env.load_panel(run_config().env, other).tasks)}

    def shared(split, number, words):
        """A task of the validation panel whose content is one of another panel, where that has such a task."""
        known = there.get(" ".join(words)) if split == "validation" else None
        task = original(split, number, words) if known is None else original(other, known, words)
        return type(task)(f"{split}-{number}", task.type, task.content_hash, task.slots, task.location)

    monkeypatch.setattr(tiny_env, "make_task", shared)
    with pytest.raises(PanelError, match="shares"):
        execute(make(), never)


def test_preparation_makes_the_panel_for_those_who_use_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    monkeypatch.setattr(backbones, "ensure", lambda *given: tmp_path)
    for name, used in (("retire_opd", True), ("grpo_opd", False)):
        told = []
        prepare(run_config(method_of_file(name)), told.append)
        assert any(text.startswith("tasks: tiny validation") for text in told) == used
