"""Weights have digests: a policy is what is in its folder, not where the folder lies."""

import shutil
from dataclasses import replace

import pytest

from envs.interface import EnvConfig
from harness import backbones
from harness.backbones import content
from harness.config import BackboneConfig


@pytest.fixture
def env(tmp_path):
    return EnvConfig(cache=str(tmp_path / "cache"))


@pytest.fixture
def hub(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text("words")
    return folder


def config(folder):
    return BackboneConfig(kind="hub", name="mine", path=str(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_another_model_in_the_same_folder_is_another_policy(name, hub, env):
    before = backbones.identity(config(hub), env)
    assert before.startswith("folder:") and backbones.identity(config(hub), env) == before
    (hub / name).write_bytes(b"others!")
    assert backbones.identity(config(hub), env) != before


def test_the_same_model_elsewhere_is_the_same_policy_and_words_about_it_do_not_count(hub, env, tmp_path):
    before = backbones.identity(config(hub), env)
    (hub / "README.md").write_text("other words")
    shutil.copytree(hub, tmp_path / "copy")
    assert backbones.identity(config(hub), env) == backbones.identity(config(tmp_path / "copy"), env) == before


def test_files_are_read_once(hub, env, monkeypatch):
    read = []

    def counted(path):
        read.append(path.name)
        return original(path)

    original = content.file_sha256
    monkeypatch.setattr(content, "file_sha256", counted)
    for _ in range(2):
        backbones.identity(config(hub), env)
        backbones.weights_digest(config(hub), env)
    assert sorted(read) == ["config.json", "model.safetensors"]
    (hub / "config.json").write_text("[]")
    backbones.identity(config(hub), env)
    assert read[2:] == ["config.json"]
    (note,) = (tmp for tmp in backbones._kept(env).iterdir())
    note.write_text("no json")
    backbones.identity(config(hub), env)
    assert len(read) == 5


def test_a_cache_that_cannot_be_written_costs_time_only(hub, tmp_path):
    (tmp_path / "file").write_text("")
    env = EnvConfig(cache=str(tmp_path / "file"))
    assert backbones.identity(config(hub), env) == backbones.identity(config(hub), env)


def test_hub_ids_and_folders_that_are_not_there(env, tmp_path):
    named = BackboneConfig(kind="hub", name="qwen", path="someone/model", revision="abc")
    assert backbones.identity(named, env) == "hub:someone/model@abc"
    assert backbones.weights_digest(named, env) is None
    for path in (str(tmp_path / "nothing"), "./nothing", "~/nothing-of-this-name"):
        with pytest.raises(FileNotFoundError, match="is no folder"):
            backbones.identity(config(path), env)


def test_the_digest_of_weights(hub, env):
    import hashlib

    assert backbones.weights_digest(config(hub), env) == hashlib.sha256(b"weights").hexdigest()
    (hub / "model-2.safetensors").write_bytes(b"more")
    assert backbones.weights_digest(config(hub), env) != hashlib.sha256(b"weights").hexdigest()


# --------------------------------------------------------------------------------------------------- embedded models
def test_the_shipped_weights_are_part_of_the_identity(env, monkeypatch, tmp_path):
    tiny = BackboneConfig()
    shipped = backbones.find(tiny, env)
    digest = content.file_sha256(shipped / backbones.MODEL)
    assert backbones.weights_digest(tiny, env) == digest
    key = backbones.recipe_hash(tiny, env)
    assert backbones.identity(tiny, env) == f"{key}:{digest[:16]}"
    assert backbones.identity(replace(tiny, name="not-shipped"), env) == key


def made(env, name="mine"):
    """A folder in the cache as `ensure` leaves it, with the shipped model in it."""
    tiny = BackboneConfig(name=name)
    shipped = backbones.find(BackboneConfig(), env)
    folder = backbones.cache_root(env) / "backbones" / f"{name}-{backbones.recipe_hash(tiny, env)}"
    shutil.copytree(shipped, folder)
    return tiny, folder


def test_weights_that_are_not_those_of_the_recipe_file_are_refused(env):
    tiny, folder = made(env)
    backbones.load(tiny, env)
    data = bytearray((folder / backbones.MODEL).read_bytes())
    data[-1] ^= 1
    (folder / backbones.MODEL).write_bytes(data)
    with pytest.raises(backbones.BackboneError, match=r"are not those that its recipe\.json describes"):
        backbones.load(tiny, env)


def test_a_folder_without_a_digest_counts_as_not_made(env):
    tiny, folder = made(env)
    assert backbones.find(tiny, env) == folder
    recipe = (folder / backbones.RECIPE).read_text()
    (folder / backbones.RECIPE).write_text(recipe.replace(backbones.DIGEST, "something"))
    assert backbones.find(tiny, env) is None
