"""Whose log-probs a teacher's are; the finished run that a frozen teacher comes from; the order of a training step."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from concurrent.futures import Future

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_helpers import (
    CONTEXTS,
    chat,
    method_config,
    method_of_file,
    network,
    run_config,
    run_directory,
    save_backbone,
    trainer,
)

from harness.run import execute
from harness.states import COMPLETE, Interrupted
from harness.teacher_run import FinishedRun, TeacherError
from harness.training import checkpoint
from harness.training.checkpoint import CheckpointError
from harness.training.teachers import AverageTeacher, FrozenTeacher, Teacher, make_teacher
from methods.interface import Analysis, SkillConfig, TeacherConfig, Validation
from methods.skills.analyzer import Usage
from methods.skills.injection import inject

TEACHER = "aaaaaaaaaaaaaaaa"


def never():
    return False


def parameters(net):
    return [p.detach().clone() for p in net.model.parameters()]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def ema_config(decay=0.9, **training):
    method = method_of_file("sdar")
    method.teacher = TeacherConfig("ema", decay=decay)
    return run_config(method, **training)


# ------------------------------------------------------------------------------------------------------------- weights
def test_the_rollout_policy_is_its_own_teacher():
    net = network()
    teacher = make_teacher(TeacherConfig("old"), net, None)
    assert type(teacher) is Teacher and teacher.network() is net and teacher.own_weights and teacher.module is None
    teacher.after_update(), teacher.release()
    assert teacher.network() is net
    with pytest.raises(ValueError, match="needs the weights of another run"):
        make_teacher(TeacherConfig("frozen", run="skill_grpo"), net, None)


def test_frozen_weights_are_loaded_when_needed_and_let_go():
    loads = []
    teacher = make_teacher(TeacherConfig("frozen", run="grpo"), network(), lambda: loads.append(1) or network(7))
    assert isinstance(teacher, FrozenTeacher) and not teacher.own_weights and not loads
    first = teacher.network()
    assert teacher.network() is first and len(loads) == 1
    assert not any(p.requires_grad for p in first.model.parameters())
    teacher.release()
    assert teacher.network() is not first and len(loads) == 2


def test_a_moving_average_follows_the_policy():
    net = network()
    initial = parameters(net)
    teacher = make_teacher(TeacherConfig("ema", decay=0.75), net, None)
    assert isinstance(teacher, AverageTeacher) and equal(parameters(teacher.network()), initial)
    expected = [p.double() for p in initial]
    for shift in (0.1, -0.3):
        with torch.no_grad():
            for p in net.model.parameters():
                p += shift
        teacher.after_update()
        expected = [0.75 * mean + 0.25 * p.double() for mean, p in zip(expected, net.model.parameters(), strict=True)]
    for mean, p in zip(teacher.network().model.parameters(), expected, strict=True):
        torch.testing.assert_close(mean.double(), p, atol=1e-6, rtol=1e-6)
    assert teacher.network().model.lm_head.weight is teacher.network().model.model.embed_tokens.weight


def test_a_moving_average_that_keeps_next_to_nothing_is_the_policy_after_each_step():
    made = trainer(ema_config(decay=1e-30))
    made.step(1)
    assert equal(parameters(made.teacher.network()), parameters(made.network))
    slow = trainer(ema_config(decay=1 - 1e-16))
    before = parameters(slow.network)
    slow.step(1)
    for mean, first in zip(parameters(slow.teacher.network()), before, strict=True):
        torch.testing.assert_close(mean, first, atol=1e-12, rtol=1e-6)
    assert not equal(parameters(slow.network), before)


def test_half_precision_averages_do_not_stand_still():
    net = network()
    net.model.to(torch.bfloat16)
    teacher = AverageTeacher(net, 0.999)
    with torch.no_grad():
        for p in net.model.parameters():
            p += 1.0
    before = parameters(teacher.network())
    teacher.after_update()
    assert all(not torch.equal(a, b) for a, b in zip(before, parameters(teacher.network()), strict=True))


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_teachers_weights_score(context):
    """The first step's shift under a frozen teacher is that of its own weights, not of the policy's."""
    shifts = {}
    for name, weights in (("old", "old"), ("ema", "ema"), ("frozen", "frozen")):
        method = method_of_file("skill_sd")
        method.teacher = TeacherConfig(weights, decay=0.5 if weights == "ema" else 0.0)
        if weights == "frozen":
            method = method_of_file("grpo_opd")
        made = trainer(run_config(method, context=context))
        metrics = made.step(1)[0]
        shifts[name] = metrics["method/shift_abs"]
        assert metrics["cost/teacher_rows"] > 0
    assert shifts["old"] == pytest.approx(shifts["ema"], rel=1e-4)  # the average begins at the policy
    assert shifts["frozen"] > 2 * shifts["old"]  # another model altogether


# --------------------------------------------------------------------------------------------------------------- runs
@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return save_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, backbone):
    """A folder of runs with one that is finished."""
    root = tmp_path_factory.mktemp("runs")
    execute(run_directory(root, run_config("grpo", steps=2), backbone, TEACHER), never)
    return root


def student(steps=2, source=TEACHER):
    method = method_of_file("grpo_opd")
    method.teacher.source = source
    return run_config(method, steps=steps)


def test_a_frozen_teacher_has_the_final_weights_of_its_run(finished, backbone):
    run = run_directory(finished, student(), backbone, "1" * 16)
    execute(run, never)
    assert run.stored_state().state == COMPLETE
    source = FinishedRun.of(run.load_config(), finished)
    weights = load_file(finished / TEACHER / "checkpoints" / "step_000002" / "model.safetensors")
    loaded = source.network(run.load_config(), chat()).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    [event] = [e["data"] for e in run.spool.read() if e["kind"] == "event" and e["name"] == "teacher_weights"]
    assert event == {"run": TEACHER, "sha256": source.digest}


def test_a_teacher_that_does_not_train_has_the_initial_weights(tmp_path, backbone):
    untrained = run_directory(tmp_path, run_config(method_config("vanilla")), backbone, TEACHER)
    config = run_directory(tmp_path, student(), backbone, "2" * 16).load_config()
    source = FinishedRun.of(config, tmp_path)
    assert source.weights is None and untrained.stored_state().last_step == 0
    assert equal(parameters(source.network(config, chat())), parameters(network()))


@pytest.mark.parametrize(
    ("source", "message"),
    [(None, r"method\.teacher\.source is empty"), ("b" * 16, "is missing: there is no .*bbbb.*Run it first")],
)
def test_a_teacher_without_a_run_is_named(finished, backbone, source, message):
    run = run_directory(finished, student(source=source), backbone, ("3" if source else "4") * 16)
    with pytest.raises(TeacherError, match=message):
        execute(run, never)


def test_an_unfinished_or_damaged_teacher_is_named(tmp_path, backbone):
    teacher = run_directory(tmp_path, run_config("grpo", steps=3), backbone, TEACHER)
    calls = iter((False,))
    with pytest.raises(Interrupted):
        execute(teacher, lambda: next(calls, True))
    run = run_directory(tmp_path, student(), backbone, "5" * 16)
    with pytest.raises(TeacherError, match=r"no checkpoint of its last step 3 \(newest: 1\)"):
        execute(run, never)
    execute(teacher, never)
    weights = checkpoint.step_path(teacher.checkpoints_dir, 3) / checkpoint.MODEL
    sound = weights.read_bytes()
    weights.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(TeacherError, match=r"has a damaged final checkpoint: .*model.safetensors"):
        execute(run, never)
    weights.write_bytes(sound)
    calls = iter((False,))
    with pytest.raises(Interrupted):
        execute(run, lambda: next(calls, True))
    _change_weights(checkpoint.step_path(teacher.checkpoints_dir, 3))
    with pytest.raises(TeacherError, match="now has other final weights"):
        execute(run, never)


def _change_weights(path):
    """Other weights with a manifest that fits them."""
    tensors = load_file(path / checkpoint.MODEL)
    name = sorted(tensors)[0]
    tensors[name] = tensors[name] + 1
    save_file(tensors, path / checkpoint.MODEL)
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    data = (path / checkpoint.MODEL).read_bytes()
    manifest[checkpoint.MODEL] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))


def test_a_teacher_of_another_vocabulary_is_refused(finished, backbone):
    config = run_directory(finished, student(), backbone, "6" * 16).load_config()
    source = FinishedRun.of(config, finished)

    class Other:
        def vocabulary(self):
            return {"a": 0}

    with pytest.raises(TeacherError, match="another vocabulary"):
        source.network(config, Other())


def test_a_moving_average_survives_an_interruption(tmp_path, backbone):
    unbroken = run_directory(tmp_path, ema_config(steps=4), backbone, "7" * 16)
    execute(unbroken, never)
    run = run_directory(tmp_path, ema_config(steps=4), backbone, "8" * 16)
    calls = iter((False, False, False))
    with pytest.raises(Interrupted, match="step 3"):
        execute(run, lambda: next(calls, True))
    execute(run, never)
    for name in (checkpoint.MODEL, checkpoint.TEACHER):
        one, other = (load_file(checkpoint.step_path(r.checkpoints_dir, 4) / name) for r in (run, unbroken))
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    (checkpoint.step_path(run.checkpoints_dir, 4) / checkpoint.TEACHER).unlink()
    found, rejected = checkpoint.newest(run.checkpoints_dir)
    assert found.name == "step_000003" and "teacher.safetensors" in rejected[0].reason


def test_a_checkpoint_without_the_teacher_that_the_run_needs_is_refused(tmp_path):
    made = trainer(run_config())
    path = checkpoint.save(tmp_path, 1, made.network.model, made.updater.optimizer, {})
    with pytest.raises(CheckpointError, match=r"holds no teacher\.safetensors"):
        checkpoint.load_model(path, made.network.model, checkpoint.TEACHER)


# ------------------------------------------------------------------------------------------------------ order of a step
def test_the_analysis_overlaps_with_what_does_not_need_it(monkeypatch):
    """It begins right after the rollouts, and nobody waits for it before the reference policy has scored."""
    config = run_config("opid", kl_coef=0.1)
    made = trainer(config)
    order, pending = [], Future()

    def analyze(trajectories):
        order.append("begun")
        pending.wanted = len(trajectories)
        return pending

    made.method.context = type(made.method.context)(3, 0, analyze)
    score = made.reference_scorer.batch_logprobs

    def reference(rows, batch):
        order.append("reference")
        threading.Timer(0.05, finish).start()
        return score(rows, batch)

    def finish():
        order.append("finished")
        pending.set_result([Analysis("say red.", {}) for _ in range(pending.wanted)])

    monkeypatch.setattr(made.reference_scorer, "batch_logprobs", reference)
    metrics = made.step(1)[0]
    assert order == ["begun", "reference", "finished"]
    assert metrics["tokens/teacher"] > 0 and metrics["tokens/reference"] > 0
    assert metrics["time/analyzer_wall_s"] >= metrics["time/analyzer_wait_s"] > 0


def test_what_the_analyzer_spent_is_recorded():
    spent = iter([Usage(5, 1, 2, 1, 700, 80, 1.5, 0.25), Usage()])
    made = trainer(run_config("opid"), usage=lambda: next(spent))
    first, second = made.step(1)[0], made.step(2)[0]
    names = ("calls", "cached", "retries", "repairs", "prompt_tokens", "completion_tokens", "money")
    assert [first[f"cost/analyzer_{name}"] for name in names] == [5, 1, 2, 1, 700, 80, 0.25]
    assert first["time/analyzer_wall_s"] == 1.5
    assert [second[f"cost/analyzer_{name}"] for name in names] == [0] * 7


def test_validation_after_a_step(monkeypatch):
    made = trainer(run_config("grpo"), validate=lambda: Validation(0.25, 8))
    told = []
    monkeypatch.setattr(type(made.method), "wants_validation", lambda self, step: step == 2)
    monkeypatch.setattr(
        type(made.method), "after_validation", lambda self, step, result: told.append((step, result)) or {"seen": 1.0}
    )
    first, second = made.step(1)[0], made.step(2)[0]
    assert "validation/success" not in first and "method/seen" not in first
    assert (second["validation/success"], second["validation/episodes"], second["method/seen"]) == (0.25, 8, 1.0)
    assert told == [(2, Validation(0.25, 8))]
    bare = trainer(run_config("grpo"), validate=None)
    bare.step(1)
    with pytest.raises(ValueError, match=r"wants a validation after step 2.*does not declare `validates`"):
        bare.step(2)


def test_a_retired_teacher_is_let_go(monkeypatch):
    made = trainer(run_config(method_of_file("grpo_opd")))
    made.step(1)
    assert made.teacher._loaded is not None
    metrics = made.method.metrics
    monkeypatch.setattr(made.method, "metrics", lambda step, batch: {**metrics(step, batch), "retired": 1.0})
    made.step(2)
    assert made.teacher._loaded is None


def test_placement_of_skills_reaches_rollouts_and_teachers():
    for placement in ("front", "task"):
        skill = SkillConfig("library", "task_type", placement=placement)
        made = trainer(run_config(method_config("grpo", rollout_skills_train=True, skill=skill)))
        first = made.step(1)[1][0]
        message = inject(first.turns[0].prompt, first.skill, None, "compact", placement)
        assert first.turns[0].prompt_ids == made.chat.opening(message)
        assert made.scorer(made.network).placement == placement


def test_cpu_time_of_every_part_is_in_the_total():
    metrics = trainer(run_config("opid", kl_coef=0.1)).step(1)[0]
    parts = ("rollout", "env", "analyzer", "reference", "teacher", "update", "validation")
    assert metrics["time/cpu_total_s"] == pytest.approx(sum(metrics[f"time/{name}_s"] for name in parts))
    assert time.process_time() > metrics["time/cpu_total_s"] > 0
