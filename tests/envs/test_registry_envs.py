from __future__ import annotations

import subprocess
import sys
import types
from importlib.metadata import EntryPoint

import pytest

from core import plugins
from envs import registry
from envs.interface import EnvSpec

READ_ANEW = plugins.offers.__wrapped__  # without the cache


def plugin(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    found = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in points]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found if group == registry.ENTRY_POINT_GROUP else [])
    monkeypatch.setattr(plugins, "offers", READ_ANEW)


def test_builtin_environments_load_and_bear_their_name() -> None:
    for name in registry.names():
        spec = registry.get(name)
        assert isinstance(spec, EnvSpec) and spec.name == name


def test_a_wrong_name_gets_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"env\.name='alfwrold' is unknown; did you mean 'alfworld'\?.*harness\.envs"):
        registry.get("alfwrold")


def test_a_package_adds_an_environment_through_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = registry.get("alfworld")
    other = EnvSpec(
        "kitchen", spec.task_types, spec.panels, spec.capabilities, spec.load_panel, spec.make, spec.prompter
    )
    module = types.ModuleType("some_plugin")
    module.OURS = other  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_plugin", module)
    plugin(monkeypatch, ("kitchen", "some_plugin:OURS"))
    assert registry.names() == tuple(sorted([*registry.BUILTIN, "kitchen"]))
    assert registry.get("kitchen") is other


def test_plugins_that_are_wrong_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("bad_plugin")
    module.NUMBER = 3  # type: ignore[attr-defined]
    module.ALIAS = registry.get("alfworld")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bad_plugin", module)
    plugin(
        monkeypatch,
        ("absent", "no_such_module:SPEC"),
        ("number", "bad_plugin:NUMBER"),
        ("alias", "bad_plugin:ALIAS"),
    )
    with pytest.raises(ValueError, match="cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"):
        registry.get("absent")
    with pytest.raises(ValueError, match="which is a int, not an EnvSpec"):
        registry.get("number")
    with pytest.raises(ValueError, match="calls itself 'alfworld'"):
        registry.get("alias")
    plugin(monkeypatch, ("alfworld", "other:SPEC"))
    assert registry.get("webshop").name == "webshop"
    with pytest.raises(ValueError, match=r"is offered by envs\.alfworld\.spec:SPEC of this project and by other:SPEC"):
        registry.get("alfworld")


def test_specs_are_read_without_anything_heavy() -> None:
    code = (
        "import sys; from envs import registry, panels, pool, cache; from envs.interface import EnvConfig\n"
        "spec = registry.get('alfworld'); spec.metadata['panel_identity'](EnvConfig(), 'train')\n"
        "heavy = {'torch', 'transformers', 'mlflow', 'textworld', 'alfworld', 'pandas', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
