"""What seconds of training mean."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from training_helpers import run_config, trainer

from harness.config import ResourcesConfig
from harness.spool import Spool
from harness.training import notes
from harness.training.clocks import Clock, now_on, unit_of


@pytest.mark.parametrize(
    "engine, device, wanted",
    [
        ("local", "cpu", ("cpu_s", 0)),
        ("local", "cuda", ("wall_s", 1)),
        ("local", "cuda:1", ("wall_s", 1)),
        ("verl", "cpu", ("wall_s", 0)),
        ("verl", "cuda", ("wall_s", 8)),
    ],
)
def test_the_unit_is_that_of_the_engine_and_the_device(engine, device, wanted):
    config = run_config()
    config.engine, config.runtime.device = engine, device
    config.backbone.resources = ResourcesConfig(nodes=2, gpus_per_node=4)
    assert unit_of(config) == wanted


def test_a_gpu_is_timed_by_the_wall(monkeypatch):
    assert now_on("cpu") is time.process_time
    assert now_on("cuda") is now_on("mps") is time.monotonic
    made = trainer(run_config())
    assert made.clock is made.sampler.now is time.process_time
    monkeypatch.setattr(made.network, "device", SimpleNamespace(type="cuda"))
    made._parts(made.sampler.pool, made.sampler.prompter)
    assert made.clock is made.sampler.now is time.monotonic


def test_a_clock_tells_seconds_between_marks():
    now = iter([1.0, 3.0, 3.5])
    clock = Clock(lambda: next(now))
    assert [clock.lap(), clock.lap()] == [2.0, 0.5]


def test_the_unit_is_an_event(tmp_path):
    spool = Spool(tmp_path / "spool.jsonl")
    notes.clock(spool, "wall_s", 8)
    (entry,) = spool.read()
    assert (entry["name"], entry["data"]) == ("clock", {"unit": "wall_s", "gpus": 8})
