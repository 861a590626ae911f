"""The gate: its arithmetic, its verdicts, and that it is measured once per weights and code."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from envs import registry
from envs.alfworld import spec as alfworld
from envs.interface import EnvConfig
from harness import backbones
from harness.backbones import fitness
from harness.backbones.fitness import GateResult, UnfitError, require_fit
from harness.backbones.gate import auc_over_episodes
from harness.config import BackboneConfig

TINY = BackboneConfig()


@pytest.fixture
def env(tmp_path):
    return EnvConfig(cache=str(tmp_path / "cache"))


@pytest.fixture
def measured(monkeypatch):
    """Stands in for the measurement: what it gives, and how often it was asked."""
    state = {"result": GateResult(0.3, 0.6, 0.7, 60, 10, 10), "times": 0}

    def measure(backbone, env):
        state["times"] += 1
        return state["result"]

    monkeypatch.setattr(fitness, "measure", measure)
    return state


def auc(good: list[float], bad: list[float]) -> float:
    """By definition: the probability that a draw from `good` exceeds one from `bad`, ties count half."""
    if not good or not bad:
        raise ValueError(f"AUC needs both kinds: {len(good)} sensible and {len(bad)} other actions")
    g, b = np.array(good)[:, None], np.array(bad)[None, :]
    return float((g > b).mean() + 0.5 * (g == b).mean())


def test_auc():
    assert auc([1.0, 2.0], [0.0]) == 1.0
    assert auc([0.0], [0.0]) == 0.5
    with pytest.raises(ValueError, match="both kinds"):
        auc([], [1.0])


def test_auc_over_episodes_is_that_of_all_their_actions_and_its_error_is_over_episodes():
    scores = [([0.1, 0.7], [0.4]), ([0.9], []), ([], [0.2, 0.8]), ([0.4], [0.4])]
    area, error = auc_over_episodes(scores)
    assert area == pytest.approx(auc([0.1, 0.7, 0.9, 0.4], [0.4, 0.2, 0.8, 0.4]))
    assert 0.05 < error < 0.4
    # the same episodes four times over: half the error
    assert auc_over_episodes(scores * 4, draws=4000)[1] == pytest.approx(
        auc_over_episodes(scores, draws=4000)[1] / 2, rel=0.35
    )
    assert all(math.isnan(x) for x in auc_over_episodes([([1.0], []), ([2.0], [])]))


@pytest.mark.parametrize(
    ("plain", "told", "area", "errors", "verdict"),
    [
        (0.3, 0.6, 0.7, (0.0, 0.0), "passes"),
        (0.3, 0.45, 0.7, (0.0, 0.0), "FAILS"),
        (0.3, 0.6, 0.55, (0.0, 0.0), "FAILS"),
        (0.3, 0.6, 0.55, (0.0, 0.02), "FAILS"),
        (0.3, 0.6, 0.59, (0.0, 0.02), "is at the limit"),
        (0.3, 0.48, 0.7, (0.04, 0.0), "is at the limit"),
        (0.3, 0.6, float("nan"), (0.0, float("nan")), "FAILS"),
    ],
)
def test_gate_needs_both_conditions_and_fails_beyond_chance_only(plain, told, area, errors, verdict):
    result = GateResult(plain, told, area, 60, 10, 10, *errors)
    assert (result.passed, result.failed) == (verdict == "passes", verdict == "FAILS")
    assert str(result).startswith(verdict)


def test_a_verdict_is_measured_once_and_told_when_new(env, measured):
    told = []
    assert require_fit(TINY, env, told.append) == measured["result"]
    assert "passes" in told[-1] and measured["times"] == 1
    told.clear()
    assert require_fit(TINY, replace(env, engine="native", train_per_type=1), told.append).passed
    assert measured["times"] == 1 and not told


def test_an_unfit_backbone_is_refused_again_and_again(env, measured):
    measured["result"] = GateResult(0.3, 0.31, 0.5, 60, 10, 10)
    for _ in range(2):
        with pytest.raises(UnfitError, match=r"FAILS: success 0\.300 without and 0\.310.*choose another backbone"):
            require_fit(TINY, env, lambda text: None)
    assert measured["times"] == 1


def test_a_backbone_at_the_limit_goes_on_and_says_so_each_time(env, measured):
    measured["result"] = GateResult(0.3, 0.6, 0.59, 60, 10, 10, 0.0, 0.02)
    for _ in range(2):
        told = []
        require_fit(TINY, env, told.append)
        assert "at the limit" in told[-1]


@pytest.mark.parametrize("what", ["weights", "rules", "prompt", "engine", "damaged"])
def test_what_the_verdict_depends_on_has_it_measured_again(what, env, measured, monkeypatch):
    require_fit(TINY, env, lambda text: None)
    if what == "weights":
        monkeypatch.setattr(backbones, "weights_digest", lambda backbone, env: "other")
    elif what == "rules":
        spec = replace(alfworld.SPEC, metadata={**alfworld.SPEC.metadata, "rules_version": 99})
        monkeypatch.setattr(registry, "get", lambda name: spec)
    elif what == "prompt":
        env = replace(env, prompt="full")
    elif what == "engine":
        monkeypatch.setattr("harness.training.ENGINE_VERSION", 99)
    else:
        from envs.cache import cache_root

        (note,) = (cache_root(env) / "backbones" / "gate").iterdir()
        note.write_text(json.dumps({"passed": True}))
    require_fit(TINY, env, lambda text: None)
    assert measured["times"] == 2


def test_what_cannot_be_gated_is_said(env, measured, monkeypatch):
    told = []
    assert require_fit(replace(TINY, kind="hub", path="someone/model"), env, told.append) is None
    monkeypatch.setattr(registry, "get", lambda name: replace(alfworld.SPEC, workflow=None))
    assert require_fit(TINY, env, told.append) is None
    assert "is not gated: it is no embedded model" in told[0] and "no workflow skills" in told[1]
    assert measured["times"] == 0


@pytest.mark.slow
def test_the_shipped_backbone_passes(env):
    """Well above both limits (docs/backbones.md)."""
    result = fitness.measure(TINY, env)
    assert result.passed, str(result)
    assert result.gain - 2 * result.gain_error > fitness.MIN_GAIN, str(result)
    assert result.auc - 2 * result.auc_error > fitness.MIN_AUC, str(result)
