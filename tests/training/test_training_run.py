"""One run from its directory: complete, resumed, evaluated once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tiny_env
import torch
from safetensors.torch import load_file
from tiny_env import FAILURES
from training_helpers import CONTEXTS, method_config, run_config, run_directory, save_backbone

from envs.panels import PanelError
from harness import backbones, evaluation
from harness.files import RecordError
from harness.parts import parts_of
from harness.record import RunDirectory
from harness.run import Interrupted, execute
from harness.states import COMPLETE
from harness.training import trajectories
from harness.training.loop import Trainer
from harness.tune import objectives
from methods.faithful import UnfaithfulError
from methods.interface import SkillConfig
from methods.skills import analyzer
from methods.skills.analyzer import AnalyzerFailure
from methods.skills.analyzers.ledger import Ledger

SKILL = SkillConfig("library", "task_type")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return save_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture
def make_run(tmp_path, backbone):
    count = iter(range(1000))
    return lambda config: run_directory(tmp_path / f"runs{next(count)}", config, backbone)


def never():
    return False


def after(calls):
    """should_stop that says so at call number `calls` + 1."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


def events(run, name):
    return [e["data"] for e in run.spool.read() if e["kind"] == "event" and e["name"] == name]


def metrics(run):
    """step -> metrics that do not depend on the machine."""
    found = {}
    for entry in run.spool.read():
        if entry["kind"] == "metrics":
            assert entry["step"] not in found
            found[entry["step"]] = {k: v for k, v in entry["values"].items() if not k.startswith(("time/", "memory/"))}
    return found


def episodes(run):
    return pq.read_table(run.episodes_path).to_pylist()


def final_weights(run, step):
    return load_file(run.checkpoints_dir / f"step_{step:06d}" / "model.safetensors")


def assert_same_results(one, other, step):
    assert metrics(one) == metrics(other)
    weights, others = final_weights(one, step), final_weights(other, step)
    assert weights.keys() == others.keys() and all(torch.equal(weights[k], others[k]) for k in weights)
    assert episodes(one) == episodes(other)
    assert list(trajectories.read(one.trajectories_path)) == list(trajectories.read(other.trajectories_path))


# ------------------------------------------------------------------------------------------------------------ complete
def test_a_run_ends_complete_with_all_its_records(make_run):
    config = run_config(steps=3)
    run = make_run(config)
    execute(run, never)
    state = run.stored_state()
    assert (state.state, state.last_step, state.planned_steps) == (COMPLETE, 3, 3)
    assert state.evaluations == {
        "seen/off": {"requested": 3, "graded": 3, "excluded": 0},
        "unseen/off": {"requested": 4, "graded": 4, "excluded": 0},
    }
    assert sorted(metrics(run)) == [1, 2, 3]
    assert [p.name for p in sorted(run.checkpoints_dir.iterdir())] == ["step_000002", "step_000003"]
    assert events(run, "selection") == [{"rule": "last", "checkpoint_step": 3}]
    assert [e["panel"] for e in events(run, "evaluation_started")] == ["seen", "unseen"]
    assert events(run, "evaluation_finished")[1] == {
        "panel": "unseen", "skills": "off", "requested": 4, "graded": 4, "excluded": 0,
    }  # fmt: skip
    rows = episodes(run)
    for name in ("seen", "unseen"):
        panel = tiny_env.load_panel(config.env, name)
        of_panel = [row for row in rows if row["panel"] == name]
        assert [row["task_id"] for row in of_panel] == [task.id for task in panel.tasks]
        assert {(row["panel_hash"], row["data_version"]) for row in of_panel} == {(panel.hash, "1")}
    for row in rows:
        assert (row["run"], row["seed"], row["checkpoint_step"]) == (run.fingerprint, 0, 3)
        assert (row["skills"], row["prompt_protocol"], row["context"]) == ("off", "tiny/bare", "growing")
        assert (row["temperature"], row["selection"], row["failure"]) == (1.0, "last", None)
        assert 1 <= row["length"] <= 4 and row["malformed"] <= row["length"] >= row["inadmissible"]
        assert row["prompt_tokens"] > row["response_tokens"] > 0
    assert rows[0].keys() == set(evaluation.SCHEMA.names)
    lines = list(trajectories.read(run.trajectories_path))
    assert Counter(line["phase"] for line in lines) == {"train": 6, "evaluation": 4}
    assert all(turn["response_ids"] for line in lines for turn in line["turns"])


def test_vanilla_is_evaluated_and_never_trained(make_run):
    method = method_config("vanilla", rollout_skills_eval=["off", "on"], skill=SKILL)
    run = make_run(run_config(method))
    execute(run, never)
    state = run.stored_state()
    assert (state.state, state.last_step, state.planned_steps) == (COMPLETE, 0, 0)
    assert sorted(state.evaluations) == ["seen/off", "seen/on", "unseen/off", "unseen/on"]
    assert metrics(run) == {} and not list(run.checkpoints_dir.iterdir())
    rows = episodes(run)
    assert Counter(row["skills"] for row in rows) == {"off": 7, "on": 7}
    assert {row["checkpoint_step"] for row in rows} == {0}
    longer = {s: sum(r["prompt_tokens"] / r["length"] for r in rows if r["skills"] == s) for s in ("off", "on")}
    assert longer["on"] > longer["off"]
    with_skill = [line for line in trajectories.read(run.trajectories_path) if line["skills"] == "on"]
    assert with_skill and all(line["skill"] in line["task"] for line in with_skill)


def test_repeats_and_fraction(make_run):
    config = run_config(steps=4)
    config.evaluation.repeats = 2
    config.evaluation.panels = ["seen"]
    config.fraction = 0.5
    run = make_run(config)
    execute(run, never)
    assert Counter((r["task_id"], r["repeat"]) for r in episodes(run)) == {
        (f"seen-{i}", k): 1 for i in range(3) for k in range(2)
    }
    trained = {line["task_id"] for line in trajectories.read(run.trajectories_path) if line["phase"] == "train"}
    assert len(trained) <= 3
    config = run_config(steps=4)
    config.fraction, config.fraction_of = 0.5, "steps"
    run = make_run(config)
    execute(run, never)
    assert run.stored_state().last_step == run.stored_state().planned_steps == 2


@pytest.mark.parametrize("context", CONTEXTS)
def test_evaluation_depends_on_neither_batch_nor_workers(make_run, context):
    results = []
    for batch, workers in ((64, 0), (2, 0), (64, 1)):
        config = run_config(method_config("vanilla"), context=context)
        config.runtime.eval_batch, config.runtime.env_workers = batch, workers
        run = make_run(config)
        execute(run, never)
        results.append(episodes(run))
    assert results[0] == results[1] == results[2]


# ------------------------------------------------------------------------------------------------------------- resumed
@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, backbone):
    """Complete runs of five steps, made once per (method, context)."""
    made = {}

    def get(method, context):
        if (method, context) not in made:
            root = tmp_path_factory.mktemp(f"{method}-{context}")
            made[method, context] = run_directory(root, run_config(method, steps=5, context=context), backbone)
            execute(made[method, context], never)
        return made[method, context]

    return get


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("method", ["grpo", "opid"])
def test_an_interrupted_run_ends_like_an_unbroken_one(make_run, unbroken, method, context):
    run = make_run(run_config(method, steps=5, context=context))
    for steps in (1, 2):
        with pytest.raises(Interrupted):
            execute(run, after(steps))
    assert run.stored_state().last_step == 3
    execute(run, never)
    assert [e["step"] for e in events(run, "resumed")] == [1, 3]
    assert_same_results(run, unbroken(method, context), 5)


@pytest.mark.parametrize("method", ["grpo", "opid"])
def test_a_crash_between_checkpoints_costs_steps_and_nothing_else(make_run, unbroken, method, monkeypatch):
    run = make_run(run_config(method, steps=5))
    original = Trainer.step

    def dying(self, step):
        if step == 4:
            raise MemoryError("killed")
        return original(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", dying)
        with pytest.raises(MemoryError):
            execute(run, never)
    assert run.stored_state().last_step == 3 and sorted(metrics(run)) == [1, 2, 3]
    execute(run, never)
    assert events(run, "resumed") == [{"checkpoint": "step_000002", "step": 2}]
    assert_same_results(run, unbroken(method, "growing"), 5)


def test_a_damaged_checkpoint_is_passed_over_with_an_event(make_run, unbroken):
    run = make_run(run_config(steps=5))
    with pytest.raises(Interrupted):
        execute(run, after(4))
    (run.checkpoints_dir / "step_000004" / "optimizer.pt").write_bytes(b"damaged")
    execute(run, never)
    assert events(run, "checkpoint_rejected")[0]["checkpoint"] == "step_000004"
    assert "optimizer.pt" in events(run, "checkpoint_rejected")[0]["reason"]
    assert events(run, "resumed") == [{"checkpoint": "step_000002", "step": 2}]
    assert_same_results(run, unbroken("grpo", "growing"), 5)


def test_a_run_without_a_sound_checkpoint_starts_again(make_run, unbroken):
    run = make_run(run_config(steps=5))
    with pytest.raises(Interrupted):
        execute(run, after(2))
    for path in run.checkpoints_dir.iterdir():
        (path / "MANIFEST.json").unlink()
    execute(run, never)
    assert events(run, "checkpoint_rejected") and not events(run, "resumed")
    assert_same_results(run, unbroken("grpo", "growing"), 5)


def test_finished_evaluations_are_not_played_again(make_run, unbroken, monkeypatch):
    run = make_run(run_config(steps=5))
    with pytest.raises(Interrupted, match="panel unseen"):
        execute(run, after(6))  # five steps, then one panel
    assert {row["panel"] for row in episodes(run)} == {"seen"}
    assert run.stored_state().evaluations == {"seen/off": {"requested": 3, "graded": 3, "excluded": 0}}
    played = []
    original = evaluation.play_panel
    monkeypatch.setattr(
        "harness.run.play_panel", lambda s, panel, **k: played.append(panel.name) or original(s, panel, **k)
    )
    execute(run, never)
    assert played == ["unseen"]
    assert_same_results(run, unbroken("grpo", "growing"), 5)
    execute(run, never)  # complete already: nothing to do
    assert played == ["unseen"]


def test_evaluations_of_lost_weights_are_played_again(make_run, unbroken, monkeypatch):
    """The final checkpoint is damaged after one panel, and the run that makes it anew dies within the other panel."""
    run = make_run(run_config(steps=5))
    with pytest.raises(Interrupted, match="panel unseen"):
        execute(run, after(6))
    (run.checkpoints_dir / "step_000005" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(Interrupted, match="step 4"):
        execute(run, after(0))
    assert episodes(run) == [] and run.stored_state().evaluations == {}
    assert events(run, "evaluations_forgotten") == [{"step": 4}]
    original = evaluation.EpisodeFile.add

    def dying(self, rows, trajectories_bytes):
        if rows[0]["panel"] == "unseen":
            raise MemoryError("killed")
        original(self, rows, trajectories_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation.EpisodeFile, "add", dying)
        with pytest.raises(MemoryError):
            execute(run, never)
    execute(run, never)
    assert_same_results(run, unbroken("grpo", "growing"), 5)


def test_stopping_at_once_writes_nothing_new(make_run):
    run = make_run(run_config(steps=2))
    with pytest.raises(Interrupted, match="after training step 0"):
        execute(run, lambda: True)
    assert not list(run.checkpoints_dir.iterdir())
    assert run.stored_state().last_step == 0


# -------------------------------------------------------------------------------------------------------------- broken
def test_episodes_that_break_are_excluded_and_counted(make_run):
    FAILURES["seen-1", "reset"] = 2
    FAILURES["unseen-0", "step"] = 1  # passing: played again
    run = make_run(run_config(method_config("vanilla")))
    execute(run, never)
    assert run.stored_state().evaluations == {
        "seen/off": {"requested": 3, "graded": 2, "excluded": 1},
        "unseen/off": {"requested": 4, "graded": 4, "excluded": 0},
    }
    [row] = [row for row in episodes(run) if row["failure"] is not None]
    assert (row["task_id"], row["termination"], row["success"], row["length"]) == ("seen-1", "infra_failure", False, 0)
    assert row["failure"] == "reset of seen-1 broke"


def test_training_goes_on_without_broken_episodes_and_says_so(make_run):
    FAILURES["train-1", "reset"] = 10**6
    run = make_run(run_config(steps=2))
    execute(run, never)
    [event] = events(run, "episodes_excluded")
    assert event["reasons"] == {"reset of train-1 broke": 4}
    assert metrics(run)[event["step"]]["train/excluded"] == pytest.approx(4 / 12)


# ----------------------------------------------------------------------------------------------- what an analyzer costs
class Paid:
    """Rules that send a bill; fail_at: number of the call after which the engine breaks down."""

    def __init__(self, fail_at):
        self.ledger, self.left = Ledger(price_prompt=1e6), fail_at
        self.rules = analyzer.build("rules", analyzer.AnalyzerContext(2, tiny_env.hindsight))

    def analyze(self, trajectories):
        self.left -= 1
        self.ledger.add(calls=len(trajectories), seconds=1.0)
        self.ledger.tokens(2, 0)
        if not self.left:
            return failed(AnalyzerFailure("out of order"))
        return self.rules.analyze(trajectories)

    def usage(self):
        return self.ledger.take()

    def close(self):
        self.ledger.tokens(1, 0)  # a request that was under way


def failed(error):
    future = Future()
    future.set_exception(error)
    return future


def test_what_an_analyzer_spent_in_undone_and_failed_steps_stays_in_the_records(make_run, monkeypatch):
    run, attempts = make_run(run_config("opid", steps=4)), iter([4, 100])
    monkeypatch.setattr("harness.parts.build_analyzer", lambda *given: Paid(next(attempts)))
    with pytest.raises(AnalyzerFailure, match="out of order"):
        execute(run, never)  # steps 1 to 3 were paid for and stand until the next attempt, step 4 failed
    assert [e["step"] for e in events(run, "analyzer_usage")] == [1, 2, 3, 4]
    assert [e["cost"] for e in events(run, "analyzer_usage")] == [2.0, 2.0, 2.0, 3.0]
    execute(run, never)  # from the checkpoint of step 2
    spent = events(run, "analyzer_usage")
    assert [e["step"] for e in spent] == [1, 2, 3, 4, 3, 4] and all(e["calls"] == 12 for e in spent)
    assert sum(values["cost/analyzer_calls"] for values in metrics(run).values()) == 48  # of the steps that stand
    names = ["cost/analyzer_calls", "cost/analyzer_money"]
    assert objectives.measured(run.path, "off", names).values == dict(zip(names, (72, 13.0), strict=True))


def test_an_analyzer_that_costs_nothing_leaves_no_event(make_run):
    run = make_run(run_config("opid", steps=1))
    execute(run, never)
    assert not events(run, "analyzer_usage") and events(run, "clock") == [{"unit": "cpu_s", "gpus": 0}]


def test_steps_of_earlier_records_are_known_by_their_metrics(make_run):
    run = make_run(run_config(method_config("vanilla")))
    run.spool.metrics(1, {"cost/analyzer_calls": 5.0, "cost/analyzer_money": 0.5})
    run.spool.metrics(2, {"cost/analyzer_calls": 7.0, "cost/analyzer_money": 0.25})
    run.spool.event("analyzer_usage", step=2, calls=9, cost=1.0)
    names = ["cost/analyzer_calls", "cost/analyzer_money"]
    assert objectives.measured(run.path, "off", names).values == dict(zip(names, (14, 1.5), strict=True))


def test_training_on_evaluation_tasks_is_refused(make_run, monkeypatch):
    run = make_run(run_config())
    monkeypatch.setattr(tiny_env, "make_task", lambda split, i, words: original_task("train", i, words, split))
    with pytest.raises(PanelError, match="shares"):
        execute(run, never)
    assert metrics(run) == {} and not run.checkpoints_dir.exists() and not run.episodes_path.exists()
    assert run.stored_state().last_step == 0
    untrained = make_run(run_config(method_config("vanilla")))
    execute(untrained, never)  # whoever does not train may be asked the same tasks
    assert untrained.stored_state().state == COMPLETE


ORIGINAL_TASK = tiny_env.make_task


def original_task(content_of, number, words, split):
    """A task named after its split whose content is that of another split."""
    task = ORIGINAL_TASK(content_of, number, words)
    return type(task)(f"{split}-{number}", task.type, task.content_hash, task.slots, task.location)


def test_unknown_selection_rules_and_unreadable_episodes_are_refused(make_run):
    config = run_config(method_config("vanilla"))
    config.evaluation.selection = "best"
    with pytest.raises(ValueError, match=r"evaluation\.selection='best'"):
        execute(make_run(config), never)
    run = make_run(run_config(method_config("vanilla")))
    run.episodes_path.write_bytes(b"nonsense")
    with pytest.raises(RecordError, match=r"episodes\.parquet cannot be read"):
        execute(run, never)


def test_records_of_another_panel_are_played_again(make_run):
    run = make_run(run_config(method_config("vanilla")))
    execute(run, never)
    file = evaluation.EpisodeFile(run.episodes_path)
    stale = [{**row, "panel_hash": "of another day"} for row in file.of("seen", "off")]
    file.add(stale, file.trajectories_bytes)
    execute(run, never)
    assert all(row["panel_hash"] != "of another day" for row in episodes(run))
    assert len(episodes(run)) == 7


def test_a_library_is_needed_for_skills_in_prompts(make_run, monkeypatch):
    run = make_run(run_config(method_config("vanilla", rollout_skills_eval=["on"], skill=SKILL)))
    bare = dataclasses.replace(tiny_env.SPEC, workflow=None, library=None)
    monkeypatch.setattr("harness.parts.environments.get", lambda name: bare)
    with pytest.raises(ValueError, match="this environment has none"):
        execute(run, never)
    run = make_run(run_config(method_config("vanilla", rollout_skills_eval=["on"])))
    with pytest.raises(ValueError, match=r"puts skills into the policy's prompt, but method\.skill\.source=none"):
        execute(run, never)


def test_cpu_time_goes_on_counting_after_an_interruption(make_run):
    run = make_run(run_config(steps=3))
    with pytest.raises(Interrupted):
        execute(run, after(2))
    state = json.loads((run.checkpoints_dir / "step_000002" / "state.json").read_text())
    execute(run, never)
    totals = [e["values"]["time/cpu_total_s"] for e in run.spool.read() if e["kind"] == "metrics"]
    assert totals == sorted(totals) and totals[1] == pytest.approx(state["cpu_seconds"]) and totals[2] > totals[1]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_run_does_not_live_on_the_backbones_file(backbone):
    config = run_config(method_config("vanilla"))
    config.backbone.path = str(backbone)
    with parts_of(config):
        assert str(backbone) not in Path("/proc/self/maps").read_text()
    model, _ = backbones.load(config.backbone, config.env)
    assert str(backbone) in Path("/proc/self/maps").read_text()  # otherwise the copy is no longer needed
    del model


def test_the_initial_weights_are_recorded_and_must_stay(make_run, backbone, tmp_path):
    run = make_run(run_config(steps=3))
    own = shutil.copytree(backbone, tmp_path / "own")
    config = run.load_config()
    config.backbone.path = str(own)
    run = RunDirectory.create(tmp_path / "runs", config, "f" * 16)
    with pytest.raises(Interrupted):
        execute(run, after(1))
    digest = hashlib.sha256((own / "model.safetensors").read_bytes()).hexdigest()
    assert events(run, "initial_weights") == [{"backbone": "random", "sha256": digest}]
    data = bytearray((own / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (own / "model.safetensors").write_bytes(data)
    with pytest.raises(backbones.BackboneError, match="now has other weights"):
        execute(run, never)
    shutil.copy(backbone / "model.safetensors", own)
    execute(run, never)
    assert len(events(run, "initial_weights")) == 1 and run.state().state == "complete"


def test_a_method_that_breaks_its_promises_is_not_trained(make_run):
    config = run_config("opid", steps=3)
    config.method.coef = 0.0
    run = make_run(config)
    with pytest.raises(UnfaithfulError, match="would train as its base method"):
        execute(run, never)
    assert not metrics(run)
