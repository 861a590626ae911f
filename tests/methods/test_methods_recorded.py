"""Real training steps, recorded (record_batches.py), against the formulas in float64 numpy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from methods_helpers import F64, LAYOUTS, Arrays, context, numpy_opid_advantage, to_batch
from record_batches import AFTER_UPDATE, CHANNELS, CLIP, WEIGHTS, load, method_config, record

from envs import registry as environments
from harness.training.losses import policy_loss
from methods import registry

EVERY = [(layout, channels) for layout in LAYOUTS for channels in CHANNELS]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(environments.BUILTIN, "tiny", "tiny_env:SPEC")  # type: ignore[attr-defined]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("layout", "channels"), EVERY)
def test_they_are_what_a_training_step_makes(tiny: None, layout: str, channels: str) -> None:
    now, recorded = record(layout, channels), load(layout, channels)
    assert sorted(now) == sorted(recorded)
    for name in recorded:
        # Adam divides by the size of the gradient, so rounding of another machine shows after the update.
        if name == "observations":
            assert recorded[name].tolist() == now[name].tolist()
        elif name != AFTER_UPDATE:
            np.testing.assert_allclose(recorded[name], now[name], rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("layout", "channels"), EVERY)
def test_they_hold_what_the_formulas_are_about(layout: str, channels: str) -> None:
    arrays = load(layout, channels)
    returns, invalid = np.asarray(arrays["returns"]), np.asarray(arrays["step_invalid"])
    assert 0 < returns.sum() < len(returns) and invalid.any() and not invalid.all()
    episode, step = arrays["teacher_mask/episode"], arrays["teacher_mask/step"]
    mask = arrays["response_mask"]
    assert episode.any() and step.any()
    assert np.array_equal(episode, mask) == (episode & step).any() == (channels == "additive")
    for channel, scored in (("episode", episode), ("step", step)):
        shift = np.abs(arrays[f"teacher/{channel}"] - arrays["old_logprobs"])[scored]
        assert (shift > CLIP).any() and (shift < CLIP).any()


@pytest.mark.parametrize(("layout", "channels"), EVERY)
def test_the_step_used_the_papers_advantages(layout: str, channels: str) -> None:
    arrays, config = load(layout, channels), method_config(channels)
    expected = numpy_opid_advantage(
        arrays, config.advantage.std, config.advantage.stats_over, WEIGHTS, CLIP, normalize=False
    )
    np.testing.assert_allclose(arrays["used/advantages"], expected, rtol=0, atol=1e-6)
    again = registry.build(config, context()).advantages(1, to_batch(arrays))
    np.testing.assert_allclose(again.numpy(), expected, rtol=0, atol=1e-6)


def numpy_policy_loss(arrays: Arrays, low: float, high: float, dual: float | None) -> tuple[F64, set[str]]:
    """Loss of each response token in row order, and which branches were taken."""
    losses, branches = [], set()
    for r, c in np.argwhere(arrays["response_mask"]):
        ratio = np.exp(np.float64(arrays[AFTER_UPDATE][r, c]) - np.float64(arrays["old_logprobs"][r, c]))
        advantage = np.float64(arrays["used/advantages"][r, c])
        if advantage >= 0:
            branch, loss = ("above", -advantage * (1 + high)) if ratio > 1 + high else ("plain", -advantage * ratio)
        elif dual is not None and ratio > dual:
            branch, loss = "dual", -advantage * dual
        else:
            branch, loss = ("below", -advantage * (1 - low)) if ratio < 1 - low else ("plain", -advantage * ratio)
        losses.append(loss)
        branches.add(branch)
    return np.array(losses), branches


@pytest.mark.parametrize(("layout", "channels"), EVERY)
@pytest.mark.parametrize("dual", [None, 3.0])
def test_the_clipped_loss_after_the_update(layout: str, channels: str, dual: float | None) -> None:
    arrays = load(layout, channels)
    mask = np.asarray(arrays["response_mask"])
    given = [torch.from_numpy(arrays[name][mask]) for name in (AFTER_UPDATE, "old_logprobs", "used/advantages")]
    losses, flat = policy_loss(*given, clip_low=0.2, clip_high=0.2, dual_clip=dual)
    expected, branches = numpy_policy_loss(arrays, 0.2, 0.2, dual)
    assert {"plain", "above", "below"} <= branches and ("dual" in branches) == (dual is not None)
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert 0 < int(flat.sum()) < len(expected)
