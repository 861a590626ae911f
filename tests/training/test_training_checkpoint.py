"""Checkpoints survive crashes and damage, or say that they did not."""

from __future__ import annotations

import errno
import json

import pytest
import torch
from tiny_model import make_model
from training_helpers import TOKENIZER

from harness import files
from harness.training import checkpoint
from harness.training.checkpoint import CheckpointError


def parts(seed=0, hidden=32):
    """A model and its optimiser after one step."""
    model = make_model(TOKENIZER, seed, hidden=hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    optimizer.step()
    return model, optimizer


def save(folder, *steps):
    for step in steps:
        checkpoint.save(folder, step, *parts(), {"note": step})


def test_everything_comes_back(tmp_path):
    model, optimizer = parts()
    path = checkpoint.save(tmp_path, 10, model, optimizer, {"method": {"a": [1, 2.5]}})
    assert path.name == "step_000010"
    assert sorted(p.name for p in path.iterdir()) == [
        "MANIFEST.json",
        "model.safetensors",
        "optimizer.pt",
        "state.json",
    ]
    other, its_optimizer = parts(seed=1)
    found, rejected = checkpoint.newest(tmp_path)
    assert (found, rejected) == (path, [])
    checkpoint.load_model(path, other)
    checkpoint.load_optimizer(path, its_optimizer)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    assert other.lm_head.weight.data_ptr() == other.model.embed_tokens.weight.data_ptr()
    one, two = optimizer.state_dict(), its_optimizer.state_dict()
    assert one["param_groups"] == two["param_groups"]
    assert all(torch.equal(one["state"][k][n], two["state"][k][n]) for k in one["state"] for n in one["state"][k])
    assert checkpoint.read_state(path) == {"method": {"a": [1, 2.5]}, "version": 1, "step": 10}


def test_the_two_newest_are_kept(tmp_path):
    save(tmp_path, 5, 10, 15, 20)
    assert checkpoint.steps(tmp_path) == [15, 20]
    assert checkpoint.steps(tmp_path / "nowhere") == []
    save(tmp_path, 1_000_000)
    assert checkpoint.steps(tmp_path) == [20, 1_000_000]


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "flipped bit in the weights": lambda p: _flip(p / "model.safetensors"),
    "flipped bit in the optimiser": lambda p: _flip(p / "optimizer.pt"),
    "other state": lambda p: (p / "state.json").write_text("{}"),
    "cut weights": lambda p: (p / "model.safetensors").write_bytes(b""),
    "no weights": lambda p: (p / "model.safetensors").unlink(),
    "no manifest": lambda p: (p / "MANIFEST.json").unlink(),
    "empty manifest": lambda p: (p / "MANIFEST.json").write_text("{}"),
    "no JSON": lambda p: (p / "MANIFEST.json").write_text("nonsense"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, damage):
    save(tmp_path, 5, 10)
    DAMAGE[damage](tmp_path / "step_000010")
    found, rejected = checkpoint.newest(tmp_path)
    assert found == tmp_path / "step_000005"
    assert [r.path.name for r in rejected] == ["step_000010"]
    assert "step_000010" in rejected[0].reason
    DAMAGE[damage](tmp_path / "step_000005")
    found, rejected = checkpoint.newest(tmp_path)
    assert found is None and len(rejected) == 2


def test_saving_again_replaces_a_damaged_one(tmp_path):
    save(tmp_path, 5, 10)
    _flip(tmp_path / "step_000010" / "model.safetensors")
    save(tmp_path, 10)
    assert checkpoint.newest(tmp_path) == (tmp_path / "step_000010", [])


@pytest.mark.parametrize("number", range(1, 5))
def test_a_full_disk_leaves_older_checkpoints_intact(tmp_path, monkeypatch, number):
    save(tmp_path, 5)
    written, original = [], files.write_new

    def failing(path, data):
        written.append(path)
        if len(written) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, data)

    monkeypatch.setattr(checkpoint, "write_new", failing)
    with pytest.raises(files.DiskFullError, match="step_000010"):
        save(tmp_path, 10)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000005"]
    assert checkpoint.newest(tmp_path) == (tmp_path / "step_000005", [])


def test_folders_that_are_no_checkpoints_are_ignored(tmp_path):
    save(tmp_path, 5)
    (tmp_path / ".step_000010.123.tmp").mkdir()
    (tmp_path / "step_latest").mkdir()
    (tmp_path / "step_000099").write_text("a file")
    assert checkpoint.steps(tmp_path) == [5]


def test_another_model_or_format_is_refused(tmp_path):
    save(tmp_path, 5)
    path = tmp_path / "step_000005"
    with pytest.raises(CheckpointError, match="another model"):
        checkpoint.load_model(path, parts(hidden=16)[0])
    (path / "state.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(CheckpointError, match="format version 99"):
        checkpoint.read_state(path)
    (path / "model.safetensors").write_text("nonsense")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        checkpoint.load_model(path, parts()[0])
