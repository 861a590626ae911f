"""Every row that the project ships trains in the tiny environment: complete, repeatable, resumable."""

from __future__ import annotations

import math

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from training_helpers import CONTEXTS, method_files, method_of_file, run_config, run_directory, save_backbone

from harness.panels import used_panels
from harness.run import execute
from harness.states import COMPLETE, Interrupted
from methods import registry

STEPS = 3
TEACHER = "aaaaaaaaaaaaaaaa"  # fingerprint of the finished run that frozen teachers come from
FILES = method_files()
TRAINED = [name for name in FILES if method_of_file(name).trains]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Makes runs of method files, each once per (file, context, seed), beside the teachers that they need."""
    return _World(tmp_path_factory)


class _World:
    def __init__(self, folders):
        self.backbone = save_backbone(folders.mktemp("backbone"))
        self.roots = {context: folders.mktemp(context) for context in CONTEXTS}
        self.count, self.done, self.teachers = 0, {}, set()

    def config(self, name, context, seed=0):
        method = method_of_file(name)
        if name.startswith("retire_opd") and "window" in method.knobs:
            method.knobs["window"] = 1  # or three steps hold no window
            method.knobs["competence_threshold"] = 0.0
            # Exhausted whatever the gap does.
            method.knobs["progress_threshold"] = 1000.0 if method.knobs["progress_form"] == "code" else -1000.0
        if method.knobs.get("stop_step"):
            method.knobs["stop_step"] = 1
        config = run_config(
            method, seed, context=context, steps=STEPS, tasks_per_step=2, group_size=3, max_prompt_tokens=300
        )
        config.env.max_steps = 3
        config.evaluation.panels = ["seen"]
        if method.teacher.weights == "frozen":
            config.method.teacher.source = TEACHER
            if context not in self.teachers:
                self.teachers.add(context)
                teacher = self.config(method.teacher.run, context)
                execute(run_directory(self.roots[context], teacher, self.backbone, TEACHER), lambda: False)
        return config

    def make(self, name, context, seed=0):
        self.count += 1
        config = self.config(name, context, seed)
        return run_directory(self.roots[context], config, self.backbone, f"{self.count:016x}")

    def run(self, name, context="growing", seed=0):
        key = (name, context, seed)
        if key not in self.done:
            run = self.make(name, context, seed)
            execute(run, lambda: False)
            self.done[key] = run
        return self.done[key]


def metrics(run):
    """Of each step, what does not depend on the machine."""
    return [
        {k: v for k, v in e["values"].items() if not k.startswith(("time/", "memory/"))}
        for e in run.spool.read()
        if e["kind"] == "metrics"
    ]


def events(run, name):
    return [e["data"] for e in run.spool.read() if e["kind"] == "event" and e["name"] == name]


def weights(run):
    return load_file(run.checkpoints_dir / f"step_{STEPS:06d}" / "model.safetensors")


def same(one, other):
    first, second = weights(one), weights(other)
    return all(torch.equal(first[key], second[key]) for key in first)


def episodes(run):
    hidden = {"run"}
    return [{k: v for k, v in r.items() if k not in hidden} for r in pq.read_table(run.episodes_path).to_pylist()]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", FILES)
def test_every_row_completes(world, name, context):
    run = world.run(name, context)
    config, spec = run.load_config(), registry.get(run.load_config().method.name)
    state = run.stored_state()
    assert (state.state, state.last_step) == (COMPLETE, STEPS if config.method.trains else 0)
    assert sorted(state.evaluations) == sorted(f"seen/{skills}" for skills in config.method.rollout_skills_eval)
    found = metrics(run)
    assert len(found) == state.last_step
    for values in found:
        assert all(math.isfinite(value) for value in values.values())
        assert values["tokens/update"] > values["train/response_tokens"] > 0
        assert values["tokens/reference"] == 0
    if config.method.trains:
        scores = spec.uses_teacher or spec.teacher_cancels
        assert (found[0]["cost/teacher_rows"] > 0) == (found[0]["tokens/teacher"] > 0) == scores
        assert (found[0]["cost/teacher_tokens_rescored"] > 0) == scores
        assert ("validation" in used_panels(config)) == spec.validates


@pytest.mark.parametrize("name", TRAINED)
def test_two_seeds_differ(world, name):
    assert not same(world.run(name), world.run(name, seed=1))
    assert metrics(world.run(name)) != metrics(world.run(name, seed=1))


@pytest.mark.parametrize("name", TRAINED)
def test_one_seed_repeats_even_when_interrupted(world, name):
    run, calls = world.make(name, "growing"), iter((False, False))
    with pytest.raises(Interrupted, match="after training step 2"):
        execute(run, lambda: next(calls, True))
    execute(run, lambda: False)
    unbroken = world.run(name)
    assert metrics(run) == metrics(unbroken)
    assert same(run, unbroken) and episodes(run) == episodes(unbroken)
    for kind in ("teacher_measured", "retired"):
        assert events(run, kind) == events(unbroken, kind)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("retire_opd")])
def test_after_retirement_there_is_no_teacher_forward(world, name, context):
    run = world.run(name, context)
    found = metrics(run)
    retired = [values["method/retired"] for values in found]
    knobs = run.load_config().method.knobs
    rows = [values["cost/teacher_rows"] for values in found]
    measured = events(run, "teacher_measured")
    if knobs["stop_step"] is None:
        [teacher] = measured
        assert 0 <= teacher["success"] <= 1 and teacher["episodes"] == 6 and teacher["panel_hash"]
        assert found[0]["validation/episodes"] == 6
    else:
        assert not measured and all("validation/success" not in values for values in found)
    if knobs["stop_step"] is None and knobs["use_competence"] and teacher["success"] == 0:
        assert not any(retired) and all(rows)  # nothing to compare with
        return
    assert rows[0] > 0 and rows[-1] == 0 and retired == sorted(retired) and retired[-1] == 1
    assert "validation/success" not in found[-1]
    [event] = events(run, "retired")
    assert retired[event["step"] - 1] == 1 and not any(retired[: event["step"] - 1])


def test_rows_without_a_teacher_are_grpo_until_something_differs(world):
    """The first step's episodes are the same in all rows whose policy sees no skill."""
    first = {
        name: metrics(world.run(name))[0]["train/success"]
        for name in TRAINED
        if not method_of_file(name).rollout_skills_train
    }
    assert set(first.values()) == {first["grpo"]}
