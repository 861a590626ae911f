"""Gradients: only from policy tokens, the same however the rows are split and padded."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from training_helpers import CONTEXTS, TOKENIZER, run_config, trainer

from harness.training.batch import build_batch, build_rows
from harness.training.losses import k3, policy_loss
from harness.training.scoring import Scorer
from harness.training.update import NonFiniteUpdateError, StepData, Updater, UpdateStats, learning_rate
from methods.interface import Method, MethodConfig, MethodContext


class Given(Method):
    """Advantages are given from outside."""

    def __init__(self):
        super().__init__(MethodConfig(), MethodContext(1, 0))


class Auxiliary(Given):
    def aux_loss(self, step, batch, logprobs, entropy):
        assert logprobs.shape == batch.response_mask.shape == entropy.shape
        assert bool((logprobs[~batch.response_mask] == 0).all())
        weight = torch.where(batch.token_step % 2 == 0, 0.5, 2.0)
        return weight * logprobs - 0.1 * entropy * (batch.old_logprobs < -3)


class Case:
    """One batch with made-up advantages, and a way to get the gradient of its loss."""

    def __init__(self, context="growing", method=None, **training):
        config = run_config(context=context, **training)
        self.trainer = trainer(config)
        trajectories, _ = self.trainer.sampler.play(self.trainer.requests(1), 1.0)
        rows = build_rows(trajectories, context)
        batch = build_batch(trajectories, rows, 1.0, 0.1, "format")
        noise = torch.Generator().manual_seed(0)
        batch.old_logprobs += 0.5 * torch.randn(batch.old_logprobs.shape, generator=noise) * batch.response_mask
        advantages = torch.randn(batch.old_logprobs.shape, generator=noise) * batch.response_mask
        reference = None
        if config.training.kl_coef:
            reference = (batch.old_logprobs - 0.3) * batch.response_mask
        self.data = StepData(1, rows, batch, advantages, method or Given(), reference)

    def gradient(self, pad_id=0, **training):
        config = dataclasses.replace(self.trainer.config.training, **training)
        updater = Updater(self.trainer.network, config, pad_id, 0)
        updater.optimizer.zero_grad(set_to_none=True)
        stats = UpdateStats()
        updater.accumulate(self.data, range(len(self.data.rows)), stats)
        return torch.cat([p.grad.flatten() for p in updater.parameters]), stats


FULL = {"kl_coef": 0.1, "entropy_coef": 0.05}


@pytest.mark.parametrize("context", CONTEXTS)
def test_splitting_and_padding_change_nothing(context):
    case = Case(context, Auxiliary(), **FULL)
    whole, stats = case.gradient(micro_batch_tokens=10**6)
    for tokens in (1, 150, 400):
        for pad_id in (0, 17):
            split, other = case.gradient(pad_id, micro_batch_tokens=tokens)
            torch.testing.assert_close(split, whole, atol=1e-6, rtol=1e-4)
            for name, value in dataclasses.asdict(stats).items():
                assert dataclasses.asdict(other)[name] == pytest.approx(value, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("context", CONTEXTS)
def test_the_loss_is_the_mean_over_all_response_tokens(context):
    """The same gradient from a plain padded forward pass and the formulas."""
    case = Case(context, Auxiliary(), **FULL)
    got, stats = case.gradient()
    data, net = case.data, case.trainer.network
    net.model.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for r, row in enumerate(data.rows):
        logits = net.model(input_ids=torch.tensor([row.ids])).logits[0]
        for p in row.positions:
            distribution = torch.log_softmax(logits[p - 1], -1)
            logprob = distribution[row.ids[p]]
            entropy = -(distribution.exp() * distribution).sum()
            loss, _ = policy_loss(logprob, data.batch.old_logprobs[r, p], data.advantages[r, p], 0.2, 0.2, 3.0)
            loss = loss + 0.1 * k3(logprob, data.reference[r, p]) - 0.05 * entropy
            even = data.batch.token_step[r, p] % 2 == 0
            loss = loss + (0.5 if even else 2.0) * logprob - 0.1 * entropy * (data.batch.old_logprobs[r, p] < -3)
            total = total + loss / data.marked
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in case.trainer.updater.parameters])
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-4)
    assert stats.loss == pytest.approx(total.item(), rel=1e-5)


@pytest.mark.parametrize("context", CONTEXTS)
def test_no_gradient_from_tokens_the_policy_did_not_choose(context, monkeypatch):
    case = Case(context, Auxiliary(), **FULL)
    net, seen = case.trainer.network, []
    original = net.hidden

    def hidden(ids):
        result = original(ids)
        result.retain_grad()
        seen.append((ids, result))
        return result

    monkeypatch.setattr(net, "hidden", hidden)
    case.gradient()
    predicts = {}  # padded ids of a row -> positions whose next token the policy chose
    for row in case.data.rows:
        predicts[tuple(row.ids)] = {p - 1 for p in row.positions}
    checked = 0
    for ids, result in seen:
        for r in range(len(ids)):
            nonzero = set(result.grad[r].abs().sum(-1).nonzero().flatten().tolist())
            tokens = ids[r].tolist()
            row = next(known for known in predicts if tuple(tokens[: len(known)]) == known)
            assert nonzero == predicts[row]
            checked += 1
    assert checked == len(case.data.rows)


def test_zero_advantages_move_nothing():
    case = Case()
    case.data = dataclasses.replace(case.data, advantages=torch.zeros_like(case.data.advantages))
    gradient, _ = case.gradient()
    assert bool((gradient == 0).all())


def test_statistics_of_an_update():
    case = Case(mini_batches=1)
    scorer = case.trainer.scorer(case.trainer.network)
    case.data.batch.old_logprobs = scorer.batch_logprobs(case.data.rows, case.data.batch)
    stats = case.trainer.updater.update(case.data)
    assert stats.kl == pytest.approx(0, abs=1e-9)  # one optimiser step: the policy is the one that sampled
    assert stats.clip_fraction == 0
    assert stats.tokens == sum(len(row.ids) for row in case.data.rows)
    assert stats.grad_norm > 0 and 0 < stats.entropy < torch.log(torch.tensor(float(len(TOKENIZER))))
    mask = case.data.batch.response_mask
    assert stats.loss == pytest.approx(-case.data.advantages[mask].mean().item(), abs=1e-5)
    more = case.trainer.updater.update(case.data)
    assert more.kl > 0


def test_good_tokens_become_likelier_and_bad_ones_less():
    case = Case(mini_batches=1, lr=1e-3)
    mask = case.data.batch.response_mask
    scorer = Scorer(case.trainer.network, case.trainer.chat, "growing", 1.0, 1000)
    before = case.data.batch.old_logprobs = scorer.batch_logprobs(case.data.rows, case.data.batch)
    good = torch.zeros_like(mask)
    good[: len(mask) // 2] = mask[: len(mask) // 2]
    case.data = dataclasses.replace(case.data, advantages=good.float() - (mask & ~good).float())
    case.trainer.updater.update(case.data)
    change = scorer.batch_logprobs(case.data.rows, case.data.batch) - before
    assert change[good].mean() > 0 > change[mask & ~good].mean()


def test_infinite_gradients_stop_the_run_before_the_weights_change():
    case = Case()
    case.data.advantages[case.data.batch.response_mask] = torch.inf
    before = [p.clone() for p in case.trainer.updater.parameters]
    with pytest.raises(NonFiniteUpdateError, match="step 1"):
        case.trainer.updater.update(case.data)
    assert all(torch.equal(a, b) for a, b in zip(before, case.trainer.updater.parameters, strict=True))


def test_warm_up():
    config = run_config(warmup_steps=4, lr=1.0).training
    assert [learning_rate(config, step) for step in (1, 2, 4, 5, 50)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert learning_rate(run_config(lr=1.0).training, 1) == 1.0
