"""Shared artefacts are made by one process at a time."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from training_helpers import method_config, run_config

from harness import backbones
from harness.backbones import fitness
from harness.errors import ConfigError
from harness.prepare import check_cache, prepare


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    return tmp_path


def made(monkeypatch):
    """Records what is asked of the backbones instead of making one."""
    calls = []

    def ensure(backbone, env, progress=None):
        calls.append(backbone.name)
        for done in range(0, 1001):
            progress("cloning", done, 1000)
        return Path(os.environ["HARNESS_CACHE"]) / "made"

    monkeypatch.setattr(backbones, "ensure", ensure)
    return calls


def test_all_panels_and_the_backbone(cache, monkeypatch):
    calls, told = made(monkeypatch), []
    assert prepare(run_config(), told.append) == cache / "made"
    assert calls == ["random"]
    assert [text.partition(" (")[0] for text in told[:4]] == [
        "tasks: tiny train",
        "tasks: tiny seen",
        "tasks: tiny unseen",
        "backbone: random",
    ]
    assert told[4:] == [f"cloning: {percent} %" for percent in range(101)]


def test_methods_that_do_not_train_need_no_training_tasks(monkeypatch):
    made(monkeypatch)
    told = []
    prepare(run_config(method_config("vanilla")), told.append)
    assert not any(text.startswith("tasks: tiny train") for text in told)


def test_rows_that_use_skills_have_their_backbone_gated(monkeypatch):
    made(monkeypatch)
    told = []
    prepare(run_config("grpo"), told.append)
    assert not any("gated" in text for text in told)
    prepare(run_config("opid"), told.append)
    assert told[-1].startswith("backbone: random is not gated: it is no embedded model")


def test_an_unfit_backbone_stops_everything(monkeypatch):
    def unfit(backbone, env, progress):
        raise fitness.UnfitError("it FAILS")

    made(monkeypatch)
    monkeypatch.setattr(fitness, "require_fit", unfit)
    with pytest.raises(ConfigError, match="backbone=random: it FAILS"):
        prepare(run_config("opid"))
    prepare(run_config("grpo"))


def test_a_cache_that_cannot_be_used_is_named(cache):
    config = run_config()
    check_cache(config)
    (cache / "file").write_text("")
    config.env.cache = str(cache / "file")
    with pytest.raises(ConfigError, match=r"env\.cache=.*is not a folder"):
        check_cache(config)
    config.env.cache = None
    config.runtime.min_free_gb = 1e9
    with pytest.raises(ConfigError, match=r"HARNESS_CACHE.*GB are free"):
        check_cache(config)


def test_others_wait(cache, monkeypatch):
    calls, told = made(monkeypatch), []
    waiting = threading.Event()

    def tell(text):
        told.append(text)
        if text.startswith("waiting"):
            waiting.set()

    with (cache / "prepare.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=prepare, args=(run_config(), tell))
        thread.start()
        assert waiting.wait(60) and not calls
    thread.join(60)
    assert calls == ["random"] and told[0].startswith("waiting for another process")


def test_importing_it_imports_nothing_heavy():
    code = "import sys, harness.prepare; print([m for m in ('torch', 'transformers', 'textworld') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
