"""Behaviour cloning and the cache of embedded backbones."""

import json
import multiprocessing
from dataclasses import replace

import pytest
import torch

from envs.alfworld.demos import demonstration
from envs.alfworld.lexicon import lexicon
from envs.interface import Demonstration, DemoTurn, EnvConfig, PromptParts
from harness import backbones
from harness.backbones.tokenizer import build_tokenizer
from harness.backbones.warmstart import SHARD, Demonstrations, SharedEmbedding, encode
from harness.config import BackboneConfig

SMALL = BackboneConfig(name="small", hidden=16, layers=1, heads=2, intermediate=32, demos=SHARD, clone_tokens=30_000)
ENV = EnvConfig()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_targets_are_the_imitated_commands_with_their_end_token():
    tokenizer = build_tokenizer(lexicon())
    turns = (
        DemoTurn(PromptParts(task="Your task is to: look", after="\nYou see a shelf 1."), "go to shelf 1", True),
        DemoTurn(PromptParts(before="Nothing happens."), "look", False),
        DemoTurn(PromptParts(before="On the shelf 1, you see nothing."), "open fridge 1", True, "open fridge 1"),
    )
    ids, targets = encode(tokenizer, Demonstration(turns, "find mug"))
    chosen = [tokenizer.convert_ids_to_tokens(i) for i, t in zip(ids, targets, strict=True) if t]
    assert chosen == ["go to", "shelf 1", "<|im_end|>", "open", "fridge 1", "<|im_end|>"]
    words = tokenizer.convert_ids_to_tokens(ids)
    assert words[words.index("skill") : words.index("skill") + 3] == ["skill", "find", "mug"]
    assert words[words.index("now") : words.index("now") + 3] == ["now", "open", "fridge 1"]


def test_shared_parts_add_up_to_a_table_of_the_vocabulary():
    tokens = ["go to", "mug 1", "mug 2", "pan 1"]
    shared = SharedEmbedding(tokens, 8)
    table = shared.table()
    assert table.shape == (4, 8)
    with torch.no_grad():
        shared.kinds[shared.kind[1]] += 1.0
    moved = (shared.table() - table).abs().sum(1) > 0
    assert moved.tolist() == [False, True, True, False]


def test_too_few_demonstrations_are_refused():
    with pytest.raises(ValueError, match=r"backbone\.demos=10"):
        Demonstrations(demonstration, build_tokenizer(lexicon()), 0, 10)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    env = replace(ENV, cache=str(tmp_path_factory.mktemp("with space")))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        folders = pool.starmap(backbones.ensure, [(SMALL, env), (SMALL, env)])
    return env, folders


def test_two_processes_make_it_once(made):
    env, folders = made
    assert folders[0] == folders[1]
    assert sorted(p.name for p in folders[0].parent.iterdir() if not p.name.startswith(".")) == [folders[0].name]
    assert backbones.find(SMALL, env) == folders[0]


def test_it_loads_as_an_ordinary_folder_and_a_short_rebuild_follows_the_same_path(made, tmp_path):
    env, folders = made
    model, tokenizer = backbones.load(SMALL, env)
    assert model.config.model_type == "qwen3" and model.config.tie_word_embeddings
    assert tokenizer.chat_template
    recorded = dict(json.loads((folders[0] / backbones.RECIPE).read_text())["loss_curve"])
    curve = backbones.build(SMALL, env, tmp_path, stop_after=15_000)
    assert curve[-1][0] < 25_000 and not list(tmp_path.iterdir())
    shared = [(seen, loss) for seen, loss in curve if seen in recorded]
    assert len(shared) >= 2
    assert all(abs(recorded[seen] - loss) < 1e-3 for seen, loss in shared)


def test_recipe_depends_on_what_decides_the_weights_only():
    base = backbones.recipe_hash(SMALL, ENV)
    assert backbones.recipe_hash(replace(SMALL, name="other"), ENV) == base
    assert backbones.recipe_hash(SMALL, replace(ENV, max_steps=3)) == base
    assert backbones.recipe_hash(replace(SMALL, clone_tokens=1), ENV) != base


def test_a_hub_backbone_needs_a_path_and_says_so_when_it_is_not_there(tmp_path):
    with pytest.raises(backbones.BackboneError, match=r"backbone\.path is not set"):
        backbones.ensure(BackboneConfig(kind="hub", name="qwen"), ENV)
    missing = BackboneConfig(kind="hub", name="qwen", path=str(tmp_path / "nothing"))
    with pytest.raises(backbones.BackboneError, match="Download the snapshot first"):
        backbones.load(missing, ENV)
    with pytest.raises(backbones.BackboneError, match="no torch dtype"):
        backbones.load(replace(SMALL, dtype="float13", kind="hub", path=str(tmp_path)), ENV)


ENVIRONMENTS = ("alfworld", "webshop", "search_qa")


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_shipped_backbone_is_the_one_of_its_recipe(environment):
    from harness.backbones.__main__ import _configs

    backbone, env = _configs("tiny-s", environment)
    found = backbones.find(backbone, env)
    assert found is not None and found.parent.parent.name == "embedded", "sweeps/backbone/tiny-s.yaml no longer matches"
    assert (found / "model.safetensors").stat().st_size < 1_000_000
    backbones.load(backbone, env)  # checks the weights against the recipe file


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_short_rebuild_of_the_shipped_backbone_follows_its_recorded_path(environment, tmp_path):
    from harness.backbones.__main__ import _configs

    backbone, env = _configs("tiny-s", environment)
    env = replace(env, cache=str(tmp_path / "cache"))
    found = backbones.find(backbone, env)
    assert found is not None
    recorded = dict(json.loads((found / backbones.RECIPE).read_text())["loss_curve"])
    curve = dict(backbones.build(backbone, env, tmp_path, stop_after=100_000))
    shared = sorted(set(curve) & set(recorded))
    assert len(shared) >= 5
    # the same seeds on another processor differ in the last bits, which grow with every step
    assert all(abs(recorded[seen] - curve[seen]) < 0.02 * recorded[seen] for seen in shared)
